//! Server-side apply against the behaviour that the Kubernetes documentation describes.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::schema::tests::{any_json, resource};

fn writer(manager: &str) -> Writer<'_> {
    Writer {
        manager,
        api_version: "rlinf.io/v1alpha1",
        subresource: "",
        built_in: false,
        now: "2026-01-01T00:00:00Z",
    }
}

fn config(spec: Value) -> Value {
    json!({"apiVersion": "rlinf.io/v1alpha1", "kind": "Job", "metadata": {"name": "a"}, "spec": spec})
}

fn applied(
    live: Option<&Value>,
    spec: Value,
    manager: &str,
    force: bool,
) -> Result<Value, ApplyError> {
    apply(resource().schema.root(), live, &config(spec), &writer(manager), force)
}

fn fields_of(object: &Value, manager: &str) -> Vec<String> {
    let entries = read_managed(object);
    entries.iter().filter(|e| e.manager == manager).flat_map(|e| e.fields.paths()).collect()
}

#[test]
fn a_field_set_is_written_as_fields_v1() {
    let set = extract(
        resource().schema.root(),
        &json!({"spec": {"domain": "d", "nodeSelector": {"a": "b"},
        "tags": ["x"], "tasks": [{"name": "t", "role": "actor", "env": [{"name": "E"}]}]}}),
    );
    let wanted = json!({"f:spec": {"f:domain": {}, "f:nodeSelector": {"f:a": {}}, "f:tags": {"v:\"x\"": {}},
        "f:tasks": {"k:{\"name\":\"t\"}": {".": {}, "f:env": {}, "f:name": {}, "f:role": {}}}}});
    assert_eq!(set.to_json(), wanted);
    assert_eq!(FieldSet::from_json(&wanted), Ok(set));
}

#[test]
fn applying_twice_changes_nothing() {
    let spec = json!({"domain": "d", "tasks": [{"name": "t", "role": "actor"}]});
    let once = applied(None, spec.clone(), "a", false).expect("applies");
    let later = Writer { now: "2027-01-01T00:00:00Z", ..writer("a") };
    let twice = apply(resource().schema.root(), Some(&once), &config(spec), &later, false)
        .expect("applies");
    assert_eq!(once, twice);
}

#[test]
fn what_is_no_longer_applied_goes_unless_another_manager_owns_it() {
    let first = applied(
        None,
        json!({"domain": "d", "cidr": "10.0.0.0/8", "nodeSelector": {"a": "1", "b": "2"},
        "tasks": [{"name": "t", "role": "actor"}, {"name": "u", "role": "actor"}]}),
        "a",
        false,
    )
    .expect("applies");
    let shared = applied(Some(&first), json!({"cidr": "10.0.0.0/8"}), "b", false)
        .expect("same value is no conflict");
    let second = applied(
        Some(&shared),
        json!({"domain": "d", "nodeSelector": {"b": "2"},
        "tasks": [{"name": "u", "role": "actor"}]}),
        "a",
        false,
    )
    .expect("applies");
    assert_eq!(
        second["spec"],
        json!({"domain": "d", "cidr": "10.0.0.0/8", "nodeSelector": {"b": "2"},
               "tasks": [{"name": "u", "role": "actor"}]})
    );
    let third = applied(Some(&second), json!({"domain": "d"}), "a", false).expect("applies");
    assert_eq!(third["spec"], json!({"domain": "d", "cidr": "10.0.0.0/8"}));
}

#[test]
fn another_value_is_a_conflict_and_force_takes_the_field() {
    let first = applied(
        None,
        json!({"domain": "d", "tasks": [{"name": "t", "role": "actor", "image": "1"}]}),
        "a",
        false,
    )
    .expect("applies");
    let mine = json!({"tasks": [{"name": "t", "image": "2"}]});
    let error = applied(Some(&first), mine.clone(), "b", false).expect_err("conflict");
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"a\": .spec.tasks[name=\"t\"].image"
    );
    assert_eq!(error.causes()[0]["reason"], "FieldManagerConflict");
    let forced = applied(Some(&first), mine, "b", true).expect("forced");
    assert_eq!(forced["spec"]["tasks"], json!([{"name": "t", "role": "actor", "image": "2"}]));
    assert!(!fields_of(&forced, "a").contains(&".spec.tasks[name=\"t\"].image".to_owned()));
    assert!(fields_of(&forced, "b").contains(&".spec.tasks[name=\"t\"].image".to_owned()));
}

#[test]
fn an_update_takes_what_it_changes_and_frees_what_it_removes() {
    let schema = resource().schema;
    let first =
        applied(None, json!({"domain": "d", "cidr": "10.0.0.0/8", "policy": "Never"}), "a", false)
            .expect("applies");
    let mut new = first.clone();
    new["spec"]["domain"] = json!("e");
    new["spec"].as_object_mut().expect("map").remove("cidr");
    record_update(schema.root(), Some(&first), &mut new, &writer("edit"));
    assert_eq!(fields_of(&new, "edit"), [".spec.domain"]);
    assert_eq!(fields_of(&new, "a"), [".spec.policy"]);
    let error = applied(Some(&new), json!({"domain": "d"}), "a", false).expect_err("conflict");
    assert!(error.to_string().contains("\"edit\" using rlinf.io/v1alpha1: .spec.domain"));
}

#[test]
fn status_belongs_to_its_subresource() {
    let schema = resource().schema;
    let first = applied(None, json!({"domain": "d"}), "a", false).expect("applies");
    let status = Writer { subresource: "status", ..writer("controller") };
    let mut new = first.clone();
    new["status"] = json!({"phase": "Running"});
    record_update(schema.root(), Some(&first), &mut new, &status);
    assert_eq!(fields_of(&new, "controller"), [".status", ".status.phase"]);
    assert_eq!(fields_of(&new, "a"), [".spec.domain"]);
}

#[test]
fn managed_fields_may_not_be_applied_and_an_empty_list_resets_them() {
    let mut with = config(json!({}));
    with["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    let refused = apply(resource().schema.root(), None, &with, &writer("a"), false);
    assert_eq!(refused, Err(ApplyError::ManagedFieldsGiven));
    let first = applied(None, json!({"domain": "d"}), "a", false).expect("applies");
    let mut new = first.clone();
    new["metadata"]["managedFields"] = json!([]);
    record_update(resource().schema.root(), Some(&first), &mut new, &writer("b"));
    assert!(read_managed(&new).is_empty());
}

proptest! {
    #[test]
    fn field_sets_survive_their_json(value in any_json()) {
        let set = extract(resource().schema.root(), &json!({"spec": value}));
        prop_assert_eq!(FieldSet::from_json(&set.to_json()).expect("reads").paths(), set.paths());
    }

    #[test]
    fn set_operations_agree(a in any_json(), b in any_json()) {
        let schema = resource().schema;
        let (a, b) = (extract(schema.root(), &json!({"spec": a})), extract(schema.root(), &json!({"spec": b})));
        let both = a.intersection(&b);
        prop_assert_eq!(a.difference(&b).union(&both).paths(), a.paths());
        prop_assert!(both.difference(&a).paths().is_empty());
        prop_assert_eq!(a.union(&b).paths(), b.union(&a).paths());
    }
}
