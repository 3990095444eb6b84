//! Where the bench measures: two sites, three machines, ten pods, and the paths between them.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::Value;
use test_kit::{
    command::{cmd, output, stdout},
    pod::RunningPod,
    process::{Process, Start},
    product::{Product, results},
    sites::HUB,
    wait::eventually,
};

use super::peers::Peer;
use crate::{scenario, ui::Steps};

/// A pod's machine, Job (whose Domain has its name) and task.
const PODS: [(usize, &str, &str); 10] = [
    (GPU_1, "bench", "server"),
    (GPU_1, "bench", "near"),
    (ROBOT_1, "bench", "client"),
    (ROBOT_1, "bench", "idle-1"),
    (ROBOT_1, "bench", "idle-2"),
    (ROBOT_1, "bench", "idle-3"),
    (GPU_2, "bench", "idle-4"),
    (GPU_2, "bench", "idle-5"),
    (GPU_1, "sealed", "server"),
    (GPU_2, "sealed", "client"),
];
/// Each Job's Domain, and whether it encrypts within a site.
const DOMAINS: [(&str, &str, bool); 2] =
    [("bench", "10.99.0.0/24", false), ("sealed", "10.99.1.0/24", true)];
/// An address of the first that no pod has.
pub(super) const NOBODY: &str = "10.99.0.250";
const PORT: u16 = 7000;
/// Where a server listens beside the hub, without RLark.
pub(super) const RAW_PORT: u16 = 7999;

/// The machines' indices.
pub(super) const GPU_1: usize = 0;
pub(super) const ROBOT_1: usize = 1;
pub(super) const GPU_2: usize = 2;

/// The machines' labels.
const SITES: [&str; 3] = [scenario::CLOUD, scenario::EDGE, "second"];

/// Who starts the traffic.
#[derive(Clone, Debug)]
pub(super) enum Client {
    Pod { pod: RunningPod, cpu: usize },
    Machine(usize),
}

/// From a client to a server, with us or without.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) name: &'static str,
    /// The path without us beside which it is measured.
    pub(super) raw: &'static str,
    pub(super) client: Client,
    /// HOST:PORT.
    pub(super) to: String,
}

impl Path {
    /// As [`super::rows::Rows::put`] wants it.
    pub(super) const fn row(&self) -> (&'static str, &'static str) {
        (self.name, self.raw)
    }
}

pub(super) const RAW_NEAR: &str = "raw, one machine";
pub(super) const DIRECT: &str = "RLark direct";
pub(super) const RAW_SITE: &str = "raw, one site";
pub(super) const SEALED: &str = "RLark relay in a site";
pub(super) const RAW_HUB: &str = "raw, one NAT";
pub(super) const RELAY: &str = "RLark relay via the hub";

/// Drop order: what runs in the lab before the lab.
#[derive(Debug)]
pub(super) struct Lab {
    pub(super) peers: Vec<Peer>,
    paths: Vec<Path>,
    /// The server without us.
    _beside: Process,
    pub(super) line: Option<super::line::Plugged>,
    /// A holder of idle flows.
    pub(super) holders: Vec<Holder>,
    pub(super) product: Product,
}

impl Lab {
    pub(super) fn new(programs: &std::path::Path, steps: &mut Steps) -> Result<Self> {
        let mut p = scenario::namespaces(steps, programs)?;
        let ready = scenario::bring_up(&mut p, steps).and_then(|()| {
            steps.step("a third machine, and pods on all of them", |_| third_machine(&mut p))
        });
        let paths = ready.and_then(|()| paths(&p)).map_err(|e| p.explain(e))?;
        let raw = raw_server(&p)?;
        Ok(Self { peers: vec![], paths, _beside: raw, line: None, holders: vec![], product: p })
    }

    pub(super) fn path(&self, name: &str) -> Result<Path> {
        let found = self.paths.iter().find(|p| p.name == name);
        found.cloned().with_context(|| format!("no path {name}"))
    }

    /// Gives every path its place in the rows.
    pub(super) fn open(&self, rows: &mut super::rows::Rows) {
        for path in &self.paths {
            rows.open("", path.row());
        }
    }

