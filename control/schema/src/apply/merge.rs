//! The merge of an applied configuration into the live object.

use serde_json::{Map, Value};

use super::extract::{Shape, element, field, items, shape};
use crate::schema::Node;

pub(super) fn merge(schema: &Node, live: &mut Value, applied: &Value) {
    match (shape(schema, applied), applied) {
        (Shape::Map(schema), Value::Object(fields)) => {
            if !live.is_object() {
                *live = Value::Object(Map::new());
            }
            let Value::Object(target) = live else { return };
            for (name, child) in fields {
                let slot = target.entry(name.as_str()).or_insert(Value::Null);
                merge(field(schema, name).0, slot, child);
            }
        }
        (Shape::List(schema), Value::Array(applied)) => {
            let before = match live.take() {
                Value::Array(list) => list,
                _ => Vec::new(),
            };
            *live = Value::Array(lists(schema, before, applied));
        }
        _ => live.clone_from(applied),
    }
}

/// Applied elements stand in the applied order; live ones that were not applied keep their place before the next
/// applied one that was behind them.
fn lists(schema: &Node, before: Vec<Value>, applied: &[Value]) -> Vec<Value> {
    let applied_ids: Vec<_> = applied.iter().map(|item| element(schema, item)).collect();
    let mut out = Vec::with_capacity(before.len() + applied.len());
    let mut next = 0;
    let mut live: Vec<(_, Option<Value>)> =
        before.into_iter().map(|item| (element(schema, &item), Some(item))).collect();
    let push = |out: &mut Vec<Value>, at: usize, live: &mut Vec<(_, Option<Value>)>| {
        let (Some(item), Some(id)) = (applied.get(at), applied_ids.get(at)) else { return };
        let found = live.iter_mut().find(|(other, value)| other == id && value.is_some());
        let mut merged = found.and_then(|(_, value)| value.take()).unwrap_or(Value::Null);
        merge(items(schema), &mut merged, item);
        out.push(merged);
    };
    for index in 0..live.len() {
        let Some((id, _)) = live.get(index) else { break };
        match applied_ids.iter().position(|a| a == id) {
            None => out.extend(live.get_mut(index).and_then(|(_, value)| value.take())),
            Some(at) => {
                while next <= at {
                    push(&mut out, next, &mut live);
                    next += 1;
                }
            }
        }
    }
    while next < applied.len() {
        push(&mut out, next, &mut live);
        next += 1;
    }
    out
}
