//! From tokens to a tree.

use std::fmt;

use super::lexer::{self, Token};
use super::value::Val;

/// A text that is no expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ParseError {
    /// From one.
    column: usize,
    what: String,
}

impl ParseError {
    /// `at` from zero.
    pub(super) fn at(at: usize, what: impl Into<String>) -> Self {
        Self { column: at + 1, what: what.into() }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ERROR: <input>:1:{}: Syntax error: {}", self.column, self.what)
    }
}

#[derive(Clone, Debug)]
pub(super) enum Expr {
    Literal(Val),
    Name(String),
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
    Select(Box<Self>, String),
    Index(Box<Self>, Box<Self>),
    /// `f(x)`, or `x.f(y)` with a target.
    Call(Option<Box<Self>>, String, Vec<Self>),
    Not(Box<Self>),
    Negative(Box<Self>),
    Binary(&'static str, Box<Self>, Box<Self>),
    If(Box<Self>, Box<Self>, Box<Self>),
}

impl Expr {
    pub(super) fn mentions(&self, name: &str) -> bool {
        match self {
            Self::Literal(_) => false,
            Self::Name(own) => own == name,
            Self::List(items) => items.iter().any(|e| e.mentions(name)),
            Self::Map(entries) => entries.iter().any(|(k, v)| k.mentions(name) || v.mentions(name)),
            Self::Select(of, _) | Self::Not(of) | Self::Negative(of) => of.mentions(name),
            Self::Index(of, at) => of.mentions(name) || at.mentions(name),
            Self::Call(target, _, arguments) => {
                target.as_ref().is_some_and(|t| t.mentions(name))
                    || arguments.iter().any(|e| e.mentions(name))
            }
            Self::Binary(_, a, b) => a.mentions(name) || b.mentions(name),
            Self::If(a, b, c) => a.mentions(name) || b.mentions(name) || c.mentions(name),
        }
    }
}

/// Nesting that a rule may have; deeper ones would use up the stack.
const MAX_DEPTH: usize = 100;

pub(super) fn parse(source: &str) -> Result<Expr, ParseError> {
    let tokens = lexer::tokens(source)?;
    let mut parser = Parser { tokens, at: 0, depth: 0 };
    let root = parser.ternary()?;
    parser.expect_end()?;
    Ok(root)
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    depth: usize,
}

/// Operators by how tightly they bind.
const LEVELS: [&[&str]; 5] =
    [&["||"], &["&&"], &["==", "!=", "<", "<=", ">", ">=", "in"], &["+", "-"], &["*", "/", "%"]];

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).map_or(&Token::End, |(token, _)| token)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Token::Sign(s) if *s == sign);
        self.at += usize::from(found);
        found
    }

    fn refuse<T>(&self, wanted: &str) -> Result<T, ParseError> {
        let column = self
            .tokens
            .get(self.at)
            .or_else(|| self.tokens.last())
            .map_or(1, |(_, column)| *column);
        let found = match self.peek() {
            Token::End => "<EOF>".to_owned(),
            Token::Name(name) => name.clone(),
            Token::Text(text) => format!("{text:?}"),
            Token::Int(n) => n.to_string(),
            Token::Uint(n) => n.to_string(),
            Token::Double(n) => n.to_string(),
            Token::Sign(sign) => (*sign).to_owned(),
        };
        Err(ParseError::at(column - 1, format!("mismatched input '{found}' expecting {wanted}")))
    }

    fn expect(&mut self, sign: &str) -> Result<(), ParseError> {
        if self.take(sign) { Ok(()) } else { self.refuse(&format!("'{sign}'")) }
    }

    fn expect_end(&self) -> Result<(), ParseError> {
        if *self.peek() == Token::End { Ok(()) } else { self.refuse("<EOF>") }
    }

    fn ternary(&mut self) -> Result<Expr, ParseError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.refuse("a less deeply nested expression");
        }
        let condition = self.binary(0)?;
        let found = if self.take("?") {
            let yes = self.binary(0)?;
            self.expect(":")?;
            let no = self.ternary()?;
            Expr::If(Box::new(condition), Box::new(yes), Box::new(no))
        } else {
            condition
        };
        self.depth -= 1;
        Ok(found)
    }

    fn operator(&self, level: &[&'static str]) -> Option<&'static str> {
        level.iter().copied().find(|op| match self.peek() {
            Token::Sign(sign) => sign == op,
            Token::Name(name) => name == op,
            _ => false,
        })
    }

    fn binary(&mut self, level: usize) -> Result<Expr, ParseError> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = self.operator(operators) {
            self.at += 1;
            let right = self.binary(level + 1)?;
            left = Expr::Binary(operator, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr, ParseError> {
        let (mut nots, mut minuses) = (0, 0);
        while self.take("!") {
            nots += 1;
        }
        while nots == 0 && self.take("-") {
            minuses += 1;
        }
        let mut expr = self.member()?;
        if minuses % 2 == 1 {
            expr = Expr::Negative(Box::new(expr));
        }
        for _ in 0..nots {
            expr = Expr::Not(Box::new(expr));
            if nots > MAX_DEPTH {
                return self.refuse("fewer negations");
            }
        }
        Ok(expr)
    }

    fn member(&mut self) -> Result<Expr, ParseError> {
        let mut expr = self.primary()?;
        loop {
            if self.take(".") {
                let Token::Name(name) = self.peek().clone() else {
                    return self.refuse("IDENTIFIER");
                };
                self.at += 1;
                expr = if self.take("(") {
                    let arguments = self.list(")")?;
                    Expr::Call(Some(Box::new(expr)), name, arguments)
                } else {
                    Expr::Select(Box::new(expr), unescape(&name))
                };
            } else if self.take("[") {
                let at = self.ternary()?;
                self.expect("]")?;
                expr = Expr::Index(Box::new(expr), Box::new(at));
            } else {
                return Ok(expr);
            }
        }
    }

    fn list(&mut self, end: &str) -> Result<Vec<Expr>, ParseError> {
        let mut items = Vec::new();
        while !self.take(end) {
            items.push(self.ternary()?);
            if !self.take(",") {
                self.expect(end)?;
                break;
            }
        }
        Ok(items)
    }

    fn primary(&mut self) -> Result<Expr, ParseError> {
        let literal = |value| Ok(Expr::Literal(value));
        let token = self.peek().clone();
        if token == Token::End {
            return self.refuse("an expression");
        }
        match self.next() {
            Token::Int(n) => literal(Val::Int(n)),
            Token::Uint(n) => literal(Val::Uint(n)),
            Token::Double(n) => literal(Val::Double(n)),
            Token::Text(text) => literal(Val::text(&text)),
            Token::Name(name) => match name.as_str() {
                "true" => literal(Val::Bool(true)),
                "false" => literal(Val::Bool(false)),
                "null" => literal(Val::Null),
                _ if self.take("(") => Ok(Expr::Call(None, name, self.list(")")?)),
                _ => Ok(Expr::Name(name)),
            },
            Token::Sign("(") => {
                let inner = self.ternary()?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Sign("[") => Ok(Expr::List(self.list("]")?)),
            Token::Sign("{") => self.map(),
            Token::Sign(_) | Token::End => {
                self.at -= 1;
                self.refuse("an expression")
            }
        }
    }

    fn map(&mut self) -> Result<Expr, ParseError> {
        let mut entries = Vec::new();
        while !self.take("}") {
            let key = self.ternary()?;
            self.expect(":")?;
            entries.push((key, self.ternary()?));
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr::Map(entries))
    }
}

/// Property names that are no CEL identifiers are written escaped.
fn unescape(name: &str) -> String {
    let plain = name
        .replace("__underscores__", "__")
        .replace("__dot__", ".")
        .replace("__dash__", "-")
        .replace("__slash__", "/");
    match plain.strip_prefix("__").and_then(|n| n.strip_suffix("__")) {
        Some(word) if plain == name && !word.is_empty() => word.to_owned(),
        _ => plain,
    }
}
