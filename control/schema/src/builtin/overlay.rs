//! What kube's Go types say by tags and k8s-openapi's schemas do not carry: merge keys, list types, atomic maps.

use serde_json::{Value, json};

enum Mark {
    /// Strategic merge by this key; server-side apply as a map list.
    Merge(&'static str),
    /// Strategic merge by this key; atomic for server-side apply.
    MergeAtomic(&'static str),
    /// A set of scalars, merged by both.
    Set,
    /// An object that is owned as a whole.
    AtomicMap,
}

use Mark::{AtomicMap, Merge, MergeAtomic, Set};

/// (plural, path of properties, mark). Paths without `[]`: items are entered by themselves.
const MARKS: &[(&str, &str, Mark)] = &[
    ("namespaces", "status.conditions", Merge("type")),
    ("serviceaccounts", "secrets", Merge("name")),
    ("serviceaccounts", "imagePullSecrets", MergeAtomic("name")),
    ("serviceaccounts", "imagePullSecrets[]", AtomicMap),
    ("serviceaccounts", "secrets[]", AtomicMap),
    ("events", "involvedObject", AtomicMap),
    ("events", "related", AtomicMap),
    ("events", "regarding", AtomicMap),
    ("rolebindings", "roleRef", AtomicMap),
    ("rolebindings", "subjects[]", AtomicMap),
    ("clusterrolebindings", "roleRef", AtomicMap),
    ("clusterrolebindings", "subjects[]", AtomicMap),
    ("customresourcedefinitions", "status.conditions", Merge("type")),
];

const META: &[(&str, Mark)] =
    &[("ownerReferences", Merge("uid")), ("ownerReferences[]", AtomicMap), ("finalizers", Set)];

pub(super) fn object_meta(schema: &mut Value) {
    for (path, mark) in META {
        set(schema, path, mark);
    }
}

/// Marks what stands in a kind's own schema, not behind a reference.
pub(super) fn own(plural: &str, schema: &mut Value) {
    for (_, path, mark) in MARKS.iter().filter(|(p, ..)| *p == plural) {
        set(schema, path, mark);
    }
}

pub(super) fn kind(plural: &str, schema: &mut Value) {
    own(plural, schema);
    if let Some(meta) = schema.pointer_mut("/properties/metadata") {
        object_meta(meta);
    }
}

fn set(schema: &mut Value, path: &str, mark: &Mark) {
    let mut pointer = String::new();
    for part in path.split('.') {
        let (name, item) = part.strip_suffix("[]").map_or((part, ""), |name| (name, "/items"));
        pointer.push_str("/properties/");
        pointer.push_str(name);
        pointer.push_str(item);
    }
    let Some(Value::Object(node)) = schema.pointer_mut(&pointer) else { return };
    let mut put = |key: &str, value: Value| node.insert(key.to_owned(), value);
    match mark {
        Merge(key) => {
            put("x-kubernetes-list-type", json!("map"));
            put("x-kubernetes-list-map-keys", json!([key]));
            put("x-kubernetes-patch-merge-key", json!(key));
            put("x-kubernetes-patch-strategy", json!("merge"));
        }
        MergeAtomic(key) => {
            put("x-kubernetes-list-type", json!("atomic"));
            put("x-kubernetes-patch-merge-key", json!(key));
            put("x-kubernetes-patch-strategy", json!("merge"));
        }
        Set => {
            put("x-kubernetes-list-type", json!("set"));
            put("x-kubernetes-patch-strategy", json!("merge"));
        }
        AtomicMap => {
            put("x-kubernetes-map-type", json!("atomic"));
        }
    }
}
