//! connect() tells the truth about listeners of another site, and datagrams find sockets that are bound to a VIP.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use test_kit::{command::stdout, pod::RunningPod, product::Product, wait::eventually};

const LIMIT: Duration = Duration::from_secs(40);
const PYTHON: &str = "/usr/bin/python3";
/// The errno of connect() itself, and how many microseconds it took.
const CONNECT: &str = "import socket,sys,time
s=socket.socket(); s.settimeout(10); t=time.monotonic()
e=s.connect_ex((sys.argv[1],int(sys.argv[2]))); print(e,int((time.monotonic()-t)*1e6))";
/// Listens when told to, and says so.
const LISTEN: &str = "import socket,sys
s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(('0.0.0.0',int(sys.argv[1])))
s.listen(); print('listening',flush=True)
while 1: s.accept()";
/// A socket that is bound to the VIP answers with who asked.
const ON_VIP: &str = "import socket,sys
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind((sys.argv[1],7000)); print('bound',flush=True)
while 1:
 d,a=s.recvfrom(9000); s.sendto(a[0].encode()+b' '+d,a)";
/// Asks from the address given.
const ASK: &str = "import socket,sys
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(3); s.bind((sys.argv[2],0))
s.sendto(b'x',(sys.argv[1],int(sys.argv[3]))); d,a=s.recvfrom(9000); print(a[0],a[1],d.decode())";
/// As [`ON_VIP`], bound to no address.
const ON_ANY: &str = "import socket,sys
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('0.0.0.0',7001)); print('bound',flush=True)
while 1:
 d,a=s.recvfrom(9000); s.sendto(a[0].encode()+b' '+d,a)";

const REFUSED: i32 = 111;

fn connect(from: &RunningPod, to: &RunningPod, port: u16) -> Result<(i32, u64)> {
    let said = stdout(&mut from.command([PYTHON, "-c", CONNECT, &to.vip, &port.to_string()]))?;
    let (errno, us) = said.trim().split_once(' ').context("two numbers")?;
    Ok((errno.parse()?, us.parse()?))
}

fn start(p: &Product, pod: &RunningPod, script: &str, arg: &str) -> Result<std::process::Child> {
    let log = p.lab.dir().join(format!("{}-{arg}.log", pod.vip));
    let out = std::fs::File::create(&log)?;
    let mut c = pod.command([PYTHON, "-c", script, arg]);
    let child = c.stdout(out).stderr(Stdio::inherit()).spawn()?;
    eventually("the program", LIMIT, || {
        Ok((!std::fs::read_to_string(&log)?.is_empty()).then_some(()))
    })?;
    Ok(child)
}

#[test]
fn listeners_of_another_site_are_known_and_vip_bound_sockets_are_reached() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let run = |p: &mut Product| -> Result<()> {
        let tasks = [("a", "cloud"), ("b", "edge"), ("c", "cloud")];
        let job = test_e2e::idle_job("j", "d", &tasks);
        p.apply(&(test_e2e::domain("d", "10.98.0.0/24") + &job))?;
        test_e2e::phase(p, "j", "Running", LIMIT)?;
        let pod = |p: &Product, machine, name| {
            eventually("the pod", LIMIT, || Ok(p.pod(machine, name).ok()))
        };
        let (a, b, c) = (pod(p, 0, "j-a-0")?, pod(p, 1, "j-b-0")?, pod(p, 0, "j-c-0")?);
        tcp(p, &a, &b)?;
        udp(p, &a, &b, &c)
    };
    run(&mut p).map_err(|e| p.explain(e))
}

/// From `b`, at another site than `a`.
fn tcp(p: &mut Product, a: &RunningPod, b: &RunningPod) -> Result<()> {
    // The two nodes tell each other within the time that a pod needs to start a program.
    eventually("a refusal by connect() itself", LIMIT, || {
        Ok((connect(b, a, 7100)?.0 == REFUSED).then_some(()))
    })?;
    let mut quickest = u64::MAX;
    for _ in 0..5 {
        let (errno, us) = connect(b, a, 7100)?;
        ensure!(errno == REFUSED, "errno {errno}");
        quickest = quickest.min(us);
    }
    ensure!(quickest < 1000, "{quickest} us: no answer of this machine");
    let mut server = start(p, a, LISTEN, "7100")?;
    let first = connect(b, a, 7100)?.0;
    server.kill()?;
    server.wait()?;
    ensure!(first == 0, "errno {first} from a listener that stands");
    eventually("the end of the listener", LIMIT, || {
        Ok((connect(b, a, 7100)?.0 == REFUSED).then_some(()))
    })?;
    // Without the hub nobody says what listens by now.
    p.server.as_mut().context("server")?.kill()?;
    let mut server = start(p, a, LISTEN, "7101")?;
    let unknown = connect(b, a, 7101)?.0;
    server.kill()?;
    server.wait()?;
    p.start_server()?;
    ensure!(unknown == 0, "errno {unknown}: what is unknown was refused");
    eventually("the hub's word again", LIMIT, || {
        Ok((connect(b, a, 7102)?.0 == REFUSED).then_some(()))
    })
}

fn udp(p: &Product, a: &RunningPod, b: &RunningPod, c: &RunningPod) -> Result<()> {
    let mut on_vip = start(p, a, ON_VIP, &a.vip)?;
    let mut on_any = start(p, a, ON_ANY, "any")?;
    let outcome = (|| {
        for client in [b, c] {
            for from in ["0.0.0.0", client.vip.as_str()] {
                for port in ["7000", "7001"] {
                    let ask = [PYTHON, "-c", ASK, a.vip.as_str(), from, port];
                    let got = stdout(&mut client.command(ask))
                        .with_context(|| format!("{} from {from} to {port}", client.vip))?;
                    let want = format!("{} {port} {} x\n", a.vip, client.vip);
                    ensure!(got == want, "{got:?} instead of {want:?}");
                }
            }
        }
        Ok(())
    })();
    for child in [&mut on_vip, &mut on_any] {
        child.kill()?;
        child.wait()?;
    }
    outcome
}
