//! TCP between two pods keeps its promises, on the direct path and through the relay.
//! The checks themselves are in `probe/conformance.py`.

use std::{process::Stdio, time::Duration};

use anyhow::{Result, ensure};
use test_kit::{pod::RunningPod, process::Process, product::Product, wait::eventually};

const PYTHON: &str = "/usr/bin/python3";

fn serve(p: &Product, pod: &RunningPod) -> Result<std::process::Child> {
    let log = p.lab.dir().join("probe.log");
    let mut c = pod.command([PYTHON, &test_e2e::probe(p, "conformance.py")?, "serve", &pod.vip]);
    let child = c.stdout(std::fs::File::create(&log)?).stderr(Stdio::inherit()).spawn()?;
    eventually("the probe to serve", Duration::from_secs(10), || {
        Ok(std::fs::read_to_string(&log)?.contains("serving").then_some(()))
    })?;
    Ok(child)
}

fn check(p: &Product, client: &RunningPod, server: &RunningPod, relayed: bool) -> Result<()> {
    let script = test_e2e::probe(p, "conformance.py")?;
    let mut c = client.command([PYTHON, &script, "check", &server.vip, &client.vip]);
    let out = c.env("RELAYED", if relayed { "1" } else { "0" }).output()?;
    let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    ensure!(out.status.success() && said.contains("ok names on both ends"), "{said}");
    Ok(())
}

fn pod(p: &Product, machine: usize, name: &str) -> Result<RunningPod> {
    eventually(name, Duration::from_secs(20), || Ok(p.pod(machine, name).ok()))
}

fn between(client_at: (usize, &str)) -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let run = |p: &mut Product| -> Result<()> {
        let tasks = [("server", "cloud"), ("near", "cloud"), ("far", "edge")];
        let domain = test_e2e::domain("d", "10.98.0.0/24");
        p.apply(&(domain + &test_e2e::idle_job("j", "d", &tasks)))?;
        test_e2e::phase(p, "j", "Running", Duration::from_secs(30))?;
        let (server, client) = (pod(p, 0, "j-server-0")?, pod(p, client_at.0, client_at.1)?);
        let mut probe = serve(p, &server)?;
        let result = check(p, &client, &server, client_at.0 != 0);
        probe.kill()?;
        probe.wait()?;
        result?;
        p.machines
            .iter_mut()
            .try_for_each(|m| m.node.check().and_then(|()| Process::check(&mut m.agent)))
    };
    run(&mut p).map_err(|e| p.explain(e))
}

#[test]
fn tcp_within_a_site_is_tcp() -> Result<()> {
    between((0, "j-near-0"))
}

#[test]
fn tcp_between_sites_is_tcp() -> Result<()> {
    between((1, "j-far-0"))
}
