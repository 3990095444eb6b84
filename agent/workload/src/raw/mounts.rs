//! What a pod sees of the machine's files: everything, read-only, but for its own working
//! directory and `/tmp`, with its own `/proc`, `/sys`, `/etc/hosts` and terminals, and without this
//! runtime's directories (other pods, keys) and the machine's secrets ([`super::secrets`]). Devices
//! stay usable: they are what robots are for. Disks do not: all of the above lies on them.
//!
//! Runs in a new mount namespace, so nothing has to be undone.

use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd as _,
    path::Path,
};

use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_remount,
};

use super::{
    layout::{PodDir, PodRecord},
    mountinfo, secrets,
};

/// Hidden behind a file system of the pod's own that holds the two directories below.
const OWN: &str = "/run/rlark";
/// The artifact's directory, first in PATH.
pub(crate) const BIN: &str = "/run/rlark/bin";
/// The working directory and HOME.
pub(crate) const WORK: &str = "/run/rlark/work";

const SAFE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Directories that must exist on the machine for [`set_up`].
pub(crate) fn prepare_machine() -> io::Result<()> {
    fs::create_dir_all(OWN)
}

pub(crate) fn set_up(dir: &PodDir, record: &PodRecord) -> io::Result<()> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(at("make private", "/"))?;
    // Opened before they are hidden; a descriptor can be mounted from wherever it was.
    let sources = Sources::open(dir, record)?;
    make_read_only()?;
    let secrets = secrets::of_this_machine().map_err(at("look for secrets on", "this machine"))?;
    for hidden in record.hidden.iter().chain(&secrets) {
        hide(hidden)?;
    }
    own_terminals()?;
    empty(Path::new(OWN))?;
    for target in [BIN, WORK] {
        fs::create_dir(target).map_err(at("create", target))?;
    }
    bind(&sources.work, WORK, MountFlags::NODEV | MountFlags::NOSUID)?;
    if let Some(artifact) = &sources.artifact {
        bind(artifact, BIN, MountFlags::RDONLY | MountFlags::NODEV)?;
    }
    bind(&sources.tmp, "/tmp", MountFlags::NODEV | MountFlags::NOSUID)?;
    if Path::new("/etc/hosts").exists() {
        bind(&sources.hosts, "/etc/hosts", SAFE | MountFlags::RDONLY)?;
    }
    if Path::new("/dev/shm").is_dir() {
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("shm", "/dev/shm", "tmpfs", flags, c"mode=1777").map_err(at("mount", "/dev/shm"))?;
    }
    kernel_views()
}

/// What is mounted into the pod.
struct Sources {
    work: File,
    tmp: File,
    hosts: File,
    artifact: Option<File>,
}

impl Sources {
    fn open(dir: &PodDir, record: &PodRecord) -> io::Result<Self> {
        let open = |p: &Path| File::open(p).map_err(at("open", p));
        let artifact = record.artifact.as_deref().and_then(Path::parent);
        Ok(Self {
            work: open(&dir.work())?,
            tmp: open(&dir.tmp())?,
            hosts: open(&dir.hosts())?,
            artifact: artifact.map(open).transpose()?,
        })
    }
}

fn bind(source: &File, target: &str, flags: MountFlags) -> io::Result<()> {
    let source = format!("/proc/self/fd/{}", source.as_raw_fd());
    mount_bind(&source, target).map_err(at("bind", target))?;
    // A bind mount takes over its source's flags; this sets them.
    mount_remount(target, MountFlags::BIND | flags, c"").map_err(at("remount", target))
}

/// What is not there (any more: its parent may be hidden) needs no hiding. A link is followed: what
/// it leads to is what must not be seen.
fn hide(target: &Path) -> io::Result<()> {
    let Ok(target) = fs::canonicalize(target) else { return Ok(()) };
    match fs::metadata(&target) {
        Ok(m) if m.is_dir() => empty(&target),
        Ok(_) => mount_bind("/dev/null", &target).map_err(at("hide", &target)),
        Err(_) => Ok(()),
    }
}

/// Terminals of the pod's own; those of people who are logged in are nobody else's to read.
fn own_terminals() -> io::Result<()> {
    const TERMINALS: &str = "/dev/pts";
    if !Path::new(TERMINALS).is_dir() || !Path::new("/dev/ptmx").exists() {
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    let options = c"newinstance,ptmxmode=0666,mode=620,gid=5";
    mount("devpts", TERMINALS, "devpts", flags, options).map_err(at("mount", TERMINALS))?;
    // Where it is a link it leads to the new instance already.
    if fs::symlink_metadata("/dev/ptmx").is_ok_and(|m| m.file_type().is_symlink()) {
        return Ok(());
    }
    mount_bind("/dev/pts/ptmx", "/dev/ptmx").map_err(at("bind", "/dev/ptmx"))
}

fn empty(target: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("rlark", target, "tmpfs", flags, c"mode=755,size=1m").map_err(at("hide", target))
}

/// Everything that is mounted so far, except what only looks like files.
fn make_read_only() -> io::Result<()> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    for m in mountinfo::parse(&table) {
        if ["/dev", "/proc", "/sys"].iter().any(|p| m.point.starts_with(p)) {
            continue;
        }
        let mut flags = MountFlags::BIND | MountFlags::RDONLY;
        for option in m.options.split(',') {
            flags |= match option {
                "nosuid" => MountFlags::NOSUID,
                "nodev" => MountFlags::NODEV,
                "noexec" => MountFlags::NOEXEC,
                "noatime" => MountFlags::NOATIME,
                "nodiratime" => MountFlags::NODIRATIME,
                _ => MountFlags::empty(),
            };
        }
        match mount_remount(&m.point, flags, c"") {
            // Mounts that others hide, or that are files gone since, cannot be reached at all.
            Err(e) if m.point != Path::new("/") => {
                let _unreachable = e;
            }
            other => other.map_err(at("make read-only", &m.point))?,
        }
    }
    Ok(())
}

/// `/proc` of this pid namespace and `/sys` of this network namespace. Last, because the steps
/// before use the machine's `/proc`.
fn kernel_views() -> io::Result<()> {
    mount("sysfs", "/sys", "sysfs", SAFE | MountFlags::RDONLY, c"").map_err(at("mount", "/sys"))?;
    mount("proc", "/proc", "proc", SAFE, c"").map_err(at("mount", "/proc"))?;
    for knobs in ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"] {
        if Path::new(knobs).exists() {
            mount_bind(knobs, knobs).map_err(at("bind", knobs))?;
            let flags = MountFlags::BIND | MountFlags::RDONLY | SAFE;
            mount_remount(knobs, flags, c"").map_err(at("make read-only", knobs))?;
        }
    }
    Ok(())
}

/// Names the step and the path in the error: it is all a person gets to see of this process.
fn at<E: Into<io::Error>>(
    what: &'static str,
    path: impl AsRef<Path>,
) -> impl FnOnce(E) -> io::Error {
    let path = path.as_ref().display().to_string();
    move |e| {
        let e: io::Error = e.into();
        io::Error::new(e.kind(), format!("cannot {what} {path}: {e}"))
    }
}
