//! The loaded data path: hooks on a cgroup and the maps they share.

use std::{
    fs::{self, File},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use datapath_abi as abi;
use rustix::fs::fstatfs;

use crate::{
    counters::Counters,
    directory::{MapDirectory, discard_pins},
    error::LoadError,
    events::{Events, MirrorWords},
    guard::Landing,
    hooks::{self, Attached, Hook},
    object,
    table::Table,
    watch::{Watch, Watched},
};

const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// What to load.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cgroup v2 directory to attach to; sockets of processes below it are steered. Normally the root of the
    /// mount ([`crate::cgroup2_mount`]): which pod a socket belongs to is decided by its namespace
    /// (or by the cgroup of a pod on the host network), not by this. `None`: no hooks. Guards then land every connection to
    /// another member, and reset what the hooks would have refused; nothing is direct, no listener is seen, and pods on the host
    /// network do not exist.
    pub cgroup: Option<PathBuf>,
    /// A directory on a BPF file system in which maps and links stay when the process ends, for the next one to adopt
    /// (`v<layout>` is made in it). `None`: all of it goes with the [`Datapath`].
    pub pins: Option<PathBuf>,
}

#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) pods: Table<u64, abi::Pod>,
    pub(crate) host_pods: Table<u64, abi::Pod>,
    pub(crate) crossings: Table<abi::Crossing, abi::End>,
    pub(crate) vips: Table<abi::VipKey, abi::Vip>,
    pub(crate) real: Table<abi::VipKey, abi::Ip>,
    pub(crate) listen: Table<abi::Listener, u64>,
    pub(crate) refused: Table<abi::Port, abi::Refusal>,
    pub(crate) flows: Table<u64, abi::DirectFlow>,
    pub(crate) udp_vip: Table<abi::Listener, u64>,
    pub(crate) mirrored: Table<abi::Mirrored, u8>,
    pub(crate) udp_seen: Table<abi::Port, u64>,
    pub(crate) ports: Table<abi::PortBlock, u64>,
}

fn open_cgroup(path: PathBuf) -> Result<(PathBuf, File), LoadError> {
    let opened = File::open(&path);
    let file = opened.map_err(|source| LoadError::OpenCgroup { path: path.clone(), source })?;
    let kind = fstatfs(&file).map(|s| u64::from_ne_bytes(s.f_type.to_ne_bytes()));
    if kind == Ok(CGROUP2_MAGIC) { Ok((path, file)) } else { Err(LoadError::NotCgroup2 { path }) }
}

/// The data path of this machine. `Send + Sync`; every method takes `&self` and is one or a few system calls.
/// Dropping it detaches the hooks (unless pinned) and never touches other programs on the cgroup.
#[derive(Debug)]
pub struct Datapath {
    // Dropped in this order: verdicts end before the maps they read.
    hooks: Vec<(Hook, Attached)>,
    tables: Tables,
    counters: Counters,
    mirror: MirrorWords,
    events: Mutex<Option<Events>>,
    watched: Watched,
    watch: Mutex<Option<Watch>>,
    landing: Arc<Landing>,
    directory: MapDirectory,
}

impl Datapath {
    /// Loads the programs and attaches every hook of [`Hook::CGROUP`], or none. Without a cgroup, hooks that an earlier process
    /// pinned are taken away.
    ///
    /// # Errors
    /// The cgroup is no cgroup v2 directory, the pin directory is on no BPF file system, or the kernel refuses a
    /// program or an attachment (the error names the hook).
    pub fn load(config: Config) -> Result<Self, LoadError> {
        let Config { cgroup, pins } = config;
        let cgroup = cgroup.map(open_cgroup).transpose()?;
        let directory = match &pins {
            None => MapDirectory::private()?,
            Some(pins) => MapDirectory::pinned(pins)?,
        };
        let path = directory.path();
        let mut ebpf = object::open(&path, None)?;
        let pins = directory.is_pinned().then_some(path.as_path());
        let mut hooks = Vec::with_capacity(Hook::CGROUP.len());
        match &cgroup {
            Some((path, file)) => {
                for hook in Hook::CGROUP {
                    hooks.push((hook, hooks::attach(&mut ebpf, hook, (path, file), pins)?));
                }
            }
            // The reverse of attaching: verdicts end before the names they need.
            None => pins.map_or(Ok(()), |pins| {
                Hook::CGROUP.into_iter().rev().try_for_each(|hook| hooks::unpin(hook, pins))
            })?,
        }
        Ok(Self {
            hooks,
            tables: Tables {
                pods: Table::take(&mut ebpf, "PODS")?,
                host_pods: Table::take(&mut ebpf, "HOST_PODS")?,
                crossings: Table::take(&mut ebpf, "CROSSINGS")?,
                vips: Table::take(&mut ebpf, "VIPS")?,
                real: Table::take(&mut ebpf, "REAL")?,
                listen: Table::take(&mut ebpf, "LISTEN")?,
                refused: Table::take(&mut ebpf, "REFUSED")?,
                flows: Table::take(&mut ebpf, "FLOWS")?,
                udp_vip: Table::take(&mut ebpf, "UDP_VIP")?,
                mirrored: Table::take(&mut ebpf, "MIRRORED")?,
                udp_seen: Table::take(&mut ebpf, "UDP_SEEN")?,
                ports: Table::take(&mut ebpf, "PORTS")?,
            },
            counters: Counters::take(&mut ebpf)?,
            mirror: MirrorWords::take(&mut ebpf)?,
            events: Mutex::new(Some(Events::take(&mut ebpf)?)),
            watched: Watched::take(&mut ebpf)?,
            watch: Mutex::new(Some(Watch::take(&mut ebpf)?)),
            landing: Arc::new(Landing::take(&mut ebpf, &directory)?),
            directory,
        })
    }

    /// The hooks that are attached to the cgroup: all or none.
    pub fn hooks(&self) -> impl Iterator<Item = Hook> {
        self.hooks.iter().map(|(hook, _)| *hook)
    }

    /// What the hooks tell of listeners that begin and end; the first caller has it.
    pub fn take_events(&self) -> Option<Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// How many guards are pinned here, adopted or not.
    ///
    /// # Errors
    /// The pin directory cannot be read.
    pub fn pinned_guards(&self) -> io::Result<usize> {
        Ok(self.directory.guards()?.len())
    }

    /// Removes the pins of this layout, so that everything goes with this value; with `guards_too` those of guards as well, of
    /// whose namespaces no route may lead to the Domain any more.
    ///
    /// # Errors
    /// A pin cannot be removed; others may be gone.
    pub fn unpin(&self, guards_too: bool) -> io::Result<()> {
        let MapDirectory::Pinned { path } = &self.directory else { return Ok(()) };
        if guards_too {
            return fs::remove_dir_all(path);
        }
        path.parent().map_or(Ok(()), discard_pins)
    }

    pub(crate) const fn tables(&self) -> &Tables {
        &self.tables
    }

    pub(crate) const fn counter_map(&self) -> &Counters {
        &self.counters
    }

    pub(crate) const fn mirror_words(&self) -> &MirrorWords {
        &self.mirror
    }

    pub(crate) const fn watched(&self) -> &Watched {
        &self.watched
    }

    pub(crate) fn take_watch_ring(&self) -> Option<Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) const fn landing(&self) -> &Arc<Landing> {
        &self.landing
    }

    pub(crate) const fn directory(&self) -> &MapDirectory {
        &self.directory
    }
}
