//! Between the form an object is stored in and the version a client asked for. Pure.
//!
//! Versions of a custom resource differ in `apiVersion` alone (conversion strategy `None`); events
//! exist in two groups with different field names.

use std::borrow::Cow;

use control_schema::Resource;
use control_store::Object;
use serde_json::{Value, json};

use crate::catalog::is_new_event;

/// Core name, `events.k8s.io` name.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// A stored value as a client of `resource` sees it.
pub(crate) fn served<'a>(resource: &Resource, stored: &'a Value) -> Cow<'a, Value> {
    if is_served_form(resource, stored) {
        return Cow::Borrowed(stored);
    }
    let mut value = stored.clone();
    set_api_version(&mut value, &resource.api_version());
    if is_new_event(resource) {
        rename(&mut value, EVENT_FIELDS);
    }
    Cow::Owned(value)
}

fn is_served_form(resource: &Resource, stored: &Value) -> bool {
    let Some(version) = stored.get("apiVersion").and_then(Value::as_str) else { return false };
    match version.split_once('/') {
        Some((group, version)) => group == resource.group && version == resource.version,
        None => resource.group.is_empty() && version == resource.version,
    }
}

/// The JSON of an object as a client of `resource` sees it; what is stored, mostly.
pub(crate) fn served_json<'a>(resource: &Resource, object: &'a Object) -> Cow<'a, [u8]> {
    match served(resource, &object.value) {
        Cow::Borrowed(_) => Cow::Borrowed(&object.json),
        Cow::Owned(value) => Cow::Owned(value.to_string().into_bytes()),
    }
}

/// A client's value in the form that is stored.
pub(crate) fn stored(resource: &Resource, storage_api_version: &str, mut value: Value) -> Value {
    if is_new_event(resource) {
        rename(&mut value, EVENT_FIELDS.map(|(core, new)| (new, core)));
        set_api_version(&mut value, "v1");
    } else {
        set_api_version(&mut value, storage_api_version);
    }
    value
}

fn set_api_version(value: &mut Value, version: &str) {
    if let Some(map) = value.as_object_mut() {
        map.insert("apiVersion".to_owned(), Value::from(version));
    }
}

fn rename(value: &mut Value, names: [(&str, &str); 7]) {
    let Some(map) = value.as_object_mut() else { return };
    for (from, to) in names {
        if let Some(field) = map.remove(from) {
            map.insert(to.to_owned(), field);
        }
    }
}

/// Only the metadata, for clients that cache nothing else.
pub(crate) fn partial(value: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": value.get("metadata"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_object_in_two_groups() {
        let new = control_schema::builtin::resource("events.k8s.io", "events").unwrap();
        let sent = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "regarding": {"name": "a"}, "note": "hello", "reportingController": "c",
        });
        let kept = stored(new, "v1", sent.clone());
        assert_eq!(kept.get("apiVersion"), Some(&json!("v1")));
        assert_eq!(kept.get("message"), Some(&json!("hello")));
        assert_eq!(*served(new, &kept), sent);
    }
}
