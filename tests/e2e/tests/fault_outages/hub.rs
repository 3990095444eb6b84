//! The hub is killed for 1, 10 and 59 seconds, in which flows wait, and for 90, in which they end.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use test_e2e::{
    load::{Event, Load, longest_gap, now},
    pod,
};
use test_kit::{
    process::wrapped,
    product::Product,
    sites::HUB,
    wait::{eventually, pause},
};

use crate::scene::{BUSY, NEAR, Scene};

/// A connection that cannot be made is given up after half a minute.
const GIVEN_UP: f64 = 33.0;
const FAR: &str = "ping:2 stream:2 up:2 down:2 slow idle:2 connect udp icmp";

pub(crate) fn away(p: &mut Product) -> Result<()> {
    let scene = Scene::start(p, NEAR, FAR)?;
    for seconds in [1, 10, 59] {
        let (gone, back) = absent(p, seconds)?;
        let took = scene.far.resumed(&BUSY, back, Duration::from_secs(10))?;
        ensure!(took <= 1.0, "{seconds} s away: bytes moved {took:.2} s after the hub's return");
        scene.far.resumed(&["udp", "icmp", "connect"], back, Duration::from_secs(10))?;
        let events = scene.far.events()?;
        for kind in BUSY.into_iter().chain(["udp", "icmp"]) {
            let gap = longest_gap(&events, kind, gone, f64::INFINITY);
            // Less and somebody else answered, or the load was not on the relay.
            ensure!(gap > back - gone - 0.5, "{seconds} s away, {kind} paused for {gap} s only");
        }
    }
    too_long(p, scene)
}

/// From when to when it was away: until its relay listens, which is before it says that it is ready.
fn absent(p: &mut Product, seconds: u64) -> Result<(f64, f64)> {
    let gone = now()?;
    p.server.as_mut().context("server")?.kill()?;
    pause(Duration::from_secs(seconds));
    Ok((gone, back(p)?))
}

/// Starts it, and says when its relay listened.
fn back(p: &mut Product) -> Result<f64> {
    let script =
        format!("until (exec 3<>/dev/tcp/{HUB}/7443) 2>&-; do sleep 0.01; done; date +%s.%N");
    let mut c = wrapped(Some(&p.internet.hub), None, Path::new("bash"));
    let listening = c.args(["-c", &script]).stdout(Stdio::piped()).spawn()?;
    p.start_server()?;
    let said = listening.wait_with_output()?.stdout;
    Ok(String::from_utf8(said)?.trim().parse()?)
}

fn too_long(p: &mut Product, scene: Scene) -> Result<()> {
    let gone = now()?;
    p.server.as_mut().context("server")?.kill()?;
    let broken = |events: &[Event]| {
        let ends = events.iter().filter(|e| e.word == "BROKEN" && busy(e));
        ends.map(|e| e.at - gone).collect::<Vec<_>>()
    };
    eventually("relayed flows to end", Duration::from_secs(85), || {
        Ok((broken(&scene.far.events()?).len() == 8).then_some(()))
    })?;
    let early = broken(&scene.far.events()?).into_iter().fold(f64::INFINITY, f64::min);
    ensure!(early > 61.0, "a flow ended {early:.1} s after the hub");
    pause(Duration::from_secs_f64((90.0 - (now()? - gone)).max(0.0)));
    let back = back(p)?;
    scene.far.resumed(&["connect", "udp", "icmp"], back, Duration::from_secs(10))?;
    let far = pod(p, 1, "j-far-0")?;
    let anew = Load::start(p, "anew", &far, "j-server-0.rlark-domain", "ping stream up down")?;
    anew.finish()?;
    let events = scene.stop()?;
    let odd = events.iter().find(|e| e.word == "WRONG" || (busy(e) && e.word == "END"));
    ensure!(odd.is_none(), "{odd:?}");
    let idle = events.iter().filter(|e| e.flow.starts_with("idle") && e.word == "BROKEN").count();
    ensure!(idle == 2, "{idle} of 2 idle flows were told of their end");
    let tries: Vec<_> = events.iter().filter(|e| e.word == "TRIED").collect();
    // One may have been made just before an outage, and waits like the others.
    let long = tries.iter().filter(|e| e.seconds() > GIVEN_UP).count();
    ensure!(long <= 2, "{tries:?}");
    ensure!(tries.iter().any(|e| !e.value.starts_with("ok")), "no connection failed: {tries:?}");
    p.online()
}

fn busy(e: &Event) -> bool {
    BUSY.iter().any(|k| e.flow.starts_with(k))
}