    /// Raw and ours in pairs.
    pub(super) fn paths(&self, names: &[&str]) -> Result<Vec<Path>> {
        names.iter().map(|n| self.path(n)).collect()
    }

    /// The pids of the machines' nodes.
    pub(super) fn nodes(&self) -> Vec<u32> {
        self.product.machines.iter().map(|m| m.node.pid()).collect()
    }

    /// Processor seconds so far of each of the product's processes.
    pub(super) fn cpu_seconds(&self) -> Result<Vec<(String, f64)>> {
        let machines = self.product.machines.iter().flat_map(|m| [&m.node, &m.agent]);
        let all = self.product.server.iter().chain(machines);
        all.map(|p| Ok((p.name.clone(), seconds_of(p.pid())?))).collect()
    }

    /// `rlark-traffic WORDS` at a client.
    pub(super) fn command(&self, at: &Client, words: &[&str]) -> Result<Command> {
        let traffic = self.product.program("rlark-traffic");
        match at {
            Client::Pod { pod, cpu } => {
                let (cpu, program) = (cpu.to_string(), traffic.display().to_string());
                let mut all = vec!["taskset", "--cpu-list", &cpu, &program];
                all.extend(words);
                Ok(pod.command(all))
            }
            Client::Machine(n) => {
                let mut c = self.product.at_machine(*n, &traffic)?;
                c.args(words).stdin(Stdio::null());
                Ok(c)
            }
        }
    }

    /// What `rlark-traffic WORDS --to SERVER` finds.
    pub(super) fn traffic(&self, path: &Path, words: &[&str]) -> Result<Value> {
        test_kit::lab::interrupted()?;
        let words = [words, &["--to", &path.to]].concat();
        let mut c = self.command(&path.client, &words)?;
        // What went wrong is wanted, not where in the tool.
        c.env("RUST_BACKTRACE", "0");
        let out = stdout(&mut c).with_context(|| path.name.to_owned())?;
        results(&out)?.into_iter().next().context("no result")
    }

    /// The pod of one of the tasks, as a client.
    pub(super) fn pod(&self, machine: usize, job: &str, task: &str) -> Result<Client> {
        let pod = self.product.pod(machine, &pod_name(job, task))?;
        Ok(Client::Pod { pod, cpu: cpu(&self.product, machine) })
    }
}

/// User and system time of a process.
fn seconds_of(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit_once(')').map_or("", |(_, a)| a);
    let words: Vec<&str> = after.split_whitespace().collect();
    let field = |i: usize| words.get(i).and_then(|w| w.parse::<u32>().ok()).unwrap_or(0);
    // USER_HZ is 100 on every Linux that Rust runs on.
    Ok(f64::from(field(11) + field(12)) / 100.0)
}

/// The third machine's CPU is the second's: what is measured between machines is between the first and another.
fn cpu(p: &Product, machine: usize) -> usize {
    p.cpu(machine.min(ROBOT_1)).unwrap_or(0)
}

fn third_machine(p: &mut Product) -> Result<()> {
    // It takes carriers from its site's machines: what they relay to one another needs no hub.
    p.join_with(scenario::CLOUD, "gpu-2", &[("site", SITES[GPU_2])], &["--direct-port=7400"])?;
    let cpu = cpu(p, GPU_2).to_string();
    let m = p.machines.get(GPU_2).context("the third machine")?;
    for program in [&m.node, &m.agent] {
        let pid = program.pid().to_string();
        output(&mut cmd("taskset", ["--all-tasks", "--cpu-list", "--pid", &cpu, &pid]))?;
    }
    p.online()?;
    p.apply(&manifest())?;
    for (machine, job, task) in PODS {
        let name = pod_name(job, task);
        eventually(&format!("pod {name}"), Duration::from_secs(60), || {
            p.alive()?;
            Ok(p.pod(machine, &name).ok())
        })?;
    }
    Ok(())
}

fn pod_name(job: &str, task: &str) -> String {
    format!("{job}-{task}-0")
}

