//! The raw runtime's helpers as a program of their own; `rlark-agent` has them inside as well.

use std::process::ExitCode;

fn main() -> ExitCode {
    agent_workload::raw::helper::dispatch(std::env::args_os()).unwrap_or(ExitCode::FAILURE)
}
