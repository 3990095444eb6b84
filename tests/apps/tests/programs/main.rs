//! One module for each program.

mod grpc;
mod iperf;
mod nginx;
mod postgres;
mod ray;
mod torch;

use std::time::Duration;

/// For what takes seconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);
