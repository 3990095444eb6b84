//! The tree that a schema is kept as.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

/// JSON types of a structural schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    pub fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => return None,
        })
    }
}

/// `x-kubernetes-list-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ListType {
    #[default]
    Atomic,
    Set,
    Map,
}

/// One node of a schema.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent keyword of the schema language"
)]
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub ty: Option<Type>,
    pub nullable: bool,
    pub int_or_string: bool,
    pub preserve_unknown: bool,
    pub embedded: bool,
    pub default: Option<Value>,
    pub properties: BTreeMap<String, Self>,
    /// The schema of values of other keys, when there is one.
    pub additional: Option<Box<Self>>,
    /// `additionalProperties: true`.
    pub additional_any: bool,
    pub items: Option<Box<Self>>,
    pub list_type: ListType,
    pub list_map_keys: Vec<String>,
    /// `x-kubernetes-map-type: atomic`.
    pub map_atomic: bool,
    /// `x-kubernetes-patch-merge-key`, for strategic merge patch of built-in kinds.
    pub patch_merge_key: Option<String>,
    /// `x-kubernetes-patch-strategy` contains `merge` (or `retainKeys`).
    pub patch_merge: bool,
    /// Whether this node or one below has rules.
    pub has_rules: bool,
    /// Rarely used checks, boxed to keep plain nodes small.
    pub checks: Option<Box<Checks>>,
}

/// Value checks of a node.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    pub required: Vec<String>,
    pub enumeration: Vec<Value>,
    pub format: Option<String>,
    pub pattern: Option<(String, Regex)>,
    pub minimum: Option<(f64, bool)>,
    pub maximum: Option<(f64, bool)>,
    pub multiple_of: Option<f64>,
    pub min_length: Option<u64>,
    pub max_length: Option<u64>,
    pub min_items: Option<u64>,
    pub max_items: Option<u64>,
    pub min_properties: Option<u64>,
    pub max_properties: Option<u64>,
    pub unique_items: bool,
    pub all_of: Vec<Node>,
    pub any_of: Vec<Node>,
    pub one_of: Vec<Node>,
    pub not: Option<Box<Node>>,
    pub rules: Vec<super::rules::Rule>,
}

impl Node {
    /// Whether unknown fields of objects described by this node are kept.
    pub fn keeps_unknown(&self) -> bool {
        self.preserve_unknown || self.additional_any
    }
}
