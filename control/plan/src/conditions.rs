//! Keeping a list of conditions: the time of a condition moves only when its status does.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// A condition as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub type_: &'static str,
    pub status: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Finding {
    #[must_use]
    pub fn yes(type_: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { type_, status: true, reason, message: message.into() }
    }
    #[must_use]
    pub fn no(type_: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { type_, status: false, reason, message: message.into() }
    }
}

/// Adds or replaces the condition of this type.
pub fn set(conditions: &mut Vec<Condition>, finding: Finding, generation: Option<i64>, now: &Time) {
    let status = if finding.status { "True" } else { "False" };
    let old = conditions.iter_mut().find(|c| c.type_ == finding.type_);
    let since = match &old {
        Some(c) if c.status == status => c.last_transition_time.clone(),
        _ => now.clone(),
    };
    let new = Condition {
        type_: finding.type_.to_owned(),
        status: status.to_owned(),
        reason: finding.reason.to_owned(),
        message: finding.message,
        observed_generation: generation,
        last_transition_time: since,
    };
    match old {
        Some(c) => *c = new,
        None => conditions.push(new),
    }
}

/// Drops the condition of this type.
pub fn remove(conditions: &mut Vec<Condition>, type_: &str) {
    conditions.retain(|c| c.type_ != type_);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Time {
        Time(k8s_openapi::jiff::Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn the_time_moves_only_with_the_status() {
        let mut c = Vec::new();
        set(&mut c, Finding::no("Ready", "A", "a"), Some(1), &at(1));
        set(&mut c, Finding::no("Ready", "B", "b"), Some(2), &at(2));
        assert_eq!(c.len(), 1);
        assert_eq!((c[0].reason.as_str(), &c[0].last_transition_time), ("B", &at(1)));
        set(&mut c, Finding::yes("Ready", "C", ""), Some(2), &at(3));
        assert_eq!((c[0].status.as_str(), &c[0].last_transition_time), ("True", &at(3)));
    }
}
