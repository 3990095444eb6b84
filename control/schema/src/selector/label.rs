//! Label selectors: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`, and the object form `matchLabels`/`matchExpressions`.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

use super::SelectorError;
use crate::error::FieldError;
use crate::names;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Equals,
    NotEquals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

/// One term; all terms of a selector must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    /// Sorted, without repetitions.
    pub values: Vec<String>,
}

/// A parsed selector; the empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    pub requirements: Vec<Requirement>,
}

impl LabelSelector {
    /// From the object form. An absent selector is the caller's business (it means nothing or everything).
    pub fn from_object(selector: &Value) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for (key, value) in
            selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten()
        {
            let values = vec![value.as_str().unwrap_or_default().to_owned()];
            requirements.push(Requirement::new(key.clone(), Operator::Equals, values)?);
        }
        for term in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten()
        {
            let key = term.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
            let operator = match term.get("operator").and_then(Value::as_str).unwrap_or_default() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(SelectorError::Operator(other.to_owned())),
            };
            let values = term.get("values").and_then(Value::as_array).into_iter().flatten();
            let values = values.filter_map(Value::as_str).map(str::to_owned).collect();
            requirements.push(Requirement::new(key, operator, values)?);
        }
        Ok(Self { requirements })
    }

    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether these labels (`metadata.labels`, or none) match.
    pub fn matches(&self, labels: Option<&Map<String, Value>>) -> bool {
        self.requirements
            .iter()
            .all(|r| r.matches(labels.and_then(|l| l.get(&r.key)).and_then(Value::as_str)))
    }

    /// Whether the labels of an object match.
    pub fn matches_object(&self, object: &Value) -> bool {
        self.is_empty()
            || self.matches(object.pointer("/metadata/labels").and_then(Value::as_object))
    }
}

impl Requirement {
    /// Checks key and values.
    pub fn new(
        key: String,
        operator: Operator,
        mut values: Vec<String>,
    ) -> Result<Self, SelectorError> {
        values.sort();
        values.dedup();
        let refuse = |error: FieldError| Err(SelectorError::Label(error.to_string()));
        if let Some(problem) = names::qualified_name(&key).first() {
            return refuse(FieldError::invalid("", &Value::from(key), problem));
        }
        let shown = || Value::from(values.clone());
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                let detail = "for 'in', 'notin' operators, values set can't be empty";
                return refuse(FieldError::invalid("values", &shown(), detail));
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                let detail = "values set must be empty for exists and does not exist";
                return refuse(FieldError::invalid("values", &shown(), detail));
            }
            Operator::GreaterThan | Operator::LessThan
                if values.len() != 1 || values.iter().any(|v| v.parse::<i64>().is_err()) =>
            {
                let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                return refuse(FieldError::invalid("values[0]", &shown(), detail));
            }
            _ => {}
        }
        for (index, value) in values.iter().enumerate() {
            if let Some(problem) = names::label_value(value).first() {
                let field = format!("values[{index}][{key}]");
                return refuse(FieldError::invalid(field, &Value::from(value.as_str()), problem));
            }
        }
        Ok(Self { key, operator, values })
    }

    fn matches(&self, label: Option<&str>) -> bool {
        let has = |label: &str| self.values.iter().any(|v| v == label);
        let compare = |f: fn(i64, i64) -> bool| {
            let left = label.and_then(|l| l.parse().ok());
            let right = self.values.first().and_then(|v| v.parse().ok());
            matches!((left, right), (Some(l), Some(r)) if f(l, r))
        };
        match self.operator {
            Operator::Equals | Operator::In => label.is_some_and(has),
            Operator::NotEquals | Operator::NotIn => !label.is_some_and(has),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::GreaterThan => compare(|l, r| l > r),
            Operator::LessThan => compare(|l, r| l < r),
        }
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{requirement}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values) = (&self.key, self.values.join(","));
        match self.operator {
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

impl FromStr for LabelSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let mut parser = Parser { tokens: tokens(text), at: 0 };
        let mut requirements = Vec::new();
        if parser.peek() == &Token::End {
            return Ok(Self::default());
        }
        loop {
            requirements.push(parser.requirement()?);
            match parser.next() {
                Token::End => break,
                Token::Comma => match parser.peek() {
                    Token::Word(_) | Token::Bang => {}
                    other => {
                        return Err(SelectorError::Label(format!(
                            "found '{}', expected: identifier after ','",
                            other.text()
                        )));
                    }
                },
                other => return Err(found(&other, "',' or 'end of string'")),
            }
        }
        // kube sorts by key.
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Comma,
    Open,
    Close,
    Bang,
    Equals,
    NotEquals,
    Greater,
    Less,
    End,
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Self::Word(word) => word,
            Self::Comma => ",",
            Self::Open => "(",
            Self::Close => ")",
            Self::Bang => "!",
            Self::Equals => "=",
            Self::NotEquals => "!=",
            Self::Greater => ">",
            Self::Less => "<",
            Self::End => "",
        }
    }
}

