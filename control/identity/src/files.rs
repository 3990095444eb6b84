//! Files that hold identities: written whole or not at all, secrets readable by the owner only.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// A file operation on identity data failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {source}", path.display())]
pub struct FileError {
    pub what: &'static str,
    pub path: PathBuf,
    /// Shown in the text as well, because it is what a person needs (permission, no space).
    pub source: io::Error,
}

fn fail(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError { what, path, source }
}

/// Makes `dir` (mode 0700) with its parents; an existing one is made private.
pub(crate) fn private_dir(dir: &Path) -> Result<(), FileError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(fail("create the directory", dir))?;
    let mode = fs::metadata(dir).map_err(fail("inspect", dir))?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
            .map_err(fail("make private", dir))?;
    }
    Ok(())
}

/// `None` when the file does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<String>, FileError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(fail("read", path)(e)),
    }
}

/// Replaces `path` atomically; after an error or a crash the old content still stands.
pub(crate) fn write(path: &Path, content: &str, mode: u32) -> Result<(), FileError> {
    replace(path, content.as_bytes(), mode).map_err(fail("write", path))
}

/// Replaces the file by a synced one of this mode; it is the old or the new one at every moment, also
/// after a power cut.
///
/// # Errors
/// It cannot be written; the old one then stands.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut file =
        tempfile::Builder::new().permissions(fs::Permissions::from_mode(mode)).tempfile_in(dir)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    fs::File::open(dir)?.sync_all()
}
