//! What people would use instead. Installed from the ordinary registries when asked for.

use anyhow::Result;

use super::{Found, lab::Lab};
use crate::ui::Progress;

/// One of them, ready to be run.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: &'static str,
}

/// Installs what is missing; what cannot be had is noted with the reason.
pub(super) fn install(notes: &mut Vec<String>) -> Vec<Peer> {
    notes.push("peers: none yet".into());
    vec![]
}

pub(super) fn near(lab: &mut Lab, _found: &mut Found, _: &Progress) -> Result<()> {
    for peer in &lab.peers {
        println!("{}", peer.name);
    }
    Ok(())
}

pub(super) fn far(_lab: &mut Lab, _found: &mut Found, _: &Progress) -> Result<()> {
    Ok(())
}
