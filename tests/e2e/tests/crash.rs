//! The server is killed in the middle of its work: what it acknowledged is there afterwards, and what
//! it had begun is brought to its end.

use std::{collections::BTreeSet, fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use test_kit::{
    command::{cmd, output, stdout},
    product::Product,
    wait::{eventually, pause},
};

const LIMIT: Duration = Duration::from_secs(40);
const OBJECTS: usize = 50;

fn manifest(round: &str) -> String {
    let object = |n: usize| {
        if n.is_multiple_of(2) {
            format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {round}-{n}}}\ndata: {{n: \"{n}\"}}\n---\n"
            )
        } else {
            test_e2e::domain(&format!("{round}-{n}"), &format!("10.{n}.0.0/24"))
        }
    };
    (0..OBJECTS).map(object).collect()
}

/// `KIND/NAME` of every object of the round that the server holds.
fn held(p: &Product, round: &str) -> Result<BTreeSet<String>> {
    let all = stdout(&mut p.kubectl(["get", "rldomain,configmap", "-o", "name"]))?;
    let all = all.lines().filter(|l| l.contains(&format!("/{round}-")));
    Ok(all.map(ToOwned::to_owned).collect())
}

/// Applies the round's objects, kills the server by `kill` once some are acknowledged, starts it
/// again, and holds what it has against what it had acknowledged.
fn killed_amid(
    p: &mut Product,
    round: &str,
    kill: impl FnOnce(&mut Product) -> Result<()>,
) -> Result<()> {
    let file = p.lab.dir().join(format!("{round}.yaml"));
    let log = p.lab.dir().join(format!("{round}.log"));
    fs::write(&file, manifest(round))?;
    let mut c = p.kubectl(["apply", "-f"]);
    let out = fs::File::create(&log)?;
    let mut apply = c.arg(&file).stdout(out.try_clone()?).stderr(out).spawn()?;
    let acknowledged = || -> Result<BTreeSet<String>> {
        let said = fs::read_to_string(&log)?;
        Ok(said.lines().filter_map(|l| l.strip_suffix(" created")).map(ToOwned::to_owned).collect())
    };
    let begun = eventually("some objects to be acknowledged", LIMIT, || {
        Ok((acknowledged()?.len() >= 10).then_some(()))
    });
    let killed = begun.and_then(|()| kill(p));
    // It would try the rest for minutes; what it has printed is what was acknowledged.
    apply.kill()?;
    apply.wait()?;
    killed?;
    let acknowledged = acknowledged()?;
    ensure!(acknowledged.len() < OBJECTS, "the server was killed too late");
    p.start_server()?;
    let there = held(p, round)?;
    let lost: Vec<_> = acknowledged.difference(&there).collect();
    ensure!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    // The one whose answer was cut off may be there.
    ensure!(there.len() <= acknowledged.len() + 1, "{there:?} of {acknowledged:?}");
    output(p.kubectl(["apply", "-f"]).arg(&file))?;
    let there = held(p, round)?.len();
    ensure!(there == OBJECTS, "{there} after the second apply");
    Ok(())
}

#[test]
fn a_server_killed_amid_an_apply_a_stop_or_a_jobs_end_loses_nothing() -> Result<()> {
    let mut p = test_e2e::server()?;
    let run = |p: &mut Product| -> Result<()> {
        killed_amid(p, "crash", |p| p.server.as_mut().context("server")?.kill())?;
        killed_amid(p, "stop", |p| {
            let server = p.server.as_mut().context("server")?;
            output(&mut cmd("kill", ["-TERM", &server.pid().to_string()]))?;
            pause(Duration::from_millis(20)); // into its shutting down
            server.kill()
        })?;
        p.join("cloud", "gpu-1", &[("site", "cloud")])?;
        p.online()?;
        let slow = "trap 'sleep 1; exit' TERM; while :; do sleep 0.1; done";
        let tasks = [("a", "cloud"), ("b", "cloud")];
        let job = test_e2e::idle_job("j", "", &tasks)
            .replace("[sleep, infinity]", &format!("[sh, -c, {slow:?}]"));
        p.apply(&job)?;
        test_e2e::phase(p, "j", "Running", LIMIT)?;
        let stop = "{\"spec\":{\"stopped\":true}}";
        output(&mut p.kubectl(["patch", "rljob", "j", "--type=merge", "-p", stop]))?;
        test_e2e::phase(p, "j", "Stopping", LIMIT)?;
        p.server.as_mut().context("server")?.kill()?;
        p.start_server()?;
        test_e2e::phase(p, "j", "Stopped", LIMIT)?;
        let left = stdout(&mut p.kubectl(["get", "task,rlpod", "-A", "-o", "name"]))?;
        ensure!(left.is_empty() && p.pod(0, "j-a-0").is_err(), "left: {left}");
        p.alive()
    };
    run(&mut p).map_err(|e| p.explain(e))
}
