//! Two sites of which one lets the world in at its node's direct port: carriers go past the hub, need
//! it no more, fall back to it, and end with the machine.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use test_e2e::{
    load::{Load, Server, longest_gap, now},
    pod,
};
use test_kit::{
    command::stdout,
    product::Product,
    wait::{eventually, pause},
};

const PORT: u16 = 7400;
const LIMIT: Duration = Duration::from_secs(40);
/// Connections that always move, and whose every byte is known.
const BUSY: [&str; 4] = ["ping", "stream", "up", "down"];

/// The cloud listens and its router forwards the port; the edge is behind a NAT like any other.
fn sites() -> Result<Product> {
    let mut p = test_e2e::server()?;
    p.join_with("cloud", "gpu-1", &[("site", "cloud")], &["--direct-port=7400"])?;
    p.join("edge", "robot-1", &[("site", "edge")])?;
    p.sites.get("cloud").context("cloud")?.forward_port(0, PORT)?;
    p.online()?;
    let job = test_e2e::idle_job("j", "d", &[("cloud", "cloud"), ("edge", "edge")]);
    p.apply(&(test_e2e::domain("d", "10.98.0.0/24") + &job))?;
    test_e2e::phase(&mut p, "j", "Running", LIMIT)?;
    Ok(p)
}

/// Load in both directions: the edge, which can reach the cloud, opens one half, and the cloud the other.
struct Both {
    from_edge: Load,
    from_cloud: Load,
    _servers: [Server; 2],
}

impl Both {
    fn start(p: &Product) -> Result<Self> {
        let (cloud, edge) = (pod(p, 0, "j-cloud-0")?, pod(p, 1, "j-edge-0")?);
        let servers = [Server::start(p, &cloud)?, Server::start(p, &edge)?];
        let kinds = "ping:2 stream up down udp";
        Ok(Self {
            from_edge: Load::start(p, "edge", &edge, "j-cloud-0.rlark-domain", kinds)?,
            from_cloud: Load::start(p, "cloud", &cloud, "j-edge-0.rlark-domain", kinds)?,
            _servers: servers,
        })
    }

    fn resumed(&self, since: f64, limit: Duration) -> Result<()> {
        for load in [&self.from_edge, &self.from_cloud] {
            load.resumed(&BUSY, since, limit)?;
            load.resumed(&["udp"], since, limit)?;
        }
        Ok(())
    }

    /// The longest pause of any connection.
    fn pause(&self, from: f64) -> Result<f64> {
        let mut longest = 0.0_f64;
        for load in [&self.from_edge, &self.from_cloud] {
            let events = load.events()?;
            for kind in BUSY {
                longest = longest.max(longest_gap(&events, kind, from, f64::INFINITY));
            }
        }
        Ok(longest)
    }

    fn finish(self) -> Result<()> {
        self.from_edge.finish()?;
        self.from_cloud.finish().map(drop)
    }
}

/// The carriers of the flows that are open now.
fn carriers(p: &Product) -> Result<Vec<String>> {
    let text = stdout(&mut p.rlark(["flows"]))?;
    let words = text.lines().flat_map(str::split_whitespace);
    let is_carrier = |w: &&str| w.starts_with("hub:") || w.starts_with("direct:");
    Ok(words.filter(is_carrier).map(ToOwned::to_owned).collect())
}

/// Waits until every open flow, of both nodes, is on such a carrier.
fn all_are(p: &Product, via: &str, limit: Duration) -> Result<()> {
    let mut last = Vec::new();
    let wait = eventually(&format!("all flows to be {via}"), limit, || {
        last = carriers(p)?;
        Ok((last.len() >= 8 && last.iter().all(|c| c.starts_with(via))).then_some(()))
    });
    wait.with_context(|| format!("{last:?}"))
}

