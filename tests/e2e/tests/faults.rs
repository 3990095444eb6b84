//! Programs are killed; tasks and the flows of the direct path do not notice, the others hear of it
//! at once and go on when it is over.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use test_kit::{
    process::Process,
    product::{Product, text},
    wait::{eventually, pause},
};

const PYTHON: &str = "/usr/bin/python3";
/// When to give up on the first answers.
const LIMIT: Duration = Duration::from_secs(40);

/// A server in the cloud, `near` beside it and `far` at the edge, each pinging it.
fn pinging(p: &mut Product, patience: u32) -> Result<()> {
    let script = test_e2e::probe(p, "steady.py")?;
    let mut job = test_e2e::domain("d", "10.98.0.0/24");
    job += "apiVersion: rlinf.io/v1alpha1\nkind: Job\nmetadata: {name: j}\nspec:\n  domain: d\n  tasks:\n";
    for (name, site, words) in [
        ("server", "cloud", "serve, \"7000\"".to_owned()),
        ("near", "cloud", format!("ping, j-server-0.rlark-domain, \"7000\", \"{patience}\"")),
        ("far", "edge", format!("ping, j-server-0.rlark-domain, \"7000\", \"{patience}\"")),
    ] {
        job += &format!(
            "  - {{name: {name}, role: Actor, agentType: Raw, nodeSelector: {{site: {site}}}, raw: {{entrypoint: [{PYTHON}, {script}, {words}]}}}}\n"
        );
    }
    p.apply(&job)?;
    for task in ["near", "far"] {
        pongs(p, task, 2, LIMIT)?;
    }
    Ok(())
}

fn machine(task: &str) -> usize {
    usize::from(task == "far")
}

/// What a task has said, read where the agent keeps it: the server may be away.
fn said(p: &Product, task: &str) -> Result<Vec<String>> {
    let pods = p.machines.get(machine(task)).context("machine")?.dir.join("rlark-agent/pods");
    for pod in fs::read_dir(pods)?.flatten() {
        let record = fs::read_to_string(pod.path().join("pod.json"))?;
        if !record.contains(&format!("\"j-{task}-0\"")) {
            continue;
        }
        let mut logs: Vec<_> =
            fs::read_dir(pod.path().join("logs"))?.flatten().map(|e| e.path()).collect();
        logs.sort();
        let all = logs.iter().map(fs::read_to_string).collect::<std::io::Result<Vec<_>>>()?;
        return Ok(all.concat().lines().map(ToOwned::to_owned).collect());
    }
    Ok(vec![])
}

fn count(p: &Product, task: &str, word: &str) -> Result<usize> {
    Ok(said(p, task)?.iter().filter(|l| l.contains(word)).count())
}

/// Waits for more successful round trips than there are now.
fn pongs(p: &Product, task: &str, more: usize, limit: Duration) -> Result<()> {
    let before = count(p, task, "PONG").unwrap_or(0);
    let wait = eventually(&format!("{task} to get answers"), limit, || {
        Ok((count(p, task, "PONG").unwrap_or(0) >= before + more).then_some(()))
    });
    wait.with_context(|| said(p, task).unwrap_or_default().join("\n"))
}

fn test(patience: u32, run: impl FnOnce(&mut Product) -> Result<()>) -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let result = pinging(&mut p, patience).and_then(|()| run(&mut p));
    result.map_err(|e| p.explain(e))
}

#[test]
fn a_killed_node_resets_relayed_flows_at_once_and_its_successor_carries_new_ones() -> Result<()> {
    // More patience than the limit for the break: only the flow's end can be what the ping sees.
    test(60, |p| {
        for at in [1, 0] {
            let (near, far) = (count(p, "near", "BROKEN")?, count(p, "far", "BROKEN")?);
            p.machines[at].node.kill()?;
            let killed = Instant::now();
            let broken = |p: &Product| {
                eventually("the relayed flow to break", Duration::from_secs(5), || {
                    Ok((count(p, "far", "BROKEN")? > far).then_some(()))
                })
            };
            // The far end's node cannot tell a dead peer from a cut network; its successor says it.
            if at == machine("far") {
                broken(p)?;
            }
            let links = p.pod(at, if at == 0 { "j-server-0" } else { "j-far-0" })?;
            let shown = test_kit::command::stdout(
                &mut links.command(["ip", "-br", "addr", "show", "rl0"]),
            )?;
            ensure!(shown.contains("10.98.0."), "rl0 is gone: {shown}");
            pause(Duration::from_secs(1)); // somebody notices and starts it again
            p.start_node(at)?;
            broken(p)?;
            pongs(p, "far", 1, Duration::from_secs(10))?;
            ensure!(count(p, "near", "BROKEN")? == near, "the direct flow broke");
            pongs(p, "near", 1, Duration::from_secs(3))?;
            ensure!(killed.elapsed() < Duration::from_secs(12), "{:?}", killed.elapsed());
        }
        p.alive()
    })
}

