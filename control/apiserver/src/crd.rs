//! What concerns definitions alone: what an update may not change, and names that clash.

use control_schema::{FieldError, Resource};
use control_store::{Scope, Snapshot};
use serde_json::{Value, json};

use crate::admission::text;
use crate::catalog::{CRDS, Catalog};
use crate::render::now_rfc3339;

/// Keeps the objects of a definition from outliving it.
pub(crate) const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

pub(crate) fn is_definition(resource: &Resource) -> bool {
    (resource.group.as_str(), resource.plural.as_str()) == CRDS
}

/// Scope and names under which objects are stored stay.
pub(crate) fn immutable(new: &Value, old: &Value) -> Vec<FieldError> {
    ["/spec/group", "/spec/scope", "/spec/names/plural", "/spec/names/kind"]
        .iter()
        .filter(|pointer| new.pointer(pointer) != old.pointer(pointer))
        .map(|pointer| {
            let field = pointer.trim_start_matches('/').replace('/', ".");
            let shown = new.pointer(pointer).cloned().unwrap_or_default();
            FieldError::invalid(field, &shown, "field is immutable")
        })
        .collect()
}

/// Settles which of its names a definition (as it will be stored) gets: those that no other definition of its group
/// holds. With a clash it is stored all the same, with conditions that tell, and not served until established.
pub(crate) fn accept_names(catalog: &Catalog, snapshot: &Snapshot, crd: &mut Value) {
    let others = Claimed::by_others(catalog, snapshot, crd);
    let asked = crd.pointer("/spec/names").cloned().unwrap_or_default();
    let held = crd.pointer("/status/acceptedNames").cloned().unwrap_or_default();
    let mut accepted = asked.clone();
    let mut clash = None;
    for (key, reason) in [
        ("plural", "PluralConflict"),
        ("singular", "SingularConflict"),
        ("shortNames", "ShortNamesConflict"),
        ("kind", "KindConflict"),
        ("listKind", "ListKindConflict"),
    ] {
        let taken = others.taken(key, &asked);
        if taken.is_empty() {
            continue;
        }
        let words: Vec<String> =
            taken.iter().map(|name| format!("{name:?} is already in use")).collect();
        let message = match words.as_slice() {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        clash = Some((reason, message));
        if let Some(map) = accepted.as_object_mut() {
            match held.get(key).filter(|_| established(crd)) {
                Some(before) => map.insert(key.to_owned(), before.clone()),
                None if matches!(key, "plural" | "kind") => map.insert(key.to_owned(), json!("")),
                None => map.remove(key),
            };
        }
    }
    let Some((reason, message)) = clash else { return };
    let was_established = established(crd) && others.established_before;
    let now = now_rfc3339();
    let mut conditions = vec![json!({
        "lastTransitionTime": now, "message": message, "reason": reason,
        "status": "False", "type": "NamesAccepted",
    })];
    if !was_established {
        conditions.push(json!({
            "lastTransitionTime": now, "message": "not all names are accepted",
            "reason": "NotAccepted", "status": "False", "type": "Established",
        }));
    } else if let Some(kept) = condition(crd, "Established") {
        conditions.push(kept.clone());
    }
    if let Some(status) = crd.get_mut("status").and_then(Value::as_object_mut) {
        status.insert("acceptedNames".to_owned(), accepted);
        status.insert("conditions".to_owned(), Value::Array(conditions));
    }
}

fn condition<'a>(crd: &'a Value, ty: &str) -> Option<&'a Value> {
    let list = crd.pointer("/status/conditions").and_then(Value::as_array)?;
    list.iter().find(|c| text(c, "/type") == ty)
}

/// Whether objects of a definition are served; one that is being deleted is until they are gone.
pub(crate) fn established(crd: &Value) -> bool {
    condition(crd, "Established").is_some_and(|c| text(c, "/status") == "True")
}

/// The names that are in use in a group.
#[derive(Debug, Default)]
struct Claimed {
    resources: Vec<String>,
    kinds: Vec<String>,
    /// Whether the definition in question was served before this write.
    established_before: bool,
}

impl Claimed {
    fn by_others(catalog: &Catalog, snapshot: &Snapshot, crd: &Value) -> Self {
        let (name, group) = (text(crd, "/metadata/name"), text(crd, "/spec/group"));
        let mut all = Self::default();
        for object in snapshot.iter(&Scope::resource(CRDS.0, CRDS.1, None), None) {
            if object.key.name() == name {
                all.established_before = established(&object.value);
            } else if text(&object.value, "/spec/group") == group {
                all.claim(object.value.pointer("/status/acceptedNames").unwrap_or(&Value::Null));
            }
        }
        for resource in catalog.resources().iter().filter(|r| r.builtin && r.group == group) {
            all.resources.push(resource.plural.clone());
            all.kinds.push(resource.kind.clone());
        }
        all
    }

    fn claim(&mut self, names: &Value) {
        let resources = [text(names, "/plural"), text(names, "/singular")];
        let short = names.get("shortNames").and_then(Value::as_array);
        let short = short.into_iter().flatten().filter_map(Value::as_str);
        self.resources.extend(resources.into_iter().chain(short).map(str::to_owned));
        self.kinds.extend([text(names, "/kind"), text(names, "/listKind")].map(str::to_owned));
    }

    /// Which of the names under `key` are in use.
    fn taken(&self, key: &str, names: &Value) -> Vec<String> {
        let used = if key.to_lowercase().ends_with("kind") { &self.kinds } else { &self.resources };
        let asked = match names.get(key) {
            Some(Value::String(one)) => vec![one.clone()],
            Some(Value::Array(several)) => {
                several.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        asked.into_iter().filter(|name| !name.is_empty() && used.contains(name)).collect()
    }
}
