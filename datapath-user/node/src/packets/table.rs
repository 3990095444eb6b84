//! Who exchanges packets with whom, for people to see. Nothing depends on it: a flow that is not listed is carried all the same.

use std::{
    collections::HashMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use control_api::{
    ids::DomainName,
    session::{Flow, FlowState, Protocol, Verdict},
};

use super::header::Header;

/// After the last packet; until the other side answered, and since.
const ONE_WAY: Duration = Duration::from_secs(30);
const TWO_WAY: Duration = Duration::from_secs(120);
/// More are not listed.
const MOST: usize = 16_384;
const SWEEP: Duration = Duration::from_secs(1);
/// Ids of packet flows, apart from the relay's, local ones and socket cookies.
const ID_BASE: u64 = 3 << 61;

/// Ends as the opener's first packet had them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    domain: DomainName,
    protocol: Protocol,
    src: SocketAddr,
    dst: SocketAddr,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    /// The opener is a pod of this machine.
    outgoing: bool,
    bytes_out: u64,
    bytes_in: u64,
    lost: u64,
    started: Instant,
    last: Instant,
}

impl Entry {
    fn is_over(&self, now: Instant) -> bool {
        let limit = if self.bytes_in > 0 { TWO_WAY } else { ONE_WAY };
        now.saturating_duration_since(self.last) > limit
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PacketFlows {
    all: HashMap<Key, Entry>,
    next: u64,
    swept: Option<Instant>,
}

impl PacketFlows {
    /// A packet passed. `outgoing`: from a pod of this machine.
    pub(super) fn note(
        &mut self,
        domain: &DomainName,
        h: &Header,
        length: usize,
        outgoing: bool,
        now: Instant,
    ) {
        let length = length as u64;
        let domain = domain.clone();
        let key = Key { domain, protocol: h.protocol, src: h.src, dst: h.dst };
        if let Some(e) = self.all.get_mut(&key) {
            e.bytes_out += length;
            e.last = now;
            return;
        }
        let back = Key { src: key.dst, dst: key.src, ..key.clone() };
        if let Some(e) = self.all.get_mut(&back) {
            e.bytes_in += length;
            e.last = now;
            return;
        }
        // A flood of names must not cost a sweep for each.
        if self.all.len() >= MOST && self.swept.is_none_or(|at| now - at >= SWEEP) {
            self.all.retain(|_, e| !e.is_over(now));
            self.swept = Some(now);
        }
        if self.all.len() < MOST {
            self.next += 1;
            let id = ID_BASE + self.next;
            let entry = Entry {
                id,
                outgoing,
                bytes_out: length,
                bytes_in: 0,
                lost: 0,
                started: now,
                last: now,
            };
            self.all.insert(key, entry);
        }
    }

    /// A packet was lost here; of a flow that is not listed nobody asks.
    pub(super) fn note_loss(&mut self, domain: &DomainName, h: &Header) {
        let key = |src, dst| Key { domain: domain.clone(), protocol: h.protocol, src, dst };
        for key in [key(h.src, h.dst), key(h.dst, h.src)] {
            if let Some(e) = self.all.get_mut(&key) {
                e.lost += 1;
                return;
            }
        }
    }

    /// What is alive at `now`; names and carriers are the caller's.
    pub(super) fn list(&mut self, now: Instant) -> Vec<Flow> {
        self.all.retain(|_, e| !e.is_over(now));
        let flow = |(k, e): (&Key, &Entry)| Flow {
            id: e.id,
            domain: k.domain.clone(),
            protocol: k.protocol,
            from_pod: String::new(),
            from: k.src,
            to_pod: String::new(),
            to: k.dst,
            verdict: Verdict::Relay,
            carrier: String::new(),
            state: if e.bytes_in > 0 { FlowState::Open } else { FlowState::Opening },
            bytes_out: e.bytes_out,
            bytes_in: e.bytes_in,
            rtt_us: None,
            retransmits: None,
            lost: e.lost,
            age_ms: u64::try_from((now - e.started).as_millis()).unwrap_or(u64::MAX),
            outgoing: e.outgoing,
            reason: String::new(),
        };
        self.all.iter().map(flow).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::header::{parse, tests::udp};

    #[test]
    fn answers_belong_to_the_flow_and_silence_ends_it() {
        let (d, mut flows, t) = ("d".parse().unwrap(), PacketFlows::default(), Instant::now());
        let there = parse(&udp("10.0.0.1", "10.0.0.2")).unwrap();
        let back = Header { src: there.dst, dst: there.src, ..there };
        flows.note(&d, &there, 28, true, t);
        assert_eq!(flows.list(t).first().unwrap().state, FlowState::Opening);
        flows.note(&d, &back, 30, false, t);
        flows.note(&d, &there, 28, true, t);
        flows.note_loss(&d, &back);
        let listed = flows.list(t + TWO_WAY);
        let [flow] = listed.as_slice() else { panic!("{listed:?}") };
        assert_eq!((flow.bytes_out, flow.bytes_in, flow.state), (56, 30, FlowState::Open));
        assert!(flow.outgoing && flow.lost == 1);
        assert!(flows.list(t + TWO_WAY + Duration::from_secs(1)).is_empty());
        flows.note(&d, &there, 28, true, t);
        assert!(flows.list(t + ONE_WAY + Duration::from_secs(1)).is_empty());
    }

    #[test]
    fn a_flood_of_names_takes_bounded_memory() {
        let (d, mut flows, t) = ("d".parse().unwrap(), PacketFlows::default(), Instant::now());
        let one = parse(&udp("10.0.0.1", "10.0.0.2")).unwrap();
        for n in 0..u32::try_from(MOST).unwrap() + 100 {
            let src = SocketAddr::from((
                [10, 0, u8::try_from(n >> 14).unwrap(), 1],
                u16::try_from(n & 0x3fff).unwrap(),
            ));
            flows.note(&d, &Header { src, ..one }, 28, true, t);
        }
        assert_eq!(flows.list(t).len(), MOST);
    }
}
