//! Selectors: parsing, matching, printing.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn labels(text: &str) -> LabelSelector {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn terms_match_as_kubernetes_defines_them() {
    let object =
        json!({"metadata": {"labels": {"app": "ray", "tier": "gpu", "n": "5", "empty": ""}}});
    for yes in [
        "",
        "app=ray",
        "app==ray",
        "app!=x",
        "app in (ray, x)",
        "app notin (x)",
        "app",
        "!none",
        "app,tier",
        "none notin (a)",
        "none!=a",
        "n>4",
        "n<6",
        "empty=",
        "empty in (,x)",
        " app = ray , tier in ( gpu ) ",
    ] {
        assert!(labels(yes).matches_object(&object), "{yes}");
    }
    for no in [
        "app=x",
        "app!=ray",
        "none",
        "!app",
        "app notin (ray)",
        "none in (a)",
        "n>5",
        "app=ray,tier=cpu",
    ] {
        assert!(!labels(no).matches_object(&object), "{no}");
    }
}

#[test]
fn what_is_no_selector_is_refused_with_the_reason() {
    let error = |text: &str| text.parse::<LabelSelector>().expect_err(text).to_string();
    assert_eq!(
        error("a b"),
        "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"
    );
    assert_eq!(error("a in b"), "unable to parse requirement: found 'b' expected: '('");
    assert!(error("a,").contains("expected: identifier after ','"));
    assert!(
        error("-a=b").starts_with(
            "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must"
        )
    );
    assert!(error("a=b c").contains("',' or 'end of string'"));
    assert!(error("a>x").contains("must be an integer"));
    assert!(error("a=(").contains("expected: identifier"));
}

#[test]
fn the_object_form_says_the_same() {
    let selector = LabelSelector::from_object(&json!({"matchLabels": {"app": "ray"},
        "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["cpu"]}]}))
    .expect("parses");
    assert!(selector.matches_object(&json!({"metadata": {"labels": {"app": "ray"}}})));
    assert!(
        !selector.matches_object(&json!({"metadata": {"labels": {"app": "ray", "tier": "cpu"}}}))
    );
    assert!(
        LabelSelector::from_object(&json!({"matchExpressions": [{"key": "a", "operator": "Is"}]}))
            .is_err()
    );
}

#[test]
fn field_selectors_compare_strings_and_know_their_fields() {
    let selector: FieldSelector = "metadata.name=a,spec.domain!=x\\,y".parse().expect("parses");
    assert!(selector.matches_object(&json!({"metadata": {"name": "a"}, "spec": {"domain": "z"}})));
    assert!(
        !selector.matches_object(&json!({"metadata": {"name": "a"}, "spec": {"domain": "x,y"}}))
    );
    assert_eq!(selector.required("metadata.name"), Some("a"));
    let error = "metadata.name".parse::<FieldSelector>().expect_err("no operator");
    assert_eq!(
        error.to_string(),
        "invalid selector: 'metadata.name'; can't understand 'metadata.name'"
    );
    assert_eq!(selector.to_string().parse::<FieldSelector>(), Ok(selector));
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let key = "[a-z]([a-z.]{0,5}[a-z])?(/[A-Za-z]{1,4})?";
    let value = "[a-z0-9]{0,4}";
    let op = prop_oneof![
        Just(Operator::Equals),
        Just(Operator::NotEquals),
        Just(Operator::In),
        Just(Operator::NotIn),
        Just(Operator::Exists),
        Just(Operator::DoesNotExist),
    ];
    (key, op, prop::collection::vec(value, 1..4)).prop_filter_map(
        "valid",
        |(key, op, mut values)| {
            match op {
                Operator::Exists | Operator::DoesNotExist => values.clear(),
                Operator::Equals | Operator::NotEquals => values.truncate(1),
                _ => {}
            }
            if key == "in" || key == "notin" {
                return None;
            }
            Requirement::new(key, op, values).ok()
        },
    )
}

proptest! {
    #[test]
    fn a_printed_selector_parses_to_itself(mut requirements in prop::collection::vec(requirement(), 0..4)) {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        let selector = LabelSelector { requirements };
        prop_assert_eq!(selector.to_string().parse::<LabelSelector>(), Ok(selector));
    }

    #[test]
    fn no_text_breaks_the_parsers(text in "\\PC{0,24}") {
        let _label = text.parse::<LabelSelector>();
        let _field = text.parse::<FieldSelector>();
    }
}
