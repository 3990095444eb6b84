//! RFC 7386's and RFC 6902's examples, merge laws, and strategic merges of built-in kinds.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::builtin;
use crate::schema::tests::any_json;

#[test]
fn the_examples_of_rfc_7386_hold() {
    let table = [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a": "b"}), json!(["c"]), json!(["c"])),
        (json!({"a": "foo"}), json!(null), json!(null)),
        (json!({"a": "foo"}), json!("bar"), json!("bar")),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ];
    for (mut target, patch, wanted) in table {
        merge(&mut target, &patch);
        assert_eq!(target, wanted, "patch {patch}");
    }
}

#[test]
fn the_examples_of_rfc_6902_hold() {
    let table = [
        (
            json!({"foo": "bar"}),
            json!([{"op": "add", "path": "/baz", "value": "qux"}]),
            json!({"foo": "bar", "baz": "qux"}),
        ),
        (
            json!({"foo": ["bar", "baz"]}),
            json!([{"op": "add", "path": "/foo/1", "value": "qux"}]),
            json!({"foo": ["bar", "qux", "baz"]}),
        ),
        (
            json!({"baz": "qux", "foo": "bar"}),
            json!([{"op": "remove", "path": "/baz"}]),
            json!({"foo": "bar"}),
        ),
        (
            json!({"foo": ["bar", "qux", "baz"]}),
            json!([{"op": "remove", "path": "/foo/1"}]),
            json!({"foo": ["bar", "baz"]}),
        ),
        (
            json!({"baz": "qux"}),
            json!([{"op": "replace", "path": "/baz", "value": "boo"}]),
            json!({"baz": "boo"}),
        ),
        (
            json!({"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}}),
            json!([{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}]),
            json!({"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}}),
        ),
        (
            json!({"foo": ["all", "grass", "cows", "eat"]}),
            json!([{"op": "move", "from": "/foo/1", "path": "/foo/3"}]),
            json!({"foo": ["all", "cows", "eat", "grass"]}),
        ),
        (
            json!({"baz": "qux", "foo": ["a", 2, "c"]}),
            json!([{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}]),
            json!({"baz": "qux", "foo": ["a", 2, "c"]}),
        ),
        (
            json!({"foo": ["bar"]}),
            json!([{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}]),
            json!({"foo": ["bar", ["abc", "def"]]}),
        ),
        (
            json!({"/": 9, "~1": 10}),
            json!([{"op": "test", "path": "/~01", "value": 10}]),
            json!({"/": 9, "~1": 10}),
        ),
        (
            json!({"a": {"b": 1}}),
            json!([{"op": "copy", "from": "/a/b", "path": "/c"}]),
            json!({"a": {"b": 1}, "c": 1}),
        ),
    ];
    for (mut target, patch, wanted) in table {
        json(&mut target, &patch).expect("applies");
        assert_eq!(target, wanted, "patch {patch}");
    }
}

#[test]
fn a_json_patch_that_fails_changes_nothing_and_says_why() {
    let before = json!({"a": 1});
    let mut target = before.clone();
    let patch =
        json!([{"op": "add", "path": "/b", "value": 2}, {"op": "test", "path": "/a", "value": 9}]);
    let error = json(&mut target, &patch).expect_err("test fails");
    assert_eq!(error.to_string(), "testing value /a failed");
    assert!(!error.is_bad_request());
    assert_eq!(target, before);
    let error = json(&mut target, &json!([{"op": "remove", "path": "/x/y"}])).expect_err("no path");
    assert!(
        error
            .to_string()
            .contains("remove operation does not apply: doc is missing path: \"/x/y\"")
    );
    let error = json(&mut target, &json!({"a": 1})).expect_err("no patch");
    assert!(error.is_bad_request());
}

fn strategic_of(plural: &str, target: &Value, patch: &Value) -> Result<Value, PatchError> {
    let resource = builtin::resource("", plural).expect("built in");
    let mut target = target.clone();
    strategic(&mut target, patch, resource.schema.root())?;
    Ok(target)
}

#[test]
fn strategic_merge_joins_lists_by_their_key() {
    let target = json!({"secrets": [{"name": "a"}, {"name": "b"}], "metadata": {"finalizers": ["x"],
        "ownerReferences": [{"uid": "1", "name": "o"}]}});
    let patch = json!({"secrets": [{"name": "c"}, {"name": "a", "$patch": "delete"}],
        "metadata": {"finalizers": ["y"], "ownerReferences": [{"uid": "1", "name": "p"}]}});
    assert_eq!(
        strategic_of("serviceaccounts", &target, &patch).expect("applies"),
        json!({"secrets": [{"name": "b"}, {"name": "c"}], "metadata": {"finalizers": ["x", "y"],
               "ownerReferences": [{"uid": "1", "name": "p"}]}})
    );
}

#[test]
fn strategic_merge_obeys_its_directives() {
    let target = json!({"secrets": [{"name": "a"}, {"name": "b"}], "metadata": {"finalizers": ["x", "y"]},
        "imagePullSecrets": [{"name": "p"}]});
    let patch = json!({"secrets": [{"$patch": "replace"}, {"name": "z"}],
        "metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}, "imagePullSecrets": null});
    assert_eq!(
        strategic_of("serviceaccounts", &target, &patch).expect("applies"),
        json!({"secrets": [{"name": "z"}], "metadata": {"finalizers": ["y"]}})
    );
    let kept = strategic_of(
        "configmaps",
        &json!({"data": {"a": "1", "b": "2"}}),
        &json!({"data": {"$retainKeys": ["b", "c"], "c": "3"}}),
    )
    .expect("applies");
    assert_eq!(kept, json!({"data": {"b": "2", "c": "3"}}));
    let ordered = strategic_of("serviceaccounts", &target,
        &json!({"$setElementOrder/secrets": [{"name": "b"}, {"name": "c"}, {"name": "a"}], "secrets": [{"name": "c"}]}))
        .expect("applies");
    assert_eq!(ordered["secrets"], json!([{"name": "b"}, {"name": "c"}, {"name": "a"}]));
    let error = strategic_of("serviceaccounts", &target, &json!({"secrets": [{"nme": "q"}]}))
        .expect_err("no key");
    assert!(error.is_bad_request());
}

proptest! {
    #[test]
    fn merging_a_patch_twice_is_merging_it_once(mut target in any_json(), patch in any_json()) {
        merge(&mut target, &patch);
        let once = target.clone();
        merge(&mut target, &patch);
        prop_assert_eq!(once, target);
    }

    #[test]
    fn the_empty_patch_changes_no_object(target in any_json().prop_filter("objects", Value::is_object)) {
        let mut patched = target.clone();
        merge(&mut patched, &json!({}));
        prop_assert_eq!(target, patched);
    }

    #[test]
    fn a_merge_agrees_with_the_reference_crate(target in any_json(), patch in any_json()) {
        let (mut ours, mut theirs) = (target.clone(), target);
        merge(&mut ours, &patch);
        json_patch::merge(&mut theirs, &patch);
        prop_assert_eq!(ours, theirs);
    }
}
