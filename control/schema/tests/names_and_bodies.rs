//! Names with kube's texts, and strict decoding of bodies.

use control_schema::names::{NameRule, generate_name, validate_metadata};
use control_schema::strict::{decode_json, decode_yaml, strict_error};
use serde_json::json;

#[test]
fn names_are_refused_with_kubes_texts() {
    let check = |object| -> Vec<String> {
        validate_metadata(&object, NameRule::Subdomain, true)
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    assert_eq!(
        check(json!({"metadata": {"name": "A_b", "namespace": "default"}})),
        [
            "metadata.name: Invalid value: \"A_b\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        ]
    );
    assert_eq!(
        check(json!({"metadata": {"namespace": "default"}})),
        ["metadata.name: Required value: name or generateName is required"]
    );
    assert_eq!(
        check(
            json!({"metadata": {"name": "a", "namespace": "n", "labels": {"a/b/c": "x", "k": "-"}}})
        )
        .len(),
        2
    );
    assert!(NameRule::PathSegment.check("system:masters").is_empty());
    assert_eq!(NameRule::PathSegment.check("a/b"), ["may not contain '/'"]);
    assert!(!NameRule::Label.check("a.b").is_empty());
    assert!(
        NameRule::Subdomain
            .check(&"a".repeat(254))
            .contains(&"must be no more than 253 bytes".to_owned())
    );
}

#[test]
fn generated_names_have_five_letters_and_fit() {
    let mut next = 0;
    let name = generate_name("job-", |n| {
        next += 7;
        next % n
    });
    assert!(name.starts_with("job-") && name.len() == 9);
    assert_eq!(generate_name(&"a".repeat(80), |_| 0).len(), 63);
}

#[test]
fn repeated_fields_are_found_in_json_and_yaml() {
    let json =
        decode_json(br#"{"spec":{"x":1,"x":2,"l":[{"a":1,"a":2}]},"spec2":{}}"#).expect("decodes");
    assert_eq!(json.duplicates, ["spec.x", "spec.l[0].a"]);
    assert_eq!(json.value["spec"]["x"], 2);
    let yaml = decode_yaml(b"spec:\n  x: 1\n  x: 2\n  t: yes\n  n: 0x10\n").expect("decodes");
    assert_eq!(yaml.duplicates, ["spec.x"]);
    assert_eq!(
        strict_error(&["spec.foo".to_owned()], &yaml.duplicates).as_deref(),
        Some("strict decoding error: duplicate field \"spec.x\", unknown field \"spec.foo\"")
    );
    assert_eq!(strict_error(&[], &[]), None);
    assert!(
        decode_json(b"{").is_err()
            && decode_json(b"{} x").is_err()
            && decode_yaml(b"a: [").is_err()
    );
    let plain = serde_json::to_vec(&json!({"a": [1, 2.5, null, true, "s"]})).expect("json");
    assert_eq!(
        decode_json(&plain).expect("decodes").value,
        json!({"a": [1, 2.5, null, true, "s"]})
    );
}
