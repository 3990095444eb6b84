//! The subset of kubectl's JSONPath that printer columns and `scale` paths use.

use serde_json::Value;

/// Why a path cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("JSON path {path:?} cannot be parsed at byte {at}")]
pub struct JsonPathError {
    pub path: String,
    pub at: usize,
}

/// A parsed path, such as `.status.conditions[?(@.type=="Ready")].status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(i64),
    All,
    Filter { keys: Vec<String>, equal: bool, value: String },
}

impl JsonPath {
    /// Parses `.a.b`, `.a\.b`, `['a.b']`, `[0]`, `[-1]`, `[*]`, `[?(@.k=="v")]`, with or without `{}` and `$` around.
    pub fn parse(path: &str) -> Result<Self, JsonPathError> {
        let trimmed =
            path.trim().trim_start_matches('{').trim_end_matches('}').trim_start_matches('$');
        let mut steps = Vec::new();
        let mut rest = trimmed;
        let fail = |rest: &str| JsonPathError {
            path: path.to_owned(),
            at: path.len().saturating_sub(rest.len()),
        };
        if trimmed.is_empty() {
            return Err(fail(trimmed));
        }
        while !rest.is_empty() {
            if let Some(tail) = rest.strip_prefix('[') {
                let end = bracket_end(tail).ok_or_else(|| fail(rest))?;
                let inner = tail.get(..end).unwrap_or_default().trim();
                steps.push(bracket(inner).ok_or_else(|| fail(rest))?);
                rest = tail.get(end + 1..).unwrap_or_default();
            } else if let Some(tail) = rest.strip_prefix('.') {
                let (key, used) = key(tail);
                match key.as_str() {
                    "" if tail.starts_with('[') => {}
                    "" => return Err(fail(rest)),
                    "*" => steps.push(Step::All),
                    _ => steps.push(Step::Key(key)),
                }
                rest = tail.get(used..).unwrap_or_default();
            } else {
                return Err(fail(rest));
            }
        }
        Ok(Self { steps })
    }

    /// Everything the path selects.
    pub fn select<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![value];
        for step in &self.steps {
            found = found.into_iter().flat_map(|value| step.select(value)).collect();
        }
        found
    }

    /// The first selected value.
    pub fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.select(value).into_iter().next()
    }
}

impl Step {
    fn select<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Self::Key(key) => value.get(key).into_iter().collect(),
            Self::Index(index) => {
                let Some(list) = value.as_array() else { return Vec::new() };
                let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
                let at = if *index < 0 { length + index } else { *index };
                usize::try_from(at).ok().and_then(|at| list.get(at)).into_iter().collect()
            }
            Self::All => match value {
                Value::Array(list) => list.iter().collect(),
                Value::Object(map) => map.values().collect(),
                _ => Vec::new(),
            },
            Self::Filter { keys, equal, value: wanted } => {
                let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
                let holds = |item: &&Value| {
                    let mut at = Some(*item);
                    for key in keys {
                        at = at.and_then(|v| v.get(key));
                    }
                    at.is_some_and(|found| {
                        let shown = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
                        (shown == *wanted) == *equal
                    })
                };
                list.iter().filter(holds).collect()
            }
        }
    }
}

/// A key after a dot, with escaped dots, and the bytes it took.
fn key(text: &str) -> (String, usize) {
    let mut key = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                if let Some((_, c)) = chars.next() {
                    key.push(c);
                }
            }
            '.' | '[' => return (key, at),
            c => key.push(c),
        }
    }
    (key, text.len())
}

/// The place of the `]` that ends a bracket, quotes respected.
fn bracket_end(text: &str) -> Option<usize> {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, ']') => return Some(at),
            (None, '\'' | '"') => quote = Some(c),
            (Some(q), c) if q == c => quote = None,
            _ => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Option<Step> {
    if inner == "*" {
        return Some(Step::All);
    }
    if let Some(quoted) = unquote(inner) {
        return Some(Step::Key(quoted.replace("\\.", ".")));
    }
    if let Some(filter) = inner.strip_prefix("?(").and_then(|f| f.strip_suffix(')')) {
        let (equal, at) = match (filter.find("=="), filter.find("!=")) {
            (Some(at), None) => (true, at),
            (None, Some(at)) => (false, at),
            (Some(eq), Some(ne)) => (eq < ne, eq.min(ne)),
            (None, None) => return None,
        };
        let (left, right) = filter.split_at(at);
        let keys = left.trim().strip_prefix("@.")?.split('.').map(str::to_owned).collect();
        let right = right.get(2..)?.trim();
        let value = unquote(right).unwrap_or(right).to_owned();
        return Some(Step::Filter { keys, equal, value });
    }
    inner.parse().ok().map(Step::Index)
}

fn unquote(text: &str) -> Option<&str> {
    ['\'', '"'].iter().find_map(|q| text.strip_prefix(*q)?.strip_suffix(*q))
}
