//! Evaluation of a tree.

use std::cmp::Ordering;

use super::functions;
use super::parser::Expr;
use super::value::Val;

/// Steps that one evaluation may take.
const BUDGET: usize = 1_000_000;

pub(super) struct Evaluation {
    scope: Vec<(String, Val)>,
    steps: usize,
}

type Outcome = Result<Val, String>;

pub(super) fn no_overload(what: &str) -> String {
    format!("no such overload: {what}")
}

impl Evaluation {
    pub(super) fn new(scope: Vec<(String, Val)>) -> Self {
        Self { scope, steps: 0 }
    }

    pub(super) fn eval(&mut self, expr: &Expr) -> Outcome {
        self.steps += 1;
        if self.steps > BUDGET {
            return Err("operation cancelled: actual cost limit exceeded".to_owned());
        }
        match expr {
            Expr::Literal(value) => Ok(value.clone()),
            Expr::Name(name) => self.name(name),
            Expr::List(items) => {
                items.iter().map(|e| self.eval(e)).collect::<Result<Vec<_>, _>>().map(Val::list)
            }
            Expr::Map(entries) => {
                let pairs: Result<Vec<_>, String> =
                    entries.iter().map(|(k, v)| Ok((self.eval(k)?, self.eval(v)?))).collect();
                Ok(Val::Map(pairs?.into()))
            }
            Expr::Select(of, field) => {
                let of = self.eval(of)?;
                match (&of, of.get(&Val::text(field))) {
                    (_, Some(found)) => Ok(found.clone()),
                    (Val::Map(_), None) => Err(format!("no such key: {field}")),
                    _ => Err(no_overload(field)),
                }
            }
            Expr::Index(of, at) => {
                let (of, at) = (self.eval(of)?, self.eval(at)?);
                index(&of, &at)
            }
            Expr::Not(inner) => match self.eval(inner)? {
                Val::Bool(truth) => Ok(Val::Bool(!truth)),
                _ => Err(no_overload("!_")),
            },
            Expr::Negative(inner) => match self.eval(inner)? {
                Val::Int(n) => n.checked_neg().map(Val::Int).ok_or_else(overflow),
                Val::Double(n) => Ok(Val::Double(-n)),
                _ => Err(no_overload("-_")),
            },
            Expr::Binary(operator, a, b) => self.binary(operator, a, b),
            Expr::If(condition, yes, no) => match self.eval(condition)? {
                Val::Bool(true) => self.eval(yes),
                Val::Bool(false) => self.eval(no),
                _ => Err(no_overload("_?_:_")),
            },
            Expr::Call(target, name, arguments) => self.call(target.as_deref(), name, arguments),
        }
    }

    fn name(&self, name: &str) -> Outcome {
        let own = self.scope.iter().rev().find(|(n, _)| n == name).map(|(_, v)| v.clone());
        let types =
            ["bool", "int", "uint", "double", "string", "list", "map", "null_type", "bytes"];
        own.or_else(|| types.iter().find(|t| **t == name).map(|t| Val::Type(t)))
            .ok_or_else(|| format!("undeclared reference to '{name}' (in container '')"))
    }

    fn binary(&mut self, operator: &str, a: &Expr, b: &Expr) -> Outcome {
        // Either side decides alone, even when the other one fails.
        if let "&&" | "||" = operator {
            let decisive = operator == "||";
            let truth = |outcome: Outcome| match outcome {
                Ok(Val::Bool(truth)) => Ok(truth),
                Ok(_) => Err(no_overload(operator)),
                Err(error) => Err(error),
            };
            let left = truth(self.eval(a));
            if left == Ok(decisive) {
                return Ok(Val::Bool(decisive));
            }
            let right = truth(self.eval(b));
            if right == Ok(decisive) {
                return Ok(Val::Bool(decisive));
            }
            return left.and(right).map(Val::Bool);
        }
        let (a, b) = (self.eval(a)?, self.eval(b)?);
        let order = |wanted: fn(Ordering) -> bool| match a.order(&b) {
            Some(found) => Ok(Val::Bool(wanted(found))),
            None => Err(no_overload(operator)),
        };
        match operator {
            "==" => Ok(Val::Bool(a == b)),
            "!=" => Ok(Val::Bool(a != b)),
            "<" => order(Ordering::is_lt),
            "<=" => order(Ordering::is_le),
            ">" => order(Ordering::is_gt),
            ">=" => order(Ordering::is_ge),
            "in" => match &b {
                Val::List(items) => {
                    self.steps += items.len();
                    Ok(Val::Bool(items.contains(&a)))
                }
                Val::Map(_) => Ok(Val::Bool(b.get(&a).is_some())),
                _ => Err(no_overload("@in")),
            },
            _ => arithmetic(operator, &a, &b),
        }
    }

    fn call(&mut self, target: Option<&Expr>, name: &str, arguments: &[Expr]) -> Outcome {
        if let (None, "has", [argument]) = (target, name, arguments) {
            let Expr::Select(of, field) = argument else {
                return Err("invalid argument to has() macro".to_owned());
            };
            let of = self.eval(of)?;
            return Ok(Val::Bool(of.get(&Val::text(field)).is_some()));
        }
        if let (Some(target), Some(Expr::Name(variable))) = (target, arguments.first())
            && matches!(name, "all" | "exists" | "exists_one" | "map" | "filter")
        {
            return self.comprehension(target, name, variable, arguments);
        }
        let target = target.map(|t| self.eval(t)).transpose()?;
        let arguments: Vec<Val> =
            arguments.iter().map(|e| self.eval(e)).collect::<Result<_, _>>()?;
        self.steps += functions::cost(target.as_ref(), &arguments);
        functions::call(target.as_ref(), name, &arguments)
    }

