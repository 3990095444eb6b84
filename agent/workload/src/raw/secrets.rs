//! What of a machine no task may see: keys and passwords of people and of the machine, doors to
//! daemons that obey root, and raw storage behind which all of that lies.
//!
//! A raw task is a process of the machine and sees its programs, libraries, data and devices; it is
//! root, so file modes hide nothing from it. These paths are looked for when a pod starts.

use std::{
    fs, io,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

/// In the home of root and of everybody below `/home`.
const IN_HOMES: &[&str] = &[
    ".ssh",
    ".gnupg",
    ".kube",
    ".aws",
    ".azure",
    ".config",
    ".docker",
    ".netrc",
    ".git-credentials",
    ".pgpass",
    ".local/share/keyrings",
];

/// Files and directories; `*` stands for any text within a name.
const PATHS: &[&str] = &[
    "/etc/shadow*",
    "/etc/gshadow*",
    "/etc/.pwd.lock",
    "/etc/security/opasswd",
    "/etc/ssh/ssh_host_*_key",
    "/etc/ssl/private",
    "/etc/letsencrypt",
    "/etc/krb5.keytab",
    "/etc/wireguard",
    "/etc/openvpn",
    "/etc/ipsec.secrets",
    "/etc/ppp/*-secrets",
    "/etc/wpa_supplicant",
    "/etc/NetworkManager/system-connections",
    "/etc/netplan",
    "/etc/kubernetes",
    "/etc/rancher",
    "/var/lib/kubelet",
    "/var/lib/rancher",
    "/var/lib/etcd",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/cloud",
    "/var/lib/sss",
    "/var/lib/bluetooth",
    "/var/lib/NetworkManager",
    "/var/backups",
    "/var/spool/cron",
    // Daemons that do what root asks: each is a way to become the machine.
    "/run/docker*",
    "/run/containerd",
    "/run/crio",
    "/run/podman",
    "/run/k3s",
    "/run/cri-dockerd.sock",
    "/run/buildkit",
    "/run/libvirt",
    "/run/snapd*",
    "/run/dbus",
    "/run/systemd/private",
    "/run/systemd/io.*",
    "/run/systemd/userdb",
    "/run/udev/control",
    "/run/user",
    "/run/secrets",
    "/run/credentials",
    "/run/initctl",
    // What block devices can be reached by beside their own nodes, and the machine's memory.
    "/dev/sg*",
    "/dev/bsg",
    "/dev/nvme*",
    "/dev/mem",
    "/dev/kmem",
    "/dev/port",
];

/// All of it that there is on this machine now, each once, a directory before what lies in it.
pub(crate) fn of_this_machine() -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut homes = vec![PathBuf::from("/root")];
    homes.extend(entries(Path::new("/home"))?);
    for home in homes {
        found.extend(IN_HOMES.iter().map(|name| home.join(name)).filter(|path| is_there(path)));
    }
    for pattern in PATHS {
        found.extend(expand(pattern)?);
    }
    disks(Path::new("/dev"), &mut found)?;
    found.sort();
    found.dedup();
    Ok(found)
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// What is in a directory; nothing when it is not there.
fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(e) => Err(e),
    }
}

/// The paths that a pattern means; only its last part may hold a `*`.
fn expand(pattern: &str) -> io::Result<Vec<PathBuf>> {
    let path = Path::new(pattern);
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else {
        return Ok(Vec::new());
    };
    let Some((front, back)) = name.split_once('*') else {
        return Ok(if is_there(path) { vec![path.to_owned()] } else { Vec::new() });
    };
    let fits = |path: &PathBuf| {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        name.len() >= front.len() + back.len() && name.starts_with(front) && name.ends_with(back)
    };
    Ok(entries(dir)?.into_iter().filter(fits).collect())
}

/// Block devices. What is plugged in later is not hidden, but no task may make a node for it.
fn disks(dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for path in entries(dir)? {
        // Links lead to nodes that are hidden themselves.
        match path.symlink_metadata() {
            Ok(m) if m.file_type().is_block_device() => found.push(path),
            Ok(m) if m.is_dir() => disks(&path, found)?,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text_in_the_last_part() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["ssh_host_rsa_key", "ssh_host_rsa_key.pub", "ssh_config", "ssh_host_key"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let expand = |name: &str| -> Vec<String> {
            let pattern = dir.path().join(name).display().to_string();
            let mut found: Vec<String> = expand(&pattern)
                .unwrap()
                .iter()
                .map(|p| p.file_name().unwrap().to_string_lossy().into_owned())
                .collect();
            found.sort();
            found
        };
        assert_eq!(expand("ssh_host_*_key"), ["ssh_host_rsa_key"]);
        assert_eq!(expand("ssh_config"), ["ssh_config"]);
        assert_eq!(expand("none*"), [] as [&str; 0]);
        assert_eq!(expand("none/*"), [] as [&str; 0]);
    }
}
