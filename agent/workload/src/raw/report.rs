//! The one message from inside a pod to its supervisor: the entrypoint runs, or why it cannot.
//! It goes through a pipe that the helpers have as standard input; the entrypoint does not get it.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::AsFd as _,
};

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Report {
    Started,
    /// Trying again may help (a namespace could not be entered).
    Broken(String),
    /// It will never run like this (no such program).
    Impossible(String),
}

impl Report {
    /// Sends it; at most one is read.
    pub(crate) fn send(&self) -> io::Result<()> {
        let mut text = serde_json::to_vec(self).map_err(io::Error::other)?;
        text.push(b'\n');
        let pipe = io::stdin().as_fd().try_clone_to_owned()?;
        File::from(pipe).write_all(&text)
    }
}
