//! Network namespaces and what joins them, by `ip` and `nft`.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};

use crate::command::{cmd, ip, output};

/// A named network namespace, deleted with its owner.
#[derive(Debug)]
pub struct Netns {
    name: String,
    path: PathBuf,
}

impl Netns {
    pub fn new(name: &str) -> Result<Self> {
        ip(&format!("netns add {name}"))?;
        let ns = Self { name: name.to_owned(), path: Path::new("/run/netns").join(name) };
        ns.ip("link set lo up")?;
        Ok(ns)
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `ip -n NAME LINE`.
    pub fn ip(&self, line: &str) -> Result<()> {
        ip(&format!("-n {} {line}", self.name))
    }

    /// Loads an nft script inside the namespace.
    pub fn nft(&self, script: &str) -> Result<()> {
        let mut c = cmd("nsenter", [format!("--net={}", self.path.display())]);
        c.args(["nft", "-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = c.spawn().context("cannot start nft")?;
        child.stdin.take().context("nft's input")?.write_all(script.as_bytes())?;
        let out = child.wait_with_output()?;
        ensure!(out.status.success(), "nft: {}", String::from_utf8_lossy(&out.stderr).trim());
        Ok(())
    }

    pub fn forward(&self) -> Result<()> {
        self.sysctl("net.ipv4.ip_forward=1")
    }

    pub fn sysctl(&self, setting: &str) -> Result<()> {
        let net = format!("--net={}", self.path.display());
        output(&mut cmd("nsenter", [net.as_str(), "sysctl", "-qw", setting])).map(drop)
    }

    /// Runs `f` on a thread of its own that is in the namespace. Sockets made there stay there.
    pub fn within<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let file = std::fs::File::open(&self.path)
            .with_context(|| format!("cannot open {}", self.path.display()))?;
        let thread = std::thread::spawn(move || {
            use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
            use std::os::fd::AsFd as _;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(f())
        });
        thread.join().map_err(|_panic| anyhow::anyhow!("the thread in {} panicked", self.name))?
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(e) = ip(&format!("netns del {}", self.name)) {
            crate::lab::complain(&format!("namespace {} stays: {e:#}", self.name));
        }
    }
}

/// A pair of interfaces: `(namespace, interface, address/prefix)` at both ends.
pub fn veth(a: (&Netns, &str, &str), b: (&Netns, &str, &str)) -> Result<()> {
    let ((na, ia, aa), (nb, ib, ab)) = (a, b);
    na.ip(&format!("link add {ia} type veth peer name {ib} netns {}", nb.name()))?;
    for (n, i, addr) in [(na, ia, aa), (nb, ib, ab)] {
        n.ip(&format!("addr add {addr} dev {i}"))?;
        n.ip(&format!("link set {i} up"))?;
    }
    Ok(())
}
