//! The life of one pod's process as a pure state machine: what to do when it ends, when it is
//! asked to stop, when a wait is over. The supervisor (`raw::shim`) owns the clock, the signals
//! and the processes and does what [`step`] says.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::spec::RestartPolicy;

/// First pause before a restart.
pub const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// Longest pause before a restart.
pub const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// A process that lived this long is taken for healthy: its next failure counts as the first.
pub const HEALTHY_AFTER: Duration = Duration::from_secs(600);

/// The part of the spec that decides.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    pub restart: RestartPolicy,
    pub backoff_limit: Option<u32>,
    pub grace: Duration,
}

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Outcome {
    Succeeded,
    /// `code` is the exit code, or 128+n after signal n; `None` when nothing could be started.
    #[serde(rename_all = "camelCase")]
    Failed {
        code: Option<i32>,
        message: String,
    },
    /// Ended because it was asked to.
    Stopped,
}

/// Where a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A process has been asked for and neither stands nor failed yet.
    Starting {
        failures: u32,
    },
    Running {
        failures: u32,
    },
    BackOff {
        failures: u32,
    },
    Stopping,
    Ended(Outcome),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The entrypoint has been executed.
    Started,
    /// The whole tree is gone after it had been started; `ran` is how long it lived.
    Exited {
        code: i32,
        ran: Duration,
    },
    /// Nothing was started and trying again would not help.
    CannotStart {
        message: String,
    },
    StopRequested,
    /// The wait asked for by [`Action::Wait`] is over.
    WaitOver,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Spawn,
    /// SIGTERM to the entrypoint.
    Terminate,
    /// SIGKILL to everything in the pod.
    KillTree,
    /// Deliver [`Event::WaitOver`] after this long; replaces an earlier wait.
    Wait(Duration),
    /// Write the outcome down and end.
    Finish,
}

/// A new pod.
#[must_use]
pub fn begin() -> (State, Vec<Action>) {
    (State::Starting { failures: 0 }, vec![Action::Spawn])
}

/// A pod whose supervisor was lost: it is started again after the pause that is due.
#[must_use]
pub fn resume(failures: u32) -> (State, Vec<Action>) {
    (State::BackOff { failures }, vec![Action::Wait(backoff(failures))])
}

/// The pause before restart number `failures` (1 is the first).
#[must_use]
pub fn backoff(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    BACKOFF_FIRST.saturating_mul(1 << doublings).min(BACKOFF_MAX)
}

/// Total: an event that does not fit a state changes nothing.
#[must_use]
pub fn step(state: State, event: Event, policy: &Policy) -> (State, Vec<Action>) {
    match (state, event) {
        (ended @ State::Ended(_), _) => (ended, vec![]),
        (State::Starting { failures }, Event::Started) => (State::Running { failures }, vec![]),
        (_, Event::CannotStart { message }) => finish(Outcome::Failed { code: None, message }),
        // The first SIGTERM may have come before anybody listened for it.
        (State::Stopping, Event::Started) => (State::Stopping, vec![Action::Terminate]),
        (State::Stopping, Event::Exited { .. }) => finish(Outcome::Stopped),
        (State::Stopping, Event::WaitOver) => (State::Stopping, vec![Action::KillTree]),
        (
            State::Starting { failures } | State::Running { failures },
            Event::Exited { code, ran },
        ) => exited(failures, code, ran, policy),
        (State::BackOff { failures }, Event::WaitOver) => {
            (State::Starting { failures }, vec![Action::Spawn])
        }
        (State::BackOff { .. }, Event::StopRequested) => finish(Outcome::Stopped),
        (State::Starting { .. } | State::Running { .. }, Event::StopRequested) => {
            (State::Stopping, vec![Action::Terminate, Action::Wait(policy.grace)])
        }
        (state, _) => (state, vec![]),
    }
}

fn finish(outcome: Outcome) -> (State, Vec<Action>) {
    (State::Ended(outcome), vec![Action::Finish])
}

fn exited(failures: u32, code: i32, ran: Duration, policy: &Policy) -> (State, Vec<Action>) {
    let again = match policy.restart {
        RestartPolicy::Never => false,
        RestartPolicy::OnFailure => code != 0,
        RestartPolicy::Always => true,
    };
    if !again {
        return finish(if code == 0 {
            Outcome::Succeeded
        } else {
            Outcome::Failed { code: Some(code), message: describe(code) }
        });
    }
    let failures = if ran >= HEALTHY_AFTER { 1 } else { failures.saturating_add(1) };
    if policy.backoff_limit.is_some_and(|limit| failures > limit) {
        let message = format!("{}; given up after {} restarts", describe(code), failures - 1);
        return finish(Outcome::Failed { code: Some(code), message });
    }
    (State::BackOff { failures }, vec![Action::Wait(backoff(failures))])
}

