//! `rlark-server`: the control plane in one process. Wiring is in the library, so that tests can
//! start a whole server.

use std::process::ExitCode;

use clap::Parser as _;
use rlark_server::{Args, exit};

fn main() -> ExitCode {
    let args = Args::parse();
    match rlark_server::main(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