    fn comprehension(
        &mut self,
        target: &Expr,
        name: &str,
        variable: &str,
        arguments: &[Expr],
    ) -> Outcome {
        let items: Vec<Val> = match self.eval(target)? {
            Val::List(items) => items.to_vec(),
            Val::Map(entries) => entries.iter().map(|(key, _)| key.clone()).collect(),
            _ => return Err(no_overload(name)),
        };
        let (condition, result) = match (name, arguments) {
            ("map", [_, result]) => (None, Some(result)),
            ("map", [_, condition, result]) => (Some(condition), Some(result)),
            (_, [_, condition]) => (Some(condition), None),
            _ => return Err(no_overload(name)),
        };
        let mut kept = Vec::new();
        let mut hits = 0;
        let mut error = None;
        for item in &items {
            self.scope.push((variable.to_owned(), item.clone()));
            let truth = condition.map_or(Ok(Val::Bool(true)), |c| self.eval(c));
            let value = match (&truth, result) {
                (Ok(Val::Bool(true)), Some(result)) => self.eval(result),
                _ => Ok(item.clone()),
            };
            self.scope.pop();
            match truth {
                Ok(Val::Bool(true)) => {
                    hits += 1;
                    if name == "exists" {
                        return Ok(Val::Bool(true));
                    }
                    kept.push(value?);
                }
                Ok(Val::Bool(false)) if name == "all" => return Ok(Val::Bool(false)),
                Ok(Val::Bool(false)) => {}
                Ok(_) => return Err(no_overload(name)),
                // Later items may still decide; a budget that is used up may not.
                Err(e) if self.steps <= BUDGET && matches!(name, "all" | "exists") => {
                    error = Some(e);
                }
                Err(e) => return Err(e),
            }
        }
        match (name, error) {
            (_, Some(error)) => Err(error),
            ("all", None) => Ok(Val::Bool(true)),
            ("exists", None) => Ok(Val::Bool(false)),
            ("exists_one", None) => Ok(Val::Bool(hits == 1)),
            _ => Ok(Val::list(kept)),
        }
    }
}

fn overflow() -> String {
    "integer overflow".to_owned()
}

fn index(of: &Val, at: &Val) -> Outcome {
    match (of, at) {
        (Val::List(items), Val::Int(n)) => usize::try_from(*n)
            .ok()
            .and_then(|n| items.get(n).cloned())
            .ok_or_else(|| format!("index out of bounds: {n}")),
        (Val::Map(_), key) => of.get(key).cloned().ok_or_else(|| match key {
            Val::Str(text) => format!("no such key: {text}"),
            _ => "no such key".to_owned(),
        }),
        _ => Err(no_overload("_[_]")),
    }
}

fn arithmetic(operator: &str, a: &Val, b: &Val) -> Outcome {
    let unknown = || Err(no_overload(operator));
    match (a, b) {
        (Val::Int(a), Val::Int(b)) => match operator {
            "/" | "%" if *b == 0 => Err("division by zero".to_owned()),
            "+" => a.checked_add(*b).map(Val::Int).ok_or_else(overflow),
            "-" => a.checked_sub(*b).map(Val::Int).ok_or_else(overflow),
            "*" => a.checked_mul(*b).map(Val::Int).ok_or_else(overflow),
            "/" => a.checked_div(*b).map(Val::Int).ok_or_else(overflow),
            "%" => a.checked_rem(*b).map(Val::Int).ok_or_else(overflow),
            _ => unknown(),
        },
        (Val::Uint(a), Val::Uint(b)) => match operator {
            "/" | "%" if *b == 0 => Err("division by zero".to_owned()),
            "+" => a.checked_add(*b).map(Val::Uint).ok_or_else(overflow),
            "-" => a.checked_sub(*b).map(Val::Uint).ok_or_else(overflow),
            "*" => a.checked_mul(*b).map(Val::Uint).ok_or_else(overflow),
            "/" => a.checked_div(*b).map(Val::Uint).ok_or_else(overflow),
            "%" => a.checked_rem(*b).map(Val::Uint).ok_or_else(overflow),
            _ => unknown(),
        },
        // Numbers of a schema's type `number` may have come as integers.
        (Val::Double(_) | Val::Int(_), Val::Double(_) | Val::Int(_)) => {
            let real = |v: &Val| match v {
                Val::Int(n) => *n as f64,
                Val::Double(n) => *n,
                _ => f64::NAN,
            };
            let (a, b) = (real(a), real(b));
            match operator {
                "+" => Ok(Val::Double(a + b)),
                "-" => Ok(Val::Double(a - b)),
                "*" => Ok(Val::Double(a * b)),
                "/" => Ok(Val::Double(a / b)),
                _ => unknown(),
            }
        }
        (Val::Str(a), Val::Str(b)) if operator == "+" => Ok(Val::text(&format!("{a}{b}"))),
        (Val::List(a), Val::List(b)) if operator == "+" => {
            Ok(Val::List(a.iter().chain(b.iter()).cloned().collect()))
        }
        (Val::Timestamp(a), Val::Duration(b)) | (Val::Duration(b), Val::Timestamp(a))
            if operator == "+" =>
        {
            Ok(Val::Timestamp(a + b))
        }
        (Val::Timestamp(a), Val::Duration(b)) if operator == "-" => Ok(Val::Timestamp(a - b)),
        (Val::Timestamp(a), Val::Timestamp(b)) if operator == "-" => Ok(Val::Duration(a - b)),
        (Val::Duration(a), Val::Duration(b)) if operator == "+" => Ok(Val::Duration(a + b)),
        (Val::Duration(a), Val::Duration(b)) if operator == "-" => Ok(Val::Duration(a - b)),
        _ => unknown(),
    }
}
