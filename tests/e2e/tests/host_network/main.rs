//! A task on the host network: a cgroup in a machine's own namespace, handed to its node as a runtime would. In Domains of either
//! address family, and of both. And as a Task that asks for it, by `kubectl apply` ([`task`]).

mod task;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use test_e2e::{PYTHON, domain, idle_job, phase, pod};
use test_kit::{
    command::{cmd, output, stdout},
    pod::RunningPod,
    process::wrapped,
    product::{Product, text},
    wait::eventually,
};

const LIMIT: Duration = Duration::from_secs(40);
const UID: &str = "host-0001";
/// The machine that the task is on: the second of site `cloud`, whose first one has a pod.
const MACHINE: usize = 2;
const REAL: &str = "192.168.1.11";
/// On its LAN, where the neighbour has one too: neither leads from or to a pod of the other.
const REAL6: &str = "fd10::11";
const NEIGHBOUR6: &str = "fd10::10";
const PORT: &str = "7000";
/// Answers with the names of both ends as it sees them.
const SERVE: &str = "import socket,sys
s=socket.create_server(('',int(sys.argv[1])),family=socket.AF_INET6,dualstack_ipv6=True)
print('listening',flush=True)
ip=lambda a: a[0].removeprefix('::ffff:')
while 1:
 c,a=s.accept(); q=c.recv(9); c.sendall(f'{ip(a)} {ip(c.getsockname())} '.encode()+q); c.close()";
/// Its own names of both ends, then what the server said; or the errno.
const ASK: &str = "import socket,sys
s=socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET)
s.settimeout(10); e=s.connect_ex((sys.argv[1],int(sys.argv[2])))
if e: print(e); sys.exit()
s.sendall(b'q'); r=b''
try:
 while b'q' not in r: r+=s.recv(99) or sys.exit(print('closed'))
except OSError as x: print(x.errno); sys.exit()
print(s.getpeername()[0],s.getsockname()[0],r.decode())";

/// A Task that no agent acts on, and its Pod.
fn objects(p: &Product) -> Result<()> {
    p.apply(
        "apiVersion: rlinf.io/v1alpha1\nkind: Task\nmetadata: {name: host, namespace: rlark-cloud}\n\
         spec: {agentType: Raw, role: Env, domain: d, raw: {entrypoint: [sleep]}}\n---\n\
         apiVersion: rlinf.io/v1alpha1\nkind: Pod\nmetadata: {name: host-0001, namespace: rlark-cloud}\n\
         spec: {domain: d, taskNamespace: rlark-cloud, taskName: host, podNamespace: raw, podName: host}\n",
    )?;
    let status = format!(
        r#"{{"status":{{"phase":"Running","node":"gpu-2","ip":"{REAL}","ips":["{REAL}","{REAL6}"]}}}}"#
    );
    let mut c = p.kubectl(["-n", "rlark-cloud", "patch", "pods.rlinf.io", UID]);
    output(c.args(["--subresource=status", "--type=merge", "-p", &status])).map(drop)
}

/// The node's socket, as a runtime speaks to it.
fn node(p: &Product, method: &str, path: &str, body: &str) -> Result<String> {
    let socket = p.machines.get(MACHINE).context("machine")?.dir.join("node.sock");
    let mut c = cmd("curl", ["-sS", "--fail-with-body", "-X", method, "--unix-socket"]);
    c.arg(socket).args(["-H", "content-type: application/json", "-d", body]);
    stdout(c.arg(format!("http://node{path}")))
}

struct Host {
    /// In the order of the Domain's subnets.
    vips: Vec<String>,
    cgroup: PathBuf,
}

impl Host {
    fn attach(p: &Product) -> Result<Self> {
        objects(p)?;
        let m = p.machines.get(MACHINE).context("machine")?;
        let cgroup = m.cgroup.join("host");
        fs::create_dir_all(cgroup.join("worker"))?;
        let request = |cgroup: Option<&Path>| {
            let netns = m.place.netns.path();
            serde_json::json!({"domain": "d", "netns": netns, "cgroup": cgroup, "timeoutMs": 20_000})
        };
        let path = format!("/v1/attachments/{UID}");
        for (wrong, why) in [
            (None, "known by its cgroup"),
            (Some(Path::new("/proc")), "no directory of a cgroup v2 hierarchy"),
            (Some(m.cgroup.as_path()), "is not below"),
        ] {
            let refused = node(p, "PUT", &path, &request(wrong).to_string());
            let said = format!("{:#}", refused.err().context("it was accepted")?);
            ensure!(said.contains(why), "{said}");
        }
        let said = node(p, "PUT", &path, &request(Some(&cgroup)).to_string())?;
        let attached: Value = serde_json::from_str(&said)?;
        let addresses = attached.pointer("/addresses").and_then(Value::as_array);
        let vips = addresses.into_iter().flatten().map(|a| text(a, "/vip").to_owned());
        Ok(Self { vips: vips.collect(), cgroup })
    }

