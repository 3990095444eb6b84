//! `rlark doctor` between two pods: every hop of a path that works, and the hop at which one ends.

use std::time::Duration;

use anyhow::{Result, ensure};
use test_kit::{product::Product, wait::eventually};

const LIMIT: Duration = Duration::from_secs(40);
const LISTEN: &str =
    "import socket\ns=socket.create_server(('0.0.0.0',7000))\nwhile 1:\n s.accept()[0].close()";

/// Whether it found the path good, and what it said.
fn doctor(p: &Product, from: &str, to: &str, port: &str) -> Result<(bool, String)> {
    let out = p.rlark(["doctor", "--from", from, "--to", to, "--port", port]).output()?;
    let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    Ok((out.status.success(), said))
}

/// The path must end at this hop, and the report hold all these words and no uid.
fn ends(p: &Product, path: [&str; 3], hop: &str, words: &[&str]) -> Result<()> {
    let (good, said) = doctor(p, path[0], path[1], path[2])?;
    ensure!(!good, "{path:?} is good: {said}");
    let failed: Vec<&str> = said.lines().filter(|l| l.starts_with('✗')).collect();
    let alone = matches!(failed.as_slice(), [one] if one.contains(hop));
    ensure!(alone, "{path:?}: not {hop} alone: {said}");
    for word in words {
        ensure!(said.contains(word), "{path:?}: {word:?} is missing: {said}");
    }
    let pods = p.get("rlpod -A")?;
    let pods = pods.pointer("/items").and_then(|v| v.as_array()).cloned().unwrap_or_default();
    for pod in &pods {
        let uid = test_kit::product::text(pod, "/metadata/name");
        ensure!(!said.contains(uid), "{path:?}: a uid is no name: {said}");
    }
    Ok(())
}

#[test]
fn doctor_proves_a_path_or_names_the_hop_where_it_ends() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let run = |p: &mut Product| -> Result<()> {
        let over = test_e2e::idle_job("over", "d", &[("x", "cloud")])
            .replace("sleep, infinity", "\"true\"");
        let all = [
            test_e2e::domain("d", "10.98.0.0/24") + &test_e2e::domain("e", "10.99.0.0/24"),
            test_e2e::idle_job("j", "d", &[("a", "cloud"), ("b", "edge")]),
            test_e2e::idle_job("k", "e", &[("a", "cloud")]),
            test_e2e::idle_job("bare", "", &[("a", "cloud")]),
            over,
        ];
        p.apply(&all.join("---\n"))?;
        for job in ["j", "k", "bare"] {
            test_e2e::phase(p, job, "Running", LIMIT)?;
        }
        test_e2e::phase(p, "over", "Succeeded", LIMIT)?;
        let a = eventually("the pod", LIMIT, || Ok(p.pod(0, "j-a-0").ok()))?;
        let mut server = a.command(["/usr/bin/python3", "-c", LISTEN]).spawn()?;
        let proved = eventually("the path to be good", Duration::from_secs(10), || {
            let (good, said) = doctor(p, "j-b-0", "j-a-0", "7000")?;
            Ok(good.then_some(said))
        });
        let refused = ends(p, ["j-b", "j-a", "7001"], "listener", &["7001", "refused"]);
        server.kill()?;
        server.wait()?;
        let (said, ()) = (proved?, refused?);
        for hop in
            ["membership", "name", "policy", "route", "verdict", "carrier", "datagrams", "listener"]
        {
            let line = said.lines().find(|l| l.starts_with('✓') && l.contains(hop));
            ensure!(line.is_some(), "{hop} is missing: {said}");
        }
        ensure!(said.contains("j-b-0 reaches j-a-0 on port 7000"), "{said}");
        ends(p, ["j-b-0", "over-x-0", "7000"], "membership", &["over-x-0", "ended", "Succeeded"])?;
        ends(p, ["over-x-0", "j-b-0", "7000"], "membership", &["over-x-0", "ended"])?;
        ends(p, ["j-b-0", "k-a-0", "7000"], "domain", &["j-b-0", "Domain d", "k-a-0", "Domain e"])?;
        ends(p, ["j-b-0", "bare-a-0", "7000"], "domain", &["bare-a-0", "no Domain"])?;
        let (good, said) = doctor(p, "j-b-0", "nobody", "7000")?;
        ensure!(!good && said.contains("nobody"), "{said}");
        Ok(())
    };
    run(&mut p).map_err(|e| p.explain(e))
}
