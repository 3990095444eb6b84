//! `meta.k8s.io/v1` Tables: what `kubectl get` shows.

mod age;
mod builtin;
mod jsonpath;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};

pub use age::{human_duration, since};
pub use jsonpath::{JsonPath, JsonPathError};

/// What of each object goes into its row: `includeObject` of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

impl IncludeObject {
    /// From the query parameter; empty means Metadata, unknown is refused.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Metadata" => Some(Self::Metadata),
            "None" => Some(Self::None),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

/// One column definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    /// `string`, `integer`, `number`, `boolean`, `date`.
    pub ty: String,
    pub format: String,
    pub description: String,
    /// 0 is always shown, more only with `-o wide`.
    pub priority: i64,
}

/// The columns of a kind and how to fill them.
#[derive(Clone, Debug)]
pub struct Columns {
    columns: Vec<Column>,
    cells: Cells,
}

#[derive(Clone, Debug)]
enum Cells {
    /// Name first, then one path per further column; a path that could not be parsed gives empty cells.
    Paths(Vec<Option<JsonPath>>),
    /// Built-in kinds; the second argument is now, in seconds since the epoch.
    Fixed(fn(&Value, i64) -> Vec<Value>),
}

const NAME_TEXT: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
const AGE_TEXT: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

fn name_column() -> Column {
    Column {
        name: "Name".to_owned(),
        ty: "string".to_owned(),
        format: "name".to_owned(),
        description: NAME_TEXT.to_owned(),
        priority: 0,
    }
}

impl Columns {
    /// From one entry of a CRD's `spec.versions`. Without columns of its own a kind shows its age.
    pub fn of_crd_version(version: &Value) -> Self {
        let own = version.get("additionalPrinterColumns").and_then(Value::as_array);
        let mut columns = vec![name_column()];
        let mut paths = Vec::new();
        let text = |column: &Value, key: &str| {
            column.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        for column in own.into_iter().flatten() {
            paths.push(JsonPath::parse(&text(column, "jsonPath")).ok());
            columns.push(Column {
                name: text(column, "name"),
                ty: text(column, "type"),
                format: text(column, "format"),
                description: described(column),
                priority: column.get("priority").and_then(Value::as_i64).unwrap_or(0),
            });
        }
        if paths.is_empty() {
            paths.push(JsonPath::parse(".metadata.creationTimestamp").ok());
            columns.push(Column {
                name: "Age".to_owned(),
                ty: "date".to_owned(),
                description: AGE_TEXT.to_owned(),
                ..Column::default()
            });
        }
        Self { columns, cells: Cells::Paths(paths) }
    }

    /// The columns of a built-in kind, as a kube-apiserver shows it.
    pub fn builtin(group: &str, plural: &str) -> Self {
        builtin::columns(group, plural)
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The cells of one object; `now` in seconds since the epoch.
    pub fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        match &self.cells {
            Cells::Fixed(fill) => fill(object, now),
            Cells::Paths(paths) => {
                let name = object.pointer("/metadata/name").cloned().unwrap_or_default();
                let rest = self.columns.iter().skip(1).zip(paths);
                std::iter::once(name)
                    .chain(rest.map(|(column, path)| cell(column, path, object, now)))
                    .collect()
            }
        }
    }

    fn row(&self, object: &Value, now: i64, include: IncludeObject) -> Value {
        let cells = self.cells(object, now);
        match include {
            IncludeObject::None => json!({"cells": cells, "object": null}),
            IncludeObject::Object => json!({"cells": cells, "object": object}),
            IncludeObject::Metadata => json!({"cells": cells, "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": object.get("metadata"),
            }}),
        }
    }

    fn definitions(&self) -> Value {
        self.columns
            .iter()
            .map(|c| {
                json!({"name": c.name, "type": c.ty, "format": c.format, "description": c.description,
                       "priority": c.priority})
            })
            .collect()
    }

    /// A whole Table. `list_metadata` is the metadata of the list (resourceVersion, continue, remainingItemCount);
    /// for a single object its resourceVersion. `now` in seconds since the epoch.
    pub fn table<'a>(
        &self,
        objects: impl IntoIterator<Item = &'a Value>,
        list_metadata: Value,
        now: i64,
        include: IncludeObject,
    ) -> Value {
        let rows: Vec<Value> =
            objects.into_iter().map(|object| self.row(object, now, include)).collect();
        json!({
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": list_metadata,
            "columnDefinitions": self.definitions(),
            "rows": rows,
        })
    }
}

/// What a column shows, in kube's words where its author says nothing.
fn described(column: &Value) -> String {
    let text = |key: &str| column.get(key).and_then(Value::as_str).unwrap_or_default();
    match text("description") {
        "" => {
            format!("Custom resource definition column (in JSONPath format): {}", text("jsonPath"))
        }
        own => own.to_owned(),
    }
}

fn cell(column: &Column, path: &Option<JsonPath>, object: &Value, now: i64) -> Value {
    let Some(value) = path.as_ref().and_then(|p| p.first(object)) else { return Value::Null };
    match column.ty.as_str() {
        "string" => match value {
            Value::String(text) => Value::from(text.as_str()),
            Value::Null => Value::Null,
            other => Value::from(other.to_string()),
        },
        "integer" => match value {
            Value::Number(n) if n.is_f64() => n.as_f64().map_or(Value::Null, |f| json!(f.trunc())),
            Value::Number(_) => value.clone(),
            _ => Value::Null,
        },
        "number" => {
            if value.is_number() {
                value.clone()
            } else {
                Value::Null
            }
        }
        "boolean" => {
            if value.is_boolean() {
                value.clone()
            } else {
                Value::Null
            }
        }
        "date" => match value.as_str() {
            Some(text) => Value::from(since(text, now)),
            None => Value::Null,
        },
        _ => Value::Null,
    }
}
