//! Sets of field paths and their `fieldsV1` form.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// `f:name`
    Field(String),
    /// `k:{"name":"a"}`: an element of a map list, as canonical JSON.
    Key(String),
    /// `v:"a"`: an element of a set, as canonical JSON.
    Value(String),
    /// `i:0`
    Index(u64),
}

/// Why stored managed fields cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fieldsV1 holds {0:?}, which is no field, key, value or index")]
pub struct FieldsError(pub String);

impl Element {
    fn parse(text: &str) -> Result<Self, FieldsError> {
        let refuse = || FieldsError(text.to_owned());
        let (kind, rest) = text.split_once(':').ok_or_else(refuse)?;
        match kind {
            "f" => Ok(Self::Field(rest.to_owned())),
            "k" => canonical(rest).map(Self::Key).ok_or_else(refuse),
            "v" => canonical(rest).map(Self::Value).ok_or_else(refuse),
            "i" => rest.parse().map(Self::Index).map_err(|_not_a_number| refuse()),
            _ => Err(refuse()),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(json) => format!("k:{json}"),
            Self::Value(json) => format!("v:{json}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }
}

fn canonical(json: &str) -> Option<String> {
    serde_json::from_str::<Value>(json).ok().map(|v| v.to_string())
}

/// As conflicts show it: `.name`, `[name="a"]`, `[="a"]`, `[0]`.
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(json) => {
                let map: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
                let keys: Vec<String> = map.iter().map(|(k, v)| format!("{k}={v}")).collect();
                write!(f, "[{}]", keys.join(","))
            }
            Self::Value(json) => write!(f, "[={json}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A set of paths as a tree. A node is a member itself (`own`), has members below, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    pub(super) own: bool,
    pub(super) children: BTreeMap<Element, Self>,
}

impl FieldSet {
    pub fn is_empty(&self) -> bool {
        !self.own && self.children.values().all(Self::is_empty)
    }

    pub(super) fn child_mut(&mut self, field: &str) -> Option<&mut Self> {
        self.children.get_mut(&Element::Field(field.to_owned()))
    }

    pub(super) fn remove_field(&mut self, field: &str) {
        self.children.remove(&Element::Field(field.to_owned()));
    }

    pub(super) fn keep_only_field(&mut self, field: &str) {
        self.children.retain(|element, _| matches!(element, Element::Field(name) if name == field));
    }

    pub(super) fn without_empty(mut self) -> Self {
        self.children = self
            .children
            .into_iter()
            .filter(|(_, child)| !child.is_empty())
            .map(|(element, child)| (element, child.without_empty()))
            .collect();
        self
    }

    pub fn union(&self, other: &Self) -> Self {
        let mut children = self.children.clone();
        for (element, theirs) in &other.children {
            let merged =
                children.get(element).map_or_else(|| theirs.clone(), |ours| ours.union(theirs));
            children.insert(element.clone(), merged);
        }
        Self { own: self.own || other.own, children }
    }

    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a && b, false)
    }

    pub fn difference(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a && !b, true)
    }

    /// The members that exist in `present`. A path stays when its own value is still there.
    pub(super) fn within(&self, present: &Self) -> Self {
        let children = self.children.iter().filter_map(|(element, ours)| {
            let theirs = present.children.get(element)?;
            // What is a leaf in one and has parts in the other (an emptied map) stays as the owner knows it.
            let kept = if theirs.children.is_empty() && theirs.own {
                Self { own: true, children: BTreeMap::new() }
            } else {
                ours.within(theirs)
            };
            (!kept.is_empty()).then(|| (element.clone(), kept))
        });
        Self { own: self.own, children: children.collect() }
    }

    fn combine(&self, other: &Self, own: fn(bool, bool) -> bool, keep_lone: bool) -> Self {
        let mut children = BTreeMap::new();
        for (element, ours) in &self.children {
            let result = match other.children.get(element) {
                Some(theirs) => ours.combine(theirs, own, keep_lone),
                None if keep_lone => ours.clone(),
                None => continue,
            };
            if !result.is_empty() {
                children.insert(element.clone(), result);
            }
        }
        Self { own: own(self.own, other.own), children }
    }

    /// All members as text, in order.
    pub fn paths(&self) -> Vec<String> {
        let mut all = Vec::new();
        self.collect(String::new(), &mut all);
        all
    }

    fn collect(&self, path: String, all: &mut Vec<String>) {
        if self.own && !path.is_empty() {
            all.push(path.clone());
        }
        for (element, child) in &self.children {
            child.collect(format!("{path}{element}"), all);
        }
    }

    /// The `fieldsV1` JSON.
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        if self.own && !self.children.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (element, child) in &self.children {
            map.insert(element.text(), child.to_json());
        }
        Value::Object(map)
    }

    /// From `fieldsV1` JSON.
    pub fn from_json(json: &Value) -> Result<Self, FieldsError> {
        let mut root = Self::read(json)?;
        root.own = false;
        Ok(root)
    }

    fn read(json: &Value) -> Result<Self, FieldsError> {
        let empty = Map::new();
        let map = json.as_object().unwrap_or(&empty);
        let mut set =
            Self { own: map.is_empty() || map.contains_key("."), children: BTreeMap::new() };
        for (key, child) in map.iter().filter(|(key, _)| *key != ".") {
            set.children.insert(Element::parse(key)?, Self::read(child)?);
        }
        Ok(set)
    }
}
