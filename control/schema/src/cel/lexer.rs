//! From text to tokens.

use super::parser::ParseError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Name(String),
    Text(String),
    Int(i64),
    Uint(u64),
    Double(f64),
    /// An operator or bracket.
    Sign(&'static str),
    End,
}

/// Longest first.
const SIGNS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", ".", ",",
    "(", ")", "[", "]", "{", "}",
];

/// Tokens with the column, from one, at which they start.
pub(super) fn tokens(source: &str) -> Result<Vec<(Token, usize)>, ParseError> {
    let chars: Vec<char> = source.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let start = at;
        if c.is_whitespace() {
            at += 1;
            continue;
        }
        let rest = chars.get(at..).unwrap_or_default();
        if rest.starts_with(&['/', '/']) {
            at += rest.iter().take_while(|c| **c != '\n').count();
            continue;
        }
        let raw = matches!(c, 'r' | 'R') && matches!(rest.get(1), Some('"' | '\''));
        let token = if raw || matches!(c, '"' | '\'') {
            let (text, length) = text(rest.get(usize::from(raw)..).unwrap_or_default(), raw)
                .ok_or_else(|| ParseError::at(start, "token recognition error"))?;
            at += length + usize::from(raw);
            Token::Text(text)
        } else if c.is_ascii_digit() {
            let (token, length) =
                number(rest).ok_or_else(|| ParseError::at(start, "invalid number"))?;
            at += length;
            token
        } else if c.is_alphabetic() || c == '_' {
            let name: String =
                rest.iter().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
            at += name.chars().count();
            Token::Name(name)
        } else {
            let sign = SIGNS.iter().find(|s| s.chars().eq(rest.iter().copied().take(s.len())));
            let sign = sign.ok_or_else(|| ParseError::at(start, "token recognition error"))?;
            at += sign.len();
            Token::Sign(sign)
        };
        found.push((token, start + 1));
    }
    found.push((Token::End, chars.len() + 1));
    Ok(found)
}

/// A quoted text and its length in the source.
fn text(rest: &[char], raw: bool) -> Option<(String, usize)> {
    let quote = *rest.first()?;
    let triple = rest.starts_with(&[quote; 3]);
    let end: &[char] = if triple { &[quote; 3] } else { &[quote] };
    let mut at = end.len();
    let mut out = String::new();
    loop {
        let left = rest.get(at..)?;
        if left.starts_with(end) {
            return Some((out, at + end.len()));
        }
        match *left.first()? {
            '\\' if !raw => {
                let (c, length) = escape(left.get(1..)?)?;
                out.push(c);
                at += 1 + length;
            }
            '\n' if !triple => return None,
            c => {
                out.push(c);
                at += 1;
            }
        }
    }
}

fn escape(rest: &[char]) -> Option<(char, usize)> {
    let simple = |c| Some((c, 1));
    let code = |digits: usize, radix: u32| {
        let text: String = rest.get(1..=digits)?.iter().collect();
        Some((char::from_u32(u32::from_str_radix(&text, radix).ok()?)?, digits + 1))
    };
    match *rest.first()? {
        'n' => simple('\n'),
        't' => simple('\t'),
        'r' => simple('\r'),
        'a' => simple('\u{7}'),
        'b' => simple('\u{8}'),
        'f' => simple('\u{c}'),
        'v' => simple('\u{b}'),
        c @ ('\\' | '?' | '"' | '\'' | '`') => simple(c),
        'x' | 'X' => code(2, 16),
        'u' => code(4, 16),
        'U' => code(8, 16),
        _ => None,
    }
}

fn number(rest: &[char]) -> Option<(Token, usize)> {
    if rest.first() == Some(&'0') && matches!(rest.get(1), Some('x' | 'X')) {
        let digits: String = rest.iter().skip(2).take_while(|c| c.is_ascii_hexdigit()).collect();
        return Some((Token::Int(i64::from_str_radix(&digits, 16).ok()?), digits.len() + 2));
    }
    let mut text = String::new();
    let mut real = false;
    for (index, c) in rest.iter().enumerate() {
        let next_digit = rest.get(index + 1).is_some_and(char::is_ascii_digit);
        let sign_next = matches!(rest.get(index + 1), Some('+' | '-'));
        match c {
            '0'..='9' => {}
            '.' if !real && next_digit => real = true,
            'e' | 'E' if next_digit || sign_next => real = true,
            '+' | '-' if matches!(text.chars().last(), Some('e' | 'E')) => {}
            _ => break,
        }
        text.push(*c);
    }
    let length = text.len();
    if real {
        return Some((Token::Double(text.parse().ok()?), length));
    }
    if matches!(rest.get(length), Some('u' | 'U')) {
        return Some((Token::Uint(text.parse().ok()?), length + 1));
    }
    Some((Token::Int(text.parse().ok()?), length))
}
