//! Functions of the language and of kube's libraries.

use std::cmp::Ordering;
use std::net::IpAddr;

use super::eval::no_overload;
use super::value::Val;

type Outcome = Result<Val, String>;

/// Steps that a call is worth: long texts and lists are dearer.
pub(super) fn cost(target: Option<&Val>, arguments: &[Val]) -> usize {
    let of = |value: &Val| match value {
        Val::Str(text) => text.len() / 10,
        Val::List(items) => items.len(),
        _ => 0,
    };
    target.into_iter().chain(arguments).map(of).sum()
}

pub(super) fn call(target: Option<&Val>, name: &str, arguments: &[Val]) -> Outcome {
    match target {
        None => global(name, arguments),
        Some(Val::Str(text)) => of_text(text, name, arguments),
        Some(Val::List(items)) => of_list(items, name, arguments),
        Some(value) => of_any(value, name, arguments),
    }
}

fn int(n: usize) -> Val {
    Val::Int(i64::try_from(n).unwrap_or(i64::MAX))
}

fn size(value: &Val) -> Outcome {
    match value {
        Val::Str(text) => Ok(int(text.chars().count())),
        Val::List(items) => Ok(int(items.len())),
        Val::Map(entries) => Ok(int(entries.len())),
        _ => Err(no_overload("size")),
    }
}

fn global(name: &str, arguments: &[Val]) -> Outcome {
    let [value] = arguments else { return Err(no_overload(name)) };
    match (name, value) {
        ("size", value) => size(value),
        ("dyn", value) => Ok(value.clone()),
        ("type", value) => Ok(Val::Type(value.type_name())),
        ("string", value) => string(value),
        ("int", value) => to_int(value),
        ("double", Val::Int(n)) => Ok(Val::Double(*n as f64)),
        ("double", Val::Double(n)) => Ok(Val::Double(*n)),
        ("double", Val::Str(text)) => text.parse().map(Val::Double).map_err(|e| e.to_string()),
        ("uint", Val::Int(n)) => u64::try_from(*n).map(Val::Uint).map_err(|e| e.to_string()),
        ("uint", Val::Str(text)) => text.parse().map(Val::Uint).map_err(|_bad| bad(text)),
        ("bool", Val::Bool(truth)) => Ok(Val::Bool(*truth)),
        ("bool", Val::Str(text)) => text.parse().map(Val::Bool).map_err(|_bad| bad(text)),
        ("duration", Val::Str(text)) => duration(text).map(Val::Duration).ok_or_else(|| bad(text)),
        ("timestamp", Val::Str(text)) => text
            .parse::<jiff::Timestamp>()
            .map(|t| Val::Timestamp(t.as_nanosecond()))
            .map_err(|_bad| bad(text)),
        ("isIP", Val::Str(text)) => Ok(Val::Bool(text.parse::<IpAddr>().is_ok())),
        ("isCIDR", Val::Str(text)) => Ok(Val::Bool(crate::schema::format_holds("cidr", text))),
        ("isURL", Val::Str(text)) => Ok(Val::Bool(crate::schema::format_holds("uri", text))),
        _ => Err(no_overload(name)),
    }
}

fn bad(text: &str) -> String {
    format!("type conversion error: {text:?}")
}

fn string(value: &Val) -> Outcome {
    Ok(Val::text(&match value {
        Val::Str(text) => text.to_string(),
        Val::Int(n) => n.to_string(),
        Val::Uint(n) => n.to_string(),
        Val::Double(n) => n.to_string(),
        Val::Bool(truth) => truth.to_string(),
        _ => return Err(no_overload("string")),
    }))
}

fn to_int(value: &Val) -> Outcome {
    match value {
        Val::Int(n) => Ok(Val::Int(*n)),
        Val::Uint(n) => i64::try_from(*n).map(Val::Int).map_err(|e| e.to_string()),
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a conversion towards zero is asked for"
        )]
        Val::Double(n) if n.abs() < 9.2e18 => Ok(Val::Int(*n as i64)),
        Val::Str(text) => text.parse().map(Val::Int).map_err(|_bad| bad(text)),
        Val::Timestamp(n) => Ok(Val::Int(i64::try_from(n / 1_000_000_000).unwrap_or_default())),
        _ => Err(no_overload("int")),
    }
}

/// `1h30m`, `500ms`.
fn duration(text: &str) -> Option<i128> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 6e10), ("h", 3.6e12)];
    let (sign, mut rest) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
    if rest == "0" {
        return Some(0);
    }
    let mut total = 0.0;
    let mut any = false;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        // `m` is the beginning of `ms`, so the letters are taken as a whole.
        let length = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, after) = tail.split_at(length);
        let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
        total += number.parse::<f64>().ok()? * scale;
        rest = after;
        any = true;
    }
    #[expect(clippy::cast_possible_truncation, reason = "whole nanoseconds are what is wanted")]
    any.then_some((total * sign) as i128)
}

fn regex(pattern: &str) -> Result<regex::Regex, String> {
    regex::Regex::new(pattern).map_err(|e| e.to_string())
}

