//! The state of one control plane: an immutable ordered map of objects, its revisions, and the
//! log that watches read.
//!
//! A [`Workspace`] is a value; nothing here is global. Its state at a revision is a
//! [`Snapshot`], which is a pointer: taking one, listing from it page by page and (later) forking
//! from it cost nothing. Writes go through one committer thread per workspace, which makes many
//! concurrent writes durable with a single fsync and only then lets anyone see them.
//!
//! `control-apiserver` is the caller; the store knows keys, JSON and revisions, no Kubernetes
//! rules apart from `metadata.resourceVersion`, which it stamps.

mod backend;
mod committer;
mod disk;
mod error;
mod key;
mod log;
mod object;
mod snapshot;
mod watch;
mod workspace;

pub use backend::Memory;
pub use disk::Database;
pub use error::{OpenError, WatchError, WriteError};
pub use key::{Key, Scope};
pub use log::{Event, EventKind};
pub use object::Object;
pub use snapshot::{Page, Snapshot};
pub use watch::Watch;
pub use workspace::{Options, Precondition, Workspace};
