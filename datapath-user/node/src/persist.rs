//! Small JSON files that are either the old or the new version, also after a power cut.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use control_identity::files;
use serde::{Serialize, de::DeserializeOwned};

/// Why a file of the data directory could not be used.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} does not hold what this version of rlark-node writes")]
    Content {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

/// Reads the file; `None` if there is none.
///
/// # Errors
/// When it cannot be read or does not parse.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, PersistError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(PersistError::Read { path: path.to_owned(), source }),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|source| PersistError::Content { path: path.to_owned(), source })
}

/// Replaces the file (mode 0600) atomically.
///
/// # Errors
/// When it cannot be written; the old version then stands.
pub fn store<T: Serialize>(path: &Path, value: &T) -> Result<(), PersistError> {
    let text = serde_json::to_vec_pretty(value)
        .map_err(|source| PersistError::Content { path: path.to_owned(), source })?;
    files::replace(path, &text, 0o600)
        .map_err(|source| PersistError::Write { path: path.to_owned(), source })
}
