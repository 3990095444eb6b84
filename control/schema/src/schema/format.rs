//! String formats that a kube-apiserver knows; unknown ones hold.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine;

/// Whether `text` has the format `name`.
pub(crate) fn holds(name: &str, text: &str) -> bool {
    match name {
        "date-time" | "datetime" => is_date_time(text),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        "byte" => {
            base64::engine::general_purpose::STANDARD.decode(text.replace(['\r', '\n'], "")).is_ok()
        }
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "ip" => text.parse::<IpAddr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uuid" | "uuid3" | "uuid4" | "uuid5" => is_uuid(text),
        "uri" => is_uri(text),
        "email" => {
            text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && is_hostname(host))
        }
        "hostname" => is_hostname(text),
        "duration" => is_duration(text),
        _ => true,
    }
}

fn is_date_time(text: &str) -> bool {
    text.len() >= 20
        && text.as_bytes().get(10).is_some_and(|b| matches!(b, b'T' | b't'))
        && text.parse::<jiff::Timestamp>().is_ok()
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    match (address.parse::<IpAddr>(), bits.parse::<u8>()) {
        (Ok(IpAddr::V4(_)), Ok(bits)) => bits <= 32,
        (Ok(IpAddr::V6(_)), Ok(bits)) => bits <= 128,
        _ => false,
    }
}

fn is_mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '-']).collect();
    matches!(parts.len(), 6 | 8)
        && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn is_uuid(text: &str) -> bool {
    let plain: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = plain.iter().map(|part| part.len()).collect();
    (lengths == [8, 4, 4, 4, 12] || lengths == [32])
        && plain.iter().all(|part| part.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn is_uri(text: &str) -> bool {
    if text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let mut letters = scheme.bytes();
    letters.next().is_some_and(|b| b.is_ascii_alphabetic())
        && letters.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
        && !rest.is_empty()
        && !text.contains(char::is_whitespace)
}

fn is_hostname(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 255
        && text.trim_end_matches('.').split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.chars().all(|c| c.is_alphanumeric() || c == '-')
        })
}

/// Go's `time.ParseDuration` (`1h2m3.5s`), which strfmt tries first.
fn is_duration(text: &str) -> bool {
    let mut rest = text.trim_start_matches(['-', '+']);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        if digits == 0 {
            return false;
        }
        let (_, tail) = rest.split_at(digits);
        let unit = ["ns", "us", "µs", "ms", "s", "m", "h"].into_iter().find(|u| {
            tail.strip_prefix(u).is_some_and(|t| {
                t.is_empty() || t.starts_with(|c: char| c.is_ascii_digit() || c == '.')
            })
        });
        match unit.and_then(|u| tail.strip_prefix(u)) {
            Some(next) => rest = next,
            None => return false,
        }
    }
    true
}
