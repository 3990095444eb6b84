use serde_json::json;

use super::*;

const NS: &str = "rlark-site-a";

fn machine() -> NodeRef {
    "site-a/n1".parse().unwrap()
}

fn the_task(node: &str) -> Value {
    json!({
        "apiVersion": "rlinf.io/v1alpha1", "kind": "Task",
        "metadata": {
            "name": "j-a", "namespace": NS, "uid": "u1", "resourceVersion": "7",
            "labels": {"rlinf.io/job": "j"}, "annotations": {"rlark.io/node": node},
            "finalizers": ["example.com/keep"],
        },
        "spec": {"agentType": "Raw", "domain": "d", "role": "Actor"},
    })
}

fn the_pod() -> Value {
    json!({
        "apiVersion": "rlinf.io/v1alpha1", "kind": "Pod",
        "metadata": {
            "name": "u1", "namespace": NS, "labels": {"rlinf.io/job": "j"},
            "ownerReferences": [{"apiVersion": "rlinf.io/v1alpha1", "kind": "Task", "name": "j-a", "uid": "u1"}],
        },
        "spec": {
            "domain": "d", "taskNamespace": NS, "taskName": "j-a",
            "podNamespace": "rlark-system", "podName": "j-a-0",
        },
    })
}

/// Sets one field, by its JSON pointer.
fn with(mut value: Value, pointer: &str, to: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = value.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    parent.insert(key.replace("~1", "/"), to);
    value
}

/// The field that is refused; empty when the object is not the agent's at all, none when allowed.
fn field(what: &str, old: Option<&Value>, new: Option<&Value>, task: &Value) -> Option<String> {
    let (resource, subresource) = what.split_once('/').unwrap_or((what, ""));
    let group = if resource == "leases" { "coordination.k8s.io" } else { "rlinf.io" };
    let name = text(new.or(old).unwrap(), "/metadata/name");
    let find = |_: &str, _: &str, name: &str| (name == "j-a").then(|| task.clone());
    let write = Write { group, resource, subresource, namespace: NS, name, old, new, find: &find };
    check(&machine(), &write).err().map(|refused| refused.field)
}

#[test]
fn of_a_task_an_agent_changes_its_finalizer_and_nothing_else() {
    let old = the_task("n1");
    let change = |pointer: &str, to: Value| {
        field("tasks", Some(&old), Some(&with(old.clone(), pointer, to)), &old)
    };
    let keep = "example.com/keep";
    assert_eq!(change("/metadata/finalizers", json!([keep, AGENT_CLEANUP])), None);
    for (pointer, to, refused) in [
        ("/metadata/finalizers", json!([AGENT_CLEANUP]), "metadata.finalizers"),
        ("/metadata/finalizers", json!([keep, "x/y"]), "metadata.finalizers"),
        ("/spec/domain", json!("secret"), "spec.domain"),
        ("/spec/raw", json!({"entrypoint": ["x"]}), "spec.raw"),
        ("/metadata/labels", json!({"rlinf.io/job": "other"}), "metadata.labels"),
        ("/metadata/annotations", json!(null), "metadata.annotations"),
        ("/metadata/ownerReferences", json!([{"uid": "x"}]), "metadata.ownerReferences"),
        ("/spec", json!("x"), "spec.agentType"),
    ] {
        assert_eq!(change(pointer, to).as_deref(), Some(refused), "{pointer}");
    }
    let status = with(old.clone(), "/status", json!({"phase": "Running"}));
    assert_eq!(field("tasks/status", Some(&old), Some(&status), &old), None);
    assert!(field("tasks", None, Some(&old), &old).is_some(), "it makes none");
    assert!(field("tasks", Some(&old), None, &old).is_some(), "it deletes none");
}

#[test]
fn a_task_of_another_machine_is_not_touched_at_all() {
    for other in [the_task("n2"), the_task("")] {
        let status = with(other.clone(), "/status", json!({"phase": "Failed"}));
        let said = field("tasks/status", Some(&other), Some(&status), &other);
        assert_eq!(said.as_deref(), Some(NODE_OF_TASK));
        let freed = with(other.clone(), "/metadata/finalizers", json!([AGENT_CLEANUP]));
        assert_eq!(
            field("tasks", Some(&other), Some(&freed), &other).as_deref(),
            Some(NODE_OF_TASK)
        );
        let pod = the_pod();
        assert_eq!(field("pods", None, Some(&pod), &other).as_deref(), Some("spec.taskName"));
    }
}

