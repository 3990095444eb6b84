//! What the hooks tell while somebody reads: refusals inside a call, and direct connections that begin and end.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use aya::{
    Ebpf,
    maps::{Array, MapData, RingBuf},
};
use datapath_abi as abi;

use crate::{
    address::address,
    counters::Count,
    datapath::Datapath,
    error::{LoadError, MapError},
    events::Protocol,
    pods::{DomainId, NetnsCookie},
    routes::monotonic_ns,
};

/// One thing that the hooks saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Of the pod whose socket it is.
    pub netns: NetnsCookie,
    pub domain: DomainId,
    pub protocol: Protocol,
    /// The virtual address that was asked for.
    pub destination: SocketAddr,
    pub what: What,
}

/// What it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A call of process `pid` failed with `errno`; `reason` is the label of its counter.
    Refused {
        reason: &'static str,
        errno: u32,
        pid: u32,
    },
    Opened(Connection),
    Ended(Connection, End),
}

/// A direct connection, from the connecting side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// `SO_COOKIE`.
    pub cookie: u64,
    pub source: SocketAddr,
    pub age: Duration,
    pub rtt: Option<Duration>,
    pub retransmits: u32,
    /// Of the applications, at the end: from the connecting side, and to it.
    pub bytes_out: u64,
    pub bytes_in: u64,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    InOrder,
    Reset,
    /// Nobody answered, or with a reset.
    NeverStood,
}

/// The stream of [`Seen`]; readable when there are some. One reader.
pub struct Watch {
    ring: RingBuf<MapData>,
    lost: u64,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl Watch {
    const NAME: &str = "WATCH";

    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        let map = ebpf.take_map(Self::NAME).ok_or(LoadError::Incomplete(Self::NAME))?;
        let ring = RingBuf::try_from(map)
            .map_err(|source| LoadError::MapShape { map: Self::NAME, source: Box::new(source) })?;
        Ok(Self { ring, lost: 0 })
    }

    /// The next one, if there is one now.
    pub fn pop(&mut self) -> Option<Seen> {
        loop {
            let item = self.ring.next()?;
            if let Some(seen) = record(&item).and_then(|r| parse(&r, monotonic_ns())) {
                return Some(seen);
            }
        }
    }

    /// How many found no room since the last call, because nobody read in time.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn lost(&mut self, datapath: &Datapath) -> Result<u64, MapError> {
        let now = datapath.watched().get(abi::WATCH_LOST)?;
        Ok(now.saturating_sub(std::mem::replace(&mut self.lost, now)))
    }
}

/// The two words by which hooks and reader agree.
pub(crate) struct Watched(Mutex<Array<MapData, u64>>);

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watched")
    }
}

impl Watched {
    const NAME: &str = "WATCHED";

    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        let map = ebpf.take_map(Self::NAME).ok_or(LoadError::Incomplete(Self::NAME))?;
        let map = Array::try_from(map)
            .map_err(|source| LoadError::MapShape { map: Self::NAME, source: Box::new(source) })?;
        Ok(Self(Mutex::new(map)))
    }

    fn get(&self, word: u32) -> Result<u64, MapError> {
        let words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |source| MapError::Read { map: Self::NAME, source: Box::new(source) };
        words.get(&word, 0).map_err(read)
    }
}

impl Datapath {
    /// What the hooks see; the first caller has it. They tell only while [`Datapath::watch`] holds.
    pub fn take_watch(&self) -> Option<Watch> {
        self.take_watch_ring()
    }

    /// The hooks tell what they see for this long from now; zero: no longer.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn watch(&self, within: Duration) -> Result<(), MapError> {
        let nanos = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let until = if nanos == 0 { 0 } else { monotonic_ns().saturating_add(nanos) };
        let mut words = self.watched().0.lock().unwrap_or_else(PoisonError::into_inner);
        let write = |source| MapError::Write { map: Watched::NAME, source: Box::new(source) };
        words.set(abi::WATCH_UNTIL, until, 0).map_err(write)
    }
}

