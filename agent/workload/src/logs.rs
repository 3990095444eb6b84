//! Captured output of pods: one file per attempt in the format of the Kubernetes CRI, rotated by
//! size. [`writer`] belongs to the pod's supervisor, [`reader`] to whoever asks for logs; they meet
//! only in the directory.
//!
//! ```text
//!   logs/3.log      attempt 3, newest lines       2026-11-29T18:33:12.123456789Z stdout F text
//!   logs/3.log.1    before that                   (F: a whole line, P: a part, more follows)
//!   logs/2.log      the previous attempt
//! ```

pub mod format;
pub mod reader;
pub mod writer;

use std::path::{Path, PathBuf};

/// A file is put aside when it would grow beyond this many bytes.
pub const ROTATE_AT: u64 = 10 * 1024 * 1024;
/// Files of one attempt, the current one included.
pub const ROTATED: u32 = 3;

/// File `n` of an attempt; 0 is the one being written.
fn file(dir: &Path, attempt: u32, n: u32) -> PathBuf {
    if n == 0 { dir.join(format!("{attempt}.log")) } else { dir.join(format!("{attempt}.log.{n}")) }
}

/// Attempts that have a log, ascending.
fn attempts(dir: &Path) -> std::io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if let Some(n) = name.to_str().and_then(|n| n.strip_suffix(".log")?.parse().ok()) {
            found.push(n);
        }
    }
    found.sort_unstable();
    Ok(found)
}
