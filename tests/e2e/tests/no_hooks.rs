//! A machine without cgroup v2: its guards land everything and the relay carries it, also beside machines that have hooks.

use anyhow::{Result, ensure};
use test_e2e::conformance::{From, Probe, V4};
use test_kit::product::Product;

/// Volume is for the other tests.
const LESS: [(&str, &str); 3] = [("MIB", "64"), ("SHORT", "1000"), ("RELAYED", "1")];
const BOTH: &str = "\"fd00:98::/64,10.98.0.0/24\"";

/// The two sites, with these options of their first machines' nodes.
fn sites(cloud: &[&str], edge: &[&str]) -> Result<Product> {
    let mut p = test_e2e::server()?;
    p.join_with("cloud", "gpu-1", &[("site", "cloud")], cloud)?;
    p.join_with("edge", "robot-1", &[("site", "edge")], edge)?;
    p.online()?;
    Ok(p)
}

/// On these paths, each with whose machines are without hooks.
fn check(p: &mut Product, cidr: &str, subnets: usize, paths: &[(From, &str)]) -> Result<()> {
    let clients: Vec<From> = paths.iter().map(|(from, _)| *from).collect();
    let mut probe = Probe::start(p, cidr, &clients)?;
    let mut failed = Vec::new();
    for nth in 0..subnets {
        if nth > 0 {
            probe.serve_at(p, nth)?;
        }
        for (from, without) in paths {
            let env: Vec<_> = LESS.into_iter().chain([("NO_HOOKS", *without)]).collect();
            let result = probe.check(p, *from, &[], &env);
            failed.extend(result.err().map(|e| format!("{from:?}, subnet {nth}: {e:#}")));
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    p.alive()
}

#[test]
fn a_server_on_a_machine_without_hooks_is_reached_from_everywhere() -> Result<()> {
    let mut p = sites(&["--no-hooks"], &[])?;
    let paths = [
        (From::SameSite, "client server"),
        (From::OtherMachine, "server"),
        (From::OtherSite, "server"),
    ];
    check(&mut p, V4, 1, &paths).map_err(|e| p.explain(e))
}

#[test]
fn a_client_on_a_machine_without_hooks_reaches_both_families() -> Result<()> {
    let mut p = sites(&[], &["--no-hooks"])?;
    check(&mut p, BOTH, 2, &[(From::OtherSite, "client")]).map_err(|e| p.explain(e))
}
