//! Running other programs: one place that turns a failure into an error with command and output.

use std::{
    ffi::OsStr,
    process::{Command, Output, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// A command from words; for readers, `cmd("ip", ["link", "show"])`.
pub fn cmd<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Command {
    let mut c = Command::new(program);
    c.args(args).stdin(Stdio::null());
    c
}

fn shown(c: &Command) -> String {
    let words = std::iter::once(c.get_program()).chain(c.get_args());
    words.map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs to the end; the output is an error's text when the status is not zero.
pub fn output(c: &mut Command) -> Result<Output> {
    let out = c.output().with_context(|| format!("cannot start `{}`", shown(c)))?;
    if out.status.success() {
        return Ok(out);
    }
    let text = [out.stderr.as_slice(), out.stdout.as_slice()].concat();
    bail!("`{}` failed ({}): {}", shown(c), out.status, String::from_utf8_lossy(&text).trim())
}

/// Standard output of a command that must succeed.
pub fn stdout(c: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&output(c)?.stdout).into_owned())
}

/// `ip` with the words of `line`.
pub fn ip(line: &str) -> Result<()> {
    output(&mut cmd("ip", line.split_whitespace())).map(drop)
}

/// Whether `program` is on PATH.
#[must_use]
pub fn on_path(program: &str) -> bool {
    let Some(path) = std::env::var_os("PATH") else { return false };
    std::env::split_paths(&path).any(|d| d.join(program).is_file())
}
