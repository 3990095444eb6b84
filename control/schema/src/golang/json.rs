//! What `encoding/json` says of a text that is no JSON, or not of the shape it is decoded into.

use serde_json::Value;

/// The decoder's complaint about a body; none when it is valid JSON.
pub fn syntax_error(body: &[u8]) -> Option<String> {
    Scanner { body, at: 0 }.document().err()
}

/// `json: cannot unmarshal array into Go value of type T`, when a value that must be an object is none.
pub fn unmarshal_error(value: &Value, go_type: &str) -> Option<String> {
    let found = kind(value);
    (!value.is_object() && !value.is_null())
        .then(|| format!("json: cannot unmarshal {found} into Go value of type {go_type}"))
}

/// The JSON type of a value as Go's errors name it.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Go's limit of nesting.
const MAX_DEPTH: usize = 10_000;

struct Scanner<'a> {
    body: &'a [u8],
    at: usize,
}

/// What a container expects next; an explicit stack, for nesting must not use the program's own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Object,
    Array,
}

impl Scanner<'_> {
    fn document(&mut self) -> Result<(), String> {
        let mut open = Vec::new();
        loop {
            self.value_start(&mut open)?;
            // After a value: close what ends here, or go on with the next one.
            loop {
                let Some(inside) = open.last().copied() else {
                    return match self.skip() {
                        None => Ok(()),
                        Some(byte) => Err(unexpected(byte, "after top-level value")),
                    };
                };
                let byte = self.skip().ok_or_else(end)?;
                self.at += 1;
                match (inside, byte) {
                    (Open::Object, b'}') | (Open::Array, b']') => {
                        open.pop();
                    }
                    (Open::Array, b',') => break,
                    (Open::Object, b',') => {
                        self.key()?;
                        break;
                    }
                    (Open::Object, other) => {
                        return Err(unexpected(other, "after object key:value pair"));
                    }
                    (Open::Array, other) => return Err(unexpected(other, "after array element")),
                }
            }
        }
    }

    /// Reads until a value is complete that may be followed by a comma: a scalar or an empty container.
    fn value_start(&mut self, open: &mut Vec<Open>) -> Result<(), String> {
        loop {
            let byte = self.skip().ok_or_else(end)?;
            if matches!(byte, b'{' | b'[') && open.len() >= MAX_DEPTH {
                return Err("exceeded max depth".to_owned());
            }
            match byte {
                b'{' => {
                    self.at += 1;
                    if self.skip() == Some(b'}') {
                        self.at += 1;
                        return Ok(());
                    }
                    open.push(Open::Object);
                    self.key()?;
                }
                b'[' => {
                    self.at += 1;
                    if self.skip() == Some(b']') {
                        self.at += 1;
                        return Ok(());
                    }
                    open.push(Open::Array);
                }
                b'"' => return self.string(),
                b'-' | b'0'..=b'9' => return self.number(),
                b't' => return self.literal("true"),
                b'f' => return self.literal("false"),
                b'n' => return self.literal("null"),
                other => return Err(unexpected(other, "looking for beginning of value")),
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    /// The next byte that is no white space.
    fn skip(&mut self) -> Option<u8> {
        while self.peek().is_some_and(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
        self.peek()
    }

    fn key(&mut self) -> Result<(), String> {
        match self.skip().ok_or_else(end)? {
            b'"' => self.string()?,
            other => return Err(unexpected(other, "looking for beginning of object key string")),
        }
        match self.skip().ok_or_else(end)? {
            b':' => {
                self.at += 1;
                Ok(())
            }
            other => Err(unexpected(other, "after object key")),
        }
    }

    fn string(&mut self) -> Result<(), String> {
        self.at += 1;
        loop {
            let byte = self.peek().ok_or_else(end)?;
            self.at += 1;
            match byte {
                b'"' => return Ok(()),
                b'\\' => self.escape()?,
                0..=0x1f => return Err(unexpected(byte, "in string literal")),
                _ => {}
            }
        }
    }

    fn escape(&mut self) -> Result<(), String> {
        let byte = self.peek().ok_or_else(end)?;
        self.at += 1;
        match byte {
            b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => Ok(()),
            b'u' => {
                for _ in 0..4 {
                    let digit = self.peek().ok_or_else(end)?;
                    if !digit.is_ascii_hexdigit() {
                        return Err(unexpected(digit, "in \\u hexadecimal character escape"));
                    }
                    self.at += 1;
                }
                Ok(())
            }
            other => Err(unexpected(other, "in string escape code")),
        }
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
    }

    fn digit(&mut self, context: &str) -> Result<u8, String> {
        let byte = self.peek().ok_or_else(end)?;
        if !byte.is_ascii_digit() {
            return Err(unexpected(byte, context));
        }
        self.at += 1;
        Ok(byte)
    }

    fn number(&mut self) -> Result<(), String> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.digit("in numeric literal")? != b'0' {
            self.digits();
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digit("after decimal point in numeric literal")?;
            self.digits();
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digit("in exponent of numeric literal")?;
            self.digits();
        }
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Result<(), String> {
        for wanted in word.bytes() {
            let byte = self.peek().ok_or_else(end)?;
            if byte != wanted {
                let wanted = char::from(wanted);
                return Err(unexpected(byte, &format!("in literal {word} (expecting '{wanted}')")));
            }
            self.at += 1;
        }
        Ok(())
    }
}

fn end() -> String {
    "unexpected end of JSON input".to_owned()
}

fn unexpected(byte: u8, context: &str) -> String {
    let shown = match byte {
        b'\'' => "'\\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\n' => "'\\n'".to_owned(),
        b'\r' => "'\\r'".to_owned(),
        b'\t' => "'\\t'".to_owned(),
        b'\\' => "'\\\\'".to_owned(),
        0..=0x1f | 0x7f => format!("'\\x{byte:02x}'"),
        // Go takes the byte for a code point.
        0x80..=0x9f => format!("'\\u{:04x}'", u32::from(byte)),
        other => format!("'{}'", char::from(other)),
    };
    format!("invalid character {shown} {context}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_those_of_go() {
        for (body, said) in [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("{bad", "invalid character 'b' looking for beginning of object key string"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 \"b\"}", "invalid character '\"' after object key:value pair"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("{} x", "invalid character 'x' after top-level value"),
            ("nul!", "invalid character '!' in literal null (expecting 'l')"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("\"\\q\"", "invalid character 'q' in string escape code"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
            ("kind: x", "invalid character 'k' looking for beginning of value"),
        ] {
            assert_eq!(syntax_error(body.as_bytes()).as_deref(), Some(said), "{body}");
        }
    }

    #[test]
    fn valid_json_is_no_reason_to_complain_however_deep() {
        for body in ["{}", " [1, {\"a\": [true, null, -0.5e+3]}, \"\\u00e9\"] ", "0"] {
            assert_eq!(syntax_error(body.as_bytes()), None, "{body}");
        }
        let deep = "[".repeat(9_999) + &"]".repeat(9_999);
        assert_eq!(syntax_error(deep.as_bytes()), None);
        let deeper = "[".repeat(1_000_000);
        assert_eq!(syntax_error(deeper.as_bytes()).as_deref(), Some("exceeded max depth"));
    }
}
