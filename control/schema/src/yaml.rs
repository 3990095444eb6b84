//! A JSON value as YAML, for clients that ask for it: keys in order, lists not indented, every string that could be
//! taken for something else in quotes.

use serde_json::Value;

/// The document, with a final line end.
pub fn document(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => object(map, 0, &mut out),
        Value::Array(list) if !list.is_empty() => array(list, 0, &mut out),
        other => {
            scalar(other, &mut out);
            out.push('\n');
        }
    }
    out
}

fn indent(depth: usize, out: &mut String) {
    out.extend(std::iter::repeat_n("  ", depth));
}

/// Entries one per line; the first one stands where the caller has written to.
fn object(map: &serde_json::Map<String, Value>, depth: usize, out: &mut String) {
    for (index, (key, child)) in map.iter().enumerate() {
        if index > 0 {
            indent(depth, out);
        }
        text(key, out);
        out.push(':');
        match child {
            Value::Object(inner) if !inner.is_empty() => {
                out.push('\n');
                indent(depth + 1, out);
                object(inner, depth + 1, out);
            }
            Value::Array(list) if !list.is_empty() => {
                out.push('\n');
                indent(depth, out);
                array(list, depth, out);
            }
            Value::String(own) if is_block(own) => block(own, depth + 1, out),
            other => {
                out.push(' ');
                scalar(other, out);
                out.push('\n');
            }
        }
    }
}

/// Text of several lines that can stand as it is.
fn is_block(own: &str) -> bool {
    own.contains('\n')
        && !own.starts_with([' ', '\n'])
        && own.chars().all(|c| c == '\n' || !c.is_control())
        && own.lines().all(|line| !line.ends_with(' '))
}

/// A literal block, behind a key and its colon.
fn block(own: &str, depth: usize, out: &mut String) {
    let body = own.trim_end_matches('\n');
    out.push_str(match own.len() - body.len() {
        0 => " |-\n",
        1 => " |\n",
        _ => " |+\n",
    });
    let whole = own.strip_suffix('\n').unwrap_or(own);
    for line in whole.split('\n') {
        if !line.is_empty() {
            indent(depth, out);
            out.push_str(line);
        }
        out.push('\n');
    }
}

fn array(list: &[Value], depth: usize, out: &mut String) {
    for (index, item) in list.iter().enumerate() {
        if index > 0 {
            indent(depth, out);
        }
        out.push_str("- ");
        match item {
            Value::Object(inner) if !inner.is_empty() => object(inner, depth + 1, out),
            Value::Array(inner) if !inner.is_empty() => array(inner, depth + 1, out),
            other => {
                scalar(other, out);
                out.push('\n');
            }
        }
    }
}

fn scalar(value: &Value, out: &mut String) {
    match value {
        Value::String(own) => text(own, out),
        other => out.push_str(&other.to_string()),
    }
}

/// Plain where nothing else can be meant; otherwise as JSON writes it, which is YAML too.
fn text(own: &str, out: &mut String) {
    const TAKEN: [&str; 10] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan"];
    let mut chars = own.chars();
    let first = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_' || c == '/');
    let rest = chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':'))
        && !own.ends_with(':');
    let taken = TAKEN.contains(&own.to_ascii_lowercase().as_str());
    if first && rest && !taken {
        out.push_str(own);
    } else {
        out.push_str(&Value::from(own).to_string());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_reads_as_one_writes_it() {
        let value = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "empty": {}, "none": [],
            "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z", "name": "a", "list": [{"b": 1, "c": [true, "yes"]}, "x: y"]},
            "data": {"01": "1", "text": "a\nb"},
        });
        assert_eq!(
            document(&value),
            "apiVersion: v1\ndata:\n  \"01\": \"1\"\n  text: |-\n    a\n    b\nempty: {}\nkind: ConfigMap\nmetadata:\n  creationTimestamp: \"2026-01-01T00:00:00Z\"\n  list:\n  - b: 1\n    c:\n    - true\n    - \"yes\"\n  - \"x: y\"\n  name: a\nnone: []\n"
        );
    }

    #[test]
    fn what_is_written_is_read_back() {
        for value in [
            json!({"a": ["", "~", "-", "1e3", "0x1", "null", "é", "#x", "a b", "tab\t", "\u{1}"], "é:": {"": null}}),
            json!([[1, [2.5, "x"]], {"k": [{"v": []}]}]),
            json!("plain"),
        ] {
            let read: Value = serde_yaml::from_str(&document(&value)).unwrap();
            assert_eq!(read, value);
        }
    }
}
