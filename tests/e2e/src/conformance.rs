//! `probe/conformance`: its serving half in one pod, its checking half in another.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use test_kit::{
    command::{cmd, output},
    go,
    pod::RunningPod,
    product::Product,
    wait::eventually,
};

use crate::{PYTHON, pod, probe_directory};

const LIMIT: Duration = Duration::from_secs(30);
/// The subnet of Domains whose subnet does not matter.
pub const V4: &str = "10.98.0.0/24";

/// Where the checks are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// Beside the server: the direct path.
    SameSite,
    /// On another machine of the site: the direct path, over its LAN.
    OtherMachine,
    /// At another site: through the relay.
    OtherSite,
}

impl From {
    const fn client(self) -> Place {
        match self {
            Self::SameSite => Place { task: "near", label: "cloud", site: "cloud", machine: 0 },
            Self::OtherMachine => Place { task: "lan", label: "lan", site: "cloud", machine: 2 },
            Self::OtherSite => Place { task: "far", label: "edge", site: "edge", machine: 1 },
        }
    }
}

/// A task, the label that brings it to its machine, and where that is.
struct Place {
    task: &'static str,
    label: &'static str,
    site: &'static str,
    machine: usize,
}

impl Place {
    fn pod(&self, p: &Product) -> Result<RunningPod> {
        pod(p, self.machine, &format!("j-{}-0", self.task))
    }

    fn names(&self) -> String {
        format!("j-{0}-0.rlark-domain j-{0}-0.{1}.d.rlark", self.task, self.site)
    }
}

const SERVER: Place = Place { task: "server", label: "cloud", site: "cloud", machine: 0 };

/// Two sites, a pod that serves, and the checks with these names (or all but the strict ones) in
/// another.
pub fn run(from: From, names: &[&str], env: &[(&str, &str)]) -> Result<()> {
    run_in(V4, from, names, env)
}

/// As [`run`], in a Domain with this subnet (and, after a comma, more of its specification).
pub fn run_in(cidr: &str, from: From, names: &[&str], env: &[(&str, &str)]) -> Result<()> {
    let mut p = crate::two_sites()?;
    let checked = Probe::start(&mut p, cidr, &[from]).and_then(|probe| {
        probe.check(&p, from, names, env)?;
        p.alive()
    });
    checked.map_err(|e| p.explain(e))
}

/// A pod that serves until this is dropped.
#[derive(Debug)]
pub struct Probe {
    script: String,
    go: String,
    server: RunningPod,
    /// Which of the addresses, in the order of the Domain's subnets.
    nth: usize,
    serving: Child,
}

impl Probe {
    /// Makes Domain and Job, with a client wherever one is wanted.
    pub fn start(p: &mut Product, cidr: &str, clients: &[From]) -> Result<Self> {
        if clients.contains(&From::OtherMachine) {
            p.join("cloud", "gpu-2", &[("site", "lan")])?;
            p.online()?;
        }
        let clients = clients.iter().map(|f| f.client());
        let tasks: Vec<_> =
            [SERVER].into_iter().chain(clients).map(|t| (t.task, t.label)).collect();
        p.apply(&(crate::domain("d", cidr) + &crate::idle_job("j", "d", &tasks)))?;
        crate::phase(p, "j", "Running", LIMIT)?;
        let server = SERVER.pod(p)?;
        let script = probe_directory(p, "conformance")?;
        let go = go_program(p)?;
        let serving = serve(p, &server, [&script, &go], 0)?;
        Ok(Self { script, go, server, nth: 0, serving })
    }

    /// From now on at the pods' addresses in the Domain's subnet of that number.
    pub fn serve_at(&mut self, p: &Product, nth: usize) -> Result<()> {
        self.serving.kill()?;
        self.serving.wait()?;
        self.serving = serve(p, &self.server, [&self.script, &self.go], nth)?;
        self.nth = nth;
        Ok(())
    }

    /// An error with what was said unless all hold.
    pub fn check(
        &self,
        p: &Product,
        from: From,
        names: &[&str],
        env: &[(&str, &str)],
    ) -> Result<()> {
        let client = from.client();
        let asker = client.pod(p)?;
        let (peer, own) = (address(&self.server, self.nth)?, address(&asker, self.nth)?);
        let mut c = asker.command([PYTHON, &self.script, "check", peer, own]);
        c.env("PYTHONDONTWRITEBYTECODE", "1").env("GO_PROGRAM", &self.go);
        // The lab's machines route IPv4 between their pods, as most sites do: IPv6 is relayed.
        let relayed = from == From::OtherSite || (from == From::OtherMachine && peer.contains(':'));
        c.env("RELAYED", if relayed { "1" } else { "0" });
        c.env("PEER_ADDRESSES", self.server.vips.join(" "));
        c.env("OWN_ADDRESSES", asker.vips.join(" "));
        c.env("PEER_NAMES", SERVER.names()).env("OWN_NAMES", client.names());
        let out = c.envs(env.iter().copied()).args(names).output()?;
        let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        ensure!(out.status.success() && said.contains(" checks, 0 failed"), "{said}");
        Ok(())
    }
}

fn address(pod: &RunningPod, nth: usize) -> Result<&str> {
    let vip = pod.vips.get(nth).with_context(|| format!("of {:?} the address {nth}", pod.vips))?;
    Ok(vip)
}

/// The serving half, once it serves.
fn serve(p: &Product, at: &RunningPod, [script, go]: [&str; 2], nth: usize) -> Result<Child> {
    let mut c = at.command([PYTHON, script, "serve", address(at, nth)?]);
    c.env("PYTHONDONTWRITEBYTECODE", "1").env("GO_PROGRAM", go);
    let log = p.lab.dir().join(format!("probe-{nth}.log"));
    let said = File::create(&log)?;
    let mut serving = c.stdout(said.try_clone()?).stderr(said).spawn()?;
    eventually("the probe to serve", LIMIT, || {
        let said = fs::read_to_string(&log)?;
        ensure!(serving.try_wait()?.is_none(), "the probe ended: {said}");
        Ok(said.contains("serving").then_some(()))
    })?;
    Ok(serving)
}

impl Drop for Probe {
    fn drop(&mut self) {
        // Its end, or that it has ended, is all that is wanted.
        let _ended_already = self.serving.kill();
        let _reaped = self.serving.wait();
    }
}

/// The Go probe. Without it a part of the checks would pass unseen.
fn go_program(p: &Product) -> Result<String> {
    go::require()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("probe/go/main.go");
    let built = p.lab.dir().join("go-probe");
    let mut c: Command = cmd("go", ["build", "-o"]);
    output(c.arg(&built).arg(&source).env("CGO_ENABLED", "0").current_dir(p.lab.dir()))?;
    Ok(p.lab.share(&built)?.display().to_string())
}
