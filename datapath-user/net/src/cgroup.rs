//! Cgroups v2 by their directories: which they are, and who listens in them.

use std::{
    collections::BTreeSet,
    fs, io,
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::statfs;

use crate::procfs;

/// The ids of a cgroup and of those it is in, as far up as they can be seen; its own first.
///
/// # Errors
/// The path is no directory of a cgroup v2 hierarchy.
pub fn lineage(path: &Path) -> io::Result<Vec<u64>> {
    let path = fs::canonicalize(path)?;
    let mut ids = Vec::new();
    for directory in path.ancestors().filter(|_| path.is_dir()) {
        if !is_cgroup2(directory)? {
            break;
        }
        ids.push(fs::metadata(directory)?.ino());
    }
    if ids.is_empty() {
        let why = format!("{} is no directory of a cgroup v2 hierarchy", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(ids)
}

fn is_cgroup2(path: &Path) -> io::Result<bool> {
    Ok(statfs(path)?.f_type == libc::CGROUP2_SUPER_MAGIC)
}

/// This process's own cgroup below the mount point of the hierarchy.
///
/// # Errors
/// `/proc` cannot be read, or the process is in no cgroup v2.
pub fn own(mount: &Path) -> io::Result<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
    let none = || io::Error::new(io::ErrorKind::NotFound, "this process is in no cgroup v2");
    path.map(|path| mount.join(path)).ok_or_else(none)
}

/// The listening TCP sockets of the processes in a cgroup and below it, in this process's network namespace.
///
/// # Errors
/// The cgroup or `/proc` cannot be read. A process that ends meanwhile has no sockets.
pub fn listeners(path: &Path) -> io::Result<Vec<SocketAddr>> {
    let mut inodes = BTreeSet::new();
    for pid in processes(path)? {
        for descriptor in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(descriptor.path()) else { continue };
            let inode = target.to_str().and_then(|t| t.strip_prefix("socket:["));
            inodes.extend(
                inode.and_then(|i| i.strip_suffix(']')).and_then(|i| i.parse::<u64>().ok()),
            );
        }
    }
    let all = procfs::own_listeners()?.into_iter();
    Ok(all.filter(|(_, inode)| inodes.contains(inode)).map(|(at, _)| at).collect())
}

fn processes(path: &Path) -> io::Result<Vec<u32>> {
    let text = fs::read_to_string(path.join("cgroup.procs"))?;
    let mut all: Vec<u32> = text.lines().filter_map(|l| l.parse().ok()).collect();
    for entry in fs::read_dir(path)?.flatten().filter(|e| e.path().is_dir()) {
        // One that is gone meanwhile had no processes.
        all.extend(processes(&entry.path()).unwrap_or_default());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_has_a_lineage_and_another_directory_none() -> io::Result<()> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let of_kind = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
        let mount = mounts.lines().find(of_kind).and_then(|line| line.split(' ').nth(1));
        let mount = Path::new(mount.ok_or_else(|| io::Error::other("no cgroup v2 is mounted"))?);
        let root = lineage(mount)?;
        assert_eq!(root.len(), 1);
        let below = mount.join(format!("rl-net-{}", std::process::id()));
        fs::create_dir(&below)?;
        let (ids, none) = (lineage(&below), listeners(&below));
        fs::remove_dir(&below)?;
        let ids = ids?;
        assert_eq!((ids.len(), ids.last()), (2, root.first()));
        assert_eq!(none?, []);
        assert!(lineage(Path::new("/proc")).is_err() && lineage(&below).is_err());
        assert!(lineage(&own(mount)?)?.ends_with(&root));
        Ok(())
    }
}
