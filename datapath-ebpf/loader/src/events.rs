//! What the hooks tell user space: which listener to look at again.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Mutex,
};

use aya::{
    Ebpf,
    maps::{Array, MapData, RingBuf},
};
use datapath_abi as abi;

use crate::{
    address::address,
    error::{LoadError, MapError},
    pods::NetnsCookie,
};

/// Something began or ended to listen there; whether it still does, the maps say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    pub netns: NetnsCookie,
    pub at: SocketAddr,
    pub protocol: Protocol,
}

/// Of which list a [`Changed`] speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    /// Sockets bound to a VIP.
    Udp,
}

/// The two words that hooks and user space share.
pub(crate) struct MirrorWords(Mutex<Array<MapData, u64>>);

impl std::fmt::Debug for MirrorWords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MirrorWords")
    }
}

impl MirrorWords {
    const NAME: &str = "MIRROR";

    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        let map = ebpf.take_map(Self::NAME).ok_or(LoadError::Incomplete(Self::NAME))?;
        let map = Array::try_from(map)
            .map_err(|source| LoadError::MapShape { map: Self::NAME, source: Box::new(source) })?;
        Ok(Self(Mutex::new(map)))
    }

    pub(crate) fn set_fresh(&self, until: u64) -> Result<(), MapError> {
        let mut words = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        words
            .set(abi::MIRROR_FRESH_UNTIL, until, 0)
            .map_err(|source| MapError::Write { map: Self::NAME, source: Box::new(source) })
    }

    pub(crate) fn lost(&self) -> Result<u64, MapError> {
        let words = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        words
            .get(&abi::MIRROR_LOST, 0)
            .map_err(|source| MapError::Read { map: Self::NAME, source: Box::new(source) })
    }
}

/// The stream of [`Changed`]; readable when there are some. One reader.
pub struct Events {
    ring: RingBuf<MapData>,
    lost: u64,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl Events {
    const NAME: &str = "EVENTS";

    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        let map = ebpf.take_map(Self::NAME).ok_or(LoadError::Incomplete(Self::NAME))?;
        let ring = RingBuf::try_from(map)
            .map_err(|source| LoadError::MapShape { map: Self::NAME, source: Box::new(source) })?;
        Ok(Self { ring, lost: 0 })
    }

    /// The next one, if there is one now.
    pub fn pop(&mut self) -> Option<Changed> {
        loop {
            let item = self.ring.next()?;
            if let Some(changed) = parse(&item) {
                return Some(changed);
            }
        }
    }

    /// Whether some were lost since the last call, because nobody read in time: then all lists must be read anew.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn have_lost(&mut self, datapath: &crate::Datapath) -> Result<bool, MapError> {
        let now = datapath.mirror_words().lost()?;
        Ok(std::mem::replace(&mut self.lost, now) != now)
    }
}

/// `abi::Event` as bytes of this machine.
fn parse(bytes: &[u8]) -> Option<Changed> {
    const SIZE: usize = size_of::<abi::Event>();
    let bytes: &[u8; SIZE] = bytes.get(..SIZE)?.try_into().ok()?;
    let word = |at: usize| {
        let word: Option<[u8; 4]> = bytes.get(at..at + 4).and_then(|w| w.try_into().ok());
        word.map(u32::from_ne_bytes)
    };
    let netns = u64::from_ne_bytes(bytes.first_chunk::<8>().copied()?);
    let ip = [word(8)?, word(12)?, word(16)?, word(20)?];
    let port = u16::try_from(word(24)?).ok()?;
    let protocol =
        if word(28)? == libc::IPPROTO_UDP.cast_unsigned() { Protocol::Udp } else { Protocol::Tcp };
    Some(Changed { netns: NetnsCookie(netns), at: SocketAddr::new(address(&ip), port), protocol })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_the_programs_write_it() {
        let mut bytes = Vec::new();
        bytes.extend(7u64.to_ne_bytes());
        for word in [0, 0, 0xffffu32.to_be(), u32::from_ne_bytes([10, 2, 0, 4])] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(8080u32.to_ne_bytes());
        bytes.extend(17u32.to_ne_bytes());
        let at = SocketAddr::from(([10, 2, 0, 4], 8080));
        let want = Changed { netns: NetnsCookie(7), at, protocol: Protocol::Udp };
        assert_eq!(parse(&bytes), Some(want));
        assert_eq!(parse(&bytes[..31]), None);
    }
}
