//! Defaulting, pruning and validation of a Job-like custom resource.

use serde_json::{Value, json};

use super::*;
use crate::error::{Cause, invalid_message};

pub(crate) fn crd() -> Value {
    serde_json::from_str(include_str!("../../tests/data/job-crd.json")).expect("crd")
}

pub(crate) fn job() -> Value {
    serde_json::from_str(include_str!("../../tests/data/job.json")).expect("job")
}

pub(crate) fn resource() -> crate::Resource {
    resources_of_crd(&crd()).expect("resources").remove(0)
}

fn messages(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut object = job();
    change(&mut object);
    resource().schema.validate(&object).iter().map(ToString::to_string).collect()
}

#[test]
fn a_good_job_is_valid_and_nothing_of_it_is_pruned() {
    let mut object = job();
    let schema = &resource().schema;
    assert_eq!(schema.prune(&mut object), Vec::<String>::new());
    assert_eq!(object, job());
    assert_eq!(schema.validate(&object), vec![]);
}

#[test]
fn errors_say_what_a_kube_apiserver_says() {
    assert_eq!(
        messages(|j| j["spec"]["cidr"] = json!(7)),
        [
            "spec.cidr: Invalid value: \"integer\": spec.cidr in body must be of type string: \"integer\""
        ]
    );
    assert_eq!(
        messages(|j| j["spec"]["cidr"] = json!("10.0.0.0")),
        [
            "spec.cidr: Invalid value: \"10.0.0.0\": spec.cidr in body must be of type cidr: \"10.0.0.0\""
        ]
    );
    assert_eq!(
        messages(|j| j["spec"]["tasks"][0] = json!({"name": "x"})),
        ["spec.tasks[0].role: Required value"]
    );
    assert_eq!(
        messages(|j| j["spec"]["policy"] = json!("x")),
        ["spec.policy: Unsupported value: \"x\": supported values: \"Always\", \"Never\""]
    );
    assert_eq!(
        messages(|j| j["spec"]["domain"] = json!("A")),
        [
            "spec.domain: Invalid value: \"A\": spec.domain in body should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'"
        ]
    );
    assert_eq!(
        messages(|j| j["spec"]["retries"] = json!(11)),
        [
            "spec.retries: Invalid value: 11: spec.retries in body should be less than or equal to 10"
        ]
    );
    assert_eq!(
        messages(|j| j["spec"]["tasks"][1]["name"] = json!("actor")),
        ["spec.tasks[1]: Duplicate value: {\"name\":\"actor\"}"]
    );
    assert_eq!(
        messages(|j| j["spec"]["tags"] = json!(["a", "a"])),
        ["spec.tags[1]: Duplicate value: \"a\""]
    );
    assert_eq!(
        messages(|j| j["spec"]["tasks"] = json!([])),
        ["spec.tasks: Invalid value: 0: spec.tasks in body should have at least 1 items"]
    );
    assert_eq!(
        messages(|j| j["spec"]["domain"] = json!("a".repeat(64))),
        ["spec.domain: Too long: may not be more than 63 bytes"]
    );
    assert_eq!(
        messages(|j| j["status"]["startedAt"] = json!("yesterday")),
        [
            "status.startedAt: Invalid value: \"yesterday\": status.startedAt in body must be of type date-time: \"yesterday\""
        ]
    );
    assert_eq!(messages(|j| j["spec"]["port"] = json!("http")), Vec::<String>::new());
    assert_eq!(messages(|j| j["spec"]["port"] = json!(80)), Vec::<String>::new());
    assert_eq!(messages(|j| j["spec"]["port"] = json!(true)).len(), 1);
    assert_eq!(messages(|j| j["spec"]["note"] = Value::Null), Vec::<String>::new());
    assert_eq!(messages(|j| j["metadata"]["labels"]["team"] = json!(1)).len(), 1);
}

#[test]
fn an_aggregate_names_kind_group_and_object() {
    let object = json!({"apiVersion": "rlinf.io/v1alpha1", "kind": "Job", "metadata": {"name": "x"}, "spec": {}});
    let errors = resource().schema.validate(&object);
    assert_eq!(
        invalid_message("Job", "rlinf.io", "x", &errors),
        "Job.rlinf.io \"x\" is invalid: [spec.domain: Required value, spec.tasks: Required value]"
    );
    assert!(errors.iter().all(|e| e.cause == Cause::Required));
    assert_eq!(
        errors[0].to_cause(),
        json!({"reason": "FieldValueRequired", "message": "Required value", "field": "spec.domain"})
    );
}