#[test]
fn a_pod_is_what_its_task_implies() {
    let (task, pod) = (the_task("n1"), the_pod());
    assert_eq!(field("pods", None, Some(&pod), &task), None);
    assert_eq!(field("pods", Some(&pod), Some(&pod), &task), None);
    let owner = json!([{"kind": "Job", "name": "j", "uid": "u9"}]);
    for (pointer, to, refused) in [
        ("/spec/domain", json!("secret"), "spec.domain"),
        ("/spec/taskName", json!("none"), "spec.taskName"),
        ("/spec/taskNamespace", json!("rlark-site-b"), "spec.taskNamespace"),
        ("/spec/podName", json!("j-b-0"), "spec.podName"),
        ("/spec/podNamespace", json!("default"), "spec.podNamespace"),
        ("/metadata/name", json!("u2"), "metadata.name"),
        ("/metadata/labels", json!({"rlinf.io/job": "k"}), "metadata.labels[rlinf.io/job]"),
        ("/metadata/ownerReferences", owner, "metadata.ownerReferences"),
        ("/metadata/finalizers", json!(["a/b"]), "metadata.finalizers"),
        ("/metadata/annotations", json!({"a": "b"}), "metadata.annotations"),
    ] {
        let changed = with(pod.clone(), pointer, to);
        let made = field("pods", None, Some(&changed), &task);
        assert_eq!(made.as_deref(), Some(refused), "made with {pointer}");
        if pointer != "/metadata/name" {
            let made = field("pods", Some(&pod), Some(&changed), &task);
            assert_eq!(made.as_deref(), Some(refused), "given {pointer}");
        }
    }
}

#[test]
fn a_pod_says_where_it_runs_and_that_is_here() {
    let (task, pod) = (the_task("n1"), the_pod());
    let at = |node: &str| with(pod.clone(), "/status", json!({"node": node}));
    let write = |old: &Value, new: &Value| field("pods/status", Some(old), Some(new), &task);
    assert_eq!(write(&pod, &at("n1")), None);
    assert_eq!(write(&pod, &at("n2")).as_deref(), Some("status.node"));
    assert_eq!(write(&at("n2"), &at("n1")).as_deref(), Some("status.node"));
    assert_eq!(field("pods", Some(&at("n1")), None, &the_task("n2")), None, "what ran here");
    assert_eq!(field("pods", Some(&at("n2")), None, &task).as_deref(), Some("status.node"));
    assert_eq!(field("pods", Some(&pod), None, &the_task("n2")).as_deref(), Some("spec.taskName"));
}

#[test]
fn a_node_and_a_lease_have_the_machines_name() {
    let task = the_task("n1");
    let node = |name: &str, spec: Value| {
        json!({
            "metadata": {"name": name, "labels": {"a": "b"}}, "spec": spec,
        })
    };
    let own = node("n1", json!({"agentType": "Raw", "unschedulable": false}));
    assert_eq!(field("nodes", None, Some(&own), &task), None);
    let cordoned = node("n1", json!({"agentType": "Raw", "unschedulable": true}));
    let said = field("nodes", Some(&cordoned), Some(&own), &task);
    assert_eq!(said.as_deref(), Some("spec.unschedulable"));
    assert_eq!(field("nodes", Some(&own), None, &task).as_deref(), Some(""));
    let labelled = with(own.clone(), "/metadata/labels", json!({"c": "d"}));
    assert_eq!(field("nodes", Some(&own), Some(&labelled), &task), None);
    let noted = with(own.clone(), "/metadata/annotations", json!({"c": "d"}));
    assert_eq!(
        field("nodes", Some(&own), Some(&noted), &task).as_deref(),
        Some("metadata.annotations")
    );
    for what in ["nodes", "nodes/status", "leases"] {
        let other = node("n2", json!({}));
        let said = field(what, Some(&other), Some(&other), &task);
        assert_eq!(said.as_deref(), Some("metadata.name"), "{what}");
    }
}
