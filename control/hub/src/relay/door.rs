//! Who has dialled the relay's port and shown no ticket yet. There is room for so many; one more shows the door to the one that has
//! stood there longest of those from the address with the most, so that silent crowds keep out themselves and not the machines,
//! which speak at once.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use datapath_net::sockets::block;
use tokio::sync::oneshot;

const ROOM: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Door(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// By address, each the oldest first.
    strangers: HashMap<IpAddr, BTreeMap<u64, oneshot::Sender<()>>>,
}

/// In the room until dropped.
#[derive(Debug)]
pub(super) struct Stranger {
    door: Arc<Door>,
    from: IpAddr,
    number: u64,
    shown_out: oneshot::Receiver<()>,
}

impl Stranger {
    /// Until the place is another's.
    pub(super) async fn shown_out(&mut self) {
        // Only ever dropped.
        let _end = (&mut self.shown_out).await;
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.door.hold().leave(self.from, self.number);
    }
}

impl Door {
    fn hold(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Never refuses.
    pub(super) fn enter(self: &Arc<Self>, from: IpAddr) -> Stranger {
        let (place, shown_out) = oneshot::channel();
        let (mut all, from) = (self.hold(), block(from));
        if all.strangers.values().map(BTreeMap::len).sum::<usize>() >= ROOM {
            all.show_one_out();
        }
        let number = all.next;
        all.next += 1;
        all.strangers.entry(from).or_default().insert(number, place);
        Stranger { door: Arc::clone(self), from, number, shown_out }
    }
}

impl State {
    fn leave(&mut self, from: IpAddr, number: u64) {
        let Some(own) = self.strangers.get_mut(&from) else { return };
        own.remove(&number);
        if own.is_empty() {
            self.strangers.remove(&from);
        }
    }

    fn show_one_out(&mut self) {
        let rank = |own: &BTreeMap<u64, _>| (own.len(), own.keys().next().map(|n| u64::MAX - n));
        let crowd = self.strangers.iter().max_by_key(|(_, own)| rank(own));
        if let Some((from, number)) = crowd.and_then(|(ip, own)| Some((*ip, *own.keys().next()?))) {
            self.leave(from, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn is_out(stranger: &mut Stranger) -> bool {
        stranger.shown_out().now_or_never().is_some()
    }

    #[test]
    fn a_silent_crowd_makes_room_and_a_machine_keeps_its_place() {
        let door = Arc::new(Door::default());
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut machine = door.enter(ip("192.0.2.1"));
        // One block of addresses is one neighbour.
        let mut crowd: Vec<_> =
            (0..ROOM).map(|n| door.enter(ip(&format!("2001:db8::{n:x}")))).collect();
        assert!(is_out(&mut crowd[0]), "the oldest of the crowd");
        assert!(crowd.iter_mut().skip(1).all(|stranger| !is_out(stranger)));
        assert!(!is_out(&mut machine));
        drop(crowd);
        assert_eq!(door.hold().strangers.len(), 1);
        drop(machine);
        assert!(door.hold().strangers.is_empty());
    }

    #[test]
    fn of_a_crowd_from_everywhere_the_oldest_goes() {
        let door = Arc::new(Door::default());
        let mut all: Vec<_> =
            (0..1027_u32).map(|n| door.enter(std::net::Ipv4Addr::from_bits(n).into())).collect();
        let out: Vec<bool> = all.iter_mut().map(is_out).collect();
        assert_eq!(out.iter().filter(|out| **out).count(), 3);
        assert!(out.iter().take(3).all(|out| *out));
    }
}
