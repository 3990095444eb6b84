//! Network namespaces that have a name in the file system and outlive their makers.
//!
//! Namespaces are entered on threads made for it, never on a runtime's workers.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use nix::sched::{CloneFlags, setns, unshare};
use rustix::mount::{UnmountFlags, mount_bind, unmount};

use super::error::NetError;

/// The calling thread's namespace.
const OWN: &str = "/proc/thread-self/ns/net";

fn fail<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> NetError + use<'a> {
    move |source| NetError::Namespace { what, path: path.to_owned(), source }
}

/// Makes the namespace that `path` names, unless there is one.
pub(crate) fn create(path: &Path) -> Result<(), NetError> {
    if is_namespace(path) {
        return Ok(());
    }
    make_place(path)?;
    let target = path.to_owned();
    let made = std::thread::spawn(move || -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        mount_bind(OWN, &target)?;
        Ok(())
    });
    match made.join() {
        Ok(done) => done.map_err(fail("create", path)),
        Err(_panic) => Err(NetError::Thread { path: path.to_owned() }),
    }
}

/// Makes `path` a name of the machine's own namespace, which is the calling thread's, by which other processes can open it.
pub(crate) fn name_own(path: &Path) -> Result<(), NetError> {
    let identity = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino()));
    if is_namespace(path) {
        let own = identity(Path::new(OWN)).map_err(fail("look at", Path::new(OWN)))?;
        if identity(path).map_err(fail("look at", path))? == own {
            return Ok(());
        }
        // Of an agent that was started elsewhere.
        remove(path)?;
    }
    make_place(path)?;
    mount_bind(OWN, path).map_err(|e| fail("name", path)(e.into()))
}

fn make_place(path: &Path) -> Result<(), NetError> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(fail("create the directory of", path))?;
    }
    File::create(path).map_err(fail("create the name of", path)).map(drop)
}

/// Whether the file is a namespace and not merely the place for one.
#[must_use]
pub(crate) fn is_namespace(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|s| s.f_type == NSFS_MAGIC)
}

/// `NSFS_MAGIC` of linux/magic.h.
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// Removes the name; the namespace goes with its last process. One that is not there is fine.
pub(crate) fn remove(path: &Path) -> Result<(), NetError> {
    if is_namespace(path) {
        unmount(path, UnmountFlags::DETACH).map_err(|e| fail("remove", path)(e.into()))?;
    }
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(fail("remove", path)(e)),
        _ => Ok(()),
    }
}

/// Moves the calling thread into the namespace. Only for threads and processes made for it.
pub(crate) fn enter(path: &Path) -> Result<(), NetError> {
    let file = File::open(path).map_err(fail("enter", path))?;
    setns(file, CloneFlags::CLONE_NEWNET).map_err(|e| fail("enter", path)(e.into()))
}

/// Runs `work` on a thread of its own inside the namespace, with a runtime for its sockets.
pub(crate) async fn inside<T, W, F>(path: PathBuf, work: W) -> Result<T, NetError>
where
    T: Send + 'static,
    W: FnOnce() -> F + Send + 'static,
    F: Future<Output = Result<T, NetError>>,
{
    let (tx, rx) = tokio::sync::oneshot::channel();
    let name = path.clone();
    let thread = std::thread::Builder::new().name("pod-netns".to_owned()).spawn(move || {
        let result = enter(&path).and_then(|()| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(NetError::Socket)?
                .block_on(work())
        });
        // The receiver is gone only when the caller was cancelled.
        crate::ignore(tx.send(result));
    });
    thread.map_err(NetError::Socket)?;
    rx.await.map_err(|_gone| NetError::Thread { path: name })?
}
