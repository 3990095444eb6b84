use serde_json::{Value, json};

use super::Program;

fn holds(rule: &str, new: &Value) -> Result<bool, String> {
    Program::parse(rule).unwrap().holds(new, None)
}

#[test]
fn rules_of_everyday_definitions_hold_or_not() {
    let object = json!({
        "min": 1, "max": 3, "ratio": 0.5, "name": "abc-1", "tags": ["a", "b"], "none": null,
        "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}], "m": {"k": "v", "d-e": 1}, "port": "http",
    });
    for rule in [
        "self.min <= self.max",
        "self.min + 2 == self.max && self.max % 2 == 1 && -self.min < 0 && 7 / 2 == 3",
        "self.ratio < 1 && self.ratio * 2 == 1.0",
        "has(self.name) && !has(self.other) && self.none == null",
        "size(self.tags) == 2 && self.tags.size() > 1 && size('äö') == 2",
        "self.name.matches('^[a-z]+-[0-9]$') && self.name.startsWith(\"abc\") && self.name.endsWith('1')",
        "self.list.all(i, i.v > 0) && self.list.exists(i, i.n == 'y') && self.list.exists_one(i, i.v == 1)",
        "self.list.map(i, i.v) == [1, 2] && self.list.filter(i, i.v > 1).size() == 1",
        "self.list.map(i, i.v).sum() == 3 && self.tags.isSorted() && self.tags.join(',') == 'a,b'",
        "'a' in self.tags && !('z' in self.tags) && 'k' in self.m && self.m.all(k, k != '')",
        "self.m.d__dash__e == 1 && self.m['k'] == 'v' && self.list[1].n == 'y'",
        "self.max > 5 ? false : true",
        "self.nothing == 1 || true",
        "!(self.nothing == 1 && false)",
        "type(self.port) == string ? self.port != '' : self.port > 0",
        "int('5') == 5 && string(5) == '5' && double(1) == 1.0 && {'a': 1}.a == 1",
        "duration('1h30m') > duration('60s') && timestamp('2026-01-01T00:00:00Z') < timestamp('2026-01-02T00:00:00Z')",
        "isIP('10.0.0.1') && isCIDR('10.0.0.0/8') && !isIP('x')",
        "r'\\d' == '\\\\d' && \"\\u0041\" == 'A' && 0x10 == 16 && 1e3 == 1000.0 // a remark",
        "self.name.split('-')[0].upperAscii() == 'ABC' && self.name.indexOf('-') == 3",
    ] {
        assert_eq!(holds(rule, &object), Ok(true), "{rule}");
    }
}

#[test]
fn what_goes_wrong_is_said() {
    let object = json!({"a": 1, "s": "x", "big": 9_223_372_036_854_775_807_i64});
    for (rule, said) in [
        ("self.b > 1", "no such key: b"),
        ("self.a < self.s", "no such overload: <"),
        ("self.a / 0 == 1", "division by zero"),
        ("self.big + 1 > 0", "integer overflow"),
        ("[1][3] == 1", "index out of bounds: 3"),
        ("self.a", "rule must evaluate to bool, found int"),
        ("other == 1", "undeclared reference to 'other' (in container '')"),
    ] {
        assert_eq!(holds(rule, &object), Err(said.to_owned()), "{rule}");
    }
}

#[test]
fn what_is_no_expression_is_refused_with_its_place() {
    for (rule, column) in
        [("self.a >", 9), ("self..a", 6), ("(1", 3), ("a b", 3), ("'x", 1), ("#", 1)]
    {
        let error = Program::parse(rule).unwrap_err().to_string();
        assert!(error.starts_with(&format!("ERROR: <input>:1:{column}: ")), "{rule}: {error}");
    }
    assert!(Program::parse(&"(".repeat(100_000)).is_err());
    assert!(Program::parse(&"!".repeat(100_000)).is_err());
}

#[test]
fn an_endless_rule_is_cut_off() {
    let list: Vec<u32> = (0..200).collect();
    let rule = "self.all(a, self.all(b, self.all(c, self.all(d, a >= 0))))";
    assert!(holds(rule, &json!(list)).unwrap_err().contains("cost limit"));
}

#[test]
fn the_state_before_is_known_to_transition_rules() {
    let rule = Program::parse("self >= oldSelf").unwrap();
    assert!(rule.uses_old());
    assert_eq!(rule.holds(&json!(2), Some(&json!(1))), Ok(true));
    assert_eq!(rule.holds(&json!(1), Some(&json!(2))), Ok(false));
    let text = Program::parse("'at most ' + string(self)").unwrap();
    assert_eq!(text.text(&json!(3), None).as_deref(), Some("at most 3"));
}
