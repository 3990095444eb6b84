//! `spec.raw.hostNetwork`: what a Task gets of it, and where it is refused.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use test_e2e::{PYTHON, domain, phase, pod};
use test_kit::{
    command::{output, stdout},
    pod::RunningPod,
    product::{Product, text},
    wait::eventually,
};

use super::{ASK, LIMIT, PORT, SERVE, ask_from};

/// Of the robot, as of the first machine of every site.
const MACHINE: &str = "192.168.1.10";
const ALLOW: &str = "--allow-host-network";
const TWIN_PORT: &str = "7001";
/// A connection that stays until it is killed.
const HOLD: &str = "import socket,sys,time
s=socket.create_connection((sys.argv[1],int(sys.argv[2])),10); print('connected',flush=True); time.sleep(600)";

fn job(name: &str, tasks: &Value) -> String {
    json!({
        "apiVersion": "rlinf.io/v1alpha1", "kind": "Job", "metadata": { "name": name },
        "spec": { "domain": "d", "tasks": tasks },
    })
    .to_string()
}

fn task(name: &str, selector: &Value, host_network: bool, port: &str) -> Value {
    json!({
        "name": name, "role": "Env", "agentType": "Raw", "nodeSelector": selector,
        "raw": { "hostNetwork": host_network, "entrypoint": [PYTHON, "-c", SERVE, port] },
    })
}

/// A site whose operator allows nothing, with the machine that is first by name, and one whose operator does.
fn sites() -> Result<Product> {
    let mut p = test_e2e::server()?;
    p.join("cloud", "gpu-1", &[("site", "cloud")])?;
    p.join_with_both("edge", "robot-1", &[("site", "edge")], &[], &[ALLOW])?;
    p.online()?;
    Ok(p)
}

#[test]
fn a_task_that_asks_for_the_machines_network_talks_with_its_domain() -> Result<()> {
    let mut p = sites()?;
    let run = |p: &mut Product| -> Result<()> {
        let told = stdout(&mut p.kubectl(["explain", "tasks.spec.raw.hostNetwork"]))?;
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(told.contains("on the network of the machine instead"), "{told}");
        // Where they may: nothing but the label leads them to the robot.
        let (anywhere, cloud) = (json!({}), json!({ "site": "cloud" }));
        let tasks = json!([
            task("host", &anywhere, true, PORT),
            task("twin", &anywhere, true, TWIN_PORT),
            task("far", &cloud, false, PORT),
        ]);
        p.apply(&(domain("d", "10.98.0.0/24") + &job("j", &tasks)))?;
        phase(p, "j", "Running", LIMIT)?;
        let far = pod(p, 0, "j-far-0")?;
        let (host, twin) = (pod(p, 1, "j-host-0")?, pod(p, 1, "j-twin-0")?);
        is_at_the_machine(p, &host)?;
        talk(&host, &twin, &far)?;
        flows(p, &host, &far)?;

        // The agent's crash is none of the task's.
        p.machines.get_mut(1).context("machine")?.agent.kill()?;
        p.start_agent(1)?;
        p.online()?;
        talk(&host, &twin, &far)?;
        ensure!(pod(p, 1, "j-host-0")?.pid == host.pid, "it was started again");

        // It is allowed no more. Stopped in order, an agent takes its tasks along; the next one makes none that it may not.
        p.machines.get_mut(1).context("machine")?.agent.stop(Duration::from_secs(20))?;
        p.start_agent_without(1, ALLOW)?;
        phase(p, "j", "Failed", LIMIT)?;
        for name in ["j-host", "j-twin"] {
            refused(p, "rlark-edge", name, "robot-1")?;
        }
        ensure!(pod(p, 0, "j-far-0")?.pid == far.pid, "the other site's was ended too");

        output(p.kubectl(["delete", "job", "j", "--wait=true"]).arg("--timeout=40s"))?;
        let m = p.machines.get(1).context("machine")?;
        eventually("nothing of the tasks to be left", LIMIT, || {
            let names = fs::read_dir(m.dir.join("run/netns"))?.count();
            let groups = [&host, &twin].iter().filter(|pod| pod.cgroup.exists()).count();
            Ok((names + groups == 0).then_some(()))
        })
    };
    run(&mut p).map_err(|e| p.explain(e))
}

