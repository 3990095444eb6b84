//! Values of expressions.

use std::cmp::Ordering;
use std::sync::Arc;

use serde_json::Value;

#[derive(Clone, Debug)]
pub(super) enum Val {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Str(Arc<str>),
    List(Arc<[Self]>),
    Map(Arc<[(Self, Self)]>),
    /// Nanoseconds.
    Duration(i128),
    /// Nanoseconds since the epoch.
    Timestamp(i128),
    Type(&'static str),
}

impl Val {
    pub(super) fn text(text: &str) -> Self {
        Self::Str(text.into())
    }

    pub(super) fn list(items: Vec<Self>) -> Self {
        Self::List(items.into())
    }

    pub(super) fn of_json(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(truth) => Self::Bool(*truth),
            Value::Number(n) => n
                .as_i64()
                .map(Self::Int)
                .or_else(|| n.as_u64().map(Self::Uint))
                .unwrap_or_else(|| Self::Double(n.as_f64().unwrap_or_default())),
            Value::String(text) => Self::text(text),
            Value::Array(list) => Self::List(list.iter().map(Self::of_json).collect()),
            Value::Object(map) => {
                Self::Map(map.iter().map(|(k, v)| (Self::text(k), Self::of_json(v))).collect())
            }
        }
    }

    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::Str(_) => "string",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Type(_) => "type",
        }
    }

    fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Int(n) => Some(*n as f64),
            Self::Uint(n) => Some(*n as f64),
            Self::Double(n) => Some(*n),
            _ => None,
        }
    }

    fn as_i128(&self) -> Option<i128> {
        match self {
            Self::Int(n) => Some((*n).into()),
            Self::Uint(n) => Some((*n).into()),
            _ => None,
        }
    }

    /// The order of comparable values; numbers of different types compare as numbers.
    pub(super) fn order(&self, other: &Self) -> Option<Ordering> {
        if let (Some(a), Some(b)) = (self.as_i128(), other.as_i128()) {
            return Some(a.cmp(&b));
        }
        if let (Some(a), Some(b)) = (self.as_f64(), other.as_f64()) {
            return a.partial_cmp(&b);
        }
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            (Self::Str(a), Self::Str(b)) => Some(a.cmp(b)),
            (Self::Duration(a), Self::Duration(b)) | (Self::Timestamp(a), Self::Timestamp(b)) => {
                Some(a.cmp(b))
            }
            _ => None,
        }
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &Self) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(k, _)| k == key).map(|(_, value)| value)
    }
}

impl PartialEq for Val {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Type(a), Self::Type(b)) => a == b,
            (Self::List(a), Self::List(b)) => a == b,
            (Self::Map(a), Self::Map(b)) => {
                a.len() == b.len() && a.iter().all(|(key, value)| other.get(key) == Some(value))
            }
            _ => self.order(other) == Some(Ordering::Equal),
        }
    }
}
