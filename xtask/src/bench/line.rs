//! A delay line between a site's NAT and the internet.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use test_kit::{
    command::{cmd, stdout},
    net::Netns,
    process::{Process, Start},
    product::Product,
    wait::eventually,
};

use crate::scenario::EDGE;

/// What the line does, each way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) delay_ms: u32,
    pub(super) mbit: u32,
    pub(super) loss_percent: f64,
}

impl Setting {
    pub(super) fn name(&self) -> String {
        format!("{} ms, {} Mbit/s, {} % loss", self.delay_ms, self.mbit, self.loss_percent)
    }
}

/// Drop order: the process before its namespace.
#[derive(Debug)]
pub(super) struct Plugged {
    process: Option<Process>,
    netns: Netns,
}

fn first(text: &str, pointer: &str) -> Result<String> {
    let v: Value = serde_json::from_str(text)?;
    let found = v.pointer(pointer).and_then(Value::as_str);
    found.map(str::to_owned).with_context(|| format!("no {pointer} in {text}"))
}

impl Plugged {
    /// Replaces the cable between the edge's NAT and the router by two, with a namespace between.
    pub(super) fn new(p: &Product) -> Result<Self> {
        let nat = &p.sites.get(EDGE).context("the edge")?.nat;
        let router = format!("{}-inet", p.lab.id());
        let ask = |words: &str| {
            let words = format!("-j -4 -n {} {words}", nat.name());
            stdout(&mut cmd("ip", words.split(' ')))
        };
        let own = first(&ask("addr show dev wan")?, "/0/addr_info/0/local")?;
        let gateway = first(&ask("route show default")?, "/0/gateway")?;
        let netns = Netns::new(&format!("{}-line", p.lab.id()))?;
        let port = format!("to-{EDGE}");
        nat.ip("link del wan")?;
        nat.ip(&format!("link add wan type veth peer name near netns {}", netns.name()))?;
        netns.ip(&format!("link add far type veth peer name {port} netns {router}"))?;
        netns.ip("link set near up")?;
        netns.ip("link set far up")?;
        nat.ip(&format!("addr add {own}/30 dev wan"))?;
        nat.ip("link set wan up")?;
        test_kit::command::ip(&format!("-n {router} addr add {gateway}/30 dev {port}"))?;
        test_kit::command::ip(&format!("-n {router} link set {port} up"))?;
        nat.ip(&format!("route add default via {gateway}"))?;
        Ok(Self { process: None, netns })
    }

    /// Lets packets through, from now on like this.
    pub(super) fn set(&mut self, p: &Product, s: Setting) -> Result<()> {
        self.process = None;
        let log = p.lab.dir().join("line.log");
        drop(std::fs::remove_file(&log));
        let words = format!(
            "line --between near far --delay-ms {} --rate-mbit {} --loss-percent {}",
            s.delay_ms, s.mbit, s.loss_percent
        );
        let mut process = Process::start(Start {
            name: "line",
            program: &p.program("rlark-traffic"),
            args: words.split(' ').map(Into::into).collect(),
            env: vec![],
            netns: Some(&self.netns),
            cgroup: None,
            // Frames that leave by two CPUs overtake each other.
            cpu: p.cpu(1),
            log,
        })?;
        eventually("the line", Duration::from_secs(5), || {
            process.check()?;
            Ok(process.tail(1).contains("LINE").then_some(()))
        })?;
        self.process = Some(process);
        Ok(())
    }
}
