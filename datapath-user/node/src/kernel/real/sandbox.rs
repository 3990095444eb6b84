//! Namespaces that only lead to another kernel: of gVisor, whose network stack is a process, and of virtual machines (Kata). Their
//! programs make no call of this kernel, so hooks and guard see nothing of them; such a pod would stand and reach nobody.

use std::{
    fs,
    os::{fd::AsFd as _, linux::fs::MetadataExt as _},
    path::Path,
};

use datapath_net::netns::Netns;
use rustix::fs::fstat;

/// What the first word of such a process's command line begins with.
const RUNTIMES: [&str; 8] = [
    "runsc",
    "containerd-shim-kata",
    "qemu-system-",
    "qemu-kvm",
    "cloud-hypervisor",
    "firecracker",
    "stratovirt",
    "crosvm",
];

/// A process of that namespace through which others have a kernel of their own, like `qemu-system-x86_64 (pid 77)`.
pub(super) fn runtime(netns: &Netns) -> Option<String> {
    let inode = fstat(netns.as_fd()).ok()?.st_ino;
    let pids = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let mut inside = pids.filter(|process| {
        fs::metadata(process.join("ns/net")).is_ok_and(|of| of.st_ino() == inode)
    });
    inside.find_map(|process| name(&process))
}

fn name(process: &Path) -> Option<String> {
    let line = fs::read(process.join("cmdline")).ok()?;
    let first = String::from_utf8_lossy(line.split(|b| *b == 0).next()?).into_owned();
    let name = Path::new(&first).file_name()?.to_str()?;
    let pid = process.file_name()?.to_str()?;
    RUNTIMES.iter().any(|r| name.starts_with(r)).then(|| format!("{name} (pid {pid})"))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ended_already = self.0.kill();
            let _reaped = self.0.wait();
        }
    }

    #[test]
    fn a_virtual_machines_namespace_is_told_from_an_ordinary_one() {
        let dir = tempfile::tempdir().unwrap();
        let (sandbox, ordinary) = (Netns::anonymous().unwrap(), Netns::anonymous().unwrap());
        let start = |netns: &Netns, name: &str| {
            let program = dir.path().join(name);
            fs::copy("/bin/sleep", &program).unwrap();
            let started = netns.run(|| Command::new(&program).arg("60").spawn()).unwrap();
            Ended(started.unwrap())
        };
        let machine = start(&sandbox, "qemu-system-x86_64");
        let _program = start(&ordinary, "trainer");
        let found = runtime(&sandbox);
        assert_eq!(found, Some(format!("qemu-system-x86_64 (pid {})", machine.0.id())));
        assert_eq!(runtime(&ordinary), None);
        drop(machine);
        assert_eq!(runtime(&sandbox), None);
    }
}
