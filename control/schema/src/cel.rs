//! The Common Expression Language as far as `x-kubernetes-validations` need it: parsed once per rule, evaluated against
//! an object without I/O, within a budget of steps.
//!
//! Evaluation is dynamic: a rule that names an unknown field fails when it is evaluated, not when it is parsed.

mod eval;
mod functions;
mod lexer;
mod parser;
#[cfg(test)]
mod tests;
mod value;

use serde_json::Value;

use parser::Expr;
pub use parser::ParseError;

/// A parsed rule.
#[derive(Clone, Debug)]
pub struct Program {
    root: Expr,
}

impl Program {
    pub fn parse(source: &str) -> Result<Self, ParseError> {
        parser::parse(source).map(|root| Self { root })
    }

    /// Whether the rule compares with the state before, and so holds for updates alone.
    pub fn uses_old(&self) -> bool {
        self.root.mentions("oldSelf")
    }

    /// Evaluates a rule that says yes or no. The error is the text of what went wrong.
    pub fn holds(&self, new: &Value, old: Option<&Value>) -> Result<bool, String> {
        match self.value(new, old)? {
            value::Val::Bool(truth) => Ok(truth),
            other => Err(format!("rule must evaluate to bool, found {}", other.type_name())),
        }
    }

    /// Evaluates an expression that makes a text (`messageExpression`).
    pub fn text(&self, new: &Value, old: Option<&Value>) -> Option<String> {
        match self.value(new, old).ok()? {
            value::Val::Str(text) => Some(text.to_string()),
            _ => None,
        }
    }

    fn value(&self, new: &Value, old: Option<&Value>) -> Result<value::Val, String> {
        let mut scope = vec![("self".to_owned(), value::Val::of_json(new))];
        if let Some(old) = old {
            scope.push(("oldSelf".to_owned(), value::Val::of_json(old)));
        }
        eval::Evaluation::new(scope).eval(&self.root)
    }
}
