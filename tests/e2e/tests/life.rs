//! Jobs through their lives: stopped and started, failed, repeated, many, waiting for a machine.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use test_kit::{
    command::{output, stdout},
    product::{Product, text},
    wait::eventually,
};

const LIMIT: Duration = Duration::from_secs(40);

fn test(run: impl FnOnce(&mut Product) -> Result<()>) -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let result = run(&mut p);
    result.map_err(|e| p.explain(e))
}

fn one(name: &str, entrypoint: &str, more: &str) -> String {
    format!(
        "apiVersion: rlinf.io/v1alpha1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  tasks: [{{name: a, role: Actor, agentType: Raw, nodeSelector: {{site: cloud}}, raw: {{entrypoint: [sh, -c, {entrypoint:?}]{more}}}}}]\n"
    )
}

fn kubectl(p: &Product, words: &[&str]) -> Result<()> {
    output(&mut p.kubectl(words.iter().copied())).map(drop)
}

fn items(p: &Product, words: &str) -> Result<Vec<Value>> {
    let all = p.get(words)?;
    Ok(all.pointer("/items").and_then(Value::as_array).cloned().unwrap_or_default())
}

#[test]
fn a_job_is_stopped_started_deleted_and_made_again_under_its_name() -> Result<()> {
    test(|p| {
        let manifest = test_e2e::domain("d", "10.98.0.0/24")
            + &test_e2e::idle_job("j", "d", &[("a", "cloud"), ("b", "edge")]);
        p.apply(&manifest)?;
        let pod = |p: &Product| {
            eventually("the pod", LIMIT, || {
                Ok(p.pod(1, "j-b-0").ok().filter(|b| !b.vip.is_empty()))
            })
        };
        let first = pod(p)?;
        kubectl(
            p,
            &["patch", "rljob", "j", "--type=merge", "-p", "{\"spec\":{\"stopped\":true}}"],
        )?;
        test_e2e::phase(p, "j", "Stopped", LIMIT)?;
        ensure!(p.pod(1, "j-b-0").is_err(), "the pod of a stopped Job runs");
        kubectl(
            p,
            &["patch", "rljob", "j", "--type=merge", "-p", "{\"spec\":{\"stopped\":false}}"],
        )?;
        let second = pod(p)?;
        ensure!(second.uid != first.uid, "not a fresh run");
        kubectl(p, &["delete", "rljob", "j"])?;
        p.apply(&manifest)?;
        eventually("the new run", LIMIT, || {
            Ok(p.pod(1, "j-b-0").ok().filter(|b| b.uid != second.uid).map(drop))
        })?;
        eventually("one Pod object per task", LIMIT, || {
            Ok((items(p, "rlpod -A")?.len() == 2).then_some(()))
        })?;
        let domain = p.get("rldomain d")?;
        let n =
            domain.pointer("/status/ipAllocations").and_then(Value::as_array).map_or(0, Vec::len);
        ensure!(n == 2, "{n} allocations");
        p.alive()
    })
}

#[test]
fn the_restart_annotation_runs_a_job_anew_once_also_when_it_is_over() -> Result<()> {
    test(|p| {
        let long = test_e2e::idle_job("j", "", &[("a", "cloud"), ("b", "edge")]);
        p.apply(&(long + "---\n" + &one("t", "echo a run", "")))?;
        let uid = |p: &Product, task: &str| -> Result<String> {
            let tasks = items(p, "task -A")?;
            let task = tasks.iter().find(|t| text(t, "/metadata/name") == task);
            Ok(text(task.unwrap_or(&Value::Null), "/metadata/uid").to_owned())
        };
        let restart = |p: &Product, job: &str, at: &str| {
            let at = format!("rlark.io/restarted-at={at}");
            kubectl(p, &["annotate", "--overwrite", "rljob", job, &at])
        };
        let pod = |at, name: &str| eventually(name, LIMIT, || Ok(p.pod(at, name).ok()));
        let first = [pod(0, "j-a-0")?.uid, pod(1, "j-b-0")?.uid];
        test_e2e::phase(p, "j", "Running", LIMIT)?;
        test_e2e::phase(p, "t", "Succeeded", LIMIT)?;
        let over = uid(p, "t-a")?;
        for job in ["j", "t"] {
            restart(p, job, "2026-07-01T00:00:00Z")?;
        }
        let fresh = |p: &Product| -> Result<Option<[String; 2]>> {
            let (Ok(a), Ok(b)) = (p.pod(0, "j-a-0"), p.pod(1, "j-b-0")) else { return Ok(None) };
            Ok((a.uid != first[0] && b.uid != first[1]).then_some([a.uid, b.uid]))
        };
        let second = eventually("both tasks to run anew", LIMIT, || fresh(p))?;
        test_e2e::phase(p, "j", "Running", LIMIT)?;
        eventually("the finished Job to run anew", LIMIT, || {
            let now = uid(p, "t-a")?;
            Ok((!now.is_empty() && now != over).then_some(()))
        })?;
        test_e2e::phase(p, "t", "Succeeded", LIMIT)?;
        // What was asked once is done once, whatever else is edited.
        restart(p, "j", "2026-07-01T00:00:00Z")?;
        kubectl(p, &["label", "rljob", "j", "team=a"])?;
        test_kit::wait::pause(Duration::from_secs(1)); // a restart would begin within moments
        ensure!(fresh(p)?.as_ref() == Some(&second), "restarted again");
        eventually("one Pod object per task", LIMIT, || {
            Ok((items(p, "rlpod -A")?.len() == 3).then_some(()))
        })?;
        p.alive()
    })
}

