//! Runs pods: what a Task asks for, made real on this machine.
//!
//! [`raw`] runs an executable in namespaces and a cgroup of its own, without a container engine.
//! [`spec`], [`lifecycle`] and [`logs`] are what every runtime shares, so that the next ones
//! (docker, kubernetes) differ only in how a process comes to be.
//!
//! Callers: `rlark-agent`, which turns Tasks into [`spec::PodSpec`]s and reports
//! [`raw::PodView`]s; and that binary again under a hidden subcommand, as the supervisor of one pod
//! ([`raw::helper`]).

pub mod artifact;
mod inotify;
pub mod lifecycle;
pub mod logs;
pub mod raw;
pub mod spec;

/// For an operation whose failure is of no consequence at this place; each use says why.
fn ignore<T, E>(_result: Result<T, E>) {}
