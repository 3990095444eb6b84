//! The hooks' events, for two who ask: a stream of all of them, and, on the threads that send, which sockets began to listen or ended.

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    os::fd::AsFd as _,
    sync::{Arc, Mutex},
};

use datapath_loader::{Events, Protocol};
use datapath_net::ready::Ready;
use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use tokio::sync::Notify;

use super::{Shared, lock};
use crate::kernel::{Changed, Socket};

/// How far one of the two may be behind; then the stream says [`Changed::All`], and peers hear of the rest by the hub alone.
const MOST: usize = 4096;

/// What the hooks have told and not everybody has read. Empty until [`stream`] is called.
#[derive(Debug, Default)]
pub(super) struct News {
    told: Mutex<Option<Told>>,
    /// Something was read here by another than the stream.
    come: Notify,
}

#[derive(Debug)]
struct Told {
    events: Events,
    changed: VecDeque<Changed>,
    /// TCP only, each once.
    turned: BTreeSet<Socket>,
}

impl Told {
    fn read(&mut self) {
        while let Some(c) = self.events.pop() {
            let udp = c.protocol == Protocol::Udp;
            let socket = Socket { cookie: c.netns.0, udp, at: c.at };
            if !udp && self.turned.len() < MOST {
                self.turned.insert(socket);
            }
            self.changed.push_back(Changed::Socket(socket));
        }
        if self.changed.len() > MOST {
            self.all();
        }
    }

    fn all(&mut self) {
        self.changed.clear();
        self.changed.push_back(Changed::All);
    }
}

impl News {
    /// See [`crate::kernel::Kernel::turned`].
    pub(super) fn turned(&self) -> Vec<Socket> {
        let mut told = lock(&self.told);
        let Some(told) = told.as_mut() else { return Vec::new() };
        told.read();
        if !told.changed.is_empty() {
            self.come.notify_one();
        }
        std::mem::take(&mut told.turned).into_iter().collect()
    }

    fn next(&self, shared: &Shared) -> Option<Changed> {
        let mut told = lock(&self.told);
        let told = told.as_mut()?;
        told.read();
        if told.events.have_lost(&shared.datapath).unwrap_or(true) {
            told.all();
        }
        told.changed.pop_front()
    }
}

/// `None`, with a word in the log: then nothing is told of this machine's ports, and nobody is refused for what was missed.
pub(super) fn stream(shared: Arc<Shared>, events: Events) -> Option<BoxStream<'static, Changed>> {
    let ready = events.as_fd().try_clone_to_owned().and_then(Ready::new).inspect_err(log).ok()?;
    *lock(&shared.news.told) =
        Some(Told { events, changed: VecDeque::new(), turned: BTreeSet::new() });
    Some(stream::unfold((ready, shared), next).boxed())
}

type State = (Ready, Arc<Shared>);

async fn next((ready, shared): State) -> Option<(Changed, State)> {
    let changed = loop {
        tokio::select! {
            changed = ready.until(|| shared.news.next(&shared)) => break changed.inspect_err(log).ok()?,
            () = shared.older_ended.notified() => break Changed::All,
            () = shared.news.come.notified() => {
                if let Some(changed) = shared.news.next(&shared) {
                    // There may be more, of which nobody speaks again.
                    shared.news.come.notify_one();
                    break changed;
                }
            }
        }
    };
    Some((changed, (ready, shared)))
}

fn log(e: &io::Error) {
    tracing::error!(error = %e, "events of the hooks are not read");
}
