//! Server-side apply and managed fields: who owns which field, what an apply changes, and where it collides.
//!
//! The semantics are those of `sigs.k8s.io/structured-merge-diff`: structs and maps are merged by key, lists by the
//! list type in the schema, everything without one is owned as a whole.

mod compare;
mod extract;
mod fields;
mod managed;
mod merge;
mod prune;
#[cfg(test)]
mod tests;
mod typed;

use serde_json::{Value, json};

use crate::schema::Node;

pub use compare::changed;
pub use extract::extract;
pub use fields::{Element, FieldSet, FieldsError};
pub use managed::{Entry, Operation, read_managed, write_managed};
pub use typed::problems;

/// Who writes, and how; `now` as RFC 3339.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    pub manager: &'a str,
    pub api_version: &'a str,
    /// Empty for the main resource, else `status` or `scale`.
    pub subresource: &'a str,
    /// Whether the kind is built in: the fields that its schema names are parts of a struct, which is there before
    /// anybody sets a part of it.
    pub built_in: bool,
    pub now: &'a str,
}

/// One field that another manager owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// `"kubectl" using v1`, the text behind `conflict with`.
    pub with: String,
    /// Such as `.spec.tasks[name="a"].image`.
    pub field: String,
}

/// Why an apply is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    #[error("metadata.managedFields must be nil")]
    ManagedFieldsGiven,
    #[error("an applied configuration must be an object")]
    NotAnObject,
}

impl ApplyError {
    /// The entries of `Status.details.causes`.
    pub fn causes(&self) -> Vec<Value> {
        let Self::Conflicts(conflicts) = self else { return Vec::new() };
        conflicts
            .iter()
            .map(|c| {
                json!({"reason": "FieldManagerConflict", "message": format!("conflict with {}", c.with),
                       "field": c.field})
            })
            .collect()
    }
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", one.with, one.field);
    }
    let mut text = format!("Apply failed with {} conflicts:", conflicts.len());
    let mut with = None;
    for conflict in conflicts {
        if with != Some(&conflict.with) {
            let gap = if with.is_some() { "\nconflicts with " } else { " conflicts with " };
            text.push_str(gap);
            text.push_str(&conflict.with);
            text.push(':');
            with = Some(&conflict.with);
        }
        text.push_str("\n- ");
        text.push_str(&conflict.field);
    }
    text
}

/// Applies a configuration. `live` is the stored object or none when it is created. The result carries the new
/// managed fields; equal to `live` when nothing changed (times of entries are kept then).
pub fn apply(
    schema: &Node,
    live: Option<&Value>,
    applied: &Value,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Value, ApplyError> {
    if !applied.is_object() {
        return Err(ApplyError::NotAnObject);
    }
    if applied
        .pointer("/metadata/managedFields")
        .and_then(Value::as_array)
        .is_some_and(|l| !l.is_empty())
    {
        return Err(ApplyError::ManagedFieldsGiven);
    }
    let mut entries = live.map(read_managed).unwrap_or_default();
    let own = owned_part(extract(schema, applied), writer.subresource);
    let empty = json!({});
    let base = live.unwrap_or(&empty);
    let mut merged = base.clone();
    merge::merge(schema, &mut merged, applied);
    let modified = compare::modified(schema, base, &merged);
    settle_conflicts(&mut entries, &modified, writer, force)?;
    let last = managed::take(&mut entries, writer, Operation::Apply);
    if let Some(last) = &last {
        let others = entries.iter().fold(FieldSet::default(), |all, e| all.union(&e.fields));
        prune::remove(schema, &mut merged, &last.fields, &own, &others);
    }
    let time = match &last {
        Some(last) if last.fields == own && same_content(base, &merged) => last.time.clone(),
        _ => writer.now.to_owned(),
    };
    if !own.is_empty() {
        entries.push(Entry::new(writer, Operation::Apply, own, time));
    }
    write_managed(&mut merged, entries);
    Ok(merged)
}

fn settle_conflicts(
    entries: &mut Vec<Entry>,
    modified: &FieldSet,
    writer: &Writer<'_>,
    force: bool,
) -> Result<(), ApplyError> {
    let mut conflicts = Vec::new();
    for entry in entries.iter_mut().filter(|e| !e.is_of(writer, Operation::Apply)) {
        let both = entry.fields.intersection(modified);
        if both.is_empty() {
            continue;
        }
        if force {
            entry.fields = entry.fields.difference(&both);
        } else {
            let with = entry.describe();
            conflicts.extend(
                both.paths().into_iter().map(|field| Conflict { with: with.clone(), field }),
            );
        }
    }
    conflicts.sort_by(|a, b| a.with.cmp(&b.with));
    if !conflicts.is_empty() {
        return Err(ApplyError::Conflicts(conflicts));
    }
    entries.retain(|e| !e.fields.is_empty());
    Ok(())
}

/// Records a create, update or patch: what changed belongs to the writer now, what vanished to nobody. `new` comes with
/// whatever managed fields the client sent, which are ignored except for an empty list, which resets them.
pub fn record_update(schema: &Node, live: Option<&Value>, new: &mut Value, writer: &Writer<'_>) {
    let mut entries = live.map(read_managed).unwrap_or_default();
    let reset = new.pointer("/metadata/managedFields").and_then(Value::as_array);
    if live.is_some()
        && reset.is_some_and(|list| list.is_empty() || list.iter().all(|e| *e == json!({})))
    {
        entries.clear();
    }
    let empty = json!({});
    let base = live.unwrap_or(&empty);
    let mut modified = compare::modified(schema, base, new);
    compare::add_containers(schema, base, new, writer.built_in, &mut modified);
    let modified = owned_part(modified, writer.subresource);
    let present = extract(schema, new);
    let mut last = managed::take(&mut entries, writer, Operation::Update);
    for entry in &mut entries {
        // An update that sets the value an owner has already set is no change and shares nothing.
        entry.fields = entry.fields.difference(&modified).within(&present);
    }
    entries.retain(|e| !e.fields.is_empty());
    let before = last.as_ref().map(|l| l.fields.clone()).unwrap_or_default();
    let mine = before.union(&modified).within(&present);
    if !mine.is_empty() {
        let time = match last.take() {
            Some(last) if last.fields == mine && modified.is_empty() => last.time,
            _ => writer.now.to_owned(),
        };
        entries.push(Entry::new(writer, Operation::Update, mine, time));
    }
    write_managed(new, entries);
}

/// Nobody owns what identifies an object or what the server sets; `status` belongs to its subresource alone.
fn owned_part(mut set: FieldSet, subresource: &str) -> FieldSet {
    set.remove_field("apiVersion");
    set.remove_field("kind");
    if let Some(meta) = set.child_mut("metadata") {
        for name in [
            "name",
            "namespace",
            "generateName",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "uid",
            "generation",
            "managedFields",
            "resourceVersion",
        ] {
            meta.remove_field(name);
        }
    }
    if subresource == "status" {
        set.keep_only_field("status");
    }
    set.without_empty()
}

fn same_content(a: &Value, b: &Value) -> bool {
    let strip = |value: &Value| {
        let mut value = value.clone();
        if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.remove("managedFields");
        }
        value
    };
    strip(a) == strip(b)
}
