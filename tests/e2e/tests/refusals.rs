//! Bad input gets a clear answer that names what is wrong, and nothing is lost.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use test_kit::{
    process::wrapped,
    product::{Product, text},
    sites::HUB,
    wait::eventually,
};

/// Runs a command that must fail; gives all it said.
fn refused(c: &mut Command) -> Result<String> {
    let out = c.output()?;
    let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    ensure!(!out.status.success(), "{c:?} succeeded: {said}");
    Ok(said)
}

fn holds(said: &str, all: &[&str]) -> Result<()> {
    for part in all {
        ensure!(said.contains(part), "{part:?} is missing in:\n{said}");
    }
    Ok(())
}

fn manifest(p: &Product, text: &str) -> Result<std::path::PathBuf> {
    let file = p.lab.dir().join("bad.yaml");
    fs::write(&file, text)?;
    Ok(file)
}

/// Waits until the object's conditions hold a text.
fn condition(p: &Product, words: &str, part: &str) -> Result<()> {
    eventually(&format!("{words} to say {part:?}"), Duration::from_secs(20), || {
        let object = p.get(words)?;
        let said = object.pointer("/status/conditions").map(ToString::to_string);
        Ok(said.unwrap_or_default().contains(part).then_some(()))
    })
}

#[test]
fn kubectl_is_told_what_is_wrong_with_a_manifest() -> Result<()> {
    let p = test_e2e::server()?;
    let unknown = "apiVersion: rlinf.io/v1alpha1\nkind: Domain\nmetadata: {name: d}\nspec: {cidr: 10.9.0.0/24, cidrr: x}\n";
    let file = manifest(&p, unknown)?;
    let said = refused(p.kubectl(["apply", "--validate=strict", "-f"]).arg(&file))?;
    holds(&said, &["unknown field", "cidrr"])?;
    let role = "apiVersion: rlinf.io/v1alpha1\nkind: Job\nmetadata: {name: j}\nspec: {tasks: [{name: a}]}\n";
    let file = manifest(&p, role)?;
    let said = refused(p.kubectl(["apply", "-f"]).arg(&file))?;
    holds(&said, &["role", "Required value"])
}

#[test]
fn conditions_say_why_a_domain_or_job_does_not_proceed() -> Result<()> {
    let p = test_e2e::server()?;
    p.apply("apiVersion: rlinf.io/v1alpha1\nkind: Domain\nmetadata: {name: bad}\nspec: {cidr: 10.9.0.0/33}\n")
        .or_else(|e| if format!("{e:#}").contains("cidr") { Ok(String::new()) } else { Err(e) })?;
    if p.get("rldomain bad").is_ok() {
        condition(&p, "rldomain bad", "InvalidCIDR")?;
    }
    let job = "apiVersion: rlinf.io/v1alpha1\nkind: Job\nmetadata: {name: j}\nspec:\n  domain: nowhere\n  tasks: [{name: a, role: Actor, agentType: Raw, raw: {entrypoint: [\"true\"]}}]\n";
    p.apply(job)?;
    condition(&p, "rljob j", "nowhere")?;
    p.apply("apiVersion: rlinf.io/v1alpha1\nkind: Domain\nmetadata: {name: nowhere}\nspec: {cidr: 10.9.1.0/24}\n")?;
    condition(&p, "rljob j", "Unschedulable")
}

#[test]
fn a_token_works_once_and_a_node_name_is_taken_once() -> Result<()> {
    let mut p = test_e2e::server()?;
    p.join("cloud", "gpu-1", &[])?;
    p.online()?;
    let machine = p.machines.first().context("one machine")?;
    let used = machine.dir.join("rlark-node.token");
    let run = |token: &std::path::Path, data: &str| -> Result<String> {
        let program = p.program("rlark-node");
        let mut c = wrapped(Some(&machine.place.netns), None, &program);
        c.arg(format!("--server=https://{HUB}:8443")).arg("--name=gpu-1");
        c.arg(format!("--token-file={}", token.display()));
        c.arg(format!("--data-dir={}", p.lab.dir().join(data).display()));
        c.arg(format!("--socket={}", p.lab.dir().join("other.sock").display()));
        c.arg(format!("--cgroup={}", machine.cgroup.display()));
        refused(&mut c)
    };
    holds(&run(&used, "d1")?, &["token"])?;
    let fresh = p.lab.dir().join("fresh.token");
    let args = ["token", "create", "--cluster", "cloud", "--uses", "1", "--quiet"];
    fs::write(&fresh, test_kit::command::stdout(&mut p.rlark(args))?)?;
    holds(&run(&fresh, "d2")?, &["cloud/gpu-1"])?;
    let gone = p.lab.dir().join("expired.token");
    let args = ["token", "create", "--cluster", "cloud", "--ttl", "1s", "--quiet"];
    fs::write(&gone, test_kit::command::stdout(&mut p.rlark(args))?)?;
    test_kit::wait::pause(Duration::from_millis(1500)); // the clock is the condition
    holds(&run(&gone, "d3")?, &["expired"])
}

#[test]
fn a_second_server_names_the_directory_or_port_it_cannot_have() -> Result<()> {
    let p = test_e2e::server()?;
    let server = p.program("rlark-server");
    let start = |data: &std::path::Path, port: u16| {
        let mut c = wrapped(Some(&p.internet.hub), None, &server);
        c.arg(format!("--data-dir={}", data.display()));
        c.arg(format!("--listen={HUB}:{port}")).arg(format!("--relay-listen={HUB}:{}", port + 1));
        refused(&mut c)
    };
    let data = p.lab.dir().join("server");
    holds(&start(&data, 9443)?, &[&data.display().to_string()])?;
    holds(&start(&p.lab.dir().join("server2"), 8443)?, &["8443"])
}

#[test]
fn a_missing_entrypoint_fails_the_job_with_its_name() -> Result<()> {
    let mut p = test_e2e::server()?;
    p.join("cloud", "gpu-1", &[])?;
    p.online()?;
    p.apply("apiVersion: rlinf.io/v1alpha1\nkind: Job\nmetadata: {name: j}\nspec:\n  tasks: [{name: a, role: Actor, agentType: Raw, raw: {entrypoint: [\"no-such-program\"]}}]\n")?;
    let wait = eventually("the Job to fail", Duration::from_secs(30), || {
        Ok((p.job_phase("j")? == "Failed").then_some(()))
    });
    wait.map_err(|e| p.explain(e))?;
    let tasks = p.get("task -A")?;
    holds(text(&tasks, "/items/0/status/message"), &["no-such-program"])
}

#[test]
fn programs_that_need_root_say_so() -> Result<()> {
    for program in ["rlark-node", "rlark-agent"] {
        let mut c = Command::new("setpriv");
        c.args(["--reuid", "65534", "--clear-groups", "--"]);
        c.arg(test_e2e::programs()?.join(program));
        c.args(["--server", "https://127.0.0.1:1", "--name", "x", "--data-dir", "/tmp/none"]);
        holds(&refused(&mut c)?, &["root"])?;
    }
    Ok(())
}
