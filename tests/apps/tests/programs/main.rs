//! One module for each program.

mod files;
mod grpc;
mod iperf;
mod nginx;
mod postgres;
mod ray;
mod redis;
mod ros;
mod torch;

use std::time::Duration;

/// For what takes seconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Seconds between the server's return and the end of the silence that its absence was: what waits is sent at once.
const RESUME: f64 = 2.0;
