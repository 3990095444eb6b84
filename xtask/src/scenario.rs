//! What the demo and the bench run: the steps from nothing to a finished Job.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use test_kit::{
    command::stdout,
    follow::Follow,
    process::{Process, Start},
    product::{Product, results, text},
    sites::HUB,
    wait::eventually,
};

use crate::{
    build, demo, setup,
    ui::{Progress, Steps, Unit},
};

pub(crate) const CLOUD: &str = "cloud";
pub(crate) const EDGE: &str = "edge";

/// What one rollout worker found.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) name: String,
    pub(crate) actor: String,
    pub(crate) seen_as: String,
    pub(crate) first_p50_us: f64,
    pub(crate) samples: usize,
    pub(crate) trajectory_mib: u64,
    pub(crate) up_gbps: f64,
    pub(crate) policy_mib: u64,
    pub(crate) down_gbps: f64,
    pub(crate) checksums: String,
}

/// What the demo found.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) phase: String,
    /// What `kubectl get` shows at the end.
    pub(crate) objects: String,
    /// What `rlark flows` showed.
    pub(crate) flows: String,
    pub(crate) workers: Vec<Worker>,
    /// What [`raw`] found.
    pub(crate) raw: Value,
}

/// Builds, and makes the namespaces.
pub(crate) fn prepare(steps: &mut Steps) -> Result<Product> {
    let programs = built(steps)?;
    namespaces(steps, &programs)
}

/// Builds the programs and gives their directory.
pub(crate) fn built(steps: &mut Steps) -> Result<PathBuf> {
    steps.step("check this machine", |_| setup::ensure_all().map(drop))?;
    steps.step("build the programs", build::programs)
}

/// Makes the namespaces for built programs.
pub(crate) fn namespaces(steps: &mut Steps, programs: &Path) -> Result<Product> {
    steps.step("an internet, a hub, and NATs that let nothing in", |_| {
        let mut p = Product::new(programs, setup::kubectl())?;
        p.spread_over_cpus();
        Ok(p)
    })
}

/// Starts server and two sites and waits until both machines are Online.
pub(crate) fn bring_up(p: &mut Product, steps: &mut Steps) -> Result<()> {
    steps.step("start rlark-server", |_| p.start_server())?;
    steps.step("enrol two sites with the same private addresses", |_| {
        p.join(CLOUD, "gpu-1", &[("site", CLOUD)])?;
        p.join(EDGE, "robot-1", &[("site", EDGE)])?;
        p.online()
    })
}

pub(crate) fn two_sites(p: &mut Product, steps: &mut Steps) -> Result<Outcome> {
    bring_up(p, steps)?;
    let manifest = std::fs::read_to_string("deploy/examples/two-sites.yaml")?;
    steps.step("kubectl apply -f deploy/examples/two-sites.yaml", |_| {
        p.apply(&manifest).map(drop)
    })?;
    let mut flows = String::new();
    let phase = steps.step("the Job's tasks talk and finish", |bar| {
        finish(p, "two-sites", bar, |p| {
            // Probes come first, by the hundred; what people want to see is the data.
            flows = stdout(&mut p.rlark(["flows"])).unwrap_or_default();
            flows.contains(":bulk")
        })
    })?;
    let logs = p.logs("two-sites")?;
    let objects = demo::shown(p, &["get", "rldomain,rljob,task,rlpod,rlnode", "-A"])?;
    let raw = steps.step("raw TCP over the same routers, for comparison", |_| raw(p))?;
    let workers = workers(&logs)?;
    Ok(Outcome { phase, objects, flows, workers, raw })
}

