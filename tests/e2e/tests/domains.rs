//! A Domain is changed and deleted while tasks live in it: addresses follow, flows end at once,
//! nobody waits for what will not come, and nothing stays behind.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use test_kit::{
    command::{output, stdout},
    pod::RunningPod,
    product::Product,
    wait::eventually,
};

const LIMIT: Duration = Duration::from_secs(40);
const PYTHON: &str = "/usr/bin/python3";
const SERVE: &str = "import socket,threading\ns=socket.create_server(('0.0.0.0',7000))\ndef one(c):\n try:\n  while d:=c.recv(99): c.sendall(d)\n except OSError: pass\nwhile 1: threading.Thread(target=one,args=(s.accept()[0],),daemon=True).start()";
/// One byte there and back; says what came of it and after how long.
const ASK: &str = "import errno,socket,sys,time\nt=time.time()\ntry:\n s=socket.create_connection((sys.argv[1],7000),5)\n s.sendall(b'x')\n r='OK' if s.recv(1)==b'x' else 'EOF'\nexcept OSError as e: r=errno.errorcode.get(e.errno,repr(e))\nprint(r,round(time.time()-t,2))";
/// One connection that says when it ends, and nothing before.
const HOLD: &str = "import socket,sys,time\ns=socket.create_connection((sys.argv[1],7000),5)\ns.sendall(b'x');s.recv(1)\nprint('HELD',flush=True)\ntry: print('ENDED',s.recv(1),flush=True)\nexcept OSError as e: print('ENDED',e,flush=True)";

fn ask(from: &RunningPod, to: &str) -> Result<String> {
    stdout(&mut from.command([PYTHON, "-c", ASK, to]))
}

