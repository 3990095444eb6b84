//! `rlark events` on two machines: what it says of connections, datagrams, refusals and carriers.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use test_kit::{
    command::stdout,
    follow::Follow,
    pod::RunningPod,
    product::{Product, text},
    wait::eventually,
};

const LIMIT: Duration = Duration::from_secs(40);
/// Answers eight bytes with six, on TCP and UDP.
const SERVER: &str = "import socket,threading
u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.bind(('0.0.0.0',7000))
def echo():
 while 1:
  d,a=u.recvfrom(99); u.sendto(d,a)
threading.Thread(target=echo,daemon=True).start()
s=socket.create_server(('0.0.0.0',7000))
while 1:
 c=s.accept()[0]; c.recv(8,socket.MSG_WAITALL); c.send(b'answer'); c.close()";
const CLIENT: &str = "import socket,sys
c=socket.create_connection((sys.argv[1],int(sys.argv[2])),5); c.send(b'question')
assert c.recv(6,socket.MSG_WAITALL)==b'answer' and c.recv(1)==b''";
const DATAGRAM: &str = "import socket,sys
u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.settimeout(5)
u.sendto(b'x',(sys.argv[1],7000)); u.recv(9)";

/// The events of a machine, from now on.
fn follow(p: &Product, machine: usize) -> Result<Follow> {
    let m = p.machines.get(machine).context("the machine")?;
    let socket = format!("--socket={}", m.dir.join("node.sock").display());
    let file = p.lab.dir().join(format!("events-{machine}"));
    let mut events = Follow::start(p.rlark(["events", "-o", "json", &socket]), file)?;
    let name = format!("{}/{}", m.cluster, m.name);
    told(&mut events, "listening", |e| text(e, "/node") == name)?;
    Ok(events)
}

/// The first event of that type for which `is` holds.
fn told(events: &mut Follow, kind: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut said = String::new();
    let found = eventually(kind, LIMIT, || {
        said = events.said()?;
        let whole = said.rfind('\n').map_or("", |end| said.get(..end).unwrap_or_default());
        for line in whole.lines() {
            let event: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            if text(&event, "/type") == kind && is(&event) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    });
    found.with_context(|| said)
}

fn number(event: &Value, key: &str) -> Option<u64> {
    event.get(key)?.as_u64()
}

fn python(pod: &RunningPod, program: &str, name: &str, port: &str) -> Result<String> {
    stdout(&mut pod.command([test_e2e::PYTHON, "-c", program, name, port]))
}

#[test]
fn events_tell_of_flows_refusals_and_carriers_as_they_happen() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let run = |p: &mut Product| -> Result<()> {
        let tasks = [("a", "cloud"), ("b", "edge"), ("c", "cloud")];
        p.apply(&(test_e2e::domain("d", "10.98.0.0/24") + &test_e2e::idle_job("j", "d", &tasks)))?;
        test_e2e::phase(p, "j", "Running", LIMIT)?;
        let pods = [(0, "j-a-0"), (1, "j-b-0"), (0, "j-c-0")];
        let [a, b, c] = pods.map(|(machine, name)| test_e2e::pod(p, machine, name));
        let (a, b, c) = (a?, b?, c?);
        let (mut cloud, mut edge) = (follow(p, 0)?, follow(p, 1)?);
        let mut server = a.command([test_e2e::PYTHON, "-c", SERVER]);
        let mut server = server.stderr(Stdio::null()).spawn()?;
        let outcome = (|| {
            let up = || Ok(python(&c, CLIENT, "j-a-0.rlark-domain", "7000").ok());
            eventually("the server", LIMIT, up)?;
            direct(&mut cloud, &c)?;
            relayed((&mut cloud, &mut edge), &b)?;
            refusals(&mut edge, &b)
        })();
        server.kill()?;
        server.wait()?;
        outcome?;
        p.server.as_mut().context("server")?.kill()?;
        let gone = told(&mut edge, "carrierDown", |e| text(e, "/peer") == "cloud/gpu-1")?;
        ensure!(text(&gone, "/domain") == "d" && !text(&gone, "/why").is_empty(), "{gone}");
        Ok(())
    };
    run(&mut p).map_err(|e| p.explain(e))
}

/// Within the site, told by the hooks.
fn direct(cloud: &mut Follow, c: &RunningPod) -> Result<()> {
    let ours = |e: &Value| text(e, "/fromPod") == "j-c-0" && text(e, "/verdict") == "direct";
    let opened = told(cloud, "opened", ours)?;
    ensure!(text(&opened, "/toPod") == "j-a-0", "{opened}");
    let same = |e: &Value| ours(e) && number(e, "id") == number(&opened, "id");
    let closed = told(cloud, "closed", same)?;
    let bytes = (number(&closed, "bytesOut"), number(&closed, "bytesIn"));
    ensure!(bytes == (Some(8), Some(6)) && text(&closed, "/state") == "closed", "{closed}");
    ensure!(text(&closed, "/from").starts_with(&c.vip), "{closed}");
    Ok(())
}

/// Between sites, told by both relays.
fn relayed((cloud, edge): (&mut Follow, &mut Follow), b: &RunningPod) -> Result<()> {
    let name = "j-a-0.rlark-domain";
    python(b, CLIENT, name, "7000")?;
    for (events, outgoing) in [(&mut *edge, true), (&mut *cloud, false)] {
        let ours = |e: &Value| {
            text(e, "/fromPod") == "j-b-0"
                && text(e, "/protocol") == "tcp"
                && e.get("outgoing") == Some(&outgoing.into())
        };
        told(events, "opened", ours)?;
        let closed = told(events, "closed", ours)?;
        let bytes = (number(&closed, "bytesOut"), number(&closed, "bytesIn"));
        ensure!(bytes == (Some(8), Some(6)) && text(&closed, "/verdict") == "relay", "{closed}");
        ensure!(text(&closed, "/carrier").ends_with(":interactive"), "{closed}");
        ensure!(number(&closed, "retransmits").is_some(), "{closed}");
    }
    told(edge, "carrierUp", |e| text(e, "/carrier").contains("cloud/gpu-1"))?;
    python(b, DATAGRAM, name, "")?;
    told(edge, "opened", |e| text(e, "/protocol") == "udp" && text(e, "/toPod") == "j-a-0")?;
    Ok(())
}

/// By the kernel, with the process that asked.
fn refusals(edge: &mut Follow, b: &RunningPod) -> Result<()> {
    for (to, errno, reason) in
        [("j-a-0.rlark-domain", 111, "no_listener"), ("10.98.0.99", 113, "unknown_vip")]
    {
        let port = "7001";
        ensure!(python(b, CLIENT, to, port).is_err(), "nobody listens there");
        let refused = told(edge, "refused", |e| text(e, "/reason") == reason)?;
        ensure!(number(&refused, "errno") == Some(errno), "{refused}");
        ensure!(text(&refused, "/fromPod") == "j-b-0" && text(&refused, "/by") == "kernel");
        ensure!(text(&refused, "/to").ends_with(":7001"), "{refused}");
        ensure!(number(&refused, "pid").is_some_and(|pid| pid > 1), "{refused}");
    }
    Ok(())
}
