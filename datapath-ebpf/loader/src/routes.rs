//! Where each virtual address of a Domain leads.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use datapath_abi as abi;
use rustix::time::{ClockId, clock_gettime};

use crate::{
    address::{address, words},
    datapath::Datapath,
    error::MapError,
    mirror::MirrorId,
    pods::{DomainId, NetnsCookie},
};

/// Why a connect() is refused, and with which errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// EHOSTUNREACH: the peer is known and gone.
    Unreachable,
    /// EACCES: policy.
    NotPermitted,
    /// ECONNREFUSED.
    Refused,
    /// ETIMEDOUT.
    TimedOut,
}

impl Denial {
    const fn errno(self) -> u32 {
        match self {
            Self::Unreachable => libc::EHOSTUNREACH.cast_unsigned(),
            Self::NotPermitted => libc::EACCES.cast_unsigned(),
            Self::Refused => libc::ECONNREFUSED.cast_unsigned(),
            Self::TimedOut => libc::ETIMEDOUT.cast_unsigned(),
        }
    }
}

/// What is known of who listens at a peer. Where it is, a connect to a port without one is ECONNREFUSED at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listeners {
    Unknown,
    /// The peer's namespace is on this machine and its listeners are all known: the pod was set before its first process, or
    /// [`Datapath::seed_listeners`] was called.
    Here(NetnsCookie),
    /// Its machine says, while [`Datapath::mirror`] has what it says and [`Datapath::trust_mirror`] lets it count.
    Mirror(MirrorId),
}

/// What happens to a connect() to one virtual address. An address without a route is EHOSTUNREACH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Deny(Denial),
    /// To the pod's address on this site's network, at native speed.
    Direct {
        real: IpAddr,
        listeners: Listeners,
    },
    /// To the relay, where the guard lands it.
    Relay {
        listeners: Listeners,
    },
}

impl Route {
    fn to_abi(self) -> abi::Vip {
        let (verdict, errno, real, listeners) = match self {
            Self::Deny(denial) => (abi::VERDICT_DENY, denial.errno(), [0; 4], Listeners::Unknown),
            Self::Direct { real, listeners } => (abi::VERDICT_DIRECT, 0, words(real), listeners),
            Self::Relay { listeners } => (abi::VERDICT_RELAY, 0, [0; 4], listeners),
        };
        let (check, netns) = match listeners {
            Listeners::Unknown => (abi::CHECK_NONE, 0),
            Listeners::Here(netns) => (abi::CHECK_LISTENERS, netns.0),
            Listeners::Mirror(id) => (abi::CHECK_MIRROR, id.0),
        };
        abi::Vip { netns, verdict, check, errno, pad: 0, real }
    }
}

/// What [`Datapath::reconcile`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub written: usize,
    pub removed: usize,
}

impl Datapath {
    /// Sets the route of one virtual address. For `Direct`, call [`Self::set_real`] before, so that names are right from
    /// the first connection on.
    ///
    /// # Errors
    /// The map is full (65,536 routes) or the kernel refuses.
    pub fn set_vip(&self, domain: DomainId, vip: IpAddr, route: Route) -> Result<(), MapError> {
        self.tables().vips.set(key(domain, vip), route.to_abi())
    }

    /// Takes a virtual address away; whether there was one.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove_vip(&self, domain: DomainId, vip: IpAddr) -> Result<bool, MapError> {
        self.tables().vips.delete(&key(domain, vip))
    }

    /// Names a member's real address: accept() and getpeername() in this machine's pods of the Domain show `vip` for it.
    ///
    /// # Errors
    /// The map is full or the kernel refuses.
    pub fn set_real(&self, domain: DomainId, real: IpAddr, vip: IpAddr) -> Result<(), MapError> {
        self.tables().real.set(key(domain, real), words(vip))
    }

    /// Takes that name away; whether there was one.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove_real(&self, domain: DomainId, real: IpAddr) -> Result<bool, MapError> {
        self.tables().real.delete(&key(domain, real))
    }

    /// Makes `routes` all that the Domain has, names of direct peers included, by the smallest change: what stays is
    /// never absent for a moment. New names come before new routes, old routes go before old names.
    ///
    /// # Errors
    /// A map is full or the kernel refuses; calling again goes on where it stopped.
    pub fn reconcile(
        &self,
        domain: DomainId,
        routes: &BTreeMap<IpAddr, Route>,
    ) -> Result<Changes, MapError> {
        let tables = self.tables();
        let mut changes = Changes::default();
        let of = |key: &abi::VipKey| key.domain == domain.0;
        let have_real: BTreeMap<_, _> =
            tables.real.entries()?.into_iter().filter(|(k, _)| of(k)).collect();
        let have: BTreeMap<_, _> =
            tables.vips.entries()?.into_iter().filter(|(k, _)| of(k)).collect();
        let mut keep_real = BTreeSet::new();
        for (vip, route) in routes {
            let Route::Direct { real, .. } = route else { continue };
            let (name, vip) = (key(domain, *real), words(*vip));
            keep_real.insert(name);
            if have_real.get(&name) != Some(&vip) {
                tables.real.set(name, vip)?;
                changes.written += 1;
            }
        }
        let mut keep = BTreeSet::new();
        for (vip, route) in routes {
            let (vip, value) = (key(domain, *vip), route.to_abi());
            keep.insert(vip);
            if have.get(&vip) != Some(&value) {
                tables.vips.set(vip, value)?;
                changes.written += 1;
            }
        }
        for vip in have.keys().filter(|k| !keep.contains(k)) {
            changes.removed += usize::from(tables.vips.delete(vip)?);
        }
        for name in have_real.keys().filter(|k| !keep_real.contains(k)) {
            changes.removed += usize::from(tables.real.delete(name)?);
        }
        Ok(changes)
    }

    /// Every virtual address that has a route in the Domain.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn vips(&self, domain: DomainId) -> Result<Vec<IpAddr>, MapError> {
        let entries = self.tables().vips.entries()?;
        let ours = entries.into_iter().filter(|(key, _)| key.domain == domain.0);
        Ok(ours.map(|(key, _)| address(&key.ip)).collect())
    }

    /// Remembers for `ttl` what a far end answered: until then the next relayed connects to it fail with that errno at
    /// once instead of being opened. At most 4096 are kept; the oldest are forgotten first.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remember_refusal(
        &self,
        domain: DomainId,
        to: std::net::SocketAddr,
        denial: Denial,
        ttl: Duration,
    ) -> Result<(), MapError> {
        let key = abi::Port { domain: domain.0, ip: words(to.ip()), port: u32::from(to.port()) };
        let ttl = u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
        let until = monotonic_ns().saturating_add(ttl);
        self.tables().refused.set(key, abi::Refusal { until, errno: denial.errno(), pad: 0 })
    }

    /// Forgets a refusal, when the far end is known to listen again.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn forget_refusal(
        &self,
        domain: DomainId,
        to: std::net::SocketAddr,
    ) -> Result<bool, MapError> {
        let key = abi::Port { domain: domain.0, ip: words(to.ip()), port: u32::from(to.port()) };
        self.tables().refused.delete(&key)
    }
}

fn key(domain: DomainId, ip: IpAddr) -> abi::VipKey {
    abi::VipKey { domain: domain.0, ip: words(ip) }
}

/// The clock of `bpf_ktime_get_ns`.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanos.unwrap_or(0))
}
