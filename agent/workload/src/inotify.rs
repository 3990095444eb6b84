//! Awaiting changes of files instead of polling them.

use std::{io, mem::MaybeUninit, os::fd::OwnedFd, path::Path};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

/// Watches one file or directory.
#[derive(Debug)]
pub(crate) struct Watch {
    fd: AsyncFd<OwnedFd>,
}

impl Watch {
    /// Starts watching; changes from now on are noticed.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let what = WatchFlags::MODIFY
            | WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF;
        inotify::add_watch(&fd, path, what)?;
        Ok(Self { fd: pollable(fd)? })
    }

    /// Returns once something changed since the last call. Cancel-safe.
    pub(crate) async fn changed(&mut self) -> io::Result<()> {
        let mut guard = self.fd.readable().await?;
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(guard.get_inner(), &mut space);
        loop {
            match events.next() {
                Ok(_) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => break,
                Err(e) => return Err(e.into()),
            }
        }
        guard.clear_ready();
        Ok(())
    }
}

/// A descriptor whose readiness can be awaited.
#[expect(
    deprecated,
    reason = "its successor is unsafe for types that may change their descriptor; OwnedFd never does"
)]
pub(crate) fn pollable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(fd)
}
