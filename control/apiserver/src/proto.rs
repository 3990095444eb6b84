//! Request bodies in Kubernetes' protobuf form, which kubectl and client-go use for built-in kinds.
//!
//! A body is decoded to the JSON it stands for; answers are always JSON, which such clients accept
//! as well. Only the kinds of this server are known (`types`); other messages are refused.

mod types;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use types::{Field, Kind, Message};

/// First bytes of every body.
const MAGIC: &[u8] = b"k8s\0";

/// Why a body is no message of ours.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtoError {
    #[error("provided data does not appear to be a protobuf message, expected prefix k8s\\0")]
    Prefix,
    #[error("the protobuf message ends early or is malformed")]
    Malformed,
    #[error("no kind {api_version} {kind} is known in protobuf form")]
    Unknown { api_version: String, kind: String },
}

/// Decodes `runtime.Unknown` and the object in it.
pub(crate) fn decode(body: &[u8]) -> Result<Value, ProtoError> {
    let mut rest = body.strip_prefix(MAGIC).ok_or(ProtoError::Prefix)?;
    let (mut api_version, mut kind) = (String::new(), String::new());
    let mut raw: &[u8] = &[];
    while let Some((number, wire)) = next(&mut rest)? {
        match (number, wire) {
            (1, Wire::Bytes(mut meta)) => {
                while let Some((number, wire)) = next(&mut meta)? {
                    match (number, wire) {
                        (1, Wire::Bytes(text)) => api_version = string(text)?,
                        (2, Wire::Bytes(text)) => kind = string(text)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let message = types::of_kind(&api_version, &kind).ok_or_else(|| ProtoError::Unknown {
        api_version: api_version.clone(),
        kind: kind.clone(),
    })?;
    let mut object = object(message, raw)?;
    object.insert("apiVersion".to_owned(), Value::from(api_version));
    object.insert("kind".to_owned(), Value::from(kind));
    Ok(Value::Object(object))
}

enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(rest: &mut &[u8]) -> Result<u64, ProtoError> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, tail) = rest.split_first().ok_or(ProtoError::Malformed)?;
        *rest = tail;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(ProtoError::Malformed)
}

fn take<'a>(rest: &mut &'a [u8], length: u64) -> Result<&'a [u8], ProtoError> {
    let length = usize::try_from(length).map_err(|_too_long| ProtoError::Malformed)?;
    let (head, tail) = rest.split_at_checked(length).ok_or(ProtoError::Malformed)?;
    *rest = tail;
    Ok(head)
}

/// The next field; `None` at the end.
fn next<'a>(rest: &mut &'a [u8]) -> Result<Option<(u64, Wire<'a>)>, ProtoError> {
    if rest.is_empty() {
        return Ok(None);
    }
    let tag = varint(rest)?;
    let wire = match tag & 7 {
        0 => Wire::Number(varint(rest)?),
        1 => Wire::Bytes(take(rest, 8)?),
        2 => {
            let length = varint(rest)?;
            Wire::Bytes(take(rest, length)?)
        }
        5 => Wire::Bytes(take(rest, 4)?),
        _ => return Err(ProtoError::Malformed),
    };
    Ok(Some((tag >> 3, wire)))
}

fn string(bytes: &[u8]) -> Result<String, ProtoError> {
    String::from_utf8(bytes.to_vec()).map_err(|_not| ProtoError::Malformed)
}

fn object(message: Message, mut rest: &[u8]) -> Result<Map<String, Value>, ProtoError> {
    let mut map = Map::new();
    while let Some((number, wire)) = next(&mut rest)? {
        let Some(Field { name, kind, repeated, .. }) = message.iter().find(|f| f.number == number)
        else {
            continue;
        };
        match (kind, wire) {
            (Kind::Map(of), Wire::Bytes(entry)) => {
                let (key, value) = entry_of(of, entry)?;
                let own = map.entry(*name).or_insert_with(|| Value::Object(Map::new()));
                if let Some(own) = own.as_object_mut() {
                    own.insert(key, value);
                }
            }
            (kind, wire) => {
                let value = value(kind, &wire)?;
                if *repeated {
                    let list = map.entry(*name).or_insert_with(|| json!([]));
                    if let Some(list) = list.as_array_mut() {
                        list.push(value);
                    }
                } else if !omitted(kind, &value) {
                    map.insert((*name).to_owned(), value);
                }
            }
        }
    }
    Ok(map)
}

