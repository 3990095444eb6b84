//! What the kernel still does when the node or its hooks are gone: nothing meant for a peer may reach a
//! listener of the pod that sent it.

use std::{
    collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, process::Child, time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use test_e2e::{PYTHON, pod};
use test_kit::{
    command::{cmd, output, stdout},
    pod::RunningPod,
    product::Product,
    wait::eventually,
};

const LIMIT: Duration = Duration::from_secs(40);
/// Says `peer` to whom comes, by TCP and UDP.
const PEER: &str = "import socket,threading
u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.bind(('0.0.0.0',7100))
s=socket.create_server(('0.0.0.0',7100),backlog=128)
def datagrams():
 while 1:
  d,w=u.recvfrom(99); u.sendto(b'peer',w)
threading.Thread(target=datagrams,daemon=True).start()
while 1:
 c,_=s.accept(); c.sendall(b'peer'); c.close()";
/// Asks the peer again and again, and listens itself at the same ports, on every address and on its
/// own VIP; says what answered how often.
const ASK: &str = "import collections,socket,sys,threading,time
peer,own=sys.argv[1:3]
def stream(host,number):
 s=socket.socket(); s.setsockopt(1,2,1); s.bind((host,number)); s.listen(128)
 while 1:
  c,_=s.accept(); c.sendall(b'OWN'); c.close()
def datagrams(host,number):
 u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.bind((host,number))
 while 1:
  d,w=u.recvfrom(99); u.sendto(b'OWN',w)
for f in stream,datagrams: threading.Thread(target=f,args=('0.0.0.0',7100),daemon=True).start()
threading.Thread(target=stream,args=(own,7101),daemon=True).start()
time.sleep(.1)
said=collections.Counter()
end=time.time()+2
def note(kind,f):
 try: said[kind+f()]+=1
 except OSError as e: said[kind+type(e).__name__]+=1
def tcp(number):
 with socket.create_connection((peer,number),.5) as s:
  s.settimeout(.5); return s.recv(9).decode() or 'eof'
def udp():
 with socket.socket(socket.AF_INET,socket.SOCK_DGRAM) as s:
  s.settimeout(.05); s.sendto(b'x',(peer,7100)); return s.recv(9).decode()
while time.time()<end:
 note('tcp-',lambda:tcp(7100)); note('tcp-',lambda:tcp(7101)); note('udp-',udp)
print(' '.join(f'{k}={v}' for k,v in said.items()))";

struct Scene {
    near: RunningPod,
    far: RunningPod,
    server: RunningPod,
    peer: Child,
}

impl Scene {
    fn start(p: &mut Product) -> Result<Self> {
        let tasks = [("server", "cloud"), ("near", "cloud"), ("far", "edge")];
        let job = test_e2e::idle_job("j", "d", &tasks);
        p.apply(&(test_e2e::domain("d", "10.98.0.0/24") + &job))?;
        test_e2e::phase(p, "j", "Running", LIMIT)?;
        let server = pod(p, 0, "j-server-0")?;
        let peer = server.command([PYTHON, "-c", PEER]).spawn()?;
        let scene = Self { near: pod(p, 0, "j-near-0")?, far: pod(p, 1, "j-far-0")?, server, peer };
        for client in [&scene.near, &scene.far] {
            eventually("the peer to answer", LIMIT, || {
                let said = scene.ask(client)?;
                Ok(said.contains_key("tcp-peer").then_some(()))
            })?;
        }
        Ok(scene)
    }

    /// What answered when `client` asked the server, how often.
    fn ask(&self, client: &RunningPod) -> Result<BTreeMap<String, u32>> {
        let said = stdout(&mut client.command([PYTHON, "-c", ASK, &self.server.vip, &client.vip]))?;
        let pairs = said.split_whitespace().filter_map(|w| w.split_once('='));
        pairs.map(|(k, v)| Ok((k.to_owned(), v.parse()?))).collect()
    }

    /// An error if something but the peer answered.
    fn never_itself(&self) -> Result<()> {
        for (name, client) in [("near", &self.near), ("far", &self.far)] {
            let said = self.ask(client)?;
            ensure!(!said.is_empty(), "{name} asked nobody");
            let own = said.keys().find(|k| k.ends_with("OWN"));
            ensure!(own.is_none(), "{name} reached its own listener: {said:?}");
        }
        Ok(())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Its end, or that it has ended, is all that is wanted.
        let _ended_already = self.peer.kill();
        let _reaped = self.peer.wait();
    }
}

/// The links of programs on this machine's cgroup, which are its node's.
fn links(p: &Product, machine: usize) -> Result<Vec<u64>> {
    let cgroup = &p.machines.get(machine).context("machine")?.cgroup;
    let inode = fs::metadata(cgroup)?.ino();
    let all: serde_json::Value =
        serde_json::from_str(&stdout(&mut cmd("bpftool", ["-j", "link"]))?)?;
    let all = all.as_array().context("a list of links")?;
    let ours = all.iter().filter(|l| l.get("cgroup_id").and_then(|i| i.as_u64()) == Some(inode));
    Ok(ours.filter_map(|l| l.get("id")?.as_u64()).collect())
}

fn detach(p: &Product, machine: usize) -> Result<()> {
    let links = links(p, machine)?;
    ensure!(links.len() >= 10, "only {} hooks on machine {machine}", links.len());
    for link in links {
        output(&mut cmd("bpftool", ["link", "detach", "id", &link.to_string()]))?;
    }
    Ok(())
}

fn test(run: impl FnOnce(&mut Product, &Scene) -> Result<()>) -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let result = Scene::start(&mut p).and_then(|s| run(&mut p, &s));
    result.map_err(|e| p.explain(e))
}

#[test]
fn detached_hooks_leave_no_way_to_the_pods_own_listener() -> Result<()> {
    test(|p, scene| {
        detach(p, 0)?;
        detach(p, 1)?;
        scene.never_itself()
    })
}

#[test]
fn a_killed_node_leaves_no_way_to_the_pods_own_listener() -> Result<()> {
    test(|p, scene| {
        for m in &mut p.machines {
            m.node.kill()?;
        }
        scene.never_itself()?;
        for machine in 0..p.machines.len() {
            p.start_node(machine)?;
        }
        for client in [&scene.near, &scene.far] {
            eventually("the peer to answer again", LIMIT, || {
                Ok(scene.ask(client)?.contains_key("tcp-peer").then_some(()))
            })?;
        }
        scene.never_itself()
    })
}

#[test]
fn hooks_that_were_detached_stand_again_after_a_restart_of_the_node() -> Result<()> {
    test(|p, scene| {
        detach(p, 0)?;
        p.machines.first_mut().context("machine")?.node.stop(Duration::from_secs(15))?;
        p.start_node(0)?;
        eventually("the hooks", LIMIT, || Ok((links(p, 0)?.len() >= 10).then_some(())))?;
        eventually("the peer to answer again", LIMIT, || {
            Ok(scene.ask(&scene.near)?.contains_key("udp-peer").then_some(()))
        })?;
        scene.never_itself()
    })
}
