//! What is known of the ports of other machines' pods, on its way into the kernel: a connect to a port where nobody listens is
//! refused here, at once. The hub says what is open; the peer itself says what has just opened or closed, ahead of what its pods send then.
//! What is not known, or was not confirmed for some seconds, refuses nobody.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use control_api::{ids::DomainName, ports::Ports};
use datapath_relay::Listening;

use crate::{keeper::chain, kernel::Kernel, plan::desired::mirror_number};

/// The hub sends a line every second. A longer silence is a dead connection: listeners may have opened meanwhile.
pub const FRESH: Duration = Duration::from_secs(3);
/// What a peer said of a port counts for so long, whatever the hub says: its word may be the older one.
const HEARD: Duration = Duration::from_secs(1);
/// And for so many ports of a pod.
const MOST: usize = 1024;

type Key = (DomainName, String);

/// The only writer of the kernel's mirror.
pub struct Mirror {
    kernel: Arc<dyn Kernel>,
    known: Mutex<BTreeMap<Key, Known>>,
}

/// Of one pod.
#[derive(Debug, Default)]
struct Known {
    /// The hub's word.
    said: Option<Ports>,
    /// The peer's, and when it came.
    heard: BTreeMap<SocketAddr, (Instant, Listening)>,
    /// What the kernel has at most; all of it unless a write failed.
    written: Option<Ports>,
    partly: bool,
}

impl Known {
    fn all(&self) -> Option<Ports> {
        let mut all = self.said.clone()?;
        for (_, said) in self.heard.values() {
            let list = if said.at.is_ipv4() { &mut all.tcp } else { &mut all.tcp6 };
            if said.open {
                add(list, &[said.at.port()]);
            } else {
                list.retain(|port| *port != said.at.port());
            }
        }
        Some(all)
    }

    fn wrote(&mut self, all: Option<Ports>, whole: bool) {
        self.partly = !whole;
        self.written = match (self.written.take(), all) {
            // With the next word all of it must go that is not in it.
            (Some(mut old), Some(new)) if !whole => {
                add(&mut old.tcp, &new.tcp);
                add(&mut old.tcp6, &new.tcp6);
                add(&mut old.udp_vip, &new.udp_vip);
                Some(old)
            }
            (old, None) if !whole => old,
            (_, all) => all,
        };
    }

    fn is_empty(&self) -> bool {
        self.said.is_none() && self.heard.is_empty()
    }
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mirror(..)")
    }
}

impl Mirror {
    #[must_use]
    pub fn new(kernel: Arc<dyn Kernel>) -> Self {
        Self { kernel, known: Mutex::default() }
    }

    /// A line of the hub came: what it said before still counts.
    pub fn confirmed(&self) {
        let now = Instant::now();
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, pod) in all.iter_mut().filter(|(_, pod)| !pod.heard.is_empty()) {
            pod.heard.retain(|_, (at, _)| now.saturating_duration_since(*at) < HEARD);
            self.write(key, pod);
        }
        all.retain(|_, pod| !pod.is_empty());
        drop(all);
        self.kernel.trust_mirror(FRESH);
    }

    /// The hub is gone: nothing counts until it is back.
    pub fn distrust(&self) {
        self.kernel.trust_mirror(Duration::ZERO);
    }

    /// A new stream begins: the hub tells everything again.
    pub fn forget_all(&self) {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, pod) in &mut *all {
            pod.said = None;
            self.write(key, pod);
        }
        all.retain(|_, pod| !pod.is_empty());
    }

    /// The hub says what is open at a pod; `None`: it does not know.
    pub fn say(&self, domain: DomainName, uid: String, ports: Option<Ports>) {
        self.change((domain, uid), |pod| pod.said = ports);
    }

    /// The pod's own node says so. The kernel knows it on return.
    pub fn heard(&self, domain: DomainName, uid: String, said: Listening) {
        self.change((domain, uid), |pod| {
            let before = pod.heard.get(&said.at).map(|(_, before)| before.sequence);
            // Another carrier was faster.
            let is_late = before.is_some_and(|before| before >= said.sequence);
            if !is_late && (before.is_some() || pod.heard.len() < MOST) {
                pod.heard.insert(said.at, (Instant::now(), said));
            }
        });
    }

    fn change(&self, key: Key, change: impl FnOnce(&mut Known)) {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let pod = all.entry(key.clone()).or_default();
        change(pod);
        self.write(&key, pod);
        if pod.is_empty() {
            all.remove(&key);
        }
    }

    /// Brings the kernel to what is known now.
    fn write(&self, (domain, uid): &Key, pod: &mut Known) {
        let all = pod.all();
        if !pod.partly && all == pod.written {
            return;
        }
        // One number per family, since a port may be open to one of them only. Both are tried.
        let done = [true, false].map(|is_v4| {
            let number = mirror_number(domain, uid, is_v4);
            let of = |ports: &Ports| of_family(ports, is_v4);
            let (old, new) = (pod.written.as_ref().map(of), all.as_ref().map(of));
            let done = self.kernel.mirror(number, old.as_ref(), new.as_ref());
            done.inspect_err(
                |e| tracing::warn!(%domain, uid, error = chain(e), "ports not mirrored"),
            )
        });
        pod.wrote(all, done.iter().all(Result::is_ok));
    }
}

/// Keeps `to` sorted, each once.
fn add(to: &mut Vec<u16>, ports: &[u16]) {
    for port in ports {
        if let Err(place) = to.binary_search(port) {
            to.insert(place, *port);
        }
    }
}

/// What an address of one family leads to; as [`Kernel::mirror`] takes it, in `tcp` and `udp_vip`.
fn of_family(ports: &Ports, is_v4: bool) -> Ports {
    let tcp = if is_v4 { &ports.tcp } else { &ports.tcp6 };
    Ports { tcp: tcp.clone(), udp_vip: ports.udp_vip.clone(), ..Ports::default() }
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
