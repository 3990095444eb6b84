//! Carriers are cut every two seconds for a minute, in turns by resets at either end and by silence; then
//! the hub is killed amid the cuts.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use test_e2e::load::{longest_gap, now};
use test_kit::{command::output, net::Netns, process::wrapped, product::Product, wait::pause};

use crate::scene::{BUSY, NEAR, Scene};

const EVERY: Duration = Duration::from_secs(2);
const MINUTE: u32 = 30;
const FAR: &str = "ping:3 stream:3 up:3 down:3 slow idle:2 connect";

pub(crate) fn every_two_seconds(p: &mut Product) -> Result<()> {
    let scene = Scene::start(p, NEAR, FAR)?;
    let began = now()?;
    for n in 0..MINUTE {
        let next = Instant::now() + EVERY;
        cut(p, n)?;
        pause(next.saturating_duration_since(Instant::now()));
    }
    let took = scene.far.resumed(&BUSY, now()?, Duration::from_secs(5))?;
    ensure!(took <= 1.5, "bytes moved {took:.2} s after the last cut");
    let (mut gone, mut killed) = (None, 0.0);
    for n in 0..12 {
        let next = Instant::now() + EVERY;
        if n == 2 {
            killed = now()?;
            p.server.as_mut().context("server")?.kill()?;
            gone = Some(());
        }
        if n == 7 {
            p.start_server()?;
            gone = None;
        }
        if gone.is_none() {
            cut(p, n)?;
        }
        pause(next.saturating_duration_since(Instant::now()));
    }
    scene.far.resumed(&BUSY, now()?, Duration::from_secs(5))?;
    let events = scene.finish()?;
    for kind in BUSY {
        let gap = longest_gap(&events, kind, began, killed);
        ensure!(gap < 3.0, "{kind} paused for {gap} s amid the cuts");
    }
    let failed = events.iter().find(|e| e.word == "TRIED" && !e.value.starts_with("ok"));
    ensure!(failed.is_none(), "a connection failed: {failed:?}");
    p.online()
}

fn cut(p: &Product, n: u32) -> Result<()> {
    let edge = p.machines.get(1).context("machine")?;
    match n % 3 {
        0 => reset(&p.internet.hub, "sport = :7443"),
        1 => reset(&edge.place.netns, "dport = :7443"),
        _ => {
            let site = p.sites.get("edge").context("site")?;
            site.uplink(false)?;
            pause(Duration::from_millis(300));
            site.uplink(true)
        }
    }
}

/// Ends the connections of a namespace that a filter of `ss` names, as a router that lost its state would.
fn reset(at: &Netns, filter: &str) -> Result<()> {
    let mut c = wrapped(Some(at), None, Path::new("ss"));
    output(c.args(["-K", "-t", "-n", filter])).map(drop)
}
