//! Peers that come, go and come again.

use std::{
    fs::File,
    process::{Child, Command},
    time::Duration,
};

use anyhow::{Result, ensure};
use test_e2e::{PYTHON, conformance::V4, pod};
use test_kit::{
    command::{output, stdout},
    product::Product,
    wait::eventually,
};

const LIMIT: Duration = Duration::from_secs(40);
/// Answers with a byte and keeps the connection.
const PEER: &str = "import socket\\ns=socket.create_server(('0.0.0.0',7000))\\nkept=[]\\nwhile 1:\\n c,_=s.accept()\\n c.send(b'x')\\n kept.append(c)";
/// Connects until it is answered, and says how long that took; then waits for the end, and for the
/// first refusal that says that there is no such pod.
const CLIENT: &str = "import errno,socket,sys,time
def within(seconds,what,f):
 end=time.time()+seconds
 while time.time()<end:
  if f(): return
  time.sleep(.02)
 sys.exit('no '+what+' within %s s: %s'%(seconds,last))
last=None
def answered():
 global s,last
 try:
  s=socket.create_connection((sys.argv[1],7000),1)
  return s.recv(1)==b'x'
 except OSError as e: last=e
within(2,'answer',answered)
print('answered',flush=True)
ip=s.getpeername()[0]
s.settimeout(15)
try: s.recv(1)
except ConnectionResetError: pass
print('ended',flush=True)
def unknown():
 global last
 try: socket.create_connection((ip,7000),2).close()
 except OSError as e:
  last=e
  return e.errno==errno.EHOSTUNREACH
within(5,'EHOSTUNREACH',unknown)
print('unknown',flush=True)";
/// Reads the hosts file again and again; every state of it must be whole. In one read(2): who reads on at the old end of a file
/// that has grown meanwhile gets the end of a line.
const READER: &str = "import os,socket,sys
own=sys.argv[1]
print('reading',flush=True)
while 1:
 fd=os.open('/etc/hosts',os.O_RDONLY)
 text=os.read(fd,65536).decode()
 os.close(fd)
 whole=text.count('# BEGIN rlark')==text.count('# END rlark')==1 and own in text and 'localhost' in text
 if not whole: print('TORN',repr(text),flush=True)
 if socket.gethostbyname(own)!=sys.argv[2]: print('WRONG',flush=True)";

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Its end, or that it has ended, is all that is wanted.
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// A program whose words are kept in a file of the lab.
fn spawn(
    p: &Product,
    name: &str,
    mut c: Command,
) -> Result<(Ended, impl Fn() -> Result<String> + use<>)> {
    let log = p.lab.dir().join(name);
    let file = File::create(&log)?;
    let child = Ended(c.stdout(file.try_clone()?).stderr(file).spawn()?);
    Ok((child, move || Ok(std::fs::read_to_string(&log)?)))
}

fn serving_job() -> String {
    format!(
        "apiVersion: rlinf.io/v1alpha1\nkind: Job\nmetadata: {{name: m}}\nspec:\n  domain: d\n  tasks:\n  - {{name: s, role: Actor, agentType: Raw, nodeSelector: {{site: cloud}}, raw: {{entrypoint: [{PYTHON}, -c, \"{PEER}\"]}}}}\n"
    )
}

#[test]
fn a_pod_made_again_is_reached_at_once() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let run = |p: &mut Product| -> Result<()> {
        let job = test_e2e::idle_job("j", "d", &[("near", "cloud"), ("far", "edge")]);
        p.apply(&(test_e2e::domain("d", V4) + &job))?;
        test_e2e::phase(p, "j", "Running", LIMIT)?;
        let clients = [pod(p, 0, "j-near-0")?, pod(p, 1, "j-far-0")?];
        let own = "j-near-0.rlark-domain";
        let reader = clients[0].command([PYTHON, "-c", READER, own, &clients[0].vip]);
        let (_reader, read) = spawn(p, "reader", reader)?;
        for round in 0..3 {
            p.apply(&serving_job())?;
            test_e2e::phase(p, "m", "Running", LIMIT)?;
            let name = "m-s-0.rlark-domain";
            let mut asking = Vec::new();
            for (n, client) in clients.iter().enumerate() {
                let c = client.command([PYTHON, "-c", CLIENT, name]);
                asking.push(spawn(p, &format!("client-{round}-{n}"), c)?);
            }
            for (child, said) in &mut asking {
                eventually("an answer", Duration::from_secs(5), || {
                    let said = said()?;
                    ensure!(child.0.try_wait()?.is_none(), "round {round}: {said}");
                    Ok(said.contains("answered").then_some(()))
                })?;
            }
            output(&mut p.kubectl(["delete", "rljob", "m"]))?;
            for (child, said) in &mut asking {
                let status = eventually("the client to end", LIMIT, || Ok(child.0.try_wait()?))?;
                ensure!(status.success() && said()?.contains("unknown"), "{}", said()?);
            }
        }
        let torn = read()?;
        ensure!(torn.trim() == "reading", "{torn}");
        let hosts = stdout(&mut clients[1].command(["cat", "/etc/hosts"]))?;
        ensure!(!hosts.contains("m-s-0"), "{hosts}");
        p.alive()
    };
    run(&mut p).map_err(|e| p.explain(e))
}
