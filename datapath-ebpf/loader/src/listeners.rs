//! The mirror of listening sockets in this machine's pods; sock_ops keeps it, user space reads and seeds it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use datapath_abi as abi;

use crate::{
    address::{address, words},
    datapath::Datapath,
    error::MapError,
    pods::NetnsCookie,
};

/// Sockets that listen at one address of one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listening {
    pub netns: NetnsCookie,
    /// The unspecified IPv6 address stands for "any", also for IPv4 listeners on 0.0.0.0.
    pub at: SocketAddr,
    pub sockets: u64,
}

impl Datapath {
    /// All listeners of all pods.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn listeners(&self) -> Result<Vec<Listening>, MapError> {
        let entries = self.tables().listen.entries()?.into_iter();
        let live = entries.filter(|(_, sockets)| *sockets > 0);
        Ok(live
            .map(|(key, sockets)| Listening {
                netns: NetnsCookie(key.netns),
                at: SocketAddr::new(address(&key.ip), u16::try_from(key.port).unwrap_or_default()),
                sockets,
            })
            .collect())
    }

    /// Enters listeners that were there before the hooks or before the pod was set; those already known stay as they
    /// are. The end of a seeded listener is not seen: until the pod goes, a connect to it gets the peer's own RST
    /// (ECONNREFUSED too, but through the network). How many were new.
    ///
    /// # Errors
    /// The map is full (65,536) or the kernel refuses.
    pub fn seed_listeners(
        &self,
        netns: NetnsCookie,
        at: impl IntoIterator<Item = SocketAddr>,
    ) -> Result<usize, MapError> {
        let mut new = 0;
        for at in at {
            let ip = if at.ip().is_unspecified() { Ipv6Addr::UNSPECIFIED.into() } else { at.ip() };
            let key = listener(netns, ip, at.port());
            new += usize::from(self.tables().listen.set_absent(key, 1)?);
        }
        Ok(new)
    }
}

fn listener(netns: NetnsCookie, ip: IpAddr, port: u16) -> abi::Listener {
    abi::Listener { netns: netns.0, ip: words(ip), port: port.into(), pad: 0 }
}
