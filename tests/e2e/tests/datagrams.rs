//! Datagrams between two sites, by programs that know nothing of RLark.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use test_kit::{command::stdout, pod::RunningPod, product::Product, wait::eventually};

const LIMIT: Duration = Duration::from_secs(40);
/// Echoes, and says for whom first.
const SERVER: &str = "import socket
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('0.0.0.0',7000))
while 1:
 d,a=s.recvfrom(70000); s.sendto(a[0].encode()+b' '+d,a)";
/// Asks, and shows what came from whom.
const CLIENT: &str = "import socket,sys
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(float(sys.argv[3]))
s.sendto(b'x'*int(sys.argv[2]),(sys.argv[1],7000)); d,a=s.recvfrom(70000)
print(a[0],a[1],d.split()[0].decode(),len(d.split()[1]))";

fn ask(client: &RunningPod, name: &str, size: &str, patience: &str) -> Result<String> {
    stdout(&mut client.command(["/usr/bin/python3", "-c", CLIENT, name, size, patience]))
}

#[test]
fn datagrams_cross_sites_under_their_names_and_again_after_an_outage() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let run = |p: &mut Product| -> Result<()> {
        let job = test_e2e::idle_job("j", "d", &[("a", "cloud"), ("b", "edge"), ("c", "cloud")]);
        p.apply(&(test_e2e::domain("d", "10.98.0.0/24") + &job))?;
        test_e2e::phase(p, "j", "Running", LIMIT)?;
        let pod = |p: &Product, machine, name| {
            eventually("the pod", LIMIT, || Ok(p.pod(machine, name).ok()))
        };
        let (a, b, c) = (pod(p, 0, "j-a-0")?, pod(p, 1, "j-b-0")?, pod(p, 0, "j-c-0")?);
        let mut server = a.command(["/usr/bin/python3", "-c", SERVER]);
        let mut server = server.stderr(Stdio::null()).spawn()?;
        let outcome = talk(p, &a, &b, &c);
        server.kill()?;
        server.wait()?;
        outcome
    };
    run(&mut p).map_err(|e| p.explain(e))
}

fn talk(p: &mut Product, a: &RunningPod, b: &RunningPod, c: &RunningPod) -> Result<()> {
    let name = "j-a-0.rlark-domain";
    let first = || Ok(ask(b, name, "1", "1").ok());
    eventually("the first answer", LIMIT, first)?;
    for size in ["1", "1472", "60000"] {
        for client in [b, c] {
            let want = format!("{} 7000 {} {size}\n", a.vip, client.vip);
            let got = ask(client, name, size, "5")?;
            ensure!(got == want, "{got:?} instead of {want:?}");
        }
    }
    let flows = stdout(&mut p.rlark(["flows"]))?;
    let listed = flows.lines().any(|l| {
        l.starts_with("j-b-0") && l.contains(" udp ") && l.contains("hub:cloud/gpu-1:interactive")
    });
    ensure!(listed, "{flows}");

    // Within the site nothing needs the hub; between sites datagrams are lost and come again.
    p.server.as_mut().context("server")?.kill()?;
    ensure!(ask(c, name, "1", "5").is_ok(), "within the site");
    ensure!(ask(b, name, "1", "0.5").is_err(), "the hub is gone");
    p.start_server()?;
    eventually("an answer after the outage", LIMIT, || Ok(ask(b, name, "1", "1").ok()))?;
    Ok(())
}
