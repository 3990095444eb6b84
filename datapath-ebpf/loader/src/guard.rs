//! The guard of a pod: attached to its network namespace, with a landing slot for the relay's sockets.

use std::{
    collections::BTreeSet,
    fmt,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use aya::{
    Ebpf,
    maps::{MapData, SockMap},
    programs::{Program, links::FdLink},
};
use datapath_abi::{GuardPod, MAX_GUARDS};

use crate::{
    datapath::Datapath,
    directory::MapDirectory,
    error::{GuardError, LoadError},
    hooks::{Hook, load, replace},
    object,
    pods::{NetnsCookie, PodEntry},
    table::is_absent,
};

/// What a guard protects.
#[derive(Clone, Copy, Debug)]
pub struct GuardConfig {
    /// The namespace it is attached to.
    pub netns: NetnsCookie,
    /// The same as was given to [`Datapath::set_pod`]. A changed address needs a new guard.
    pub pod: PodEntry,
}

/// A guard's place in the landing map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(pub(crate) u32);

/// The landing map and its free slots, shared by the data path and its guards.
pub(crate) struct Landing {
    map: Mutex<SockMap<MapData>>,
    taken: Mutex<BTreeSet<u32>>,
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Landing").field("taken", &self.taken).finish_non_exhaustive()
    }
}

impl Landing {
    const MAP: &str = "LANDING";

    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        let map = ebpf.take_map(Self::MAP).ok_or(LoadError::Incomplete(Self::MAP))?;
        let map = SockMap::try_from(map)
            .map_err(|source| LoadError::MapShape { map: Self::MAP, source: Box::new(source) })?;
        Ok(Self { map: Mutex::new(map), taken: Mutex::default() })
    }

    fn reserve(&self) -> Option<Slot> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let free = (0..MAX_GUARDS).find(|slot| !taken.contains(slot))?;
        taken.insert(free);
        Some(Slot(free))
    }

    fn release(&self, slot: Slot) -> Result<(), GuardError> {
        let cleared = self.clear(slot);
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot.0);
        cleared
    }

    fn set(&self, slot: Slot, listener: BorrowedFd<'_>) -> Result<(), GuardError> {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        map.set(slot.0, &listener.as_raw_fd(), 0)
            .map_err(|source| GuardError::Land { slot: slot.0, source: Box::new(source) })
    }

    fn clear(&self, slot: Slot) -> Result<(), GuardError> {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        match map.clear_index(&slot.0) {
            Ok(()) => Ok(()),
            Err(e) if is_absent(&e) => Ok(()),
            Err(aya::maps::MapError::SyscallError(e))
                if e.io_error.raw_os_error() == Some(libc::EINVAL) =>
            {
                Ok(()) // an empty slot
            }
            Err(source) => Err(GuardError::Unland { slot: slot.0, source: Box::new(source) }),
        }
    }
}

/// An attached guard. Dropping it detaches it (not with pins: then [`Guard::detach`] does) and frees its slot.
/// Take the namespace's routes to the Domain away first: without a guard they lead to the pod's own listeners.
#[derive(Debug)]
pub struct Guard {
    netns: NetnsCookie,
    slot: Slot,
    landing: Arc<Landing>,
    link: Option<FdLink>,
    pin: Option<PathBuf>,
}

impl Guard {
    /// Where its relay's listener goes, for [`Datapath::land`].
    pub const fn slot(&self) -> Slot {
        self.slot
    }

    /// The namespace it is attached to.
    pub const fn netns(&self) -> NetnsCookie {
        self.netns
    }

    /// Detaches it, pinned or not.
    ///
    /// # Errors
    /// The pin cannot be removed; the slot is free all the same.
    pub fn detach(mut self) -> std::io::Result<()> {
        drop(self.link.take());
        match self.pin.take() {
            Some(pin) => std::fs::remove_file(pin),
            None => Ok(()),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The slot's socket leaves the map by itself when it closes, so a failure here leaks nothing.
        let _closed_by_owner = self.landing.release(self.slot);
    }
}

impl Datapath {
    /// Attaches the guard of a pod to its network namespace (Linux 5.9). From here on the namespace takes packets for
    /// the Domain's network only from itself, and those for other members only while a listener is [landed](Self::land).
    ///
    /// # Errors
    /// No slot is free (1024), or the kernel refuses the program or the namespace.
    pub fn attach_guard(
        &self,
        netns: BorrowedFd<'_>,
        config: GuardConfig,
    ) -> Result<Guard, GuardError> {
        let landing = self.landing();
        let slot = landing.reserve().ok_or(GuardError::NoSlot(MAX_GUARDS))?;
        let mut guard = Guard {
            netns: config.netns,
            slot,
            landing: Arc::clone(landing),
            link: None,
            pin: None,
        };
        let global = GuardPod {
            netns: config.netns.0,
            domain: config.pod.domain.0,
            slot: slot.0,
            v4: config.pod.v4,
            v6: config.pod.v6,
        };
        let directory = self.directory();
        let failed = |e| GuardError::Load(Box::new(e));
        let mut ebpf = object::open(&directory.path(), Some(&global)).map_err(failed)?;
        let program = load(&mut ebpf, Hook::SkLookup).map_err(failed)?;
        let pin = guard_pin(directory, config.netns);
        if let Some(pin) = pin.as_deref().filter(|pin| pin.exists()) {
            replace(program, pin)
                .map_err(|source| failed(LoadError::Replace { hook: Hook::SkLookup, source }))?;
            guard.pin = Some(pin.to_owned());
            return Ok(guard);
        }
        let Program::SkLookup(program) = program else {
            return Err(failed(LoadError::Incomplete(Hook::SkLookup.program())));
        };
        let link = program
            .attach(netns.as_fd())
            .and_then(|id| program.take_link(id))
            .map_err(|source| GuardError::Attach(Box::new(source)))?;
        let link = FdLink::from(link);
        match pin {
            None => guard.link = Some(link),
            Some(pin) => {
                link.pin(&pin).map_err(|source| {
                    failed(LoadError::Pin { hook: Hook::SkLookup, source: Box::new(source) })
                })?;
                guard.pin = Some(pin);
            }
        }
        Ok(guard)
    }

    /// Lands relayed TCP connections of a guard's pod on `listener`: a listening socket made in the pod's namespace, at
    /// any address and port of its own (127.0.0.1:0 takes nothing from the pod). An accepted socket's local address is
    /// the VIP and port that was asked for. A second call replaces the first; a closed listener leaves by itself.
    ///
    /// # Errors
    /// The descriptor is no listening socket, or the kernel refuses.
    pub fn land(&self, slot: Slot, listener: impl AsFd) -> Result<(), GuardError> {
        self.landing().set(slot, listener.as_fd())
    }

    /// Empties a slot: relayed connects are refused at once until the next [`Self::land`].
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn unland(&self, slot: Slot) -> Result<(), GuardError> {
        self.landing().clear(slot)
    }
}

fn guard_pin(directory: &MapDirectory, netns: NetnsCookie) -> Option<PathBuf> {
    directory.is_pinned().then(|| directory.path().join(format!("guard_{:x}", netns.0)))
}
