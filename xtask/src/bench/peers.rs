//! What people would use instead, between the same two machines, by way of the same hub: installed from the
//! ordinary registries when asked for. Each is set up as its manual says, encrypted where it can be.

mod easytier;
mod frp;
mod rathole;
mod registry;
mod ssh;
mod wireguard;

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};
use test_kit::{
    net::Netns,
    process::{Process, Start},
    wait::eventually,
};

use super::{
    Found, bulk,
    distance::{self, FAR},
    lab::{self, Client, Lab, Path},
    latency,
    series::{Series, percentile},
};
use crate::{
    scenario::number,
    ui::{Progress, Unit},
};

pub(super) use registry::install;

/// Where each peer's server stands: beside no pod, on the first machine.
const SERVER: &str = "127.0.0.1:7998";
const GIB: f64 = (1u64 << 30) as f64;

/// One of them: its name, how to get it, how to start it, and whether it carries datagrams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) name: &'static str,
    install: fn() -> Result<()>,
    start: fn(&Lab, &mut Running) -> Result<String>,
    datagrams: bool,
}

const ALL: [Peer; 5] = [
    Peer { name: "OpenSSH -L, -R", install: ssh::install, start: ssh::start, datagrams: false },
    Peer { name: "rathole", install: rathole::install, start: rathole::start, datagrams: false },
    Peer { name: "frp", install: frp::install, start: frp::start, datagrams: false },
    Peer {
        name: "wireguard-go",
        install: wireguard::install,
        start: wireguard::start,
        datagrams: true,
    },
    Peer { name: "EasyTier", install: easytier::install, start: easytier::start, datagrams: true },
];

/// Where a peer's program runs.
#[derive(Clone, Copy, Debug)]
enum At {
    Hub,
    Machine(usize),
}

/// A peer's processes, each in a cgroup of its own, so that what it starts is counted as well.
#[derive(Debug, Default)]
struct Running {
    all: Vec<(Process, PathBuf)>,
}

impl Running {
    fn start(&mut self, lab: &Lab, at: At, name: &str, words: &[&str]) -> Result<()> {
        let p = &lab.product;
        let number = self.all.len();
        let cgroup = p.cgroup.path().join(format!("peer-{name}-{number}").replace(' ', "-"));
        fs::create_dir_all(&cgroup)?;
        let (netns, cpu): (&Netns, _) = match at {
            At::Hub => (&p.internet.hub, p.cpu(0)),
            At::Machine(n) => {
                let m = p.machines.get(n).context("a machine")?;
                (&m.place.netns, p.cpu(n))
            }
        };
        let (program, args) = words.split_first().context("a program")?;
        let process = Process::start(Start {
            name,
            program: std::path::Path::new(program),
            args: args.iter().map(|w| (*w).to_owned()).collect(),
            env: vec![],
            netns: Some(netns),
            cgroup: Some(&cgroup),
            cpu,
            log: p.lab.dir().join(format!("peer-{name}-{number}.log").replace(' ', "-")),
        })?;
        self.all.push((process, cgroup));
        Ok(())
    }

    /// Processor seconds of each.
    fn seconds(&self) -> Result<Vec<f64>> {
        let of = |cgroup: &PathBuf| -> Result<f64> {
            let stat = fs::read_to_string(cgroup.join("cpu.stat"))?;
            let used = stat.lines().find_map(|l| l.strip_prefix("usage_usec "));
            Ok(used.context("no usage_usec")?.parse::<f64>()? / 1e6)
        };
        self.all.iter().map(|(_, cgroup)| of(cgroup)).collect()
    }

    fn tails(&self) -> String {
        self.all.iter().map(|(p, _)| format!("\n── {}\n{}", p.name, p.tail(8))).collect()
    }
}