#[test]
fn a_killed_agent_takes_no_task_with_it() -> Result<()> {
    test(5, |p| {
        let pid = p.pod(1, "j-far-0")?.pid;
        for both in [false, true] {
            p.machines[1].agent.kill()?;
            if both {
                p.machines[1].node.kill()?;
            }
            pause(Duration::from_millis(500));
            if both {
                p.start_node(1)?;
            }
            p.start_agent(1)?;
            pongs(p, "far", 2, Duration::from_secs(15))?;
            ensure!(p.pod(1, "j-far-0")?.pid == pid, "the task was started again");
            eventually("logs to be served again", Duration::from_secs(15), || {
                Ok(p.logs("j").is_ok_and(|l| l.contains("far") && l.contains("PONG")).then_some(()))
            })?;
            let pods = p.get("rlpod -A")?;
            let n = pods.pointer("/items").and_then(|v| v.as_array()).map_or(0, Vec::len);
            ensure!(n == 3, "{n} Pod objects");
        }
        p.alive()
    })
}

#[test]
fn a_task_that_ends_while_the_server_is_away_is_reported_later() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let run = |p: &mut Product| -> Result<()> {
        p.apply("apiVersion: rlinf.io/v1alpha1\nkind: Job\nmetadata: {name: j}\nspec:\n  tasks: [{name: a, role: Actor, agentType: Raw, nodeSelector: {site: edge}, raw: {entrypoint: [sh, -c, \"echo begun; sleep 4; echo done\"]}}]\n")?;
        test_e2e::phase(p, "j", "Running", Duration::from_secs(30))?;
        p.server.as_mut().context("server")?.kill()?;
        pause(Duration::from_secs(6));
        p.start_server()?;
        test_e2e::phase(p, "j", "Succeeded", Duration::from_secs(20))?;
        ensure!(p.logs("j")?.contains("done"));
        Ok(())
    };
    run(&mut p).map_err(|e| p.explain(e))
}

#[test]
fn machines_that_start_before_the_server_enrol_when_it_comes() -> Result<()> {
    let mut p = test_e2e::server()?;
    let run = |p: &mut Product| -> Result<()> {
        p.join("cloud", "gpu-1", &[("site", "cloud")])?;
        p.join("edge", "robot-1", &[("site", "edge")])?;
        for m in &mut p.machines {
            m.node.kill()?;
            m.agent.kill()?;
        }
        p.server.as_mut().context("server")?.kill()?;
        // The agent first, its node later, the server last.
        p.start_agent(0)?;
        p.start_node(1)?;
        pause(Duration::from_secs(2));
        p.start_server()?;
        p.start_agent(1)?;
        p.apply(
            &(test_e2e::domain("d", "10.98.0.0/24")
                + &test_e2e::idle_job("j", "d", &[("a", "cloud"), ("b", "edge")])),
        )?;
        eventually("the Task to wait for its node", Duration::from_secs(30), || {
            let task = p.get("task j-a -n rlark-cloud");
            Ok(task.is_ok_and(|t| text(&t, "/status/message").contains("rlark-node")).then_some(()))
        })?;
        p.start_node(0)?;
        for task in [(0, "j-a-0"), (1, "j-b-0")] {
            eventually(task.1, Duration::from_secs(30), || Ok(p.pod(task.0, task.1).ok()))?;
        }
        p.alive()
    };
    run(&mut p).map_err(|e| p.explain(e))
}

#[test]
fn programs_stop_in_any_order_and_leave_nothing() -> Result<()> {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut p = test_e2e::two_sites()?;
        let run = |p: &mut Product| -> Result<()> {
            pinging(p, 2)?;
            let limit = Duration::from_secs(15);
            for what in order {
                match what {
                    0 => p.server.as_mut().context("server")?.stop(limit)?,
                    1 => {
                        p.machines.iter_mut().try_for_each(|m| Process::stop(&mut m.node, limit))?
                    }
                    _ => p
                        .machines
                        .iter_mut()
                        .try_for_each(|m| Process::stop(&mut m.agent, limit))?,
                }
            }
            for m in &p.machines {
                test_e2e::clean(m)?;
            }
            Ok(())
        };
        run(&mut p).map_err(|e| p.explain(e).context(format!("order {order:?}")))?;
    }
    Ok(())
}