#[test]
fn carriers_go_past_the_hub_where_they_can_and_fall_back_to_it_where_not() -> Result<()> {
    let mut p = sites()?;
    let run = |p: &mut Product| -> Result<()> {
        let both = Both::start(p)?;
        all_are(p, "direct:", LIMIT)?;
        let doctor = stdout(&mut p.rlark(["doctor"])).unwrap_or_default();

        // The hub is killed: nothing is to be noticed.
        let gone = now()?;
        p.server.as_mut().context("server")?.kill()?;
        pause(Duration::from_secs(10));
        both.resumed(now()?, Duration::from_secs(5))?;
        let pause_of_all = both.pause(gone)?;
        ensure!(pause_of_all < 1.5, "a flow paused for {pause_of_all} s without the hub\n{doctor}");
        p.start_server()?;
        p.online()?;

        // The port goes silent: over the hub within the time that tells silence from slowness.
        let cloud = p.sites.get("cloud").context("cloud")?;
        cloud.swallow_port(PORT, true)?;
        both.resumed(now()? + 1.0, Duration::from_secs(30))?;
        all_are(p, "hub:", Duration::from_secs(10))?;

        // It answers again; nobody hears of that before the network of one side changes.
        p.sites.get("cloud").context("cloud")?.swallow_port(PORT, false)?;
        let edge = &p.machines.get(1).context("edge")?.place.netns;
        edge.ip("addr add 192.168.1.99/24 dev eth0")?;
        all_are(p, "direct:", Duration::from_secs(20))?;
        both.resumed(now()?, Duration::from_secs(5))?;
        both.finish()?;
        p.alive()
    };
    run(&mut p).map_err(|e| p.explain(e))
}

#[test]
fn a_removed_machine_loses_its_direct_carriers_at_once() -> Result<()> {
    let mut p = sites()?;
    let run = |p: &mut Product| -> Result<()> {
        let both = Both::start(p)?;
        all_are(p, "direct:", LIMIT)?;
        let record = "machine.node.edge.robot-1";
        let removed = Instant::now();
        stdout(&mut p.kubectl(["-n", "rlark-system", "delete", "cm", record]))?;
        // Of the cloud's node alone: the other one has no session any more.
        eventually("the direct carriers to end", Duration::from_secs(5), || {
            Ok((!carriers(p)?.iter().any(|c| c.starts_with("direct:"))).then_some(()))
        })?;
        ensure!(removed.elapsed() < Duration::from_secs(5), "{:?}", removed.elapsed());
        let cut = now()?;
        pause(Duration::from_secs(8));
        for load in [&both.from_edge, &both.from_cloud] {
            let moved = load.resumed(&["ping"], cut + 1.0, Duration::from_millis(100));
            ensure!(moved.is_err(), "bytes move after the removal");
        }
        Ok(())
    };
    run(&mut p).map_err(|e| p.explain(e))
}

#[test]
fn a_port_that_nobody_can_reach_costs_nothing_and_a_stranger_gets_nothing() -> Result<()> {
    let mut p = test_e2e::server()?;
    let run = |p: &mut Product| -> Result<()> {
        // Both listen, and both NATs let nothing in.
        p.join_with("cloud", "gpu-1", &[("site", "cloud")], &["--direct-port=7400"])?;
        p.join_with("edge", "robot-1", &[("site", "edge")], &["--direct-port=7400"])?;
        p.online()?;
        let job = test_e2e::idle_job("j", "d", &[("cloud", "cloud"), ("edge", "edge")]);
        p.apply(&(test_e2e::domain("d", "10.98.0.0/24") + &job))?;
        test_e2e::phase(p, "j", "Running", LIMIT)?;
        let began = now()?;
        let both = Both::start(p)?;
        both.resumed(began, Duration::from_secs(20))?;
        pause(Duration::from_secs(5));
        let paused = both.pause(now()? - 4.0)?;
        ensure!(paused < 1.0, "a flow paused for {paused} s");
        ensure!(carriers(p)?.iter().all(|c| c.starts_with("hub:")), "{:?}", carriers(p)?);
        both.finish()?;

        // A neighbour on the LAN knocks: no SSH banner, no word, closed.
        let knock = "import socket\nfor say in [b'GET / HTTP/1.1\\r\\n\\r\\n'*10, b'RLARK-DIRECT/1 '+b'ab'*32+b'\\n', b'']:\n s=socket.create_connection(('192.168.1.10',7400),5)\n s.settimeout(5)\n s.sendall(say)\n try: got=s.recv(100)\n except ConnectionResetError: got=b''\n print('GOT',got)";
        let nat = &p.sites.get("edge").context("edge")?.nat;
        let mut python = test_kit::process::wrapped(Some(nat), None, test_e2e::PYTHON.as_ref());
        let said = stdout(python.args(["-c", knock]))?;
        ensure!(said.matches("GOT b''").count() == 3, "{said}");
        p.alive()
    };
    run(&mut p).map_err(|e| p.explain(e))
}
