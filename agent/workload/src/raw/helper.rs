//! The hidden subcommands of the agent's binary, by which it is also the supervisor and the first
//! process of a pod. Three processes, each with one duty:
//!
//! ```text
//!   raw-shim DIR   in the machine's namespaces: restarts, captured output, status file; outlives
//!    │             the agent
//!    └ raw-init DIR   enters the pod's network namespace, makes the others
//!       └ raw-pid1 DIR   pid 1 of the pod: mounts, then the entrypoint; reaps
//! ```

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use super::{init, layout::PodDir, pid1, shim};

pub(crate) const SHIM: &str = "raw-shim";
pub(crate) const INIT: &str = "raw-init";
pub(crate) const PID1: &str = "raw-pid1";

/// Runs the helper that the command line asks for; `None` when it asks for none of them. To be
/// called first in `main`, before any thread exists.
pub fn dispatch(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    let which = arguments.next()?;
    let dir = PodDir::at(PathBuf::from(arguments.next()?));
    match which.to_str()? {
        SHIM => Some(shim::main(&dir)),
        INIT => Some(init::main(&dir)),
        PID1 => Some(pid1::main(&dir)),
        _ => None,
    }
}