/// Starts a peer and waits until a byte comes back through it.
fn up(lab: &Lab, peer: &Peer) -> Result<(Running, Path)> {
    let mut running = Running::default();
    let traffic = lab.product.program("rlark-traffic").display().to_string();
    let server = At::Machine(lab::GPU_1);
    let listen = if peer.datagrams { "0.0.0.0:7998" } else { SERVER };
    running.start(lab, server, "server", &[&traffic, "serve", "--listen", listen])?;
    let to = (peer.start)(lab, &mut running)?;
    let client = Client::Machine(lab::ROBOT_1);
    let path = Path { name: peer.name, raw: lab::RAW_HUB, client, to };
    let mut last = String::new();
    let stands = eventually(peer.name, std::time::Duration::from_secs(20), || {
        for (p, _) in &mut running.all {
            p.check()?;
        }
        let tried = lab.traffic(&path, &["probe", "turn", "--count", "20"]);
        last = tried.as_ref().err().map_or(String::new(), |e| e.root_cause().to_string());
        Ok(tried.ok())
    });
    stands.with_context(|| format!("{last}{}", running.tails()))?;
    Ok((running, path))
}

/// Latency, throughput and cost of each without delay.
pub(super) fn near(lab: &mut Lab, found: &mut Found, bar: &Progress) -> Result<()> {
    each(lab, found, bar, |lab, found, peer, running, path| {
        let kinds: &[&str] = if peer.datagrams { &latency::KINDS } else { &latency::OF_FLOWS };
        let paths = [path.clone()];
        let all = latency::measure(lab, &paths, kinds, (5, "100"), &Progress::silent())?;
        latency::put(found, "", &paths, &all);
        let (before, mut bytes) = (running.seconds()?, 0.0);
        for (way, flows, rounds) in
            [("up", "1", 3), ("down", "1", 3), ("up", "64", 1), ("down", "64", 1)]
        {
            let mut series = Series::default();
            for _ in 0..rounds {
                let words = ["stream", way, "--flows", flows, "--window-ms", "800"];
                let v = lab.traffic(path, &words)?;
                bytes += number(&v, "/bytes");
                series.round(vec![number(&v, "/gbps")]);
            }
            let plural = if flows == "1" { "flow" } else { "flows" };
            let what = format!("{flows} {plural} {way}, Gbit/s");
            found.rows.put("", path.row(), &what, series.median());
        }
        for (n, ((p, _), b)) in running.all.iter().zip(&before).enumerate().skip(1) {
            let after = running.seconds()?.get(n).copied().unwrap_or(f64::NAN);
            let what = format!("CPU of {}, s/GiB", p.name);
            found.rows.put("", path.row(), &what, (after - b) / (bytes / GIB));
        }
        Ok(())
    })
}

/// The same over the line that the goals are for.
pub(super) fn far(lab: &mut Lab, found: &mut Found, bar: &Progress) -> Result<()> {
    distance::set(lab, FAR)?;
    each(lab, found, bar, |lab, found, _, _, path| {
        let (line, paths) = (FAR.name(), [path.clone()]);
        let silent = Progress::silent();
        let all = latency::measure(lab, &paths, &latency::OF_FLOWS, (2, "5"), &silent)?;
        latency::put(found, &line, &paths, &all);
        for way in ["up", "down"] {
            let words = [way, "--warm-up-ms", "4000", "--window-ms", "4000"];
            let mbps = bulk::stream(lab, path, &words, None)? * 1e3;
            found.rows.put(
                &line,
                path.row(),
                &format!("1 flow {way}, Mbit/s"),
                percentile(vec![mbps], 50),
            );
        }
        Ok(())
    })
}

/// A peer that does not run is a note, and no reason to go without the others.
fn each(
    lab: &mut Lab,
    found: &mut Found,
    bar: &Progress,
    work: impl Fn(&Lab, &mut Found, &Peer, &Running, &Path) -> Result<()>,
) -> Result<()> {
    bar.length(lab.peers.len() as u64, Unit::Items);
    for (n, peer) in lab.peers.clone().iter().enumerate() {
        bar.at(n as u64, peer.name);
        let done =
            up(lab, peer).and_then(|(running, path)| work(lab, found, peer, &running, &path));
        if let Err(e) = done {
            test_kit::lab::interrupted()?;
            found.notes.push(format!("{}: could not be measured: {e:#}", peer.name));
        }
    }
    Ok(())
}
