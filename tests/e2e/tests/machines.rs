//! A site of two machines: tasks reach each other directly over its LAN, and a dead machine is seen.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use test_kit::{
    command::stdout,
    product::{Product, text},
    wait::eventually,
};

const LIMIT: Duration = Duration::from_secs(40);

fn phase_of(p: &Product, node: &str) -> Result<String> {
    let node = p.get(&format!("rlnode {node} -n rlark-cloud"))?;
    Ok(text(&node, "/status/phase").to_owned())
}

#[test]
fn two_machines_of_a_site_are_direct_to_each_other_and_die_alone() -> Result<()> {
    let mut p = test_e2e::server()?;
    let run = |p: &mut Product| -> Result<()> {
        p.join("cloud", "gpu-1", &[("site", "one")])?;
        p.join("cloud", "gpu-2", &[("site", "two")])?;
        p.online()?;
        let tasks = [("a", "one"), ("b", "two")];
        p.apply(&(test_e2e::domain("d", "10.98.0.0/24") + &test_e2e::idle_job("j", "d", &tasks)))?;
        let a = eventually("the pod", LIMIT, || Ok(p.pod(0, "j-a-0").ok()))?;
        let b = eventually("the pod", LIMIT, || Ok(p.pod(1, "j-b-0").ok()))?;
        let serve = "import socket\ns=socket.create_server(('0.0.0.0',7000))\nwhile 1:\n c,f=s.accept()\n c.sendall(f[0].encode())\n c.recv(1)";
        let mut server = a.command(["/usr/bin/python3", "-c", serve]).spawn()?;
        let connect = format!(
            "import socket,time\ns=socket.create_connection(('{}',7000),5)\nprint(s.recv(20),s.getpeername()[0],flush=True)\ntime.sleep(600)",
            a.vip
        );
        let log = p.lab.dir().join("client.log");
        let result = (|| {
            let mut client = eventually("a connection", Duration::from_secs(20), || {
                let out = std::fs::File::create(&log)?;
                let mut c = b.command(["/usr/bin/python3", "-c", &connect]);
                let mut child = c.stdout(out.try_clone()?).stderr(out).spawn()?;
                for _ in 0..100 {
                    if std::fs::read_to_string(&log)?.contains(&b.vip) {
                        return Ok(Some(child));
                    }
                    test_kit::wait::pause(Duration::from_millis(20));
                }
                child.kill()?;
                child.wait()?;
                Ok(None)
            })
            .with_context(|| {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let flows = stdout(&mut p.rlark(["flows", "--all"])).unwrap_or_default();
                let path = stdout(
                    &mut p.rlark(["doctor", "--from", "j-b-0", "--to", "j-a-0", "--port", "7000"]),
                );
                format!("{said}\n{flows}\n{path:?}")
            })?;
            ensure!(std::fs::read_to_string(&log)?.contains(&a.vip));
            let flows = stdout(&mut p.rlark(["flows"]));
            client.kill()?;
            client.wait()?;
            let flows = flows?;
            let line = flows.lines().find(|l| l.contains("j-b-0")).unwrap_or_default();
            ensure!(line.contains("direct"), "{flows}");
            Ok(())
        })();
        server.kill()?;
        server.wait()?;
        result?;
        p.machines[1].agent.kill()?;
        eventually("the dead machine to be Offline", Duration::from_secs(60), || {
            Ok((phase_of(p, "gpu-2")? == "Offline").then_some(()))
        })?;
        ensure!(phase_of(p, "gpu-1")? == "Online");
        p.start_agent(1)?;
        eventually("it to be Online again", LIMIT, || {
            Ok((phase_of(p, "gpu-2")? == "Online").then_some(()))
        })
    };
    run(&mut p).map_err(|e| p.explain(e))
}