/// Waits for the Job's end. While it runs `look` is called now and then, until it has seen enough.
/// Costs the machine almost nothing besides, since what the tasks do is measured.
pub(crate) fn finish(
    p: &mut Product,
    job: &str,
    bar: &Progress,
    mut look: impl FnMut(&Product) -> bool,
) -> Result<String> {
    let watch = ["get", "rljob", job, "--watch", "-o", "jsonpath={.status.phase}{\"\\n\"}"];
    let mut phases = Follow::start(p.kubectl(watch), p.lab.dir().join("phases"))?;
    let logs = p.rlark(["logs", &format!("job/{job}"), "--follow"]);
    let mut logs = Follow::start(logs, p.lab.dir().join("follow"))?;
    let (mut at, mut seen, mut next) = (0, false, Instant::now());
    eventually(&format!("Job {job} to finish"), Duration::from_secs(300), || {
        p.alive()?;
        match phases.said()?.lines().last() {
            Some("Succeeded") => Ok(Some("Succeeded".to_owned())),
            Some("Failed") => {
                let job_text = stdout(&mut p.kubectl(["describe", "rljob", job]));
                bail!(
                    "the Job failed:\n{}\n{}",
                    job_text.unwrap_or_default(),
                    p.logs(job).unwrap_or_default()
                )
            }
            phase => {
                if let Some((done, all)) = progress(&logs.said()?).filter(|&(done, _)| done > at) {
                    if at == 0 {
                        bar.length(all, Unit::Bytes);
                    }
                    at = done;
                    bar.at(done, "");
                }
                if phase == Some("Running") && !seen && Instant::now() >= next {
                    seen = look(p);
                    next = Instant::now() + Duration::from_millis(150);
                }
                Ok(None)
            }
        }
    })
}

/// Bytes done and expected, from the workers' own `PROGRESS what done all` lines.
fn progress(logs: &str) -> Option<(u64, u64)> {
    let mut latest = std::collections::BTreeMap::new();
    for line in logs.lines() {
        let Some((who, rest)) = line.split_once("PROGRESS ") else { continue };
        let mut words = rest.split(' ');
        let (what, done, all) =
            (words.next()?, words.next()?.parse::<u64>(), words.next()?.parse::<u64>());
        if let (Ok(done), Ok(all)) = (done, all) {
            latest.insert(format!("{who}{what}"), (done, all));
        }
    }
    let sum = latest.values().fold((0, 0), |s, v| (s.0 + v.0, s.1 + v.1));
    (sum.1 > 0).then_some(sum)
}

fn workers(logs: &str) -> Result<Vec<Worker>> {
    let mut all = Vec::new();
    for line in logs.lines().filter(|l| l.contains("RESULT ")) {
        let (who, json) = line.split_once("RESULT ").context("a result line")?;
        let v: Value = serde_json::from_str(json)?;
        if v["kind"] != "rollout" {
            continue;
        }
        all.push(Worker {
            name: who.trim().trim_matches(['[', ']']).to_owned(),
            actor: text(&v, "/seen/local").to_owned(),
            seen_as: text(&v, "/seen/peer").to_owned(),
            first_p50_us: number(&v, "/first_byte/p50_us"),
            samples: v["first_byte"]["samples"]
                .as_u64()
                .and_then(|n| n.try_into().ok())
                .unwrap_or(0),
            trajectory_mib: v["trajectory_mib"].as_u64().unwrap_or(0),
            up_gbps: number(&v, "/trajectory_gbps"),
            policy_mib: v["policy_mib"].as_u64().unwrap_or(0),
            down_gbps: number(&v, "/policy_gbps"),
            checksums: text(&v, "/checksums").to_owned(),
        });
    }
    if all.is_empty() {
        bail!("no rollout worker reported a result:\n{logs}")
    }
    Ok(all)
}

pub(crate) fn number(v: &Value, pointer: &str) -> f64 {
    v.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// What TCP does between the edge's machine and the hub's, through one of the two NATs that a relayed
/// flow passes, without RLark.
pub(crate) fn raw(p: &Product) -> Result<Value> {
    let traffic = p.program("rlark-traffic");
    let log = p.lab.dir().join("raw-server.log");
    let _server = Process::start(Start {
        name: "raw server",
        program: &traffic,
        args: vec!["serve".into(), format!("--listen={HUB}:7999")],
        env: vec![],
        netns: Some(&p.internet.hub),
        cgroup: None,
        cpu: p.cpu(0),
        log,
    })?;
    let mut c = p.at_machine(1, &traffic)?;
    c.args(["measure", "--to", &format!("{HUB}:7999"), "--probes", "500", "--mib", "256"]);
    let out = stdout(&mut c)?;
    results(&out)?.into_iter().next().context("no result")
}
