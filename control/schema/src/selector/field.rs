//! Field selectors: `metadata.name=x,status.phase!=Running`.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::SelectorError;

/// One term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTerm {
    /// Dotted path.
    pub field: String,
    pub value: String,
    /// `!=`.
    pub negated: bool,
}

/// A parsed selector; the empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    pub terms: Vec<FieldTerm>,
}

impl FieldSelector {
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The value that a field must have, when the selector demands exactly one (`metadata.name=x`).
    pub fn required(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|t| t.field == field && !t.negated).map(|t| t.value.as_str())
    }

    /// Whether an object matches; a missing field counts as empty.
    pub fn matches_object(&self, object: &Value) -> bool {
        self.terms.iter().all(|term| {
            let mut at = Some(object);
            for part in term.field.split('.') {
                at = at.and_then(|value| value.get(part));
            }
            let equal = match at {
                None | Some(Value::Null) => term.value.is_empty(),
                Some(Value::String(text)) => text == &term.value,
                Some(other) => {
                    let shown = other.to_string();
                    shown == term.value
                }
            };
            equal != term.negated
        })
    }
}

impl FromStr for FieldSelector {
    type Err = SelectorError;

    fn from_str(selector: &str) -> Result<Self, SelectorError> {
        let mut terms = Vec::new();
        for term in split(selector) {
            if term.is_empty() {
                continue;
            }
            let refuse =
                || SelectorError::Field { selector: selector.to_owned(), term: term.clone() };
            let (field, value, negated) = operator(&term).ok_or_else(refuse)?;
            let value = unescape(value)?;
            terms.push(FieldTerm { field: field.to_owned(), value, negated });
        }
        Ok(Self { terms })
    }
}

/// Splits at commas that are not escaped.
fn split(selector: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut escaped = false;
    for c in selector.chars() {
        if c == ',' && !escaped {
            terms.push(String::new());
            continue;
        }
        escaped = c == '\\' && !escaped;
        if let Some(last) = terms.last_mut() {
            last.push(c);
        }
    }
    terms
}

fn operator(term: &str) -> Option<(&str, &str, bool)> {
    let at = term.find(['=', '!'])?;
    let (field, rest) = term.split_at(at);
    if let Some(value) = rest.strip_prefix("!=") {
        return Some((field, value, true));
    }
    rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')).map(|value| (field, value, false))
}

fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => text.push(c),
                other => {
                    let tail = other.map(String::from).unwrap_or_default();
                    return Err(SelectorError::Escape(format!("\\{tail}")));
                }
            },
            ',' | '=' => return Err(SelectorError::Unescaped(c)),
            c => text.push(c),
        }
    }
    Ok(text)
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let op = if term.negated { "!=" } else { "=" };
            let value = term.value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
            write!(f, "{comma}{}{op}{value}", term.field)?;
        }
        Ok(())
    }
}
