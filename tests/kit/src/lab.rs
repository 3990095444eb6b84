//! One run's belongings: a name, a directory, and the duty to leave nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{cgroup, command};

/// What pods may see of a lab: they see the machine's files, but neither `/tmp`, nor `/run/rlark*`, nor
/// a lab's own directory.
const SHARED: &str = "/var/lib/rlark-lab";
/// Where labs register themselves, so that the next run can clean up after a killed one.
const REGISTRY: &str = "/run/rlark-lab";

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Called by a signal handler's thread: waits of [`crate::wait::eventually`] end with an error.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::SeqCst);
}

/// An error once [`interrupt`] was called.
pub fn interrupted() -> Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::SeqCst), "interrupted");
    Ok(())
}

/// A clean-up that failed must be seen, but must not stop the rest of the clean-up.
#[expect(clippy::print_stderr, reason = "drop has no other way to report")]
pub(crate) fn complain(what: &str) {
    eprintln!("clean-up: {what}");
}

/// The first field dropped of everything that makes namespaces: keep it last in your struct.
#[derive(Debug)]
pub struct Lab {
    id: String,
    dir: PathBuf,
}

impl Lab {
    /// Needs root. Removes what dead labs left.
    pub fn new() -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "network namespaces need root: run as root");
        for tool in ["ip", "nft", "nsenter", "setpriv", "sysctl"] {
            ensure!(command::on_path(tool), "`{tool}` is missing: run `cargo xtask setup`");
        }
        cgroup::v2_mount()?;
        clean_dead()?;
        let pid = std::process::id();
        for n in 0..100 {
            let id = format!("rl{pid:x}{}", if n == 0 { String::new() } else { format!("x{n}") });
            let dir = Path::new(REGISTRY).join(&id);
            fs::create_dir_all(REGISTRY).with_context(|| format!("cannot make {REGISTRY}"))?;
            match fs::create_dir(&dir) {
                Ok(()) => {
                    fs::write(dir.join("owner"), owner(pid)?)?;
                    return Ok(Self { id, dir });
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => bail!("cannot make {}: {e}", dir.display()),
            }
        }
        bail!("a hundred labs of this process exist in {REGISTRY}")
    }

    /// Prefix of every name that this lab makes; at most nine characters.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A directory that is gone afterwards.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A copy of a file under its own name that pods can read wherever the original lies; gone
    /// afterwards.
    pub fn share(&self, file: &Path) -> Result<PathBuf> {
        let dir = shared(&self.id);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let to = dir.join(file.file_name().context("a file has a name")?);
        let copied = fs::copy(file, &to);
        copied.with_context(|| format!("cannot copy {} to {}", file.display(), to.display()))?;
        Ok(to)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(e) = clean(&self.dir, &self.id) {
            complain(&format!("{e:#}"));
        }
    }
}

fn shared(id: &str) -> PathBuf {
    Path::new(SHARED).join(id)
}

/// A pid and its start time: a pid used again is another owner.
fn owner(pid: u32) -> Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit_once(')').map_or("", |(_, a)| a);
    let start = after.split_whitespace().nth(19).context("no start time in /proc/PID/stat")?;
    Ok(format!("{pid} {start}"))
}

fn clean_dead() -> Result<()> {
    let Ok(labs) = fs::read_dir(REGISTRY) else { return Ok(()) };
    for lab in labs.flatten() {
        let text = fs::read_to_string(lab.path().join("owner")).unwrap_or_default();
        let pid = text.split(' ').next().and_then(|p| p.parse().ok());
        let alive = pid.is_some_and(|p| owner(p).is_ok_and(|o| o == text));
        if !alive {
            clean(&lab.path(), &lab.file_name().to_string_lossy())?;
        }
    }
    Ok(())
}

/// Everything named after the lab, in the order that lets each step succeed.
fn clean(dir: &Path, id: &str) -> Result<()> {
    cgroup::remove(&cgroup::v2_mount()?.join(id))?;
    for ns in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = ns.file_name().to_string_lossy().into_owned();
        if name.strip_prefix(id).is_some_and(|rest| rest.starts_with('-')) {
            command::ip(&format!("netns del {name}"))?;
        }
    }
    unmount_below(dir)?;
    let shared = shared(id);
    if shared.exists() {
        let removed = fs::remove_dir_all(&shared);
        removed.with_context(|| format!("cannot remove {}", shared.display()))?;
    }
    // Not empty while other labs share something.
    drop(fs::remove_dir(SHARED));
    fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))
}

/// Bind mounts (pod namespaces) of a killed agent would keep their directory busy.
fn unmount_below(dir: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let below = mounts.lines().filter_map(|l| l.split(' ').nth(1)).map(Path::new);
    let mut below: Vec<&Path> = below.filter(|m| m.starts_with(dir)).collect();
    below.reverse();
    for m in below {
        rustix::mount::unmount(m, rustix::mount::UnmountFlags::DETACH)
            .with_context(|| format!("cannot unmount {}", m.display()))?;
    }
    Ok(())
}
