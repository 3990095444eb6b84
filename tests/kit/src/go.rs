//! The Go compiler that some tests and tools need.

use anyhow::{Context as _, Result, ensure};

use crate::command::{cmd, on_path, stdout};

/// Since this minor version listeners use multipath TCP unless told otherwise, which is one of the things to be tested.
const MINOR: u32 = 24;

/// An error that says what is missing, unless there is a Go compiler that is new enough.
pub fn require() -> Result<()> {
    ensure!(
        on_path("go"),
        "no Go compiler: run `cargo xtask setup`, or install Go 1.{MINOR} or newer"
    );
    let said = stdout(&mut cmd("go", ["version"]))?;
    let minor = minor(&said).with_context(|| format!("`go version` said {said:?}"))?;
    ensure!(
        minor >= MINOR,
        "Go 1.{minor} is too old, 1.{MINOR} is needed: in Debian 13, or from https://go.dev/dl"
    );
    Ok(())
}

/// Of `go version go1.24.4 linux/amd64`.
fn minor(said: &str) -> Option<u32> {
    let (_, version) = said.split_once(" go1.")?;
    let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    version.get(..digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minor_version_is_found() {
        assert_eq!(minor("go version go1.24.4 linux/amd64"), Some(24));
        assert_eq!(minor("go version go1.26rc1 linux/arm64"), Some(26));
        assert_eq!(minor("go version devel"), None);
    }
}
