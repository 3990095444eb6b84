//! The Job's state machine.
//!
//! ```text
//! (none) ─▶ Pending ─▶ Running ─▶ Succeeded
//!              │  ╲       │  ╲        │        Pending may also succeed or fail directly, when
//!              │   ╲──────┼───╲─▶ Failed       Running was never seen
//!              ▼          ▼         │
//!           Stopping ◀──────────────┘          stop or restart; until all Tasks are gone
//!              ▼
//!           Stopped ─▶ Pending                 a fresh run, when not asked to stay stopped
//! ```

use control_api::v1alpha1::JobPhase;

/// Why a Job changes its phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Init,
    StopAsked,
    RestartAsked,
    CleanedUp,
    Resumed,
    TaskFailed,
    AllSucceeded,
    SomeRun,
}

impl std::fmt::Display for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Init => "accepted",
            Self::StopAsked => "stop requested",
            Self::RestartAsked => "restart requested",
            Self::CleanedUp => "all tasks are gone",
            Self::Resumed => "fresh run",
            Self::TaskFailed => "a task failed",
            Self::AllSucceeded => "every task succeeded",
            Self::SomeRun => "tasks are running",
        })
    }
}

/// Phases of the Tasks of the present templates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub wanted: usize,
    pub running: usize,
    pub succeeded: usize,
    pub failed: usize,
}

/// What the step depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub stop: bool,
    pub restart: bool,
    pub any_task_left: bool,
    pub tally: Tally,
}

/// The next phase, or none when the Job stays where it is. A phase this build does not know is a
/// beginning.
#[must_use]
pub fn next(phase: Option<&JobPhase>, facts: &Facts) -> Option<(Signal, JobPhase)> {
    use JobPhase::{Failed, Pending, Running, Stopped, Stopping, Succeeded};
    let tally = facts.tally;
    let stop = if facts.stop {
        Some((Signal::StopAsked, Stopping))
    } else if facts.restart {
        Some((Signal::RestartAsked, Stopping))
    } else {
        None
    };
    match phase {
        None | Some(JobPhase::Other(_)) => Some((Signal::Init, Pending)),
        Some(Stopping) => (!facts.any_task_left).then_some((Signal::CleanedUp, Stopped)),
        Some(Stopped) => {
            (!facts.stop && !facts.any_task_left).then_some((Signal::Resumed, Pending))
        }
        Some(Succeeded | Failed) => stop,
        Some(current @ (Pending | Running)) => stop.or_else(|| {
            if tally.failed > 0 {
                Some((Signal::TaskFailed, Failed))
            } else if tally.wanted > 0 && tally.succeeded == tally.wanted {
                Some((Signal::AllSucceeded, Succeeded))
            } else if *current == Pending && tally.running + tally.succeeded > 0 {
                Some((Signal::SomeRun, Running))
            } else {
                None
            }
        }),
    }
}