fn tokens(text: &str) -> Vec<Token> {
    const SPECIAL: &str = ",()!=<>";
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            ',' => (Token::Comma, 1),
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            '>' => (Token::Greater, 1),
            '<' => (Token::Less, 1),
            '=' if rest.starts_with("==") => (Token::Equals, 2),
            '=' => (Token::Equals, 1),
            '!' if rest.starts_with("!=") => (Token::NotEquals, 2),
            '!' => (Token::Bang, 1),
            _ => {
                let end = rest
                    .find(|c: char| c.is_whitespace() || SPECIAL.contains(c))
                    .unwrap_or(rest.len());
                (Token::Word(rest.get(..end).unwrap_or_default().to_owned()), end)
            }
        };
        tokens.push(token);
        rest = rest.get(length..).unwrap_or_default().trim_start();
    }
    tokens.push(Token::End);
    tokens
}

fn found(token: &Token, expected: &str) -> SelectorError {
    SelectorError::Label(format!("found '{}', expected: {expected}", token.text()))
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).unwrap_or(&Token::End)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let absent = self.peek() == &Token::Bang;
        if absent {
            self.next();
        }
        let key = match self.next() {
            Token::Word(word) => word,
            other => return Err(found(&other, "!, identifier, or 'end of string'")),
        };
        if absent {
            return Requirement::new(key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Requirement::new(key, Operator::Exists, Vec::new());
        }
        match self.next() {
            Token::Equals => self.exact(key, Operator::Equals),
            Token::NotEquals => self.exact(key, Operator::NotEquals),
            Token::Greater => self.exact(key, Operator::GreaterThan),
            Token::Less => self.exact(key, Operator::LessThan),
            Token::Word(word) if word == "in" => self.set(key, Operator::In),
            Token::Word(word) if word == "notin" => self.set(key, Operator::NotIn),
            other => Err(found(&other, "in, notin, =, ==, !=, gt, lt")),
        }
    }

    fn exact(&mut self, key: String, operator: Operator) -> Result<Requirement, SelectorError> {
        let value = match self.peek() {
            Token::End | Token::Comma => String::new(),
            Token::Word(word) => {
                let word = word.clone();
                self.next();
                word
            }
            other => return Err(found(other, "identifier")),
        };
        Requirement::new(key, operator, vec![value])
    }

    fn set(&mut self, key: String, operator: Operator) -> Result<Requirement, SelectorError> {
        match self.next() {
            Token::Open => {}
            other => {
                return Err(SelectorError::Label(format!(
                    "found '{}' expected: '('",
                    other.text()
                )));
            }
        }
        let mut values = Vec::new();
        let mut current: Option<String> = None;
        loop {
            match self.next() {
                Token::Word(word) if current.is_none() => current = Some(word),
                Token::Comma => values.push(current.take().unwrap_or_default()),
                Token::Close => {
                    values.push(current.take().unwrap_or_default());
                    return Requirement::new(key, operator, values);
                }
                other => return Err(found(&other, "',', ')' or identifier")),
            }
        }
    }
}
