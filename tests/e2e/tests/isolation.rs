//! What a task and a machine's credential must not be able to do.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use test_kit::{
    pod::RunningPod,
    process::wrapped,
    product::{Machine, Product},
    sites::HUB,
    wait::eventually,
};

const LIMIT: Duration = Duration::from_secs(40);
const PYTHON: &str = "/usr/bin/python3";

fn pod(p: &Product, machine: usize, name: &str) -> Result<RunningPod> {
    eventually(name, LIMIT, || Ok(p.pod(machine, name).ok()))
}

fn python(pod: &RunningPod, code: &str) -> Result<String> {
    let out = pod.command([PYTHON, "-c", code]).output()?;
    Ok(String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
}

/// The Kubernetes API with a machine's own certificate.
fn api(m: &Machine, program: &str, words: &[&str]) -> Result<(bool, String)> {
    let id = m.dir.join(program).join("identity");
    let file = |part: &str| -> String { id.join(format!("{part}.pem")).display().to_string() };
    let mut c: Command = wrapped(Some(&m.place.netns), None, "curl".as_ref());
    c.args([
        "-sS",
        "-m",
        "10",
        "--cert",
        &file("cert"),
        "--key",
        &file("key"),
        "--cacert",
        &file("ca"),
    ]);
    c.args(["-o", "/dev/stdout", "-w", "\n%{http_code}"]).args(words);
    let out = c.output()?;
    let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    let code = said.trim().rsplit('\n').next().unwrap_or_default().to_owned();
    Ok((code.starts_with('2'), said))
}

#[test]
fn domains_with_the_same_addresses_do_not_see_each_other() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let run = |p: &mut Product| -> Result<()> {
        for name in ["dx", "dy"] {
            let tasks = [("a", "cloud"), ("b", "edge")];
            p.apply(
                &(test_e2e::domain(name, "10.98.0.0/24") + &test_e2e::idle_job(name, name, &tasks)),
            )?;
            pod(p, 0, &format!("{name}-a-0"))?;
            pod(p, 1, &format!("{name}-b-0"))?;
        }
        let serve = |pod: &RunningPod, text: &str| {
            let code = format!(
                "import socket\ns=socket.create_server(('0.0.0.0',7000))\nprint('up',flush=True)\nwhile 1:\n c,_=s.accept()\n c.sendall(b'{text}')\n c.close()"
            );
            pod.command([PYTHON, "-c", &code]).stdout(std::process::Stdio::null()).spawn()
        };
        let (xa, ya) = (pod(p, 0, "dx-a-0")?, pod(p, 0, "dy-a-0")?);
        let mut servers = [serve(&xa, "of-x")?, serve(&ya, "of-y")?];
        let result = (|| {
            for (client, server, want) in [("dx-b-0", &xa, "of-x"), ("dy-b-0", &ya, "of-y")] {
                let client = pod(p, 1, client)?;
                let code = format!(
                    "import socket\nprint(socket.create_connection(('{}',7000),5).recv(10))",
                    server.vip
                );
                eventually(want, Duration::from_secs(10), || {
                    Ok(python(&client, &code)?.contains(want).then_some(()))
                })?;
            }
            Ok(())
        })();
        for s in &mut servers {
            s.kill()?;
            s.wait()?;
        }
        result
    };
    run(&mut p).map_err(|e| p.explain(e))
}

