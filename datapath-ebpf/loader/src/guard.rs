//! The guard of a pod: attached to its network namespace, with a landing slot for the relay's sockets.

use std::{
    collections::BTreeSet,
    fmt, io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
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
    directory::{GuardPin, MapDirectory},
    error::{GuardError, LoadError},
    hooks::{Hook, load, replace},
    link, object,
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

    /// Slots of pinned guards are taken.
    pub(crate) fn take(ebpf: &mut Ebpf, directory: &MapDirectory) -> Result<Self, LoadError> {
        let pins = directory.guards().map_err(LoadError::Directory)?;
        let taken = pins.into_iter().map(|pin| pin.slot).collect();
        let map = ebpf.take_map(Self::MAP).ok_or(LoadError::Incomplete(Self::MAP))?;
        let map = SockMap::try_from(map)
            .map_err(|source| LoadError::MapShape { map: Self::MAP, source: Box::new(source) })?;
        Ok(Self { map: Mutex::new(map), taken: Mutex::new(taken) })
    }

    fn reserve(&self) -> Option<Slot> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let free = (0..MAX_GUARDS).find(|slot| !taken.contains(slot))?;
        taken.insert(free);
        Some(Slot(free))
    }

    fn free(&self, slot: Slot) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot.0);
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
    pin: Option<GuardPin>,
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
    pub fn detach(mut self) -> io::Result<()> {
        drop(self.link.take());
        match self.pin.take() {
            Some(pin) => std::fs::remove_file(pin.path),
            None => Ok(()),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The slot's socket leaves the map by itself when it closes, so a failure here leaks nothing.
        let _closed_by_owner = self.landing.clear(self.slot);
        // A pinned program goes on and keeps its slot.
        if self.pin.is_none() {
            self.landing.free(self.slot);
        }
    }
}

impl Datapath {
    /// Attaches the guard of a pod to its network namespace (Linux 5.9). From here on the namespace takes packets for
    /// the Domain's network only from itself, and those for other members only while a listener is [landed](Self::land). Without
    /// hooks it also resets connections to addresses without a route, to ports that are not allowed or known to be closed.
    ///
    /// # Errors
    /// No slot is free (1024), or the kernel refuses the program or the namespace.
    pub fn attach_guard(
        &self,
        netns: BorrowedFd<'_>,
        config: GuardConfig,
    ) -> Result<Guard, GuardError> {
        let (landing, directory) = (self.landing(), self.directory());
        let failed = |e| GuardError::Load(Box::new(e));
        let pins = directory.guards().map_err(|e| failed(LoadError::Directory(e)))?;
        let pinned = pins.into_iter().find(|pin| pin.netns == config.netns.0);
        let slot = match &pinned {
            Some(pin) => Slot(pin.slot),
            None => landing.reserve().ok_or(GuardError::NoSlot(MAX_GUARDS))?,
        };
        let (netns_cookie, landing) = (config.netns, Arc::clone(landing));
        let mut guard = Guard { netns: netns_cookie, slot, landing, link: None, pin: pinned };
        let global = GuardPod {
            netns: config.netns.0,
            domain: config.pod.domain.0,
            slot: slot.0,
            decides: self.hooks().next().is_none().into(),
            pad: 0,
            v4: config.pod.v4,
            v6: config.pod.v6,
        };
        let mut ebpf = object::open(&directory.path(), Some(&global)).map_err(failed)?;
        let program = load(&mut ebpf, Hook::SkLookup).map_err(failed)?;
        if let Some(pin) = &guard.pin {
            replace(program, &pin.path)
                .map_err(|source| failed(LoadError::Replace { hook: Hook::SkLookup, source }))?;
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
        match directory.guard(config.netns.0, slot.0) {
            None => guard.link = Some(link),
            Some(pin) => {
                link.pin(&pin.path).map_err(|source| {
                    failed(LoadError::Pin { hook: Hook::SkLookup, source: Box::new(source) })
                })?;
                guard.pin = Some(pin);
            }
        }
        Ok(guard)
    }

    /// Takes away what earlier processes pinned and nobody can use: guards of namespaces that are gone, programs and maps of other
    /// layouts. Call it once every pod that lives has its guard from this process.
    ///
    /// # Errors
    /// A pin cannot be read or removed.
    pub fn sweep_pins(&self) -> io::Result<()> {
        for pin in self.directory().guards()? {
            if link::attached_to(&pin.path)?.is_none() {
                std::fs::remove_file(&pin.path)?;
                self.landing().free(Slot(pin.slot));
            }
        }
        self.directory().remove_other_layouts()
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
