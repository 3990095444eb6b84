//! The cluster roles and bindings that every workspace starts with, by the names people know from Kubernetes.

use serde_json::{Value, json};

const RBAC: &str = "rbac.authorization.k8s.io";

/// Plural and value of each object, in the order of their making.
pub(super) fn first_objects() -> Vec<(&'static str, Value)> {
    let mut all: Vec<(&str, Value)> = roles()
        .into_iter()
        .map(|(name, rules)| ("clusterroles", object("ClusterRole", name, ("rules", rules))))
        .collect();
    for (name, groups) in [
        ("cluster-admin", &["system:masters"][..]),
        ("system:basic-user", &["system:authenticated"]),
        ("system:discovery", &["system:authenticated"]),
        ("system:public-info-viewer", &["system:authenticated", "system:unauthenticated"]),
    ] {
        let subjects: Value = groups
            .iter()
            .map(|group| json!({"apiGroup": RBAC, "kind": "Group", "name": group}))
            .collect();
        let mut binding = object("ClusterRoleBinding", name, ("subjects", subjects));
        if let Some(map) = binding.as_object_mut() {
            let role = json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": name});
            map.insert("roleRef".to_owned(), role);
        }
        all.push(("clusterrolebindings", binding));
    }
    all
}

fn object(kind: &str, name: &str, (key, value): (&str, Value)) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": kind,
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        },
        key: value,
    })
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

fn roles() -> [(&'static str, Value); 7] {
    const READ: [&str; 3] = ["get", "list", "watch"];
    const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];
    let read = [
        rule("", &["configmaps", "events", "namespaces", "serviceaccounts"], &READ),
        rule("events.k8s.io", &["events"], &READ),
        rule("rlinf.io", &["*"], &READ),
    ];
    let write = [
        rule("", &["secrets"], &READ),
        rule("", &["configmaps", "events", "secrets", "serviceaccounts"], &WRITE),
        rule("coordination.k8s.io", &["leases"], &READ),
        rule("coordination.k8s.io", &["leases"], &WRITE),
        rule("rlinf.io", &["*"], &WRITE),
    ];
    let grant = [
        rule(RBAC, &["rolebindings", "roles"], &READ),
        rule(RBAC, &["rolebindings", "roles"], &WRITE),
        rule("authorization.k8s.io", &["localsubjectaccessreviews"], &["create"]),
    ];
    let view: Vec<Value> = read.to_vec();
    let edit: Vec<Value> = view.iter().chain(&write).cloned().collect();
    let admin: Vec<Value> = edit.iter().chain(&grant).cloned().collect();
    let health = ["/healthz", "/livez", "/readyz", "/version", "/version/"];
    let documents = [
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/",
    ];
    [
        ("admin", Value::from(admin)),
        (
            "cluster-admin",
            json!([rule("*", &["*"], &["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}]),
        ),
        ("edit", Value::from(edit)),
        (
            "system:basic-user",
            json!([
                rule(
                    "authorization.k8s.io",
                    &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                    &["create"],
                ),
                rule("authentication.k8s.io", &["selfsubjectreviews"], &["create"]),
            ]),
        ),
        ("system:discovery", json!([{"nonResourceURLs": documents, "verbs": ["get"]}])),
        ("system:public-info-viewer", json!([{"nonResourceURLs": health, "verbs": ["get"]}])),
        ("view", Value::from(view)),
    ]
}
