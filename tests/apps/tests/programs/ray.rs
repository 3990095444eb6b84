//! Ray: a head at one site, a worker at the other, and an outage between them.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use test_apps::{
    packages::Kind,
    program::Program,
    report,
    sites::{Site, Sites, between_sites},
};
use test_kit::{command::output, product::results, wait::pause};

use crate::{LIMIT, RESUME};

const PORT: &str = "6379";
const AWAY: Duration = Duration::from_secs(30);
/// With its defaults Ray gives its own connections up after some 15 s of silence, on any network.
const PATIENCE: [(&str, &str); 1] = [("RAY_grpc_keepalive_timeout_ms", "120000")];

#[test]
fn a_ray_cluster_survives_half_a_minute_without_the_server() -> Result<()> {
    between_sites(&[("head", Site::Cloud), ("worker", Site::Edge)], |s| {
        let python = s.packages.python_program("python")?;
        // Not by name: Ray's resolver (c-ares) knows names of `/etc/hosts`, but asks a name server for the IPv6 address
        // that such a name has not, and waits for it; this lab's Internet has none.
        let address = format!("{}:{PORT}", s.vip("head")?);
        let mut head = node(
            s,
            "head",
            &[
                "--head",
                "--port",
                PORT,
                "--resources",
                r#"{"cloud": 1}"#,
                "--include-dashboard=false",
                "--disable-usage-stats",
            ],
        )?;
        s.reachable("worker", s.vip("head")?, PORT, &mut head)?;
        let mut worker =
            node(s, "worker", &["--address", &address, "--resources", r#"{"edge": 1}"#])?;
        let script = s.probe("ray_cluster.py")?;
        let mut c = s.command("head", Kind::Python, [&*python, &script, &address])?;
        c.envs(PATIENCE);
        let mut driver = s.start("ray-driver", c)?;
        driver.says("STANDING", LIMIT)?;
        let away = s.outage(AWAY)?.as_secs_f64();
        // Some calls after it.
        pause(Duration::from_secs(5));
        output(&mut s.command("head", Kind::Python, ["touch", "/tmp/stop"])?)?;
        let all = results(&driver.finish(LIMIT)?)?;
        let result = all.first().context("no result")?;
        let figure = |at: &str| result.pointer(at).and_then(Value::as_f64).context("no figure");
        let gap = figure("/gap")?;
        ensure!(gap > away * 0.8, "the longest call took {gap} s: there was no outage");
        ensure!(gap < away + RESUME, "a call took {gap} s, when the server was away for {away} s");
        report(
            "Ray",
            &format!(
                "50 tasks on both nodes {:.2} s, 1,000 calls of an actor {:.2} s, 200 MiB to the worker {:.2} s and back {:.2} s, after {away:.1} s without the server {:.2} and {:.2} s; {} calls, the longest {gap:.1} s",
                figure("/tasks")?,
                figure("/actor")?,
                figure("/objects/0")?,
                figure("/objects/1")?,
                figure("/again/0")?,
                figure("/again/1")?,
                figure("/calls")?
            ),
        );
        head.running()?;
        worker.running()
    })
}

/// `ray start` in a pod, in the foreground.
fn node(s: &Sites, pod: &str, options: &[&str]) -> Result<Program> {
    let ray = s.packages.python_program("ray")?;
    let vip = s.vip(pod)?;
    let words = [
        &*ray,
        "start",
        "--block",
        "--node-ip-address",
        vip,
        "--num-cpus",
        "2",
        "--object-store-memory",
        "1000000000",
    ];
    let mut c = s.command(pod, Kind::Python, words.into_iter().chain(options.iter().copied()))?;
    c.envs(PATIENCE);
    s.start(&format!("ray-{pod}"), c)
}