#[test]
fn names_follow_the_pods_within_a_second() -> Result<()> {
    test(|p| {
        p.apply(
            &(test_e2e::domain("d", "10.98.0.0/24")
                + &test_e2e::idle_job("j", "d", &[("a", "cloud")])),
        )?;
        let a = eventually("the pod", LIMIT, || Ok(p.pod(0, "j-a-0").ok()))?;
        let hosts = || -> Result<String> { stdout(&mut a.command(["cat", "/etc/hosts"])) };
        ensure!(hosts()?.contains("j-a-0.rlark-domain"), "own name: {}", hosts()?);
        p.apply(&test_e2e::idle_job("k", "d", &[("b", "edge")]))?;
        let b = eventually("the pod", LIMIT, || Ok(p.pod(1, "k-b-0").ok()))?;
        let second = Duration::from_secs(1);
        eventually("the late peer's name", second, || {
            Ok(hosts()?.contains("k-b-0.rlark-domain").then_some(()))
        })?;
        ensure!(stdout(&mut b.command(["cat", "/etc/hosts"]))?.contains("j-a-0.rlark-domain"));
        kubectl(p, &["delete", "rljob", "k"])?;
        eventually("the name to go", Duration::from_secs(3), || {
            Ok((!hosts()?.contains("k-b-0")).then_some(()))
        })
    })
}

#[test]
fn a_task_that_fails_is_tried_again_as_often_as_it_says() -> Result<()> {
    test(|p| {
        p.apply(&one("f", "echo attempt; exit 1", ", restartPolicy: OnFailure, backoffLimit: 1"))?;
        p.apply(&one("k", "kill -9 $$", ", restartPolicy: Never"))?;
        test_e2e::phase(p, "k", "Failed", LIMIT)?;
        test_e2e::phase(p, "f", "Failed", LIMIT)?;
        let tasks = items(p, "task -A")?;
        let killed = tasks.iter().find(|t| text(t, "/metadata/name") == "k-a").context("task")?;
        let message = text(killed, "/status/message");
        ensure!(
            message.contains("137") || message.contains("signal 9") || message.contains("SIGKILL"),
            "{message}"
        );
        Ok(())
    })
}

#[test]
fn following_the_logs_of_a_job_that_ends_ends_with_all_of_them() -> Result<()> {
    test(|p| {
        p.apply(&one("l", "sleep 1; seq 1 400000; echo the-end", ""))?;
        test_e2e::phase(p, "l", "Running", LIMIT)?;
        let mut c = p.rlark(["logs", "-f", "job/l"]);
        let out = output(&mut c)?;
        let text = String::from_utf8_lossy(&out.stdout);
        ensure!(text.contains("the-end"), "the end is missing: {} bytes", text.len());
        test_e2e::phase(p, "l", "Succeeded", LIMIT)
    })
}

#[test]
fn twenty_tasks_run_and_succeed() -> Result<()> {
    test(|p| {
        let mut job = test_e2e::domain("d", "10.98.0.0/24");
        job += "apiVersion: rlinf.io/v1alpha1\nkind: Job\nmetadata: {name: m}\nspec:\n  domain: d\n  tasks:\n";
        for n in 0..20 {
            let site = if n % 2 == 0 { "cloud" } else { "edge" };
            job += &format!(
                "  - {{name: t{n}, role: Actor, agentType: Raw, nodeSelector: {{site: {site}}}, raw: {{entrypoint: [sh, -c, \"grep -c rlark-domain /etc/hosts\"]}}}}\n"
            );
        }
        p.apply(&job)?;
        test_e2e::phase(p, "m", "Succeeded", Duration::from_secs(60))
    })
}

#[test]
fn a_job_waits_for_a_machine_that_may_take_it() -> Result<()> {
    test(|p| {
        let job =
            test_e2e::idle_job("v", "", &[("a", "moon")]).replace("site: moon", "planet: moon");
        p.apply(&job)?;
        eventually("the Job to say why it waits", LIMIT, || {
            let job = p.get("rljob v")?;
            Ok(job.to_string().contains("Unschedulable").then_some(()))
        })?;
        // The agent owns the labels it was started with; another one is the person's.
        kubectl(p, &["label", "rlnode", "robot-1", "-n", "rlark-edge", "planet=moon"])?;
        eventually("the pod", LIMIT, || Ok(p.pod(1, "v-a-0").ok()))?;
        kubectl(
            p,
            &[
                "patch",
                "rlnode",
                "gpu-1",
                "-n",
                "rlark-cloud",
                "--type=merge",
                "-p",
                "{\"spec\":{\"unschedulable\":true}}",
            ],
        )?;
        p.apply(&test_e2e::idle_job("c", "", &[("a", "cloud")]))?;
        eventually("a cordoned machine to be left alone", LIMIT, || {
            Ok(p.get("rljob c")?.to_string().contains("Unschedulable").then_some(()))
        })?;
        kubectl(
            p,
            &[
                "patch",
                "rlnode",
                "gpu-1",
                "-n",
                "rlark-cloud",
                "--type=merge",
                "-p",
                "{\"spec\":{\"unschedulable\":false}}",
            ],
        )?;
        eventually("the pod", LIMIT, || Ok(p.pod(0, "c-a-0").ok())).map(drop)
    })
}
