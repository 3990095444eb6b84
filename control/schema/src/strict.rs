//! Decoding of request bodies that also tells which fields stand twice, for strict field validation.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A decoded body.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// Of a repeated field the last one counts.
    pub value: Value,
    /// Paths of fields that stand more than once, in order of appearance.
    pub duplicates: Vec<String>,
}

/// Why a body is no object at all.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("cannot decode JSON: {0}")]
    Json(String),
    #[error("error converting YAML to JSON: {0}")]
    Yaml(String),
}

pub fn decode_json(body: &[u8]) -> Result<Decoded, DecodeError> {
    let mut duplicates = Vec::new();
    let mut decoder = serde_json::Deserializer::from_slice(body);
    let seed = Seed { path: String::new(), duplicates: &mut duplicates };
    let value = seed.deserialize(&mut decoder).map_err(|e| DecodeError::Json(e.to_string()))?;
    decoder.end().map_err(|e| DecodeError::Json(e.to_string()))?;
    Ok(Decoded { value, duplicates })
}

pub fn decode_yaml(body: &[u8]) -> Result<Decoded, DecodeError> {
    let mut duplicates = Vec::new();
    let seed = Seed { path: String::new(), duplicates: &mut duplicates };
    let decoder = serde_yaml::Deserializer::from_slice(body);
    let value = seed.deserialize(decoder).map_err(|e| DecodeError::Yaml(e.to_string()))?;
    Ok(Decoded { value, duplicates })
}

/// The single problems, as warnings say them: `unknown field "spec.foo"`.
pub fn problems(unknown: &[String], duplicates: &[String]) -> Vec<String> {
    let say = |what: &str, path: &String| format!("{what} field {}", crate::error::quote(path));
    let twice = duplicates.iter().map(|path| say("duplicate", path));
    twice.chain(unknown.iter().map(|path| say("unknown", path))).collect()
}

/// `strict decoding error: unknown field "spec.foo", duplicate field "spec.x"`, or none when all is well.
pub fn strict_error(unknown: &[String], duplicates: &[String]) -> Option<String> {
    let all = problems(unknown, duplicates);
    (!all.is_empty()).then(|| format!("strict decoding error: {}", all.join(", ")))
}

struct Seed<'a> {
    path: String,
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let path = format!("{}[{}]", self.path, list.len());
            match seq.next_element_seed(Seed { path, duplicates: &mut *self.duplicates })? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key_seed(KeySeed)? {
            let path =
                if self.path.is_empty() { key.clone() } else { format!("{}.{key}", self.path) };
            if object.contains_key(&key) && !self.duplicates.contains(&path) {
                self.duplicates.push(path.clone());
            }
            let value = map.next_value_seed(Seed { path, duplicates: &mut *self.duplicates })?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// Keys of YAML maps may be numbers or booleans; they become strings.
struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for KeySeed {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, v: &str) -> Result<String, E> {
        Ok(v.to_owned())
    }

    fn visit_string<E>(self, v: String) -> Result<String, E> {
        Ok(v)
    }

    fn visit_bool<E>(self, v: bool) -> Result<String, E> {
        Ok(v.to_string())
    }

    fn visit_i64<E>(self, v: i64) -> Result<String, E> {
        Ok(v.to_string())
    }

    fn visit_u64<E>(self, v: u64) -> Result<String, E> {
        Ok(v.to_string())
    }

    fn visit_f64<E>(self, v: f64) -> Result<String, E> {
        Ok(v.to_string())
    }
}
