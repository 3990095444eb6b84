//! A swagger 2.0 document in the protobuf form of `gnostic` (`openapi.v2.Document`), which kubectl asks for where it
//! finds no v3 document of a kind. Definitions only: no client reads the paths in this form.

use serde_json::{Map, Value};

/// Encodes a document that `super::v2` made.
pub(super) fn document(json: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    out.text(1, json.get("swagger"));
    out.message(2, |info| {
        info.text(1, json.pointer("/info/title"));
        info.text(2, json.pointer("/info/version"));
    });
    out.message(8, |_paths| {});
    out.message(9, |definitions| named_schemas(definitions, json.get("definitions")));
    out.bytes
}

fn named_schemas(out: &mut Writer, schemas: Option<&Value>) {
    for (name, schema) in schemas.and_then(Value::as_object).into_iter().flatten() {
        out.message(1, |entry| {
            entry.string(1, name);
            entry.message(2, |out| write_schema(out, schema));
        });
    }
}

/// Field numbers of `openapi.v2.Schema`.
fn write_schema(out: &mut Writer, schema: &Value) {
    let Some(map) = schema.as_object() else { return };
    for (number, key) in
        [(1, "$ref"), (2, "format"), (3, "title"), (4, "description"), (13, "pattern")]
    {
        out.text(number, map.get(key));
    }
    if let Some(default) = map.get("default") {
        out.message(5, |any| any.string(2, &default.to_string()));
    }
    for (number, key) in [(6, "multipleOf"), (7, "maximum"), (9, "minimum")] {
        if let Some(value) = map.get(key).and_then(Value::as_f64) {
            out.double(number, value);
        }
    }
    for (number, key) in [(8, "exclusiveMaximum"), (10, "exclusiveMinimum"), (16, "uniqueItems")] {
        if map.get(key) == Some(&Value::Bool(true)) {
            out.number(number, 1);
        }
    }
    let sizes = [
        (11, "maxLength"),
        (12, "minLength"),
        (14, "maxItems"),
        (15, "minItems"),
        (17, "maxProperties"),
        (18, "minProperties"),
    ];
    for (number, key) in sizes {
        if let Some(value) = map.get(key).and_then(Value::as_u64) {
            out.number(number, value);
        }
    }
    for name in list(map, "required") {
        out.text(19, Some(name));
    }
    for value in list(map, "enum") {
        out.message(20, |any| any.string(2, &value.to_string()));
    }
    nested(out, map);
    for (key, value) in map.iter().filter(|(key, _)| key.starts_with("x-")) {
        out.message(31, |entry| {
            entry.string(1, key);
            entry.message(2, |any| any.string(2, &value.to_string()));
        });
    }
}

fn nested(out: &mut Writer, map: &Map<String, Value>) {
    match map.get("additionalProperties") {
        Some(Value::Bool(allowed)) => out.message(21, |item| item.number(2, u64::from(*allowed))),
        Some(schema) => {
            out.message(21, |item| item.message(1, |out| write_schema(out, schema)));
        }
        None => {}
    }
    if let Some(ty) = map.get("type") {
        out.message(22, |item| item.text(1, Some(ty)));
    }
    if let Some(items) = map.get("items") {
        out.message(23, |item| item.message(1, |out| write_schema(out, items)));
    }
    for part in list(map, "allOf") {
        out.message(24, |out| write_schema(out, part));
    }
    if map.contains_key("properties") {
        out.message(25, |properties| named_schemas(properties, map.get("properties")));
    }
}

fn list<'a>(map: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = &'a Value> {
    map.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// Protobuf's wire format.
#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            let [low, ..] = value.to_le_bytes();
            self.bytes.push(low | 0x80);
            value >>= 7;
        }
        let [last, ..] = value.to_le_bytes();
        self.bytes.push(last);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.varint(field << 3 | 1);
        self.bytes.extend(value.to_le_bytes());
    }

    fn string(&mut self, field: u64, text: &str) {
        self.varint(field << 3 | 2);
        self.varint(text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    fn text(&mut self, field: u64, value: Option<&Value>) {
        if let Some(text) = value.and_then(Value::as_str) {
            self.string(field, text);
        }
    }

    fn message(&mut self, field: u64, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.varint(field << 3 | 2);
        self.varint(inner.bytes.len() as u64);
        self.bytes.extend(inner.bytes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_is_its_fields_one_after_the_other() {
        let json = json!({
            "swagger": "2.0", "info": {"title": "K", "version": "v"},
            "definitions": {"A": {"type": "object", "required": ["b"]}},
        });
        let mut wanted =
            b"\x0a\x032.0\x12\x06\x0a\x01K\x12\x01v\x42\x00\x4a\x16\x0a\x14\x0a\x01A\x12\x0f"
                .to_vec();
        wanted.extend(b"\x9a\x01\x01b\xb2\x01\x08\x0a\x06object");
        assert_eq!(document(&json), wanted);
    }
}
