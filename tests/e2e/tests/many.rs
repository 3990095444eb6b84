//! As many relayed connections of one pod as the machine has files for, up to more than 60,000; and what is said to the next.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use test_e2e::PYTHON;
use test_kit::{command::stdout, pod::RunningPod, product::Product, wait::eventually};

const WANTED: usize = 61_440;
/// Connections of one client process, to one port: it may have fewer files open than connections are wanted.
const EACH: usize = 12_288;
const LIMIT: Duration = Duration::from_secs(60);
const LATE: usize = 1024;
/// Beyond the limit.
const MORE: usize = 50;
const METRICS: &str = "127.0.0.1:9090";

/// `probe/many.py` in a pod, until dropped.
struct Many {
    child: Child,
    said: PathBuf,
}

impl Many {
    fn start(p: &Product, pod: &RunningPod, script: &str, words: &[&str]) -> Result<Self> {
        let said = p.lab.dir().join(format!("many-{}-{}", words.join("-"), pod.vip));
        let out = File::create(&said)?;
        let mut command = pod.command([PYTHON, script].into_iter().chain(words.iter().copied()));
        command.stdin(Stdio::piped()).stdout(out.try_clone()?).stderr(out);
        Ok(Self { child: command.spawn()?, said })
    }

    fn has_said(&mut self, word: &str) -> Result<()> {
        eventually(word, LIMIT, || {
            let text = fs::read_to_string(&self.said)?;
            let ended = self.child.try_wait()?;
            ensure!(ended.is_none(), "ended: {text}");
            Ok(text.contains(word).then_some(()))
        })
    }

    fn does(&mut self, line: &str) -> Result<()> {
        writeln!(self.child.stdin.as_mut().context("its stdin")?, "{line}")?;
        self.has_said(&format!("done {line}"))
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// What one pod gets of the descriptors that a node may have, where it may not raise the limit; less what the far end may still
/// hold of flows that have ended here.
fn most() -> Result<usize> {
    let limits = fs::read_to_string("/proc/self/limits")?;
    let line = limits.lines().find(|l| l.starts_with("Max open files")).context("files")?;
    let hard: usize = line.split_whitespace().nth(4).context("the hard limit")?.parse()?;
    Ok((hard.saturating_sub(2048) / 4 * 3).saturating_sub(LATE).min(WANTED))
}

fn metric(p: &Product, machine: usize, name: &str) -> Result<usize> {
    let url = format!("http://{METRICS}/metrics");
    let text = stdout(p.at_machine(machine, Path::new("curl"))?.args(["-sS", "-m", "5", &url]))?;
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    Ok(line.map_or(Ok(0), str::parse)?)
}

fn resident_mib(pid: u32) -> Result<usize> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? / 1024)
}

#[test]
fn a_pod_holds_all_the_flows_that_it_may_have_and_the_next_are_refused_for_the_limit() -> Result<()>
{
    let most = most()?;
    let mut p = test_e2e::server()?;
    let run = |p: &mut Product| -> Result<String> {
        p.join("cloud", "gpu-1", &[("site", "cloud")])?;
        let (metrics, flows) =
            (format!("--metrics-address={METRICS}"), format!("--max-flows-per-pod={most}"));
        p.join_with("edge", "robot-1", &[("site", "edge")], &[&metrics, &flows])?;
        p.online()?;
        let job = test_e2e::idle_job("j", "d", &[("a", "cloud"), ("b", "edge")]);
        p.apply(&(test_e2e::domain("d", "10.98.0.0/24") + &job))?;
        test_e2e::phase(p, "j", "Running", LIMIT)?;
        let (server, client) = (test_e2e::pod(p, 0, "j-a-0")?, test_e2e::pod(p, 1, "j-b-0")?);
        hold(p, most, &server, &client)
    };
    println!("{}", run(&mut p).map_err(|e| p.explain(e))?);
    Ok(())
}

/// Says what it held, and how.
fn hold(p: &mut Product, most: usize, server: &RunningPod, client: &RunningPod) -> Result<String> {
    let script = test_e2e::probe(p, "many.py")?;
    let parts: Vec<(String, usize)> = (0..most)
        .step_by(EACH)
        .zip(7001..)
        .map(|(from, port)| (port.to_string(), EACH.min(most - from)))
        .collect();
    let mut servers = Vec::new();
    for (port, _) in &parts {
        let room = (2 * EACH).to_string();
        let mut serving = Many::start(p, server, &script, &["serve", &room, port])?;
        serving.has_said("serving")?;
        servers.push(serving);
    }
    let begin = Instant::now();
    let mut holders = Vec::new();
    for (port, count) in &parts {
        let words = ["hold", &server.vip, port, &count.to_string()];
        holders.push(Many::start(p, client, &script, &words)?);
    }
    for holder in &mut holders {
        holder.has_said("held")?;
    }
    let held = begin.elapsed();
    ensure!(metric(p, 1, "rlark_node_relayed_flows")? == most, "not {most} flows");
    for holder in &mut holders {
        holder.does("echo 16")?;
    }
    let memory: Vec<usize> =
        p.machines.iter().map(|m| resident_mib(m.node.pid())).collect::<Result<_>>()?;
    let said =
        format!("{most} relayed flows of one pod after {held:.1?}; nodes with {memory:?} MiB");

    let limit = "rlark_node_refusals_total{reason=\"limit\"}";
    let before = metric(p, 1, limit)?;
    let first = holders.first_mut().context("a holder")?;
    first.does(&format!("refused {MORE}"))?;
    let refused = metric(p, 1, limit)? - before;
    ensure!(refused == MORE, "{refused} of {MORE} were counted");
    first.does("echo 16")?;

    // What ends makes room.
    first.does("close 1000")?;
    eventually("room", LIMIT, || {
        Ok((metric(p, 1, "rlark_node_relayed_flows")? <= most - 1000).then_some(()))
    })?;
    first.does("open 1000")?;
    drop(holders);
    eventually("the end of all", LIMIT, || {
        Ok((metric(p, 1, "rlark_node_relayed_flows")? == 0).then_some(()))
    })?;
    p.alive()?;
    Ok(said)
}
