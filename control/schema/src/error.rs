//! Field errors with the texts and reasons of a kube-apiserver, and how a list of them is rendered in a Status.

use std::fmt;

use serde_json::{Value, json};

/// Why a field is refused; the reason string of a `StatusCause`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    TypeInvalid,
    Internal,
}

impl Cause {
    /// The `reason` of a Status cause.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Internal => "InternalError",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }
}

/// One refused field. `Display` gives `field: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    pub cause: Cause,
    /// Such as `spec.tasks[0].role`; `<nil>` for the root, as kube says it.
    pub field: String,
    /// The part after the field, such as `Required value` or `Invalid value: "x": must be …`.
    pub message: String,
}

impl FieldError {
    fn with_value(cause: Cause, field: impl Into<String>, value: &Value, detail: &str) -> Self {
        let mut message = format!("{}: {}", cause.text(), shown(value));
        push_detail(&mut message, detail);
        Self { cause, field: root_name(field.into()), message }
    }

    fn without_value(cause: Cause, field: impl Into<String>, detail: &str) -> Self {
        let mut message = cause.text().to_owned();
        push_detail(&mut message, detail);
        Self { cause, field: root_name(field.into()), message }
    }

    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::with_value(Cause::Invalid, field, value, detail)
    }

    pub fn type_invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::with_value(Cause::TypeInvalid, field, value, detail)
    }

    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::without_value(Cause::Required, field, detail)
    }

    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::without_value(Cause::Forbidden, field, detail)
    }

    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self::with_value(Cause::Duplicate, field, value, "")
    }

    /// `supported` are shown quoted when strings, as JSON else.
    pub fn not_supported<'a>(
        field: impl Into<String>,
        value: &Value,
        supported: impl IntoIterator<Item = &'a Value>,
    ) -> Self {
        let list: Vec<String> = supported
            .into_iter()
            .map(|v| v.as_str().map_or_else(|| quote(&v.to_string()), quote))
            .collect();
        let detail = if list.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", list.join(", "))
        };
        Self::with_value(Cause::NotSupported, field, value, &detail)
    }

    /// `max` in bytes.
    pub fn too_long(field: impl Into<String>, max: u64) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        Self::without_value(Cause::TooLong, field, &format!("may not be more than {max} {unit}"))
    }

    pub fn too_many(field: impl Into<String>, actual: usize, max: u64) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        Self::with_value(
            Cause::TooMany,
            field,
            &json!(actual),
            &format!("must have at most {max} {unit}"),
        )
    }

    /// The entry of `Status.details.causes`.
    pub fn to_cause(&self) -> Value {
        json!({"reason": self.cause.reason(), "message": self.message, "field": self.field})
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

fn root_name(field: String) -> String {
    if field.is_empty() { "<nil>".to_owned() } else { field }
}

fn push_detail(message: &mut String, detail: &str) {
    if !detail.is_empty() {
        message.push_str(": ");
        message.push_str(detail);
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(s) => quote(s),
        other => other.to_string(),
    }
}

/// A string as Go's `%q` shows it (JSON escapes are close enough: they differ only in rare control characters).
pub(crate) fn quote(s: &str) -> String {
    Value::from(s).to_string()
}

/// All causes, for `Status.details.causes`.
pub fn causes(errors: &[FieldError]) -> Vec<Value> {
    errors.iter().map(FieldError::to_cause).collect()
}

/// Errors as kube's aggregate shows them: one bare, several as `[a, b]`, the same text once.
pub fn aggregate(errors: &[FieldError]) -> String {
    let mut seen: Vec<String> = Vec::with_capacity(errors.len());
    for error in errors {
        let text = error.to_string();
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    match seen.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// The message of an `Invalid` Status: `Job.rlinf.io "x" is invalid: spec.a: Required value`.
pub fn invalid_message(kind: &str, group: &str, name: &str, errors: &[FieldError]) -> String {
    let dot = if group.is_empty() { "" } else { "." };
    let head = format!("{kind}{dot}{group} {} is invalid", quote(name));
    if errors.is_empty() { head } else { format!("{head}: {}", aggregate(errors)) }
}
