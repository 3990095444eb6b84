//! A NAT forgets its bindings and makes others; a site's uplink gets another address; a machine gets
//! another one, as a laptop does between two networks.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use test_e2e::load::now;
use test_kit::{command::ip, product::Product, wait::pause};

use crate::scene::{BUSY, NEAR, Scene};

const FAR: &str = "ping:2 stream:2 up:2 down:2 slow idle:2 udp";

type Step = fn(&Product) -> Result<()>;

pub(crate) fn away(p: &mut Product) -> Result<()> {
    let scene = Scene::start(p, NEAR, FAR)?;
    // What can be heard of is healed soon; silence must be told from a slow path first.
    let steps: [(&str, Step, f64); 5] = [
        ("the site was cut off for twenty seconds", cut_off, 10.0),
        ("the NAT forgot", |p| rebind(p, "20000-29999"), 5.0),
        ("the NAT forgot again", |p| rebind(p, "30000-39999"), 5.0),
        ("the uplink has another address", uplink, 20.0),
        ("the machine has another address", machine, 5.0),
    ];
    for (what, step, limit) in steps {
        step(p)?;
        let changed = now()?;
        // Twice: what was on its way when it changed is no proof.
        let patience = Duration::from_secs_f64(limit + 10.0);
        let settled = changed + 2.0;
        let took = scene.far.resumed(&BUSY, settled, patience).context(what)? + 2.0;
        ensure!(took <= limit, "{what}: bytes moved after {took:.1} s");
        scene.far.resumed(&["udp"], settled, patience).context(what)?;
    }
    scene.finish()?;
    p.online()
}

/// All bindings are gone and new ones get other ports.
fn rebind(p: &Product, ports: &str) -> Result<()> {
    let nat = &p.sites.get("edge").context("site")?.nat;
    nat.nft(&format!(
        "flush table ip nat
        table ip nat {{
            chain leaving {{
                oifname wan ip protocol {{ tcp, udp }} masquerade to :{ports}
                oifname wan masquerade
            }}
        }}
        "
    ))?;
    // Masquerading forgets what it did for an interface that goes down.
    let site = p.sites.get("edge").context("site")?;
    site.uplink(false)?;
    site.uplink(true)
}

fn uplink(p: &Product) -> Result<()> {
    let nat = &p.sites.get("edge").context("site")?.nat;
    ip(&format!("-n {}-inet addr add 192.0.2.129/30 dev to-edge", p.lab.id()))?;
    nat.ip("addr flush dev wan")?;
    nat.ip("addr add 192.0.2.130/30 dev wan")?;
    nat.ip("route replace default via 192.0.2.129")
}

fn machine(p: &Product) -> Result<()> {
    let netns = &p.machines.get(1).context("machine")?.place.netns;
    netns.ip("addr flush dev eth0")?;
    netns.ip("addr add 192.168.1.77/24 dev eth0")?;
    netns.ip("route replace default via 192.168.1.1")
}

fn cut_off(p: &Product) -> Result<()> {
    let site = p.sites.get("edge").context("site")?;
    site.uplink(false)?;
    pause(Duration::from_secs(20));
    site.uplink(true)
}