#[test]
fn a_task_cannot_pose_as_a_peer_nor_reach_what_runs_it() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let run = |p: &mut Product| -> Result<()> {
        let tasks = [("a", "cloud"), ("b", "edge"), ("c", "edge")];
        p.apply(&(test_e2e::domain("d", "10.98.0.0/24") + &test_e2e::idle_job("j", "d", &tasks)))?;
        let (a, b, c) = (pod(p, 0, "j-a-0")?, pod(p, 1, "j-b-0")?, pod(p, 1, "j-c-0")?);
        let code = "import socket\ns=socket.create_server(('0.0.0.0',7000))\nwhile 1:\n c,f=s.accept()\n c.sendall(f[0].encode())\n c.close()";
        let mut server = a.command([PYTHON, "-c", code]).spawn()?;
        let result = (|| {
            let honest = format!(
                "import socket\nprint(socket.create_connection(('{}',7000),5).recv(20))",
                a.vip
            );
            eventually("an answer", Duration::from_secs(10), || {
                Ok(python(&b, &honest)?.contains(&b.vip).then_some(()))
            })?;
            for option in ["", "s.setsockopt(0,15,1)", "s.setsockopt(0,19,1)"] {
                let spoof = format!(
                    "import socket\ns=socket.socket()\ns.settimeout(3)\n{option}\ns.bind(('{}',0))\ns.connect(('{}',7000))\nprint('GOT',s.recv(20))",
                    c.vip, a.vip
                );
                let said = python(&b, &spoof)?;
                ensure!(!said.contains(&format!("GOT b'{}", c.vip)), "{option}: {said}");
            }
            let lab = p.lab.dir().display();
            let look = format!(
                "import os\nfor d in ('{lab}','/run/rlark/netns','/var/lib/rlark'):\n print(d, os.listdir(d) if os.path.isdir(d) else None)\nprint(os.path.exists('{}'))",
                p.machines[1].dir.join("node.sock").display()
            );
            let said = python(&b, &look)?;
            ensure!(
                !said.contains("node.sock") && !said.contains("token") && said.contains("False"),
                "{said}"
            );
            // What of the machine is not a task's: passwords, keys, disks.
            let look = "import os,stat\nfor p in ('/etc/shadow','/etc/gshadow'):\n print(p, os.path.exists(p) and len(open(p,'rb').read()))\nprint(os.listdir('/root/.ssh') if os.path.isdir('/root/.ssh') else [])\nprint([n for n in os.listdir('/dev') if stat.S_ISBLK(os.stat('/dev/'+n).st_mode)])\nprint(len(open('/etc/passwd').read()) > 0)";
            let said = python(&b, look)?;
            let lines: Vec<&str> = said.lines().collect();
            let nothing = |line: Option<&&str>| {
                line.is_some_and(|l| l.ends_with(" 0") || l.ends_with(" False") || **l == *"[]")
            };
            ensure!(
                (0..4).all(|n| nothing(lines.get(n))) && lines.get(4) == Some(&"True"),
                "{said}"
            );
            Ok(())
        })();
        server.kill()?;
        server.wait()?;
        result
    };
    run(&mut p).map_err(|e| p.explain(e))
}

