//! What an agent may write, field by field: only objects of its own machine, and of those only what
//! its work needs. RBAC ([`crate::rbac`]) has said before that the verb is allowed on the kind in the
//! agent's namespace; this holds the content against the machine's certificate. Pure.
//!
//! | object | is the machine's own when | an agent may set |
//! |---|---|---|
//! | Task | its annotation `rlark.io/node` names the machine | its finalizer, the status |
//! | Pod | its Task is, and `status.node` is empty or names the machine | labels, owner, spec: as the Task implies; the status |
//! | Node, Lease | it has the machine's name | labels, `spec.agentType`; the status. A Lease: all |
//! | Addon | of the whole site | its finalizer, the status |
//!
//! A Pod's Domain, names and owner are what its Task says, and a Task is nobody's but the control
//! plane's to change: so no agent gives itself an address in a Domain.

use std::collections::BTreeSet;

use control_api::{
    ids::NodeRef,
    labels::{self, AGENT_CLEANUP, SYSTEM_NAMESPACE},
    names::raw_pod_name,
};
use serde_json::{Map, Value};

use crate::authorize::{Refused, Write};

/// Checks one write of `machine`'s agent.
///
/// # Errors
/// The first field that the agent may not set, or why the object is not its own.
pub(crate) fn check(machine: &NodeRef, write: &Write<'_>) -> Result<(), Refused> {
    match (write.group, write.resource) {
        (labels::GROUP, "tasks") => task(machine, write),
        (labels::GROUP, "pods") => pod(machine, write),
        (labels::GROUP, "nodes") => node(machine, write),
        (labels::GROUP, "addons") => only_finalizer_and_status(write),
        ("coordination.k8s.io", "leases") => named_as(machine, write),
        // Told by people and for people; nothing is decided by them.
        ("" | "events.k8s.io", "events") => Ok(()),
        _ => Err(refuse("", "an agent does not write objects of this kind")),
    }
}

