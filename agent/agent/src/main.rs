//! `rlark-agent`: runs the Tasks that the control plane places on this machine, and reports.
//!
//! ```text
//!   Task (placed here) ──▶ sync ──▶ agent-workload::raw ──▶ process
//!        ▲ status           │ Pod object, attachment at rlark-node
//!        └──────────────────┘
//! ```
//!
//! The same binary, under a hidden subcommand, is also the supervisor of each pod.

mod attach;
mod config;
mod connect;
mod facts;
mod heartbeat;
mod logs;
mod node;
mod plan;
mod report;
mod run;
mod sync;

use std::{io::Write as _, process::ExitCode};

fn main() -> ExitCode {
    // Before any thread exists: the helpers enter namespaces.
    if let Some(code) = agent_workload::raw::helper::dispatch(std::env::args_os()) {
        return code;
    }
    match run::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("rlark-agent: {error:#}\n");
            // With standard error closed there is nobody to tell.
            drop(std::io::stderr().write_all(text.as_bytes()));
            ExitCode::FAILURE
        }
    }
}
