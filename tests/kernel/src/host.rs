//! A pod on the host network: a cgroup in the site's own namespace, which is the machine's here. It has addresses of both families.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use datapath_loader::{CgroupId, Face, Listeners, NetnsCookie, PodEntry, RELAY_MARK, Route};
use datapath_net::{netlink::Netlink, netns::Netns, sockets::marked_landing_listeners};

use crate::{DOMAIN, Lab, accept, connect_in, errno};

/// Its VIPs.
pub const VIP: &str = "10.2.0.20";
pub const VIP6: &str = "fd00:2::20";
/// Where it is on the site's network; not what the kernel would choose as source.
pub const REAL: &str = "10.99.0.253";
pub const REAL6: &str = "fd99::253";

/// The pod's cgroup, gone with its test. The test process must have left it by then.
#[derive(Debug)]
pub struct Task<'a> {
    lab: &'a Lab,
    pub path: PathBuf,
    pub id: CgroupId,
    pub machine: NetnsCookie,
    /// The relay's listeners, of IPv4 and IPv6.
    pub relay: TcpListener,
    pub relay6: TcpListener,
}

fn landing(site: &Netns) -> Result<[TcpListener; 2]> {
    let both = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let all = site.run(|| marked_landing_listeners(&both, RELAY_MARK))??;
    all.try_into().ok().context("one of each family")
}

impl<'a> Task<'a> {
    /// Known to the hooks, with a direct route to each of its addresses.
    pub fn new(lab: &'a Lab) -> Result<Self> {
        let path = lab.cgroup.path().join("host");
        fs::create_dir(&path)?;
        let id = CgroupId(fs::metadata(&path)?.ino());
        let machine = NetnsCookie(lab.site.cookie()?);
        let [relay, relay6] = landing(&lab.site)?;
        let task = Self { lab, path, id, machine, relay, relay6 };
        for (vip, real, length) in [(VIP, REAL, 24), (VIP6, REAL6, 64)] {
            let (vip, real) = (vip.parse()?, real.parse()?);
            // One address before, as no program would choose ours by itself.
            if let IpAddr::V6(other) = real {
                let first = Ipv6Addr::from_bits(other.to_bits() + 1).into();
                Netlink::in_netns(lab.site.as_fd())?.add_address("br0", first, length)?;
            }
            Netlink::in_netns(lab.site.as_fd())?.add_address("br0", real, length)?;
            let listeners = Listeners::Here(id.key());
            lab.datapath()?.set_real(DOMAIN, real, vip)?;
            lab.datapath()?.set_vip(DOMAIN, vip, Route::Direct { real, listeners })?;
        }
        task.put_all()?;
        Ok(task)
    }

    /// As [`Task::put`], with all addresses.
    pub fn put_all(&self) -> Result<()> {
        self.put(&[(VIP, Some(REAL)), (VIP6, Some(REAL6))])
    }

    /// Makes these VIPs, each with what leads to it, all that the pod has.
    pub fn put(&self, faces: &[(&str, Option<&str>)]) -> Result<()> {
        let face = |(vip, real): &(&str, Option<&str>)| -> Result<Face> {
            let vip: IpAddr = vip.parse()?;
            let network: &str = if vip.is_ipv4() { "10.2.0.0" } else { "fd00:2::" };
            let prefix_length = if vip.is_ipv4() { 24 } else { 64 };
            let real = real.map(str::parse).transpose()?;
            Ok(Face { vip, real, network: network.parse()?, prefix_length })
        };
        let faces: Vec<Face> = faces.iter().map(face).collect::<Result<_>>()?;
        let entry = PodEntry::new(DOMAIN, faces)?;
        let port = self.relay.local_addr()?.port();
        Ok(self.lab.datapath()?.set_host_pod(self.machine, self.id, &entry, port)?)
    }

    /// Another process's listeners, known to the hooks.
    pub fn relay_anew(&mut self) -> Result<()> {
        [self.relay, self.relay6] = landing(&self.lab.site)?;
        self.put_all()
    }

    /// Runs `work` as a process of the cgroup.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        self.run_in(&self.path, work)
    }

    /// Runs `work` as a process of one below.
    pub fn run_in<T>(&self, cgroup: &Path, work: impl FnOnce() -> T) -> Result<T> {
        fs::write(cgroup.join("cgroup.procs"), "0")?;
        let done = work();
        self.lab.cgroup.enter()?;
        Ok(done)
    }

    /// connect() in the pod.
    pub fn connect(&self, to: impl ToString) -> Result<TcpStream> {
        Ok(self.run(|| connect_in(&self.lab.site, to))??)
    }

    /// The errno of that.
    pub fn refused(&self, to: impl ToString) -> Result<Option<i32>> {
        Ok(errno(&self.run(|| connect_in(&self.lab.site, to))?))
    }

    /// A listener of the pod.
    pub fn listen(&self, at: &str) -> Result<TcpListener> {
        Ok(self.run(|| self.lab.site.run(|| TcpListener::bind(at)))???)
    }

    /// What the relay learns of the next connection that comes to it by IPv4.
    pub fn landed(&self) -> Result<(TcpStream, Option<SocketAddr>)> {
        self.landed_on(&self.relay)
    }

    /// By IPv6.
    pub fn landed6(&self) -> Result<(TcpStream, Option<SocketAddr>)> {
        self.landed_on(&self.relay6)
    }

    fn landed_on(&self, relay: &TcpListener) -> Result<(TcpStream, Option<SocketAddr>)> {
        let (stream, from) = accept(relay)?;
        let port = relay.local_addr()?.port();
        let asked = self.lab.datapath()?.crossed(from, port)?;
        assert!(asked.is_none_or(|(of, _)| of == self.id));
        assert_eq!(self.lab.datapath()?.crossed(from, port)?, None, "it is told once");
        Ok((stream, asked.map(|(_, to)| to)))
    }

    /// The names of both ends as the pod sees them, its own first.
    pub fn seen(&self, stream: &TcpStream) -> Result<(SocketAddr, SocketAddr)> {
        Ok(self.run(|| Ok::<_, io::Error>((stream.local_addr()?, stream.peer_addr()?)))??)
    }
}

impl Drop for Task<'_> {
    fn drop(&mut self) {
        let _reported_by_the_test = self.lab.cgroup.enter();
        for below in ["task/worker", "task", ""] {
            let _absent = fs::remove_dir(self.path.join(below));
        }
    }
}