fn refuse(field: &str, why: impl Into<String>) -> Refused {
    Refused { field: field.to_owned(), why: why.into() }
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The machine that a Task was given to. Tasks without one (of Kubernetes sites, or made by hand)
/// belong to no agent of a machine.
fn task_is_own(machine: &NodeRef, task: &Value) -> Result<(), Refused> {
    let placed = task.pointer("/metadata/annotations").and_then(|a| a.get(labels::NODE));
    match placed.and_then(Value::as_str).unwrap_or_default() {
        node if node == machine.node.as_str() => Ok(()),
        "" => Err(refuse(NODE_OF_TASK, "the Task was not given to this agent's machine")),
        other => Err(refuse(NODE_OF_TASK, format!("the Task was given to the machine {other:?}"))),
    }
}

const NODE_OF_TASK: &str = "metadata.annotations[rlark.io/node]";

fn task(machine: &NodeRef, write: &Write<'_>) -> Result<(), Refused> {
    match write.old {
        Some(old) => task_is_own(machine, old)?,
        None => return Err(refuse("", "an agent makes no Tasks")),
    }
    only_finalizer_and_status(write)
}

fn only_finalizer_and_status(write: &Write<'_>) -> Result<(), Refused> {
    let (Some(old), Some(new)) = (write.old, write.new) else {
        return Err(refuse("", "an agent neither makes nor deletes such objects"));
    };
    if write.subresource == "status" {
        return Ok(());
    }
    only(old, new, &["metadata.finalizers"], "an agent changes its finalizer and the status only")?;
    let set = |value: &Value| -> BTreeSet<String> {
        let list = value.pointer("/metadata/finalizers").and_then(Value::as_array);
        let all = list.into_iter().flatten().filter_map(Value::as_str);
        all.filter(|f| *f != AGENT_CLEANUP).map(str::to_owned).collect()
    };
    if set(old) != set(new) {
        let why = format!("an agent adds and removes the finalizer {AGENT_CLEANUP} only");
        return Err(refuse("metadata.finalizers", why));
    }
    Ok(())
}

fn named_as(machine: &NodeRef, write: &Write<'_>) -> Result<(), Refused> {
    if write.name == machine.node.as_str() {
        return Ok(());
    }
    let why = format!("an agent writes the object of its own machine, {:?}", machine.node.as_str());
    Err(refuse("metadata.name", why))
}

fn node(machine: &NodeRef, write: &Write<'_>) -> Result<(), Refused> {
    const ALLOWED: &[&str] = &["metadata.labels", "spec.agentType"];
    const WHY: &str = "people keep the rest of a Node; its agent keeps its labels, type and status";
    named_as(machine, write)?;
    match (write.old, write.new) {
        _ if write.subresource == "status" => Ok(()),
        (Some(old), Some(new)) => only(old, new, ALLOWED, WHY),
        // It may come up cordoned.
        (None, Some(new)) => only(&fresh(new, &["unschedulable"]), new, ALLOWED, WHY),
        (_, None) => {
            Err(refuse("", "an agent does not delete its Node, which people may have cordoned"))
        }
    }
}

fn pod(machine: &NodeRef, write: &Write<'_>) -> Result<(), Refused> {
    let own_task = |pod: &Value| -> Result<Value, Refused> {
        let name = text(pod, "/spec/taskName");
        let task = (write.find)(labels::GROUP, "tasks", name)
            .ok_or_else(|| refuse("spec.taskName", format!("there is no Task {name:?}")))?;
        task_is_own(machine, &task)
            .map_err(|refused| Refused { field: "spec.taskName".to_owned(), ..refused })?;
        Ok(task)
    };
    let here = |pod: &Value, empty: bool| match text(pod, "/status/node") {
        "" if empty => Ok(()),
        node if node == machine.node.as_str() => Ok(()),
        other => Err(refuse("status.node", format!("{other:?} is not this agent's machine"))),
    };
    match (write.old, write.new) {
        (Some(old), Some(new)) if write.subresource == "status" => {
            here(old, true)?;
            own_task(old)?;
            here(new, false)
        }
        (Some(old), Some(new)) => {
            here(old, true)?;
            only(old, new, POD_FIELDS, POD_WHY)?;
            as_the_task_says(new, &own_task(new)?, write)
        }
        (None, Some(new)) => {
            only(&fresh(new, &[]), new, POD_FIELDS, POD_WHY)?;
            as_the_task_says(new, &own_task(new)?, write)
        }
        // Its Task may be gone already; then only what ran here is the machine's to remove.
        (Some(old), None) => here(old, true).and_then(|()| match text(old, "/status/node") {
            "" => own_task(old).map(drop),
            _ => Ok(()),
        }),
        (None, None) => Ok(()),
    }
}

const POD_FIELDS: &[&str] = &["metadata.labels", "metadata.ownerReferences", "spec"];
const POD_WHY: &str = "an agent sets labels, owner, spec and status of a Pod";

/// Holds a Pod against its Task: the same Domain, the same Job, no owner but the Task, and the one
/// name that a raw Task's pod has, so that it cannot pass for another's.
fn as_the_task_says(pod: &Value, task: &Value, write: &Write<'_>) -> Result<(), Refused> {
    let (name, uid) = (text(task, "/metadata/name"), text(task, "/metadata/uid"));
    let equal = |field: &str, found: &str, wanted: &str| {
        if found == wanted {
            return Ok(());
        }
        Err(refuse(field, format!("{found:?} is not what the Pod's Task implies: {wanted:?}")))
    };
    equal("spec.taskNamespace", text(pod, "/spec/taskNamespace"), write.namespace)?;
    equal("spec.domain", text(pod, "/spec/domain"), text(task, "/spec/domain"))?;
    if text(task, "/spec/agentType") == "Raw" {
        equal("metadata.name", write.name, uid)?;
        equal("spec.podNamespace", text(pod, "/spec/podNamespace"), SYSTEM_NAMESPACE)?;
        equal("spec.podName", text(pod, "/spec/podName"), &raw_pod_name(name))?;
    }
    let job = |of: &Value| {
        let label = of.pointer("/metadata/labels").and_then(|l| l.get(labels::JOB));
        label.and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let claimed = job(pod);
    if !claimed.is_empty() {
        equal("metadata.labels[rlinf.io/job]", &claimed, &job(task))?;
    }
    let owners = pod.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    for owner in owners.into_iter().flatten() {
        equal("metadata.ownerReferences", text(owner, "/kind"), "Task")?;
        equal("metadata.ownerReferences", text(owner, "/uid"), uid)?;
    }
    Ok(())
}

/// What `new` would be if nobody had set anything: what the server itself fills in, and of the spec
/// what is named.
fn fresh(new: &Value, of_spec: &[&str]) -> Value {
    let take = |part: &str, keys: &[&str]| -> Value {
        let part = new.get(part).and_then(Value::as_object);
        let kept = part.into_iter().flatten().filter(|(key, _)| keys.contains(&key.as_str()));
        Value::Object(kept.map(|(key, value)| (key.clone(), value.clone())).collect())
    };
    let mut value = Map::new();
    for key in ["apiVersion", "kind"] {
        if let Some(same) = new.get(key) {
            value.insert(key.to_owned(), same.clone());
        }
    }
    let own = ["name", "generateName", "namespace", "uid", "creationTimestamp", "generation"];
    value.insert("metadata".to_owned(), take("metadata", &own));
    value.insert("spec".to_owned(), take("spec", of_spec));
    Value::Object(value)
}

/// Refuses the first difference between the two that is not in `allowed` (dotted, two deep at most).
/// Who set what (`managedFields`) is the server's own record.
fn only(old: &Value, new: &Value, allowed: &[&str], why: &str) -> Result<(), Refused> {
    for key in keys(old, new) {
        let (before, after) = (old.get(&key), new.get(&key));
        if same(before, after) || allowed.contains(&key.as_str()) || key == "status" {
            continue;
        }
        let none = Value::Null;
        let (before, after) = (before.unwrap_or(&none), after.unwrap_or(&none));
        let mut told = None;
        for inner in keys(before, after) {
            let field = format!("{key}.{inner}");
            let server =
                matches!(field.as_str(), "metadata.managedFields" | "metadata.resourceVersion");
            if server || allowed.contains(&field.as_str()) {
                continue;
            }
            if !same(before.get(&inner), after.get(&inner)) {
                told = Some(field);
                break;
            }
        }
        if let Some(field) = told {
            return Err(refuse(&field, why));
        }
        if !(before.is_object() || before.is_null()) || !(after.is_object() || after.is_null()) {
            return Err(refuse(&key, why));
        }
    }
    Ok(())
}

/// Absent, null and empty are one and the same to Kubernetes.
fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    let empty = |v: Option<&Value>| match v {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    };
    a == b || (empty(a) && empty(b))
}

fn keys(a: &Value, b: &Value) -> BTreeSet<String> {
    [a, b].into_iter().filter_map(Value::as_object).flat_map(Map::keys).cloned().collect()
}

#[cfg(test)]
mod tests;
