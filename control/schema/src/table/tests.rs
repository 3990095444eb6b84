//! Tables as kubectl would get them.

use serde_json::{Value, json};

use super::*;
use crate::schema::tests::{job, resource};

#[test]
fn custom_columns_follow_the_name_and_show_typed_cells() {
    let now = "2026-01-01T01:30:00Z".parse::<jiff::Timestamp>().expect("time").as_second();
    let table = resource().columns.table(
        [&job()],
        json!({"resourceVersion": "7"}),
        now,
        IncludeObject::Metadata,
    );
    assert_eq!(table["rows"][0]["cells"], json!(["train", "Running", "True", 2, "90m"]));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(table["rows"][0]["object"]["metadata"], job()["metadata"]);
    let names: Vec<&Value> =
        table["columnDefinitions"].as_array().expect("list").iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["Name", "Phase", "Ready", "Retries", "Age"]);
    assert_eq!(table["columnDefinitions"][3]["priority"], 1);
    let mut bare = job();
    bare["status"] = json!({});
    assert_eq!(
        resource().columns.cells(&bare, now),
        [json!("train"), Value::Null, Value::Null, json!(2), json!("90m")]
    );
}

#[test]
fn without_columns_of_its_own_a_kind_shows_its_age() {
    let columns = Columns::of_crd_version(&json!({}));
    let object = json!({"metadata": {"name": "a", "creationTimestamp": "1970-01-01T00:00:00Z"}});
    assert_eq!(columns.cells(&object, 42), [json!("a"), json!("42s")]);
}

#[test]
fn durations_read_as_kubectl_prints_them() {
    let table = [
        (-2, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (11_000, "3h3m"),
        (28_800, "8h"),
        (172_799, "47h"),
        (172_800, "2d"),
        (180_000, "2d2h"),
        (691_200, "8d"),
        (63_072_000, "2y"),
        (63_158_400, "2y1d"),
        (252_288_000, "8y"),
    ];
    for (seconds, text) in table {
        assert_eq!(human_duration(seconds), text, "{seconds}");
    }
}

#[test]
fn paths_reach_labels_with_dots_indices_and_filters() {
    let object = json!({"metadata": {"labels": {"a.b/c": "x"}}, "list": [{"k": "1", "v": "one"}, {"k": "2", "v": "two"}]});
    let first = |path: &str| JsonPath::parse(path).expect(path).first(&object).cloned();
    for path in
        [".metadata.labels['a.b/c']", ".metadata.labels.a\\.b/c", "{.metadata.labels['a\\.b/c']}"]
    {
        assert_eq!(first(path), Some(json!("x")), "{path}");
    }
    assert_eq!(first(".list[1].v"), Some(json!("two")));
    assert_eq!(first(".list[-1].v"), Some(json!("two")));
    assert_eq!(first(".list[?(@.k==\"2\")].v"), Some(json!("two")));
    assert_eq!(first(".list[?(@.k!='1')].v"), Some(json!("two")));
    assert_eq!(first(".list[*].v"), Some(json!("one")));
    assert_eq!(first(".nothing.here"), None);
    for bad in ["", "a", ".a[", ".a..b", ".a[?(k)]"] {
        assert!(JsonPath::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn built_in_kinds_show_kubectls_columns() {
    let cells = |group: &str, plural: &str, object: Value| {
        Columns::builtin(group, plural).cells(&object, 60)
    };
    let meta = json!({"name": "a", "creationTimestamp": "1970-01-01T00:00:00Z"});
    assert_eq!(
        cells(
            "",
            "secrets",
            json!({"metadata": meta, "type": "Opaque", "data": {"a": "", "b": ""}})
        ),
        [json!("a"), json!("Opaque"), json!(2), json!("60s")]
    );
    assert_eq!(
        cells("", "namespaces", json!({"metadata": meta, "status": {"phase": "Active"}})),
        [json!("a"), json!("Active"), json!("60s")]
    );
    let event = json!({"metadata": meta, "type": "Normal", "reason": "Made", "message": "made it\n", "count": 3,
        "involvedObject": {"kind": "Job", "name": "j"}, "lastTimestamp": "1970-01-01T00:00:50Z"});
    let row = cells("", "events", event);
    assert_eq!(row[0..4], [json!("10s"), json!("Normal"), json!("Made"), json!("job/j")]);
    assert_eq!((&row[6], &row[8]), (&json!("made it"), &json!(3)));
    for resource in crate::builtin::resources() {
        let row = resource.columns.cells(&json!({"metadata": meta}), 60);
        assert_eq!(row.len(), resource.columns.columns().len(), "{}", resource.plural);
    }
}
