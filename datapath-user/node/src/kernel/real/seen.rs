//! What the hooks see as a stream, and what the kernel's sockets know of direct connections.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    os::fd::AsFd as _,
    sync::Arc,
    time::Duration,
};

use datapath_loader::{
    DirectFlow as Entered, Protocol,
    seen::{Connection, Seen as Told, Watch, What},
};
use datapath_net::{diag, ready::Ready};
use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};

use super::Shared;
use crate::{
    kernel::{DirectFlow, Seen},
    plan::desired::DomainId,
};

/// `None`, with a word in the log: then refusals are only counted, and direct connections only listed.
pub(super) fn stream(shared: Arc<Shared>, watch: Watch) -> Option<BoxStream<'static, Seen>> {
    let ready = watch.as_fd().try_clone_to_owned().and_then(Ready::new).inspect_err(log).ok()?;
    Some(stream::unfold((ready, watch, shared), next).boxed())
}

type State = (Ready, Watch, Arc<Shared>);

async fn next((ready, mut watch, shared): State) -> Option<(Seen, State)> {
    let take = || match watch.lost(&shared.datapath).unwrap_or(0) {
        0 => watch.pop().map(|told| seen(&told)),
        lost => Some(Seen::Lost(lost)),
    };
    let seen = ready.until(take).await.inspect_err(log).ok()?;
    Some((seen, (ready, watch, shared)))
}

fn log(e: &io::Error) {
    tracing::error!(error = %e, "what the hooks see is not read");
}

fn seen(told: &Told) -> Seen {
    let flow = |c: Connection| DirectFlow {
        id: c.cookie,
        cookie: told.netns.0,
        domain: DomainId(told.domain.0),
        from: c.source,
        to: told.destination,
        established: true,
        rtt: c.rtt,
        retransmits: Some(c.retransmits.into()),
        bytes_out: c.bytes_out,
        bytes_in: c.bytes_in,
        age: c.age,
    };
    match told.what {
        What::Refused { reason, errno, pid } => Seen::Refused {
            cookie: told.netns.0,
            udp: told.protocol == Protocol::Udp,
            to: told.destination,
            reason,
            errno,
            pid,
        },
        What::Opened(c) => Seen::Opened(flow(c)),
        What::Ended(c, end) => Seen::Ended(flow(c), end),
    }
}

/// What the programs entered at the connections' beginning, with what their sockets know now.
pub(super) fn with_sockets(shared: &Shared, entered: &[Entered]) -> Vec<DirectFlow> {
    let pods: BTreeSet<u64> = entered.iter().map(|f| f.netns.0).collect();
    let of_pod = |cookie: &u64| {
        let netns = shared.netns(*cookie)?;
        diag::connections(netns.as_fd())
    };
    let known = pods.iter().filter_map(|cookie| {
        of_pod(cookie).inspect_err(|e| tracing::debug!(error = %e, "sockets of a pod")).ok()
    });
    let known: HashMap<u64, diag::Connection> =
        known.flatten().map(|connection| (connection.cookie, connection)).collect();
    let flow = |f: &Entered| {
        let now = known.get(&f.cookie);
        let rtt = now.filter(|c| c.rtt_us > 0).map(|c| Duration::from_micros(c.rtt_us.into()));
        DirectFlow {
            id: f.cookie,
            cookie: f.netns.0,
            domain: DomainId(f.domain.0),
            from: f.source,
            to: f.destination,
            established: f.established,
            rtt: rtt.or(f.rtt),
            retransmits: now.map(|c| c.retransmits.into()),
            bytes_out: now.map_or(0, |c| c.bytes_out),
            bytes_in: now.map_or(0, |c| c.bytes_in),
            age: f.age,
        }
    };
    entered.iter().map(flow).collect()
}
