//! Network namespaces: opening, making, entering.
#![expect(unsafe_code, reason = "setns around a closure, and SO_NETNS_COOKIE")]

use std::{
    cell::OnceCell,
    fs::{self, File},
    io,
    net::UdpSocket,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    thread,
};

use rustix::{
    mount::{UnmountFlags, mount_bind, mount_change, unmount},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use crate::netlink::{Netlink, NetlinkError};

const THREAD_NS: &str = "/proc/thread-self/ns/net";
/// Where `ip netns` keeps its names.
const NAMED: &str = "/run/netns";

/// A network namespace could not be opened, made or entered.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    #[error("cannot open the network namespace {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot make a network namespace")]
    Create(#[source] io::Error),
    #[error("cannot name the network namespace {}", path.display())]
    Name {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot enter the network namespace")]
    Enter(#[source] io::Error),
    #[error("cannot set up the loopback interface")]
    Loopback(#[source] NetlinkError),
    #[error("the kernel gives no namespace cookie (needs Linux 5.14)")]
    Cookie(#[source] io::Error),
    #[error("the thread in the network namespace panicked")]
    Panicked,
}

/// An open network namespace: exists at least as long as this.
#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
}

impl Netns {
    /// The one a path names (`/run/netns/NAME`, `/proc/PID/ns/net`, a bind mount).
    ///
    /// # Errors
    /// The path cannot be opened. That it names something else is found out on entering.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, NetnsError> {
        let path = path.as_ref();
        let file = File::open(path)
            .map_err(|source| NetnsError::Open { path: path.to_owned(), source })?;
        Ok(Self { fd: file.into() })
    }

    /// The one of the calling thread.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn current() -> Result<Self, NetnsError> {
        Self::open(THREAD_NS)
    }

    /// A new one without a name, its loopback up. Gone with the last descriptor, process and socket.
    ///
    /// # Errors
    /// Not permitted.
    pub fn anonymous() -> Result<Self, NetnsError> {
        let made = thread::scope(|scope| {
            scope
                .spawn(|| {
                    // SAFETY: the thread is ours and shares nothing that the namespace changes.
                    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                        .map_err(|e| NetnsError::Create(e.into()))?;
                    let netns = Self::current()?;
                    let mut netlink = Netlink::current().map_err(NetnsError::Loopback)?;
                    netlink.set_up("lo").map_err(NetnsError::Loopback)?;
                    Ok(netns)
                })
                .join()
        });
        made.unwrap_or(Err(NetnsError::Panicked))
    }

    /// Runs `work` in the namespace on a thread of its own and waits for it. What it opens stays in the namespace.
    ///
    /// # Errors
    /// Not permitted, or `work` panicked.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        in_netns(self.fd.as_fd(), work)
    }

    /// The kernel's number of the namespace, the one BPF programs see. Linux 5.14.
    ///
    /// # Errors
    /// The kernel is older, or the namespace cannot be entered.
    pub fn cookie(&self) -> Result<u64, NetnsError> {
        self.run(|| cookie_of(UdpSocket::bind("0.0.0.0:0")?.as_fd()))?.map_err(NetnsError::Cookie)
    }

    /// Another handle on the same namespace.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()? })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The namespace cookie of a socket.
fn cookie_of(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).map_err(io::Error::other)?;
    // SAFETY: the option writes eight bytes into `cookie`, as `length` says.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// Runs `work` in a namespace on a thread of its own and waits for it (about 50 µs).
///
/// # Errors
/// Not permitted, no namespace behind the descriptor, or `work` panicked.
pub fn in_netns<T: Send>(
    netns: BorrowedFd<'_>,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NetnsError> {
    let done = thread::scope(|scope| {
        scope
            .spawn(|| {
                move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))
                    .map_err(|e| NetnsError::Enter(e.into()))?;
                Ok(work())
            })
            .join()
    });
    done.unwrap_or(Err(NetnsError::Panicked))
}

thread_local! {
    static HOME: OnceCell<OwnedFd> = const { OnceCell::new() };
}

