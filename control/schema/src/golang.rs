//! Texts that Go programs print and that clients of a kube-apiserver know: errors of `encoding/json` and values as
//! `fmt` shows them. Pure.

mod json;
mod typed;

use serde_json::Value;

pub use json::{kind, syntax_error, unmarshal_error};
pub use typed::{mismatch, unconvertible};

/// A value as `%v` shows it: `map[a:1 b:[x y]]`.
pub fn plain(value: &Value) -> String {
    let mut text = String::new();
    write_plain(value, &mut text);
    text
}

fn write_plain(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::String(text) => out.push_str(text),
        Value::Array(list) => {
            out.push('[');
            for (index, item) in list.iter().enumerate() {
                if index > 0 {
                    out.push(' ');
                }
                write_plain(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push_str("map[");
            for (index, (key, item)) in map.iter().enumerate() {
                if index > 0 {
                    out.push(' ');
                }
                out.push_str(key);
                out.push(':');
                write_plain(item, out);
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// The first bytes of a body as an error about it quotes them.
pub fn summary(body: &[u8]) -> String {
    const MAX: usize = 30;
    let head = body.get(..MAX).unwrap_or(body);
    let more = if body.len() > MAX { " ..." } else { "" };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(head)),
        Some(_) => {
            let hex: String = head.iter().map(|byte| format!("{byte:02x}")).collect();
            hex + more
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_look_as_in_go() {
        let value = json!({"b": ["x", 1, true, null], "a": {"c": 1.5}});
        assert_eq!(plain(&value), "map[a:map[c:1.5] b:[x 1 true <nil>]]");
    }

    #[test]
    fn a_summary_is_short_and_hexadecimal_unless_it_is_an_object() {
        assert_eq!(summary(b""), "<empty>");
        assert_eq!(summary(b"[]"), "5b5d");
        assert_eq!(
            summary(b"{\"kind\":\"ConfigMap\",\"metadata\":{}}"),
            "{\"kind\":\"ConfigMap\",\"metadata\" ..."
        );
    }
}
