//! `metadata.managedFields`.

use serde_json::{Value, json};

use super::Writer;
use super::fields::FieldSet;

/// How a manager wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub manager: String,
    pub operation: Operation,
    pub api_version: String,
    pub subresource: String,
    /// RFC 3339.
    pub time: String,
    pub fields: FieldSet,
}

impl Entry {
    pub(super) fn new(
        writer: &Writer<'_>,
        operation: Operation,
        fields: FieldSet,
        time: String,
    ) -> Self {
        Self {
            manager: writer.manager.to_owned(),
            operation,
            api_version: writer.api_version.to_owned(),
            subresource: writer.subresource.to_owned(),
            time,
            fields,
        }
    }

    pub(super) fn is_of(&self, writer: &Writer<'_>, operation: Operation) -> bool {
        self.manager == writer.manager
            && self.operation == operation
            && self.api_version == writer.api_version
            && self.subresource == writer.subresource
    }

    /// `"kubectl" with subresource "status" using v1`; those who apply are known by their name alone.
    pub(super) fn describe(&self) -> String {
        let mut text = crate::error::quote(&self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {}", crate::error::quote(&self.subresource)));
        }
        if self.operation == Operation::Update {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }
}

/// Takes out the entry of a writer.
pub(super) fn take(
    entries: &mut Vec<Entry>,
    writer: &Writer<'_>,
    operation: Operation,
) -> Option<Entry> {
    let at = entries.iter().position(|e| e.is_of(writer, operation))?;
    Some(entries.remove(at))
}

/// The entries of an object; unreadable ones are left out.
pub fn read_managed(object: &Value) -> Vec<Entry> {
    let list = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default().iter().filter_map(read).collect()
}

fn read(entry: &Value) -> Option<Entry> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    Some(Entry {
        manager: text("manager"),
        operation: match entry.get("operation")?.as_str()? {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        },
        api_version: text("apiVersion"),
        subresource: text("subresource"),
        time: text("time"),
        fields: FieldSet::from_json(entry.get("fieldsV1")?).ok()?,
    })
}

/// Writes the entries in kube's order: applies first, then by time, then by manager.
pub fn write_managed(object: &mut Value, mut entries: Vec<Entry>) {
    entries.sort_by(|a, b| {
        let rank = |e: &Entry| e.operation == Operation::Update;
        (rank(a), &a.time, &a.manager, &a.api_version, &a.subresource).cmp(&(
            rank(b),
            &b.time,
            &b.manager,
            &b.api_version,
            &b.subresource,
        ))
    });
    let list: Vec<Value> = entries.iter().map(write).collect();
    let Some(object) = object.as_object_mut() else { return };
    let meta = object.entry("metadata").or_insert_with(|| json!({}));
    let Some(meta) = meta.as_object_mut() else { return };
    if list.is_empty() {
        meta.remove("managedFields");
    } else {
        meta.insert("managedFields".to_owned(), Value::Array(list));
    }
}

fn write(entry: &Entry) -> Value {
    let mut json = json!({
        "manager": entry.manager,
        "operation": entry.operation.name(),
        "apiVersion": entry.api_version,
        "time": entry.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": entry.fields.to_json(),
    });
    if let (false, Value::Object(map)) = (entry.subresource.is_empty(), &mut json) {
        map.insert("subresource".to_owned(), Value::from(entry.subresource.as_str()));
    }
    json
}