/// Runs `work` in a namespace on the calling thread and comes back: a few microseconds, for making one socket. `work`
/// must not await, block or start threads. If the way back fails the process ends, since its next socket would be in
/// a stranger's network.
///
/// # Errors
/// Not permitted, or no namespace behind the descriptor.
pub fn visit_netns<T>(netns: BorrowedFd<'_>, work: impl FnOnce() -> T) -> io::Result<T> {
    struct WayBack(BorrowedFd<'static>);
    impl Drop for WayBack {
        fn drop(&mut self) {
            if move_into_link_name_space(self.0, Some(LinkNameSpaceType::Network)).is_err() {
                std::process::abort();
            }
        }
    }
    let home = HOME.with(|home| match home.get() {
        Some(fd) => Ok(fd.as_raw_fd()),
        None => {
            let fd = OwnedFd::from(File::open(THREAD_NS)?);
            Ok::<_, io::Error>(home.get_or_init(|| fd).as_raw_fd())
        }
    })?;
    // SAFETY: the thread's own descriptor, closed when the thread ends, after this call.
    let way_back = WayBack(unsafe { BorrowedFd::borrow_raw(home) });
    move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?;
    let done = work();
    drop(way_back);
    Ok(done)
}

/// A namespace with a name that `ip netns` knows; the name goes on drop.
#[derive(Debug)]
pub struct NamedNetns {
    netns: Netns,
    path: PathBuf,
}

impl NamedNetns {
    /// Makes a namespace and names it.
    ///
    /// # Errors
    /// The name is taken, or mounting is not permitted.
    pub fn create(name: &str) -> Result<Self, NetnsError> {
        let path = Path::new(NAMED).join(name);
        let failed = |source| NetnsError::Name { path: path.clone(), source };
        share_names().map_err(failed)?;
        File::options().write(true).create_new(true).open(&path).map_err(failed)?;
        let named = Netns::anonymous().and_then(|netns| {
            let source = format!("/proc/self/fd/{}", netns.fd.as_raw_fd());
            mount_bind(source, &path).map_err(|e| failed(e.into()))?;
            Ok(netns)
        });
        match named {
            Ok(netns) => Ok(Self { netns, path }),
            Err(e) => {
                let _already_failing = fs::remove_file(&path);
                Err(e)
            }
        }
    }

    /// The namespace.
    pub const fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for NamedNetns {
    fn drop(&mut self) {
        let _gone_already = unmount(&self.path, UnmountFlags::DETACH);
        let _gone_already = fs::remove_file(&self.path);
    }
}

/// Makes the directory of names as `ip netns` does: a mount point that other mount namespaces follow.
fn share_names() -> io::Result<()> {
    use rustix::mount::MountPropagationFlags as Propagation;
    fs::create_dir_all(NAMED)?;
    let shared = Propagation::SHARED | Propagation::REC;
    if mount_change(NAMED, shared).is_ok() {
        return Ok(());
    }
    rustix::mount::mount_bind_recursive(NAMED, NAMED)?;
    mount_change(NAMED, shared)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_a_cookie_of_its_own_and_a_visit_comes_home() -> Result<(), NetnsError> {
        let (a, b, home) = (Netns::anonymous()?, Netns::anonymous()?, Netns::current()?);
        assert_ne!(a.cookie()?, b.cookie()?);
        assert_ne!(a.cookie()?, home.cookie()?);
        let seen = visit_netns(a.as_fd(), || {
            UdpSocket::bind("127.0.0.1:0").and_then(|s| cookie_of(s.as_fd()))
        });
        assert_eq!(seen.and_then(|c| c).map_err(NetnsError::Cookie)?, a.cookie()?);
        assert_eq!(Netns::current()?.cookie()?, home.cookie()?);
        Ok(())
    }

    #[test]
    fn a_name_goes_with_its_guard() -> Result<(), NetnsError> {
        let name = format!("rl-test-{}", std::process::id());
        let named = NamedNetns::create(&name)?;
        let path = named.path().to_owned();
        assert_eq!(Netns::open(&path)?.cookie()?, named.netns().cookie()?);
        assert!(matches!(NamedNetns::create(&name), Err(NetnsError::Name { .. })));
        drop(named);
        assert!(!path.exists());
        Ok(())
    }
}