    /// A process of the task, in a cgroup that it made for itself.
    fn command(&self, p: &Product) -> Result<Command> {
        let m = p.machines.get(MACHINE).context("machine")?;
        let worker = self.cgroup.join("worker");
        Ok(wrapped(Some(&m.place.netns), Some(&worker), Path::new(PYTHON)))
    }

    fn ask(&self, p: &Product, to: &str, port: &str) -> Result<String> {
        answer(self.command(p)?.args(["-c", ASK, to, port]))
    }
}

fn answer(c: &mut Command) -> Result<String> {
    Ok(stdout(c)?.trim().to_owned())
}

fn ask_from(pod: &RunningPod, to: &str, port: &str) -> Result<String> {
    answer(&mut pod.command([PYTHON, "-c", ASK, to, port]))
}

/// A server that listens by now; ended by its cgroup.
fn serve(mut c: Command) -> Result<Child> {
    use std::io::{BufRead as _, BufReader};
    let mut child = c.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
    ensure!(line.trim() == "listening", "the server said {line:?}");
    Ok(child)
}

/// Links, rules and routes of the machine; of IPv6 the kernel says something by itself.
fn network(p: &Product) -> Result<String> {
    let m = p.machines.get(MACHINE).context("machine")?;
    let mut c = wrapped(Some(&m.place.netns), None, Path::new("sh"));
    stdout(c.args([
        "-c",
        "ip -o link | cut -d: -f2; ip -4 -o addr; ip rule; ip -6 rule; ip -4 route show table all",
    ]))
}

#[test]
fn a_task_on_the_host_network_talks_with_its_domain() -> Result<()> {
    in_domain("10.98.0.0/24", 1)
}

#[test]
fn a_task_on_the_host_network_talks_with_its_domain_of_ipv6() -> Result<()> {
    in_domain("fd00:98::/64", 1)
}

#[test]
fn a_task_on_the_host_network_talks_with_its_domain_of_both_families() -> Result<()> {
    in_domain("\"fd00:98::/64,10.98.0.0/24\"", 2)
}

fn in_domain(cidr: &str, subnets: usize) -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    p.join("cloud", "gpu-2", &[("site", "beside")])?;
    p.online()?;
    let run = |p: &mut Product| -> Result<()> {
        for (machine, address) in [(0, NEIGHBOUR6), (MACHINE, REAL6)] {
            let lan = &p.machines.get(machine).context("machine")?.place.netns;
            lan.ip(&format!("addr add {address}/64 dev eth0 nodad"))?;
        }
        let tasks = [("near", "cloud"), ("far", "edge"), ("beside", "beside")];
        p.apply(&(domain("d", cidr) + &idle_job("j", "d", &tasks)))?;
        phase(p, "j", "Running", LIMIT)?;
        let pods = [pod(p, 0, "j-near-0")?, pod(p, 1, "j-far-0")?, pod(p, MACHINE, "j-beside-0")?];
        // An agent forgets Pods of its machine that it did not make.
        p.machines.get_mut(MACHINE).context("machine")?.agent.kill()?;
        let (before, attached) = (network(p)?, node(p, "GET", "/v1/attachments", "")?);
        let host = Host::attach(p)?;
        ensure!(host.vips.len() == subnets, "{:?}", host.vips);
        ensure!(network(p)? == before, "the machine's network changed: {}", network(p)?);
        let mut servers = Vec::new();
        for pod in &pods {
            servers.push(serve(pod.command([PYTHON, "-c", SERVE, PORT]))?);
        }
        let mut own = host.command(p)?;
        own.args(["-c", SERVE, PORT]);
        servers.push(serve(own)?);
        for subnet in 0..subnets {
            talks(p, &host, &pods, subnet).with_context(|| format!("subnet {subnet}"))?;
        }
        let [_, far, _] = &pods;
        stays(p, &host, far)?;
        healthy(p, subnets)?;
        node(p, "DELETE", &format!("/v1/attachments/{UID}"), "")?;
        ensure!(node(p, "GET", "/v1/attachments", "")? == attached);
        ensure!(network(p)? == before, "something stays");
        for mut server in servers {
            server.kill()?;
            server.wait()?;
        }
        Ok(())
    };
    run(&mut p).map_err(|e| p.explain(e))
}

