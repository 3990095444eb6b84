//! The other end's node is killed and does not come back for as long as flows would wait for it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use test_e2e::{
    PYTHON,
    load::{Event, now},
    pod,
};
use test_kit::{product::Product, wait::eventually};

use crate::scene::{BUSY, Scene};

/// What the kernel carries alone.
const NEAR: &str = "ping stream up down";
const FAR: &str = "ping stream up down connect";
/// Connects, sends, and says how that failed.
const CONNECT: &str = "import errno,socket,sys
try:
 s=socket.create_connection((sys.argv[1],7000),90)
 s.sendall(b'e')
 print('GOT',s.recv(1))
except OSError as e: print(errno.errorcode.get(e.errno,repr(e)))";

pub(crate) fn for_good(p: &mut Product) -> Result<()> {
    let scene = Scene::start(p, NEAR, FAR)?;
    let (far, server) = (pod(p, 1, "j-far-0")?, pod(p, 0, "j-server-0")?);
    p.machines.first_mut().context("machine")?.node.kill()?;
    let killed = now()?;
    let out = far.command([PYTHON, "-c", CONNECT, &server.vip]).output()?;
    let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    let honest = ["ECONNRESET", "ECONNREFUSED", "EHOSTUNREACH", "ETIMEDOUT"];
    ensure!(honest.iter().any(|e| said.starts_with(e)), "a new connection: {said}");
    let took = now()? - killed;
    ensure!(took < 35.0, "a new connection hung for {took:.1} s");
    let left = Duration::from_secs_f64((85.0 - took).max(0.0));
    let broken = |events: &[Event]| events.iter().filter(|e| e.word == "BROKEN").count();
    eventually("the relayed flows to end", left, || {
        Ok((broken(&scene.far.events()?) == BUSY.len()).then_some(()))
    })?;
    p.start_node(0)?;
    let back = now()?;
    scene.far.resumed(&["connect"], back, Duration::from_secs(40))?;
    let events = scene.stop()?;
    let answered = events.iter().find(|e| {
        e.flow.starts_with("connect") && e.word == "AT" && e.at > killed + 2.0 && e.at < back
    });
    ensure!(answered.is_none(), "who answered? {answered:?}");
    p.alive()
}