/// Empty while there is none.
fn rl0(pod: &RunningPod) -> Result<String> {
    let out = pod.command(["ip", "-br", "addr", "show", "rl0"]).output()?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn hosts(pod: &RunningPod) -> Result<String> {
    stdout(&mut pod.command(["cat", "/etc/hosts"]))
}

/// Connections that stand, one from each client to `j-a-0`, and end with this.
struct Held {
    children: Vec<std::process::Child>,
    logs: Vec<std::path::PathBuf>,
}

impl Held {
    fn new(p: &Product, clients: &[&RunningPod]) -> Result<Self> {
        let mut held = Self { children: vec![], logs: vec![] };
        for (n, client) in clients.iter().enumerate() {
            let log = p.lab.dir().join(format!("held-{n}.log"));
            let mut c = client.command([PYTHON, "-c", HOLD, "j-a-0.rlark-domain"]);
            let out = std::fs::File::create(&log)?;
            held.children.push(c.stdout(out.try_clone()?).stderr(out).spawn()?);
            held.logs.push(log);
        }
        held.wait("HELD", Duration::from_secs(10))?;
        Ok(held)
    }

    fn stand(&self) -> Result<bool> {
        let said = self.logs.iter().map(std::fs::read_to_string);
        Ok(said.collect::<std::io::Result<Vec<_>>>()?.iter().all(|s| !s.contains("ENDED")))
    }

    fn wait(&self, word: &str, limit: Duration) -> Result<()> {
        for log in &self.logs {
            let said = || std::fs::read_to_string(log).unwrap_or_default();
            eventually(word, limit, || Ok(said().contains(word).then_some(())))
                .with_context(|| format!("{}: {}", log.display(), said()))?;
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for c in &mut self.children {
            drop(c.kill().and_then(|()| c.wait()));
        }
    }
}

fn answers(p: &Product, clients: &[&RunningPod]) -> Result<()> {
    for client in clients {
        let mut last = String::new();
        let good = eventually("an answer", Duration::from_secs(15), || {
            last = ask(client, "j-a-0.rlark-domain")?;
            Ok(last.starts_with("OK").then_some(()))
        });
        good.with_context(|| format!("{last}{:?}", p.get("rldomain d -o yaml").is_ok()))?;
    }
    Ok(())
}

fn items(p: &Product, words: &str) -> Result<Vec<Value>> {
    let all = p.get(words)?;
    Ok(all.pointer("/items").and_then(Value::as_array).cloned().unwrap_or_default())
}

#[test]
fn a_domain_in_use_changes_its_addresses_and_can_be_deleted_and_made_again() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let run = |p: &mut Product| -> Result<()> {
        let domain = test_e2e::domain("d", "10.98.0.0/24");
        let tasks = [("a", "cloud"), ("near", "cloud"), ("far", "edge")];
        p.apply(&(domain.clone() + &test_e2e::idle_job("j", "d", &tasks)))?;
        let pod = |at, name: &str| eventually(name, LIMIT, || Ok(p.pod(at, name).ok()));
        let pods = [pod(0, "j-a-0")?, pod(0, "j-near-0")?, pod(1, "j-far-0")?];
        let [a, near, far] = &pods;
        let mut server = a.command([PYTHON, "-c", SERVE]).spawn()?;
        let result = change(p, &pods).and_then(|()| delete(p, &pods, &domain));
        server.kill()?;
        server.wait()?;
        result?;
        ensure!(p.pod(0, "j-near-0")?.pid == near.pid && p.pod(1, "j-far-0")?.pid == far.pid);
        p.alive()
    };
    run(&mut p).map_err(|e| p.explain(e))
}

fn change(p: &Product, pods: &[RunningPod; 3]) -> Result<()> {
    let [a, near, far] = pods;
    answers(p, &[near, far])?;
    let held = Held::new(p, &[far])?;
    let before: Vec<&str> = pods.iter().map(|p| p.vip.as_str()).collect();
    p.apply(&test_e2e::domain("d", "10.97.0.0/25"))?;
    for pod in pods {
        eventually("the new address", Duration::from_secs(5), || {
            Ok(rl0(pod)?.contains("10.97.0.").then_some(()))
        })?;
        ensure!(!rl0(pod)?.contains("10.98."), "both addresses: {}", rl0(pod)?);
        eventually("the new names", Duration::from_secs(3), || {
            let hosts = hosts(pod)?;
            Ok((hosts.matches("10.97.0.").count() == 3 && !hosts.contains("10.98.")).then_some(()))
        })?;
    }
    held.wait("ENDED", Duration::from_secs(5))?;
    answers(p, &[near, far])?;
    let old = ask(far, before.first().context("an address")?)?;
    ensure!(!old.starts_with("OK"), "an address of before answers: {old}");
    let peers: Vec<String> = items(p, "domainpeer -A")?.iter().map(ToString::to_string).collect();
    ensure!(peers.len() == 2 && peers.iter().all(|p| !p.contains("10.98.")), "{peers:?}");
    ensure!(a.pid == p.pod(0, "j-a-0")?.pid, "the task was started again");
    let held = Held::new(p, &[far])?;
    p.apply(&test_e2e::domain("d", "10.97.0.0/33"))?;
    eventually("the Domain to say what is wrong", Duration::from_secs(10), || {
        let status = p.get("rldomain d")?.pointer("/status").map(ToString::to_string);
        let status = status.unwrap_or_default();
        let all = ["InvalidCIDR", "spec.cidr", "10.97.0.0/25 stays in use"];
        Ok(all.iter().all(|w| status.contains(w)).then_some(()))
    })?;
    answers(p, &[near, far])?;
    ensure!(held.stand()?, "a slip in an edit broke what stood");
    Ok(())
}

fn delete(p: &Product, pods: &[RunningPod; 3], domain: &str) -> Result<()> {
    let [_, near, far] = pods;
    let held = Held::new(p, &[far])?;
    let a = hosts(far)?;
    let a = a.lines().find(|l| l.contains("j-a-0.")).and_then(|l| l.split(' ').next());
    let a = a.context("the peer's line")?;
    output(&mut p.kubectl(["delete", "rldomain", "d", "--timeout=10s"]))?;
    held.wait("ENDED", Duration::from_secs(5))?;
    for client in [near, far] {
        eventually("the names to go", Duration::from_secs(3), || {
            Ok((!hosts(client)?.contains("rlark-domain")).then_some(()))
        })?;
        let said = ask(client, a)?;
        let took: f64 = said.split(' ').nth(1).context("seconds")?.trim().parse()?;
        let honest = ["EHOSTUNREACH", "ENETUNREACH"].iter().any(|e| said.starts_with(e));
        ensure!(honest && took < 1.0, "after the deletion: {said}");
    }
    for (kind, name) in [("domainpeer -A", ""), ("secret -n rlark-system", "domain-ca-d")] {
        eventually(&format!("{kind} {name} to go"), Duration::from_secs(10), || {
            let all = items(p, kind)?;
            let left = all.iter().any(|o| o.to_string().contains(name));
            Ok((!left).then_some(()))
        })?;
    }
    eventually("the Job to say what it lacks", Duration::from_secs(10), || {
        let job = p.get("rljob j")?;
        let said = job.pointer("/status/conditions").map(ToString::to_string).unwrap_or_default();
        Ok(said.contains("DomainNotFound").then_some(()))
    })?;
    p.apply(domain)?;
    answers(p, &[near, far])?;
    eventually("the Job to lack nothing", Duration::from_secs(10), || {
        let job = p.get("rljob j")?;
        let said = job.pointer("/status/conditions").map(ToString::to_string).unwrap_or_default();
        Ok((!said.contains("DomainNotFound")).then_some(()))
    })
}
