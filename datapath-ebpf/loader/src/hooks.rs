//! The cgroup hooks: their names, loading and attaching.

use std::{
    fmt, fs, io,
    os::{
        fd::{AsFd, AsRawFd as _},
        unix::fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
};

use aya::{
    Ebpf,
    programs::{
        CgroupAttachMode, Program, ProgramError, ProgramFd,
        links::{FdLink, LinkError, PinnedLink},
    },
};

use crate::{error::LoadError, link};

/// One program of the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    Connect4,
    Connect6,
    Sendmsg4,
    Sendmsg6,
    Recvmsg4,
    Recvmsg6,
    Getpeername4,
    Getpeername6,
    Getsockname4,
    Getsockname6,
    SockOps,
    Bind4,
    Bind6,
    PostBind4,
    PostBind6,
    SockRelease,
    /// Not on the cgroup: one per pod's network namespace.
    SkLookup,
}

impl Hook {
    /// All hooks that hang on the cgroup. Names first and verdicts last, so that no connection is steered
    /// before its names are right.
    pub const CGROUP: [Self; 16] = [
        Self::SockOps,
        Self::SockRelease,
        Self::Bind4,
        Self::Bind6,
        Self::PostBind4,
        Self::PostBind6,
        Self::Recvmsg4,
        Self::Recvmsg6,
        Self::Getpeername4,
        Self::Getpeername6,
        Self::Getsockname4,
        Self::Getsockname6,
        Self::Sendmsg4,
        Self::Sendmsg6,
        Self::Connect4,
        Self::Connect6,
    ];

    /// The kernel's name of the hook.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect4 => "connect4",
            Self::Connect6 => "connect6",
            Self::Sendmsg4 => "sendmsg4",
            Self::Sendmsg6 => "sendmsg6",
            Self::Recvmsg4 => "recvmsg4",
            Self::Recvmsg6 => "recvmsg6",
            Self::Getpeername4 => "getpeername4",
            Self::Getpeername6 => "getpeername6",
            Self::Getsockname4 => "getsockname4",
            Self::Getsockname6 => "getsockname6",
            Self::SockOps => "sock_ops",
            Self::Bind4 => "bind4",
            Self::Bind6 => "bind6",
            Self::PostBind4 => "post_bind4",
            Self::PostBind6 => "post_bind6",
            Self::SockRelease => "sock_release",
            Self::SkLookup => "sk_lookup",
        }
    }

    /// The program's name, as `bpftool prog` shows it.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Connect4 => "rl_connect4",
            Self::Connect6 => "rl_connect6",
            Self::Sendmsg4 => "rl_sendmsg4",
            Self::Sendmsg6 => "rl_sendmsg6",
            Self::Recvmsg4 => "rl_recvmsg4",
            Self::Recvmsg6 => "rl_recvmsg6",
            Self::Getpeername4 => "rl_getpeername4",
            Self::Getpeername6 => "rl_getpeername6",
            Self::Getsockname4 => "rl_getsockname4",
            Self::Getsockname6 => "rl_getsockname6",
            Self::SockOps => "rl_sockops",
            Self::Bind4 => "rl_bind4",
            Self::Bind6 => "rl_bind6",
            Self::PostBind4 => "rl_post_bind4",
            Self::PostBind6 => "rl_post_bind6",
            Self::SockRelease => "rl_sock_release",
            Self::SkLookup => "rl_guard",
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An attached hook: detached on drop unless pinned.
#[derive(Debug)]
pub(crate) enum Attached {
    Owned(#[expect(dead_code, reason = "held for its drop")] FdLink),
    Pinned(#[expect(dead_code, reason = "held for its descriptor")] PinnedLink),
    Adopted(#[expect(dead_code, reason = "names what stays")] PathBuf),
}

/// Loads one hook's program without attaching it.
pub(crate) fn load(ebpf: &mut Ebpf, hook: Hook) -> Result<&mut Program, LoadError> {
    let program = ebpf.program_mut(hook.program()).ok_or(LoadError::Incomplete(hook.program()))?;
    let loaded = match program {
        Program::CgroupSockAddr(p) => p.load(),
        Program::SockOps(p) => p.load(),
        Program::CgroupSock(p) => p.load(),
        Program::SkLookup(p) => p.load(),
        _ => return Err(LoadError::Incomplete(hook.program())),
    };
    loaded.map_err(|source| LoadError::Program { hook, source: Box::new(source) })?;
    Ok(program)
}

/// Loads one hook and attaches it beside whatever is there. With a pin directory, the program behind an existing
/// pinned link is replaced in place (no gap, no wrong refusal) and a new link is pinned. A link whose cgroup is gone or
/// another one is taken away.
pub(crate) fn attach(
    ebpf: &mut Ebpf,
    hook: Hook,
    cgroup: (&Path, &fs::File),
    pins: Option<&Path>,
) -> Result<Attached, LoadError> {
    let pin = pins.map(|pins| pin(hook, pins));
    let program = load(ebpf, hook)?;
    if let Some(pin) = pin.as_deref().filter(|pin| pin.exists()) {
        let failed = |source| LoadError::Replace { hook, source };
        let inode = cgroup.1.metadata().map_err(failed)?.ino();
        if link::attached_to(pin).map_err(failed)? == Some(inode) {
            replace(program, pin).map_err(failed)?;
            return Ok(Attached::Adopted(pin.to_owned()));
        }
        fs::remove_file(pin).map_err(failed)?;
    }
    let link = match program {
        Program::CgroupSockAddr(p) => p
            .attach(cgroup.1, CgroupAttachMode::Single)
            .and_then(|id| p.take_link(id))
            .map(FdLink::try_from),
        Program::SockOps(p) => p
            .attach(cgroup.1, CgroupAttachMode::Single)
            .and_then(|id| p.take_link(id))
            .map(FdLink::try_from),
        Program::CgroupSock(p) => p
            .attach(cgroup.1, CgroupAttachMode::Single)
            .and_then(|id| p.take_link(id))
            .map(FdLink::try_from),
        _ => return Err(LoadError::Incomplete(hook.program())),
    };
    let link = link
        .map_err(|source: ProgramError| LoadError::Attach {
            hook,
            cgroup: cgroup.0.to_owned(),
            source: Box::new(source),
        })?
        .map_err(|source: LinkError| LoadError::Link { hook, source: Box::new(source) })?;
    match pin {
        None => Ok(Attached::Owned(link)),
        Some(pin) => link
            .pin(pin)
            .map(Attached::Pinned)
            .map_err(|source| LoadError::Pin { hook, source: Box::new(source) }),
    }
}

fn pin(hook: Hook, pins: &Path) -> PathBuf {
    pins.join(format!("link_{hook}"))
}

/// Takes away what an earlier process pinned of a hook, and with that detaches it.
pub(crate) fn unpin(hook: Hook, pins: &Path) -> Result<(), LoadError> {
    match fs::remove_file(pin(hook, pins)) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(LoadError::Unpin { hook, source })
        }
        _ => Ok(()),
    }
}

/// Puts a freshly loaded program behind a pinned link.
pub(crate) fn replace(program: &Program, pin: &Path) -> io::Result<()> {
    let fd: &ProgramFd = match program {
        Program::CgroupSockAddr(p) => p.fd(),
        Program::SockOps(p) => p.fd(),
        Program::CgroupSock(p) => p.fd(),
        Program::SkLookup(p) => p.fd(),
        _ => return Err(io::ErrorKind::Unsupported.into()),
    }
    .map_err(io::Error::other)?;
    link::update(pin, fd.as_fd().as_raw_fd())
}
