//! `rlark-node` is stopped or killed and started again while its pods go on.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use test_e2e::{
    conformance::{From, Probe, V4},
    load::{Load, Server, longest_gap, moved, now},
    pod,
};
use test_kit::{
    command::{cmd, output},
    process::{Process, Start},
    product::Product,
    wait::{eventually, pause},
};

const LIMIT: Duration = Duration::from_secs(40);
/// How soon a node that was started again does its work.
const BACK: Duration = Duration::from_secs(10);
/// What a new node must find out about sockets that were there before it.
const STANDING: &[&str] = &[
    "a_listener_on_the_vip_alone",
    "a_listener_for_both_families",
    "listeners_that_share_a_port",
    "names_on_both_ends",
    "refused_where_nobody_listens",
    "own_vip",
    "a_connected_datagram_socket",
    "the_server_speaks_first",
    "names_resolve",
];

/// Starts machine 0's node again, with its programs and maps pinned.
fn start_pinned(p: &mut Product, was: &[String]) -> Result<()> {
    let all = p.cgroup.path().to_owned();
    let pins = p.lab.dir().join("bpf/node");
    let m = p.machines.first_mut().context("machine")?;
    let mut args = was.to_vec();
    args.push(format!("--pins={}", pins.display()));
    let program = PathBuf::from(args.remove(0));
    let log = m.node.log().to_owned();
    m.node = Process::start(Start {
        name: "rlark-node with pins",
        program: &program,
        args,
        env: vec![],
        netns: Some(&m.place.netns),
        cgroup: Some(&all),
        cpu: None,
        log,
    })?;
    Ok(())
}

/// The words of the command that runs as this node.
fn command_line(p: &Product) -> Result<Vec<String>> {
    let pid = p.machines.first().context("machine")?.node.pid();
    let line = fs::read(format!("/proc/{pid}/cmdline"))?;
    Ok(String::from_utf8(line)?.split('\0').filter(|w| !w.is_empty()).map(Into::into).collect())
}

#[test]
fn a_restarted_node_finds_what_stands() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let run = |p: &mut Product| -> Result<()> {
        let both = [From::SameSite, From::OtherSite];
        let probe = Probe::start(p, V4, &both)?;
        for crash in [false, true] {
            let node = &mut p.machines.first_mut().context("machine")?.node;
            if crash {
                node.kill()?
            } else {
                node.stop(Duration::from_secs(15))?
            }
            p.start_node(0)?;
            for from in both {
                // The hooks stand before the relay's listeners, which what is bound to a VIP needs now.
                for first in ["echo_and_eof", "a_listener_on_the_vip_alone"] {
                    eventually("the first answer", BACK, || {
                        Ok(probe.check(p, from, &[first], &[]).ok())
                    })?;
                }
                probe.check(p, from, STANDING, &[])?;
            }
        }
        p.alive()
    };
    run(&mut p).map_err(|e| p.explain(e))
}

#[test]
fn with_pins_the_direct_path_does_not_notice_a_restart() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let bpf = p.lab.dir().join("bpf");
    fs::create_dir(&bpf)?;
    output(&mut cmd("mount", ["-t", "bpf", "bpf", &bpf.display().to_string()]))?;
    restarts(&mut p).map_err(|e| p.explain(e))
}

fn restarts(p: &mut Product) -> Result<()> {
    let words = command_line(p)?;
    p.machines.first_mut().context("machine")?.node.stop(Duration::from_secs(15))?;
    start_pinned(p, &words)?;
    let tasks = [("server", "cloud"), ("near", "cloud"), ("far", "edge")];
    p.apply(&(test_e2e::domain("d", V4) + &test_e2e::idle_job("j", "d", &tasks)))?;
    test_e2e::phase(p, "j", "Running", LIMIT)?;
    let (server, near, far) =
        (pod(p, 0, "j-server-0")?, pod(p, 0, "j-near-0")?, pod(p, 1, "j-far-0")?);
    let _server = Server::start(p, &server)?;
    let name = "j-server-0.rlark-domain";
    let began = now()?;
    let near = Load::start(p, "near", &near, name, "rush:3 denied refused ping stream udp")?;
    for (round, crash) in [false, true].into_iter().enumerate() {
        let far = Load::start(p, &format!("far-{round}"), &far, name, "connect:3 ping stream")?;
        let node = &mut p.machines.first_mut().context("machine")?.node;
        if crash {
            node.kill()?
        } else {
            node.stop(Duration::from_secs(15))?
        }
        pause(Duration::from_secs(1));
        let back = now()?;
        start_pinned(p, &words)?;
        far.resumed(&["connect"], back + 0.5, LIMIT)?;
        let events = far.stop()?;
        for flow in ["ping 0", "stream 0"] {
            let end = events.iter().find(|e| e.flow == flow && e.word == "BROKEN");
            let end = end.with_context(|| format!("{flow} did not hear of it"))?;
            ensure!(end.value == "ECONNRESET" && end.at < back + 3.0, "{end:?}, back at {back}");
        }
        let tries: Vec<_> = events.iter().filter(|e| e.word == "TRIED").collect();
        let honest = |v: &str| ["ok", "ECONNRESET", "ECONNREFUSED", "EHOSTUNREACH"].contains(&v);
        let odd = tries
            .iter()
            .find(|e| e.seconds() > 8.0 || !honest(e.value.split(' ').next().unwrap_or_default()));
        ensure!(odd.is_none(), "{odd:?}");
    }
    let seconds = now()? - began;
    let events = near.finish()?;
    let total = |kind| moved(&events, kind) / seconds;
    // A connection of `rush` moves 16 bytes.
    let tried = total("rush") / 16.0 + total("denied") + total("refused");
    ensure!(tried > 1000.0, "only {tried} connects a second");
    let failed = events.iter().find(|e| e.word == "TRIED" && !e.value.starts_with("ok"));
    ensure!(failed.is_none(), "{failed:?}");
    for kind in ["rush", "denied", "refused", "ping", "stream", "udp"] {
        let gap = longest_gap(&events, kind, 0.0, f64::INFINITY);
        ensure!(gap < 1.0, "direct {kind} paused for {gap} s");
    }
    p.alive()
}
