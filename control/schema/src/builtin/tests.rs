//! The built-in kinds are complete and their schemas usable.

use serde_json::{Value, json};

use super::*;

#[test]
fn every_kind_has_a_real_schema() {
    for resource in resources() {
        assert!(resource.schema.root().properties.contains_key("metadata"), "{}", resource.kind);
        assert!(!resource.schema.root().preserve_unknown, "{} fell back to any", resource.kind);
    }
    assert_eq!(resources().len(), 19);
}

#[test]
fn objects_of_built_in_kinds_pass_and_their_errors_are_found() {
    let check = |group: &str, plural: &str, mut object: Value| -> Vec<String> {
        let schema = &resource(group, plural).expect("built in").schema;
        schema.default(&mut object);
        let mut all = schema.prune(&mut object);
        all.extend(schema.validate(&object).iter().map(ToString::to_string));
        all
    };
    let meta = json!({"name": "a", "creationTimestamp": null, "managedFields": [{"manager": "m", "operation": "Update",
        "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {".": {}, "f:a": {}}}}]});
    let good = Vec::<String>::new();
    assert_eq!(
        check(
            "",
            "configmaps",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "b"}})
        ),
        good
    );
    assert_eq!(check("", "configmaps", json!({"metadata": meta, "data": {"a": 1}})).len(), 1);
    assert_eq!(check("", "configmaps", json!({"metadata": meta, "dta": {}})), ["dta"]);
    assert_eq!(check("", "secrets", json!({"metadata": meta, "data": {"a": "%"}})).len(), 1);
    let lease = json!({"metadata": meta, "spec": {"holderIdentity": "x", "leaseDurationSeconds": 15,
        "renewTime": "2026-01-01T00:00:00.000000Z"}});
    assert_eq!(check("coordination.k8s.io", "leases", lease), good);
    let role = json!({"metadata": meta, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]});
    assert_eq!(check("rbac.authorization.k8s.io", "roles", role), good);
    assert_eq!(
        check("rbac.authorization.k8s.io", "rolebindings", json!({"metadata": meta})),
        ["roleRef: Required value"]
    );
    let crd = crate::schema::tests::crd();
    assert_eq!(check("apiextensions.k8s.io", "customresourcedefinitions", crd), good);
}