/// In the machine's namespace and at its address, in the Pod, in the environment and in its hosts file.
fn is_at_the_machine(p: &Product, host: &RunningPod) -> Result<()> {
    let m = p.machines.get(1).context("machine")?;
    let links = stdout(&mut host.command(["ls", "/sys/class/net"]))?;
    ensure!(links.lines().any(|l| l == "rlark0"), "{links}");
    let name = |path: &std::path::Path| -> Result<u64> {
        use std::os::unix::fs::MetadataExt as _;
        Ok(fs::metadata(path).with_context(|| path.display().to_string())?.ino())
    };
    ensure!(name(&host.netns)? == name(m.place.netns.path())?);

    let node = p.get("rlnode robot-1 -n rlark-edge")?;
    let addresses = node.pointer("/status/addresses").and_then(Value::as_array);
    let internal = addresses.into_iter().flatten().find(|a| text(a, "/type") == "InternalIP");
    ensure!(internal.is_some_and(|a| text(a, "/address") == MACHINE), "{node}");
    let object = p.get(&format!("rlpod {} -n rlark-edge", host.uid))?;
    ensure!(text(&object, "/status/ip") == MACHINE, "{object}");
    ensure!(object.pointer("/status/ips") == Some(&json!([MACHINE])), "{object}");

    let environment = fs::read_to_string(format!("/proc/{}/environ", host.pid))?;
    let variable = |name: &str| {
        let mut all = environment.split('\0').filter_map(|v| v.split_once('='));
        all.find(|(n, _)| *n == name).map(|(_, value)| value)
    };
    ensure!(variable("POD_IP") == Some(MACHINE), "{:?}", variable("POD_IP"));
    ensure!(variable("RLARK_VIP") == Some(host.vip.as_str()), "{:?}", variable("RLARK_VIP"));
    ensure!(variable("GLOO_SOCKET_IFNAME").is_none() && variable("RLARK_DOMAIN") == Some("d"));
    let hosts = stdout(&mut host.command(["cat", "/etc/hosts"]))?;
    for line in [&format!("{MACHINE}\trobot-1"), "127.0.0.1\tlocalhost"] {
        ensure!(hosts.lines().any(|l| l == line), "{line:?} is not in {hosts}");
    }
    Ok(())
}

/// Each direction between the sites, with the names that both ends see; and the two on one machine.
fn talk(host: &RunningPod, twin: &RunningPod, far: &RunningPod) -> Result<()> {
    for (from, to, port) in [
        (host, far, PORT),
        (far, host, PORT),
        (far, twin, TWIN_PORT),
        (host, twin, TWIN_PORT),
        (twin, host, PORT),
    ] {
        let (own, peer) = (&from.vip, &to.vip);
        let ask = || ask_from(from, peer, port);
        let wanted = format!("{peer} {own} {own} {peer} q");
        eventually("the peer to know it", LIMIT, || Ok((ask()? == wanted).then_some(())))
            .with_context(|| format!("{own} to {peer} port {port}: {:?}", ask()))?;
    }
    // By name, either way.
    for (from, name) in [(host, "j-far-0.rlark-domain"), (far, "j-host-0.rlark-domain")] {
        let said = stdout(&mut from.command([PYTHON, "-c", ASK, name, PORT]))?;
        ensure!(said.trim().ends_with('q'), "{name}: {said}");
    }
    Ok(())
}

/// `rlark flows` shows a connection of either direction with both pods.
fn flows(p: &Product, host: &RunningPod, far: &RunningPod) -> Result<()> {
    for (from, to, of) in
        [(host, far, ["j-host-0", "j-far-0"]), (far, host, ["j-far-0", "j-host-0"])]
    {
        let mut hold = from.command([PYTHON, "-c", HOLD, to.vip.as_str(), PORT]);
        let mut hold = hold.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(hold.stdout.take().context("its output")?).read_line(&mut line)?;
        let mut shown = String::new();
        let listed = eventually("the flow to be shown", LIMIT, || {
            shown = stdout(&mut p.rlark(["flows"]))?;
            let is_it = |l: &str| {
                let at: Vec<_> = of.iter().map(|name| l.find(name)).collect();
                at.iter().all(Option::is_some) && at.is_sorted()
            };
            Ok(shown.lines().any(is_it).then_some(()))
        });
        hold.kill()?;
        hold.wait()?;
        listed.with_context(|| format!("{line}{shown}"))?;
    }
    Ok(())
}

#[test]
fn where_the_operator_does_not_allow_it_it_is_refused_at_once_and_says_so() -> Result<()> {
    let mut p = sites()?;
    let run = |p: &mut Product| -> Result<()> {
        let tasks = json!([task("host", &json!({ "site": "cloud" }), true, PORT)]);
        p.apply(&(domain("d", "10.98.0.0/24") + &job("j", &tasks)))?;
        phase(p, "j", "Failed", LIMIT)?;
        let why = refused(p, "rlark-cloud", "j-host", "gpu-1")?;
        let job = p.get("rljob j")?;
        ensure!(text(&job, "/status/tasks/0/message") == why, "{job}");
        ensure!(p.pod(0, "j-host-0").is_err(), "it runs");
        let pods = p.get("rlpod -n rlark-cloud")?;
        ensure!(pods.pointer("/items") == Some(&json!([])), "{pods}");
        Ok(())
    };
    run(&mut p).map_err(|e| p.explain(e))
}

/// Waits until a Task's status says so; how it says it.
fn refused(p: &Product, namespace: &str, name: &str, machine: &str) -> Result<String> {
    let why = format!(
        "spec.raw.hostNetwork: machine {machine} lets no task use its network, as its rlark-agent runs without {ALLOW}"
    );
    let mut task = Value::Null;
    let waiting = eventually("it to be refused", LIMIT, || {
        task = p.get(&format!("task {name} -n {namespace}"))?;
        let conditions = task.pointer("/status/conditions").and_then(Value::as_array);
        let reasons: Vec<_> =
            conditions.into_iter().flatten().map(|c| text(c, "/reason")).collect();
        let said =
            text(&task, "/status/phase") == "Failed" && text(&task, "/status/message") == why;
        Ok((said && reasons == ["HostNetworkForbidden"]).then_some(()))
    });
    waiting.with_context(|| task.to_string())?;
    Ok(why)
}
