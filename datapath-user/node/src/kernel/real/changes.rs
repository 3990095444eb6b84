//! The hooks' events as a stream.

use std::{io, os::fd::AsFd as _, sync::Arc};

use datapath_loader::{Events, Protocol};
use datapath_net::ready::Ready;
use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};

use super::Shared;
use crate::kernel::{Changed, Socket};

/// `None`, with a word in the log: then nothing is told of this machine's ports, and nobody is refused for what was missed.
pub(super) fn stream(shared: Arc<Shared>, events: Events) -> Option<BoxStream<'static, Changed>> {
    let ready = events.as_fd().try_clone_to_owned().and_then(Ready::new).inspect_err(log).ok()?;
    Some(stream::unfold((ready, events, shared), next).boxed())
}

type State = (Ready, Events, Arc<Shared>);

async fn next((ready, mut events, shared): State) -> Option<(Changed, State)> {
    let take = || {
        if events.have_lost(&shared.datapath).unwrap_or(true) {
            return Some(Changed::All);
        }
        let c = events.pop()?;
        let udp = c.protocol == Protocol::Udp;
        Some(Changed::Socket(Socket { cookie: c.netns.0, udp, at: c.at }))
    };
    let changed = tokio::select! {
        changed = ready.until(take) => changed.inspect_err(log).ok()?,
        () = shared.older_ended.notified() => Changed::All,
    };
    Some((changed, (ready, events, shared)))
}

fn log(e: &io::Error) {
    tracing::error!(error = %e, "events of the hooks are not read");
}