fn vip(all: &[String], subnet: usize) -> Result<&str> {
    all.get(subnet).map(String::as_str).context("an address of each subnet")
}

fn talks(p: &Product, host: &Host, pods: &[RunningPod; 3], subnet: usize) -> Result<()> {
    let own = vip(&host.vips, subnet)?;
    let (v4, [near, far, beside]) = (!own.contains(':'), pods);
    for pod in pods {
        let peer = vip(&pod.vips, subnet)?;
        // Names on both ends: the asker's, then the server's.
        eventually("the peer to know it", LIMIT, || {
            Ok((host.ask(p, peer, PORT)? == format!("{peer} {own} {own} {peer} q")).then_some(()))
        })
        .with_context(|| format!("{peer}: {:?}", host.ask(p, peer, PORT)))?;
    }
    for pod in [far, beside] {
        let peer = vip(&pod.vips, subnet)?;
        eventually("the pod to reach it", LIMIT, || {
            let said = ask_from(pod, own, PORT)?;
            Ok((said == format!("{own} {peer} {peer} {own} q")).then_some(()))
        })
        .with_context(|| format!("{peer}: {:?}", ask_from(pod, own, PORT)))?;
    }
    let said = ask_from(near, own, PORT)?;
    let peer = vip(&near.vips, subnet)?;
    if v4 {
        // The machine between them masquerades what leaves its pods for the LAN, so the accepting end sees that machine.
        ensure!(said.starts_with(&format!("{own} {peer} ")), "{said}");
    } else {
        // That machine carries no IPv6 of its pods: relayed.
        ensure!(said == format!("{own} {peer} {peer} {own} q"), "{said}");
    }
    // Itself, by its virtual address.
    ensure!(host.ask(p, own, PORT)? == format!("{own} {own} {own} {own} q"));
    strangers(p, host, far, own)?;
    ensure!(host.ask(p, vip(&far.vips, subnet)?, "7999")? == "111");
    ensure!(host.ask(p, if v4 { "10.98.0.200" } else { "fd00:98::abcd" }, PORT)? == "113");
    Ok(())
}

/// Another listener of the machine is none of the Domain's, and another process is in no Domain.
fn strangers(p: &Product, host: &Host, far: &RunningPod, own: &str) -> Result<()> {
    let m = p.machines.get(MACHINE).context("machine")?;
    let stranger = || wrapped(Some(&m.place.netns), Some(&m.cgroup), Path::new(PYTHON));
    let mut c = stranger();
    c.args(["-c", SERVE, "7001"]);
    let mut other = serve(c)?;
    ensure!(ask_from(far, own, "7001")? == "111", "{}", ask_from(far, own, "7001")?);
    ensure!(host.ask(p, own, "7001")? == "111");
    let real = if own.contains(':') { REAL6 } else { REAL };
    let said = answer(stranger().args(["-c", ASK, real, "7001"]))?;
    ensure!(said == format!("{real} {real} {real} {real} q"), "{said}");
    other.kill()?;
    other.wait()?;
    Ok(())
}

/// A node that was killed, or stopped, finds the task and its listener again.
fn stays(p: &mut Product, host: &Host, far: &RunningPod) -> Result<()> {
    for how in ["killed", "stopped"] {
        let m = p.machines.get_mut(MACHINE).context("machine")?;
        match how {
            "killed" => m.node.kill()?,
            _ => m.node.stop(Duration::from_secs(20))?,
        }
        p.start_node(MACHINE)?;
        for (own, peer) in host.vips.iter().zip(&far.vips) {
            eventually("both ways to be there again", LIMIT, || {
                let out = host.ask(p, peer, PORT)?;
                let back = ask_from(far, own, PORT)?;
                let there = out == format!("{peer} {own} {own} {peer} q")
                    && back == format!("{own} {peer} {peer} {own} q");
                Ok(there.then_some(()))
            })
            .with_context(|| format!("after the node was {how}"))?;
        }
    }
    Ok(())
}

/// The node's own word on the task.
fn healthy(p: &Product, subnets: usize) -> Result<()> {
    let report: Value = serde_json::from_str(&node(p, "GET", "/v1/doctor", "")?)?;
    let checks = report.pointer("/checks").and_then(Value::as_array);
    let of_host = |c: &&Value| text(c, "/hop").starts_with("host: ");
    let checks: Vec<&Value> = checks.into_iter().flatten().filter(of_host).collect();
    let good = |c: &&&Value| c.pointer("/ok") == Some(&Value::Bool(true));
    ensure!(
        checks.len() == 1 + subnets && checks.iter().filter(good).count() == checks.len(),
        "{checks:?}"
    );
    Ok(())
}