/// Go writes empty strings and times of fields that JSON omits.
fn omitted(kind: &Kind, value: &Value) -> bool {
    match kind {
        Kind::Text => value.as_str() == Some(""),
        Kind::Message(_) => value.as_object().is_some_and(Map::is_empty),
        Kind::Time | Kind::MicroTime => value.is_null(),
        _ => false,
    }
}

fn entry_of(kind: &Kind, mut rest: &[u8]) -> Result<(String, Value), ProtoError> {
    let (mut key, mut found) = (String::new(), None);
    while let Some((number, wire)) = next(&mut rest)? {
        match (number, wire) {
            (1, Wire::Bytes(text)) => key = string(text)?,
            (2, wire) => found = Some(value(kind, &wire)?),
            _ => {}
        }
    }
    Ok((key, found.unwrap_or_else(|| Value::from(""))))
}

fn value(kind: &Kind, wire: &Wire<'_>) -> Result<Value, ProtoError> {
    Ok(match (kind, wire) {
        (Kind::Text, Wire::Bytes(bytes)) => Value::from(string(bytes)?),
        (Kind::Bytes, Wire::Bytes(bytes)) => Value::from(BASE64_STANDARD.encode(bytes)),
        (Kind::Bool, Wire::Number(number)) => Value::from(*number != 0),
        // Two's complement: negative numbers come as large ones.
        (Kind::Int, Wire::Number(number)) => Value::from(number.cast_signed()),
        (Kind::Message(message), Wire::Bytes(bytes)) => Value::Object(object(message, bytes)?),
        (Kind::Time, Wire::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%SZ")?,
        (Kind::MicroTime, Wire::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%S%.6fZ")?,
        (Kind::Raw, Wire::Bytes(bytes)) => raw_json(bytes)?,
        _ => return Err(ProtoError::Malformed),
    })
}

/// `FieldsV1`: JSON text in field 1.
fn raw_json(mut rest: &[u8]) -> Result<Value, ProtoError> {
    while let Some((number, wire)) = next(&mut rest)? {
        if let (1, Wire::Bytes(bytes)) = (number, wire) {
            return serde_json::from_slice(bytes).map_err(|_not| ProtoError::Malformed);
        }
    }
    Ok(Value::Null)
}

fn time(mut rest: &[u8], format: &str) -> Result<Value, ProtoError> {
    let (mut seconds, mut nanos) = (0_i64, 0_i64);
    let mut any = false;
    while let Some((number, wire)) = next(&mut rest)? {
        any = true;
        match (number, wire) {
            (1, Wire::Number(number)) => seconds = number.cast_signed(),
            (2, Wire::Number(number)) => nanos = number.cast_signed(),
            _ => {}
        }
    }
    if !any {
        return Ok(Value::Null);
    }
    let nanos = i32::try_from(nanos).map_err(|_too_many| ProtoError::Malformed)?;
    let instant = jiff::Timestamp::new(seconds, nanos).map_err(|_outside| ProtoError::Malformed)?;
    Ok(Value::from(instant.strftime(format).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `kubectl create configmap z --from-literal=a=b`, by hand.
    fn config_map() -> Vec<u8> {
        let mut raw = vec![0x0a, 3, 0x0a, 1, b'z'];
        raw.extend([0x12, 6, 0x0a, 1, b'a', 0x12, 1, b'b']);
        let mut body = MAGIC.to_vec();
        body.extend([0x0a, 15, 0x0a, 2, b'v', b'1', 0x12, 9]);
        body.extend(b"ConfigMap");
        body.push(0x12);
        body.push(u8::try_from(raw.len()).unwrap());
        body.extend(raw);
        body
    }

    #[test]
    fn a_config_map_becomes_its_json() {
        assert_eq!(
            decode(&config_map()).unwrap(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "z"}, "data": {"a": "b"}})
        );
    }

    #[test]
    fn no_prefix_of_a_body_makes_the_decoder_panic() {
        let body = config_map();
        for end in 0..body.len() {
            drop(decode(body.get(..end).unwrap()));
        }
        assert_eq!(decode(b"{}"), Err(ProtoError::Prefix));
    }
}
