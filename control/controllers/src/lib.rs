//! The controllers: one per kind, each observe → plan (`control-plan`) → act → status.
//!
//! ```text
//!   API server ──watch──▶ cache (one per kind) ──keys──▶ queues ──▶ reconcilers ──writes──▶ API server
//!                           └────────── stores, read by reconcilers ──┘
//! ```
//!
//! A key is queued only after the store holds the change, so a reconciler never decides on a state
//! older than what woke it. Status is written with the resource version it was decided on; who loses
//! a race is woken by the winner's change. The server runs them in process on a client of its own
//! API ([`run`]); the same code runs against any Kubernetes API server.

mod backoff;
mod cache;
mod context;
mod domain;
mod engine;
mod job;
mod node;
mod notes;
mod pod;
mod status;
mod task;
mod triggers;
mod workflow;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use self::engine::RunError;

/// How the controllers behave.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many objects of one kind are worked on at a time.
    pub concurrency: u16,
    /// How long an agent may be silent before its Nodes are Offline.
    pub node_grace: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { concurrency: 8, node_grace: control_plan::liveness::GRACE }
    }
}

/// Runs all controllers until `shutdown`. The definitions of `rlinf.io/v1alpha1` must be served.
///
/// # Errors
/// [`RunError`] when a part of them ended by itself, which is a fault of ours.
pub async fn run(
    client: kube::Client,
    config: Config,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    engine::run(client, config, shutdown).await
}