/// A sentence about an exit code.
#[must_use]
pub fn describe(code: i32) -> String {
    match code {
        0 => "exited".to_owned(),
        129..=192 => format!("ended by signal {}", code - 128),
        _ => format!("exited with code {code}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHORT: Duration = Duration::from_millis(5);

    fn policy(restart: RestartPolicy, backoff_limit: Option<u32>) -> Policy {
        Policy { restart, backoff_limit, grace: Duration::from_secs(10) }
    }

    fn running(failures: u32) -> State {
        State::Running { failures }
    }

    #[test]
    fn the_exit_code_decides_under_never() {
        let p = policy(RestartPolicy::Never, None);
        let (s, _) = step(running(0), Event::Exited { code: 0, ran: SHORT }, &p);
        assert_eq!(s, State::Ended(Outcome::Succeeded));
        let (s, _) = step(running(0), Event::Exited { code: 139, ran: SHORT }, &p);
        let State::Ended(Outcome::Failed { code, message }) = s else { panic!("{s:?}") };
        assert_eq!((code, message.as_str()), (Some(139), "ended by signal 11"));
    }

    #[test]
    fn pauses_double_up_to_five_minutes() {
        assert_eq!(backoff(1), Duration::from_secs(1));
        assert_eq!(backoff(3), Duration::from_secs(4));
        assert_eq!(backoff(9), Duration::from_secs(256));
        assert_eq!(backoff(10), BACKOFF_MAX);
        assert_eq!(backoff(u32::MAX), BACKOFF_MAX);
    }

    #[test]
    fn a_long_life_forgives_earlier_failures() {
        let p = policy(RestartPolicy::OnFailure, Some(3));
        let (s, a) = step(running(3), Event::Exited { code: 1, ran: HEALTHY_AFTER }, &p);
        assert_eq!(s, State::BackOff { failures: 1 });
        assert_eq!(a, vec![Action::Wait(BACKOFF_FIRST)]);
    }

    #[test]
    fn the_limit_counts_restarts() {
        let p = policy(RestartPolicy::OnFailure, Some(1));
        let (s, _) = step(running(0), Event::Exited { code: 2, ran: SHORT }, &p);
        assert_eq!(s, State::BackOff { failures: 1 });
        let (s, _) = step(running(1), Event::Exited { code: 2, ran: SHORT }, &p);
        assert!(matches!(s, State::Ended(Outcome::Failed { code: Some(2), .. })), "{s:?}");
    }

    #[test]
    fn a_stop_terminates_waits_kills_and_then_ends() {
        let p = policy(RestartPolicy::Always, None);
        let (s, a) = step(running(0), Event::StopRequested, &p);
        assert_eq!(a, vec![Action::Terminate, Action::Wait(p.grace)]);
        let (s, a) = step(s, Event::WaitOver, &p);
        assert_eq!(a, vec![Action::KillTree]);
        let (s, a) = step(s, Event::Exited { code: 137, ran: SHORT }, &p);
        assert_eq!((s, a), (State::Ended(Outcome::Stopped), vec![Action::Finish]));
    }

    #[test]
    fn what_cannot_start_is_not_tried_again() {
        let p = policy(RestartPolicy::Always, None);
        let event = Event::CannotStart { message: "entrypoint \"x\" not found".into() };
        let (s, a) = step(begin().0, event, &p);
        assert_eq!(a, vec![Action::Finish]);
        assert!(matches!(s, State::Ended(Outcome::Failed { code: None, .. })));
    }

    fn any_event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Started),
            (0..256i32, 0..1000u64)
                .prop_map(|(code, s)| Event::Exited { code, ran: Duration::from_secs(s) }),
            Just(Event::StopRequested),
            Just(Event::WaitOver),
        ]
    }

    proptest! {
        #[test]
        fn after_a_stop_nothing_is_ever_spawned(before in prop::collection::vec(any_event(), 0..20),
                                                after in prop::collection::vec(any_event(), 0..20)) {
            let p = policy(RestartPolicy::Always, None);
            let (mut state, _) = begin();
            for e in before { state = step(state, e, &p).0; }
            let (mut state, _) = { let (s, a) = step(state, Event::StopRequested, &p); (s, a) };
            for e in after {
                let (next, actions) = step(state, e, &p);
                prop_assert!(!actions.contains(&Action::Spawn));
                state = next;
            }
        }

        #[test]
        fn an_end_is_final(code in 0..256i32, events in prop::collection::vec(any_event(), 0..10)) {
            let p = policy(RestartPolicy::Never, None);
            let (end, _) = step(State::Running { failures: 0 }, Event::Exited { code, ran: SHORT }, &p);
            let mut state = end.clone();
            for e in events { state = step(state, e, &p).0; }
            prop_assert_eq!(state, end);
        }
    }
}
