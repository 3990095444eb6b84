//! Direct connections that stand now; the kernel's programs enter and remove them.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use crate::{
    address::address,
    datapath::Datapath,
    error::MapError,
    pods::{DomainId, NetnsCookie},
    routes::monotonic_ns,
};

/// A direct connection that a pod of this machine opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectFlow {
    /// The client socket's cookie (`SO_COOKIE`).
    pub cookie: u64,
    pub netns: NetnsCookie,
    pub domain: DomainId,
    /// As the applications see it: VIPs.
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// Where the packets really go.
    pub real: IpAddr,
    /// False: the SYN has no answer yet.
    pub established: bool,
    pub age: Duration,
    /// Smoothed round trip at the time of the handshake.
    pub rtt: Option<Duration>,
}

impl Datapath {
    /// The direct connections opened by pods of this machine, at most 32,768 (the least recently used are
    /// forgotten first; the connections themselves do not mind).
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn direct_flows(&self) -> Result<Vec<DirectFlow>, MapError> {
        let now = monotonic_ns();
        let port = |port: u32| u16::try_from(port).unwrap_or_default();
        let flows = self.tables().flows.entries()?.into_iter().map(|(cookie, flow)| DirectFlow {
            cookie,
            netns: NetnsCookie(flow.netns),
            domain: DomainId(flow.domain),
            source: SocketAddr::new(address(&flow.source), port(flow.source_port)),
            destination: SocketAddr::new(address(&flow.destination), port(flow.destination_port)),
            real: address(&flow.real),
            established: flow.state == datapath_abi::STATE_ESTABLISHED,
            age: Duration::from_nanos(now.saturating_sub(flow.started)),
            rtt: (flow.srtt_us > 0).then(|| Duration::from_micros(flow.srtt_us.into())),
        });
        Ok(flows.collect())
    }
}