#[test]
fn unknown_fields_are_removed_and_named() {
    let mut object = job();
    object["spec"]["foo"] = json!(1);
    object["spec"]["tasks"][1]["bar"] = json!({"a": 1});
    object["spec"]["extra"] = json!({"any": {"thing": [1]}});
    object["spec"]["template"] = json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "n", "odd": 1},
                                        "spec": {"a": "1", "b": 2}});
    object["metadata"]["odd"] = json!(true);
    object["top"] = json!(1);
    let schema = &resource().schema;
    let removed = schema.prune(&mut object);
    assert_eq!(
        removed,
        [
            "metadata.odd",
            "spec.foo",
            "spec.tasks[1].bar",
            "spec.template.metadata.odd",
            "spec.template.spec.b",
            "top"
        ]
    );
    assert_eq!(object["spec"]["extra"], json!({"any": {"thing": [1]}}));
    assert_eq!(object["spec"]["template"]["metadata"], json!({"name": "n"}));
    assert_eq!(schema.prune(&mut object), Vec::<String>::new());
}

#[test]
fn defaults_fill_gaps_and_replace_nulls_that_are_not_allowed() {
    let mut object = json!({"metadata": {"creationTimestamp": null}, "spec": {"retries": null, "note": null,
                            "cidr": null, "tasks": [{"name": "a", "role": "actor"}]}});
    resource().schema.default(&mut object);
    assert_eq!(
        object,
        json!({"metadata": {}, "spec": {"retries": 3, "note": null, "policy": "Never",
               "tasks": [{"name": "a", "role": "actor", "replicas": 1}]}})
    );
}

#[test]
fn a_field_that_must_equal_its_old_self_is_immutable() {
    let mut new = job();
    new["spec"]["cidr"] = json!("10.8.0.0/16");
    let errors = resource().schema.validate_rules(&new, Some(&job()));
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].to_string(), "spec.cidr: Invalid value: \"string\": cidr is immutable");
    assert_eq!(resource().schema.validate_rules(&job(), Some(&job())), vec![]);
}

#[test]
fn a_good_definition_passes_and_yields_its_resource() {
    let mut crd = crd();
    default_crd(&mut crd);
    assert_eq!(validate_crd(&crd, None), vec![]);
    let r = resource();
    assert_eq!(
        (r.api_version().as_str(), r.qualified().as_str()),
        ("rlinf.io/v1alpha1", "jobs.rlinf.io")
    );
    assert_eq!((r.singular.as_str(), r.list_kind.as_str()), ("job", "JobList"));
    assert!(r.status && r.storage && r.namespaced());
    assert_eq!(r.selectable_fields, ["spec.domain"]);
    let status = established_status(&crd, "2026-01-01T00:00:00Z");
    assert_eq!(status["storedVersions"], json!(["v1alpha1"]));
    assert_eq!(status["conditions"][1]["type"], "Established");
}

#[test]
fn definitions_that_are_not_structural_are_refused() {
    let errors = |change: fn(&mut Value)| -> Vec<String> {
        let mut crd = crd();
        default_crd(&mut crd);
        change(&mut crd);
        validate_crd(&crd, None).iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        errors(|c| {
            c["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
                ["domain"] = json!({"description": "no type"});
        }),
        [
            "spec.validation.openAPIV3Schema.properties[spec].properties[domain].type: Required value: must not be empty for specified object fields",
            "spec.selectableFields[0].jsonPath: Invalid value: \".spec.domain\": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed."
        ]
    );
    assert_eq!(
        errors(|c| {
            c["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
                .as_object_mut()
                .expect("map")
                .remove("type");
        }),
        ["spec.validation.openAPIV3Schema.type: Required value: must not be empty at the root"]
    );
    assert_eq!(
        errors(|c| c["metadata"]["name"] = json!("x.y")),
        ["metadata.name: Invalid value: \"x.y\": must be spec.names.plural+\".\"+spec.group"]
    );
    assert_eq!(errors(|c| c["spec"]["scope"] = json!("Galaxy")).len(), 1);
    assert_eq!(errors(|c| c["spec"]["versions"][0]["storage"] = json!(false)).len(), 1);
    assert_eq!(
        errors(|c| {
            c["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["retries"]
                ["default"] = json!("three");
        })
        .len(),
        1
    );
}

mod laws {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-z]{0,4}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            let key = prop_oneof![
                Just("spec".to_owned()),
                Just("tasks".to_owned()),
                Just("name".to_owned()),
                Just("metadata".to_owned()),
                Just("extra".to_owned()),
                "[a-c]".prop_map(|s| s),
            ];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(key, inner, 0..5)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn pruning_twice_is_pruning_once(mut value in any_json()) {
            let schema = resource().schema;
            schema.prune(&mut value);
            let once = value.clone();
            prop_assert!(schema.prune(&mut value).is_empty());
            prop_assert_eq!(once, value);
        }

        #[test]
        fn defaulting_twice_is_defaulting_once(mut value in any_json()) {
            let schema = resource().schema;
            schema.default(&mut value);
            let once = value.clone();
            schema.default(&mut value);
            prop_assert_eq!(once, value);
        }

        #[test]
        fn validation_ends_for_every_value(value in any_json()) {
            let _errors = resource().schema.validate(&value);
        }
    }
}
pub(crate) use laws::any_json;
