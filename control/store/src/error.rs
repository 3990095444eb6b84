//! What can go wrong, one enum per family of operations.

use std::path::PathBuf;

/// Opening a database or a workspace in it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot create the data directory {path}")]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("data directory {path} is in use by another server (it holds the lock on {lock})")]
    Locked { path: PathBuf, lock: PathBuf },
    #[error("cannot lock the data directory {path}")]
    Lock { path: PathBuf, source: std::io::Error },
    #[error("cannot open the database {path}")]
    Database { path: PathBuf, source: Box<redb::Error> },
    /// The database code gave up in the middle of the file.
    #[error("cannot read the database {path}: it is damaged ({reason})")]
    Corrupt { path: PathBuf, reason: String },
    #[error("cannot read workspace {workspace}")]
    Read { workspace: String, source: Box<redb::Error> },
    #[error("cannot read object {key} of workspace {workspace}: it is damaged")]
    Damaged { workspace: String, key: String, source: serde_json::Error },
    #[error("cannot start the committer of workspace {workspace}")]
    Thread { workspace: String, source: std::io::Error },
}

/// A write that was not done. Nothing of it is visible or on disk.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("{key} already exists")]
    AlreadyExists { key: String },
    #[error("{key} not found")]
    NotFound { key: String },
    #[error("{key} is at revision {actual}, not {expected}")]
    Conflict { key: String, expected: u64, actual: u64 },
    #[error("cannot serialise {key}")]
    Serialise { key: String, source: serde_json::Error },
    /// The disk refused; the state is as before the write.
    #[error("cannot make the write of {key} durable: {reason}")]
    Durability { key: String, reason: String },
    #[error("the workspace is shut down")]
    Closed,
}

/// A watch that cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// Events after the wanted revision are no longer all in the log: list again.
    #[error("revision {wanted} is too old: the log starts after {floor}")]
    Expired { wanted: u64, floor: u64 },
    #[error("the workspace is shut down")]
    Closed,
}