#[expect(unsafe_code, reason = "a record of integers out of its bytes")]
fn record(bytes: &[u8]) -> Option<abi::Seen> {
    let bytes = bytes.get(..size_of::<abi::Seen>())?;
    // SAFETY: that many bytes are there, and any are valid: the record has integers alone.
    Some(unsafe { bytes.as_ptr().cast::<abi::Seen>().read_unaligned() })
}

fn parse(seen: &abi::Seen, now: u64) -> Option<Seen> {
    let at = |ip, port| Some(SocketAddr::new(address(ip), u16::try_from(port).ok()?));
    let domain = DomainId(seen.domain);
    let connection = || {
        Some(Connection {
            cookie: seen.cookie,
            source: at(&seen.source, seen.source_port)?,
            age: Duration::from_nanos(now.saturating_sub(seen.started)),
            rtt: (seen.srtt_us > 0).then(|| Duration::from_micros(seen.srtt_us.into())),
            retransmits: seen.retransmits,
            bytes_out: seen.bytes_out,
            bytes_in: seen.bytes_in,
        })
    };
    let stood = seen.errno == abi::STATE_ESTABLISHED;
    let what = match seen.kind {
        abi::SEEN_REFUSED => {
            let reason = Count::reason_of(seen.reason)?;
            let reason = Count { domain, reason, count: 0 }.label();
            What::Refused { reason, errno: seen.errno, pid: seen.pid }
        }
        abi::SEEN_OPENED => What::Opened(connection()?),
        abi::SEEN_CLOSED => What::Ended(connection()?, End::InOrder),
        abi::SEEN_RESET if stood => What::Ended(connection()?, End::Reset),
        abi::SEEN_RESET => What::Ended(connection()?, End::NeverStood),
        _ => return None,
    };
    let udp = seen.protocol == libc::IPPROTO_UDP.cast_unsigned();
    Some(Seen {
        netns: NetnsCookie(seen.netns),
        domain,
        protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
        destination: at(&seen.destination, seen.destination_port)?,
        what,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: abi::Ip = [0, 0, 0xffffu32.to_be(), u32::from_ne_bytes([10, 2, 0, 4])];

    fn seen(kind: u32, errno: u32) -> abi::Seen {
        abi::Seen {
            cookie: 5,
            netns: 7,
            started: 1_000,
            bytes_out: 8,
            bytes_in: 9,
            kind,
            domain: 3,
            reason: abi::Reason::NoListener as u32,
            errno,
            pid: 42,
            protocol: 6,
            source: IP,
            destination: IP,
            source_port: 1,
            destination_port: 80,
            srtt_us: 0,
            retransmits: 2,
        }
    }

    #[test]
    fn a_refusal_names_the_reason_of_its_counter() {
        let refused = parse(&seen(abi::SEEN_REFUSED, 111), 0).unwrap();
        assert_eq!(refused.destination, "10.2.0.4:80".parse().unwrap());
        assert_eq!(refused.what, What::Refused { reason: "no_listener", errno: 111, pid: 42 });
        let unknown = abi::Seen { reason: 99, ..seen(abi::SEEN_REFUSED, 111) };
        assert_eq!(parse(&unknown, 0), None);
    }

    #[test]
    fn how_a_connection_ended_depends_on_whether_it_stood() {
        let end = |kind, state| match parse(&seen(kind, state), 3_000).unwrap().what {
            What::Ended(c, end) => (c.age, end),
            other => panic!("{other:?}"),
        };
        let age = Duration::from_nanos(2_000);
        assert_eq!(end(abi::SEEN_CLOSED, abi::STATE_ESTABLISHED), (age, End::InOrder));
        assert_eq!(end(abi::SEEN_RESET, abi::STATE_ESTABLISHED), (age, End::Reset));
        assert_eq!(end(abi::SEEN_RESET, abi::STATE_SYN_SENT), (age, End::NeverStood));
    }

    #[test]
    fn short_records_are_none() {
        assert_eq!(record(&[0; 3]), None);
        assert!(record(&[0; size_of::<abi::Seen>()]).is_some());
    }
}