fn of_text(text: &str, name: &str, arguments: &[Val]) -> Outcome {
    match (name, arguments) {
        ("size", []) => Ok(int(text.chars().count())),
        ("contains", [Val::Str(part)]) => Ok(Val::Bool(text.contains(&**part))),
        ("startsWith", [Val::Str(part)]) => Ok(Val::Bool(text.starts_with(&**part))),
        ("endsWith", [Val::Str(part)]) => Ok(Val::Bool(text.ends_with(&**part))),
        ("matches", [Val::Str(pattern)]) => Ok(Val::Bool(regex(pattern)?.is_match(text))),
        ("find", [Val::Str(pattern)]) => {
            Ok(Val::text(regex(pattern)?.find(text).map_or("", |m| m.as_str())))
        }
        ("findAll", [Val::Str(pattern)]) => {
            Ok(Val::list(regex(pattern)?.find_iter(text).map(|m| Val::text(m.as_str())).collect()))
        }
        ("lowerAscii", []) => Ok(Val::text(&text.to_ascii_lowercase())),
        ("upperAscii", []) => Ok(Val::text(&text.to_ascii_uppercase())),
        ("trim", []) => Ok(Val::text(text.trim())),
        ("replace", [Val::Str(from), Val::Str(to)]) => Ok(Val::text(&text.replace(&**from, to))),
        ("split", [Val::Str(at)]) => Ok(Val::list(text.split(&**at).map(Val::text).collect())),
        ("indexOf", [Val::Str(part)]) => {
            let found = text.find(&**part).and_then(|at| text.get(..at));
            Ok(found.map_or(Val::Int(-1), |before| int(before.chars().count())))
        }
        ("substring", [Val::Int(from)]) => substring(text, *from, None),
        ("substring", [Val::Int(from), Val::Int(to)]) => substring(text, *from, Some(*to)),
        ("charAt", [Val::Int(at)]) => substring(text, *at, Some(at.saturating_add(1))),
        _ => Err(no_overload(name)),
    }
}

fn substring(text: &str, from: i64, to: Option<i64>) -> Outcome {
    let length = text.chars().count();
    let to = to.map_or(Some(length), |to| usize::try_from(to).ok());
    match (usize::try_from(from).ok(), to) {
        (Some(from), Some(to)) if from <= to && to <= length => {
            Ok(Val::text(&text.chars().skip(from).take(to - from).collect::<String>()))
        }
        _ => Err(format!("index out of range: {from}")),
    }
}

fn of_list(items: &[Val], name: &str, arguments: &[Val]) -> Outcome {
    let best = |wanted: Ordering| {
        let mut best = items.first().ok_or_else(|| format!("{name} called on empty list"))?;
        for item in items {
            if item.order(best) == Some(wanted) {
                best = item;
            }
        }
        Ok(best.clone())
    };
    match (name, arguments) {
        ("size", []) => Ok(int(items.len())),
        ("isSorted", []) => Ok(Val::Bool(
            items
                .iter()
                .zip(items.iter().skip(1))
                .all(|(a, b)| a.order(b).is_some_and(Ordering::is_le)),
        )),
        ("min", []) => best(Ordering::Less),
        ("max", []) => best(Ordering::Greater),
        ("sum", []) => items.iter().try_fold(Val::Int(0), |sum, item| match (&sum, item) {
            (Val::Int(a), Val::Int(b)) => {
                a.checked_add(*b).map(Val::Int).ok_or_else(|| "integer overflow".to_owned())
            }
            (Val::Int(a), Val::Double(b)) => Ok(Val::Double(*a as f64 + b)),
            (Val::Double(a), Val::Double(b)) => Ok(Val::Double(a + b)),
            (Val::Double(a), Val::Int(b)) => Ok(Val::Double(a + *b as f64)),
            _ => Err(no_overload("sum")),
        }),
        ("indexOf", [wanted]) => {
            Ok(items.iter().position(|i| i == wanted).map_or(Val::Int(-1), int))
        }
        ("lastIndexOf", [wanted]) => {
            Ok(items.iter().rposition(|i| i == wanted).map_or(Val::Int(-1), int))
        }
        ("join", separator) => {
            let between = match separator {
                [] => "",
                [Val::Str(text)] => text,
                _ => return Err(no_overload("join")),
            };
            let parts: Option<Vec<&str>> = items
                .iter()
                .map(|item| if let Val::Str(text) = item { Some(&**text) } else { None })
                .collect();
            parts.map(|p| Val::text(&p.join(between))).ok_or_else(|| no_overload("join"))
        }
        _ => Err(no_overload(name)),
    }
}

fn of_any(value: &Val, name: &str, arguments: &[Val]) -> Outcome {
    match (value, name, arguments) {
        (value, "size", []) => size(value),
        (Val::Duration(n), "getSeconds", []) => Ok(whole(n / 1_000_000_000)),
        (Val::Duration(n), "getMinutes", []) => Ok(whole(n / 60_000_000_000)),
        (Val::Duration(n), "getHours", []) => Ok(whole(n / 3_600_000_000_000)),
        _ => Err(no_overload(name)),
    }
}

fn whole(n: i128) -> Val {
    Val::Int(i64::try_from(n).unwrap_or_default())
}