/// Each pod serves; clients are started in them beside the server.
fn manifest() -> String {
    let mut text = String::new();
    for (job, cidr, sealed) in DOMAINS {
        text += &format!(
            "apiVersion: rlinf.io/v1alpha1\nkind: Domain\nmetadata: {{ name: {job} }}\n\
             spec: {{ cidr: {cidr}, encryptWithinSite: {sealed} }}\n---\n\
             apiVersion: rlinf.io/v1alpha1\nkind: Job\nmetadata: {{ name: {job} }}\n\
             spec:\n  domain: {job}\n  tasks:\n"
        );
        for (machine, _, task) in PODS.iter().filter(|p| p.1 == job) {
            let site = SITES.get(*machine).copied().unwrap_or_default();
            text += &format!(
                "  - name: {task}\n    role: Worker\n    agentType: Raw\n    \
                 nodeSelector: {{ site: {site} }}\n    raw:\n      \
                 artifact: file:///opt/rlark/bin/rlark-traffic\n      \
                 entrypoint: [rlark-traffic, serve]\n"
            );
        }
        text += "---\n";
    }
    text
}

fn paths(p: &Product) -> Result<Vec<Path>> {
    let find = |(machine, job, task): (usize, &str, &str)| -> Result<(RunningPod, Client)> {
        let pod = p.pod(machine, &pod_name(job, task))?;
        Ok((pod.clone(), Client::Pod { pod, cpu: cpu(p, machine) }))
    };
    let (server, _) = find((GPU_1, "bench", "server"))?;
    let (sealed, _) = find((GPU_1, "sealed", "server"))?;
    let (_, near) = find((GPU_1, "bench", "near"))?;
    let (_, other) = find((GPU_2, "sealed", "client"))?;
    let (_, far) = find((ROBOT_1, "bench", "client"))?;
    let path = |name, raw, client: &Client, host: &str, port| Path {
        name,
        raw,
        client: client.clone(),
        to: format!("{host}:{port}"),
    };
    Ok(vec![
        path(RAW_NEAR, RAW_NEAR, &near, &server.real, PORT),
        path(DIRECT, RAW_NEAR, &near, &server.vip, PORT),
        path(RAW_SITE, RAW_SITE, &other, &sealed.real, PORT),
        path(SEALED, RAW_SITE, &other, &sealed.vip, PORT),
        path(RAW_HUB, RAW_HUB, &Client::Machine(ROBOT_1), HUB, RAW_PORT),
        path(RELAY, RAW_HUB, &far, &server.vip, PORT),
    ])
}

fn raw_server(p: &Product) -> Result<Process> {
    Process::start(Start {
        name: "raw server",
        program: &p.program("rlark-traffic"),
        args: vec!["serve".into(), format!("--listen={HUB}:{RAW_PORT}")],
        env: vec![],
        netns: Some(&p.internet.hub),
        cgroup: None,
        cpu: p.cpu(0),
        log: p.lab.dir().join("raw-server.log"),
    })
}

/// Flows that are held open until it is dropped.
#[derive(Debug)]
pub(super) struct Holder {
    child: std::process::Child,
}

impl Holder {
    /// Returns when all flows stand.
    pub(super) fn start(lab: &Lab, path: &Path, flows: usize) -> Result<Self> {
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let n = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let log: PathBuf = lab.product.lab.dir().join(format!("holder-{n}.log"));
        let flows_text = flows.to_string();
        let mut c =
            lab.command(&path.client, &["idle", "--to", &path.to, "--flows", &flows_text])?;
        let file = std::fs::File::create(&log)?;
        c.stdout(file.try_clone()?).stderr(file);
        let mut holder = Self { child: c.spawn().context("cannot start a holder of flows")? };
        let what = format!("{flows} idle flows");
        eventually(&what, Duration::from_secs(60), || {
            let said = std::fs::read_to_string(&log)?;
            if let Some(status) = holder.child.try_wait()? {
                anyhow::bail!("the holder of {flows} flows ended ({status}): {said}");
            }
            Ok(said.contains("IDLE ").then_some(()))
        })?;
        Ok(holder)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}