#[test]
fn a_machines_credential_ends_at_its_site() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let run = |p: &mut Product| -> Result<()> {
        p.apply(
            &(test_e2e::domain("d", "10.98.0.0/24")
                + &test_e2e::idle_job("j", "d", &[("a", "cloud")])),
        )?;
        p.apply(&test_e2e::domain("secret", "10.99.0.0/24"))?;
        pod(p, 0, "j-a-0")?;
        let url = |path: &str| format!("https://{HUB}:8443{path}");
        let edge = p.machines.get(1).context("edge")?;
        let group = "/apis/rlinf.io/v1alpha1";
        let own = url(&format!("{group}/namespaces/rlark-edge/pods"));
        let (ok, said) = api(edge, "rlark-agent", &[&own])?;
        ensure!(ok, "its own pods: {said}");
        for path in [
            format!("{group}/namespaces/rlark-cloud/pods"),
            format!("{group}/pods"),
            format!("{group}/domains"),
            "/api/v1/namespaces/rlark-system/secrets".to_owned(),
            "/api/v1/namespaces/rlark-edge/secrets".to_owned(),
        ] {
            for program in ["rlark-agent", "rlark-node"] {
                let (ok, said) = api(edge, program, &[&url(&path)])?;
                ensure!(!ok && said.ends_with("403"), "{program} {path}: {said}");
            }
        }
        // Of a Pod the API server takes what its Task implies, and a Task is not the agent's to make:
        // so no agent gives itself an address in a Domain.
        let json = "content-type: application/json";
        let forged = "{\"apiVersion\":\"rlinf.io/v1alpha1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"forged\",\"namespace\":\"rlark-edge\"},\"spec\":{\"domain\":\"secret\",\"taskNamespace\":\"rlark-edge\",\"taskName\":\"none\",\"podNamespace\":\"rlark-system\",\"podName\":\"forged-0\"}}";
        let (ok, said) = api(edge, "rlark-agent", &["-X", "POST", "-H", json, "-d", forged, &own])?;
        ensure!(!ok && said.contains("spec.taskName") && said.ends_with("403"), "{said}");
        let cloud = p.machines.first().context("cloud")?;
        let merge = "content-type: application/merge-patch+json";
        for (field, change) in [
            ("spec.domain", "{\"spec\":{\"domain\":\"secret\"}}"),
            ("metadata.labels", "{\"metadata\":{\"labels\":{\"rlinf.io/job\":\"other\"}}}"),
        ] {
            let task = url(&format!("{group}/namespaces/rlark-cloud/tasks/j-a"));
            let words = ["-X", "PATCH", "-H", merge, "-d", change, &task];
            let (ok, said) = api(cloud, "rlark-agent", &words)?;
            ensure!(!ok && said.contains(field) && said.ends_with("403"), "{field}: {said}");
        }
        let domain = p.get("rldomain secret")?.to_string();
        ensure!(!domain.contains("forged"), "{domain}");
        for entry in fs::read_dir("/proc")?.flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            ensure!(
                !String::from_utf8_lossy(&line).contains("rlark1."),
                "a token in {:?}",
                entry.path()
            );
        }
        Ok(())
    };
    run(&mut p).map_err(|e| p.explain(e))
}

#[test]
fn a_relay_ticket_opens_one_connection_and_no_second() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let run = |p: &mut Product| -> Result<()> {
        let tasks = [("a", "cloud"), ("b", "edge")];
        p.apply(&(test_e2e::domain("d", "10.98.0.0/24") + &test_e2e::idle_job("j", "d", &tasks)))?;
        pod(p, 0, "j-a-0")?;
        pod(p, 1, "j-b-0")?;
        let edge = p.machines.get(1).context("edge")?;
        let ask = "{\"domain\":\"d\",\"peer\":\"cloud/gpu-1\",\"lane\":\"interactive\"}";
        let url = format!("https://{HUB}:8443/hub/v1/carriers");
        let json = "content-type: application/json";
        let (ok, said) = api(edge, "rlark-node", &["-X", "POST", "-H", json, "-d", ask, &url])?;
        let ticket = said.split('"').find(|w| w.len() == 64).unwrap_or_default();
        ensure!(ok && !ticket.is_empty(), "no ticket: {said}");
        let (ok, said) =
            api(edge, "rlark-agent", &["--http1.1", "-X", "POST", "-H", json, "-d", ask, &url])?;
        ensure!(!ok && said.ends_with("403"), "an agent's: {said}");
        let code = format!(
            "import socket\ndef show(t):\n s=socket.create_connection(('{HUB}',7443),5)\n s.sendall(b'RLARK-RELAY/1 '+t+b'\\n')\n try: return s,s.recv(7)\n except OSError as e: return s,b'REFUSED'\nt=b'{ticket}'\na,x=show(t)\nb,y=show(t)\na.close()\nc,z=show(t)\nd,w=show(b'0'*64)\nprint(x,y,z,w)"
        );
        let mut c = wrapped(Some(&edge.place.netns), None, PYTHON.as_ref());
        let out = c.args(["-c", &code]).output()?;
        let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        ensure!(said.trim() == "b'PAIRED\\n' b'' b'' b''", "{said}");
        p.alive()
    };
    run(&mut p).map_err(|e| p.explain(e))
}
