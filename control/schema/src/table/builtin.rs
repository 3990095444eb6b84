//! The columns of the built-in kinds, as a kube-apiserver prints them.

use serde_json::{Value, json};

use super::{AGE_TEXT, Cells, Column, Columns, name_column, since};

type Fill = fn(&Value, i64) -> Vec<Value>;

pub(super) fn columns(group: &str, plural: &str) -> Columns {
    let (rest, fill): (&[(&str, &str, i64)], Fill) = match (group, plural) {
        ("", "namespaces") => (&[("Status", "string", 0), ("Age", "string", 0)], namespace),
        ("", "secrets") => {
            (&[("Type", "string", 0), ("Data", "string", 0), ("Age", "string", 0)], secret)
        }
        ("", "configmaps") => (&[("Data", "string", 0), ("Age", "string", 0)], config_map),
        ("", "serviceaccounts") => {
            (&[("Secrets", "string", 0), ("Age", "string", 0)], service_account)
        }
        ("" | "events.k8s.io", "events") => return events(),
        ("coordination.k8s.io", "leases") => {
            (&[("Holder", "string", 0), ("Age", "string", 0)], lease)
        }
        ("rbac.authorization.k8s.io", "roles" | "clusterroles") => {
            (&[("Created At", "date", 0)], created_at)
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            (&[("Created At", "date", 0)], created_at)
        }
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => (
            &[
                ("Role", "string", 0),
                ("Age", "string", 0),
                ("Users", "string", 1),
                ("Groups", "string", 1),
                ("ServiceAccounts", "string", 1),
            ],
            binding,
        ),
        _ => (&[("Age", "date", 0)], name_and_age),
    };
    let mut all = vec![name_column()];
    all.extend(rest.iter().map(column));
    Columns { columns: all, cells: Cells::Fixed(fill) }
}

fn column((name, ty, priority): &(&str, &str, i64)) -> Column {
    let description =
        if matches!(*name, "Age" | "Created At") { AGE_TEXT.to_owned() } else { String::new() };
    Column {
        name: (*name).to_owned(),
        ty: (*ty).to_owned(),
        description,
        priority: *priority,
        ..Column::default()
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn name(object: &Value) -> Value {
    Value::from(text(object, "/metadata/name"))
}

fn age_at(object: &Value, pointer: &str, now: i64) -> Value {
    match text(object, pointer) {
        "" => Value::from("<unknown>"),
        instant => Value::from(since(instant, now)),
    }
}

fn age(object: &Value, now: i64) -> Value {
    age_at(object, "/metadata/creationTimestamp", now)
}

fn count(object: &Value, pointers: &[&str]) -> Value {
    let size = |value: &Value| match value {
        Value::Object(map) => map.len(),
        Value::Array(list) => list.len(),
        _ => 0,
    };
    json!(pointers.iter().filter_map(|p| object.pointer(p)).map(size).sum::<usize>())
}

fn name_and_age(object: &Value, now: i64) -> Vec<Value> {
    vec![name(object), age(object, now)]
}

fn namespace(object: &Value, now: i64) -> Vec<Value> {
    vec![name(object), Value::from(text(object, "/status/phase")), age(object, now)]
}

fn secret(object: &Value, now: i64) -> Vec<Value> {
    vec![
        name(object),
        Value::from(text(object, "/type")),
        count(object, &["/data"]),
        age(object, now),
    ]
}

fn config_map(object: &Value, now: i64) -> Vec<Value> {
    vec![name(object), count(object, &["/data", "/binaryData"]), age(object, now)]
}

fn service_account(object: &Value, now: i64) -> Vec<Value> {
    vec![name(object), count(object, &["/secrets"]), age(object, now)]
}

fn lease(object: &Value, now: i64) -> Vec<Value> {
    vec![name(object), Value::from(text(object, "/spec/holderIdentity")), age(object, now)]
}

fn created_at(object: &Value, _now: i64) -> Vec<Value> {
    vec![name(object), Value::from(text(object, "/metadata/creationTimestamp"))]
}

fn binding(object: &Value, now: i64) -> Vec<Value> {
    let role = format!("{}/{}", text(object, "/roleRef/kind"), text(object, "/roleRef/name"));
    let subjects =
        object.get("subjects").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let of = |kind: &str| {
        let names: Vec<String> = subjects
            .iter()
            .filter(|s| text(s, "/kind") == kind)
            .map(|s| match text(s, "/namespace") {
                "" => text(s, "/name").to_owned(),
                namespace => format!("{namespace}/{}", text(s, "/name")),
            })
            .collect();
        Value::from(names.join(", "))
    };
    vec![
        name(object),
        Value::from(role),
        age(object, now),
        of("User"),
        of("Group"),
        of("ServiceAccount"),
    ]
}

fn events() -> Columns {
    let columns = [
        ("Last Seen", 0),
        ("Type", 0),
        ("Reason", 0),
        ("Object", 0),
        ("Subobject", 1),
        ("Source", 1),
        ("Message", 0),
        ("First Seen", 1),
        ("Count", 1),
        ("Name", 1),
    ];
    let all = columns.iter().map(|(n, priority)| {
        let format = if *n == "Name" { "name" } else { "" };
        Column { format: format.to_owned(), ..column(&(n, "string", *priority)) }
    });
    Columns { columns: all.collect(), cells: Cells::Fixed(event) }
}

/// Both event APIs: events.k8s.io calls the object `regarding`, the message `note`.
fn event(object: &Value, now: i64) -> Vec<Value> {
    let first_of = |pointers: &[&'static str]| {
        pointers.iter().copied().find(|p| !text(object, p).is_empty()).unwrap_or_default()
    };
    let value_of = |pointers: &[&'static str]| Value::from(text(object, first_of(pointers)));
    let seen = |pointers: &[&'static str]| match first_of(pointers) {
        "" => Value::from("<unknown>"),
        pointer => age_at(object, pointer, now),
    };
    let about = if object.get("regarding").is_some() { "regarding" } else { "involvedObject" };
    let target = |key: &str| text(object, &format!("/{about}/{key}")).to_owned();
    let source = [
        text(
            object,
            first_of(&[
                "/source/component",
                "/deprecatedSource/component",
                "/reportingComponent",
                "/reportingController",
            ]),
        ),
        text(object, first_of(&["/source/host", "/deprecatedSource/host", "/reportingInstance"])),
    ];
    let source: Vec<&str> = source.into_iter().filter(|s| !s.is_empty()).collect();
    let times = ["/series/count", "/count", "/deprecatedCount"]
        .iter()
        .find_map(|p| object.pointer(p).and_then(Value::as_i64).filter(|n| *n > 0))
        .unwrap_or(1);
    vec![
        seen(&[
            "/series/lastObservedTime",
            "/lastTimestamp",
            "/deprecatedLastTimestamp",
            "/eventTime",
            "/metadata/creationTimestamp",
        ]),
        value_of(&["/type"]),
        value_of(&["/reason"]),
        Value::from(format!("{}/{}", target("kind").to_lowercase(), target("name"))),
        Value::from(target("fieldPath")),
        Value::from(source.join(", ")),
        Value::from(text(object, first_of(&["/message", "/note"])).trim()),
        seen(&[
            "/firstTimestamp",
            "/deprecatedFirstTimestamp",
            "/eventTime",
            "/metadata/creationTimestamp",
        ]),
        json!(times),
        name(object),
    ]
}
