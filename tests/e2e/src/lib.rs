//! What every end-to-end test starts from; the tests are in `tests/`. They run the built programs,
//! so `cargo xtask test e2e` builds those first.

pub mod conformance;
pub mod load;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use test_kit::{
    command::{cmd, stdout},
    pod::RunningPod,
    process::wrapped,
    product::{Machine, Product},
    wait::eventually,
};

/// The machine's own, which every pod sees as well.
pub const PYTHON: &str = "/usr/bin/python3";

/// The directory of the built programs: these tests are built beside them.
pub fn programs() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let dir = exe.ancestors().nth(2).context("target/PROFILE/deps/TEST")?.to_owned();
    let server = dir.join("rlark-server");
    anyhow::ensure!(server.is_file(), "{} is not built: cargo xtask test e2e", server.display());
    Ok(dir)
}

pub fn kubectl() -> PathBuf {
    let ours = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/kubectl"));
    if ours.is_file() { ours } else { "kubectl".into() }
}

/// A server that runs, and no site yet.
pub fn server() -> Result<Product> {
    let mut p = Product::new(&programs()?, kubectl())?;
    p.start_server()?;
    Ok(p)
}

/// A server and the two sites of the demo.
pub fn two_sites() -> Result<Product> {
    let mut p = server()?;
    p.join("cloud", "gpu-1", &[("site", "cloud")])?;
    p.join("edge", "robot-1", &[("site", "edge")])?;
    p.online()?;
    Ok(p)
}

pub fn example() -> Result<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/examples/two-sites.yaml");
    fs::read_to_string(path).with_context(|| path.to_owned())
}

/// A copy of a file of `tests/e2e/probe` that pods can see; it belongs to the lab.
pub fn probe(p: &Product, name: &str) -> Result<String> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("probe").join(name);
    Ok(p.lab.share(&from)?.display().to_string())
}

/// A copy of a directory of `tests/e2e/probe`, as [`probe`].
pub fn probe_directory(p: &Product, name: &str) -> Result<String> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("probe").join(name);
    let mut to = None;
    let files = fs::read_dir(&from).with_context(|| from.display().to_string())?.flatten();
    for file in files.filter(|f| f.path().is_file()) {
        let flat = p.lab.share(&file.path())?;
        let dir = flat.with_file_name(name);
        fs::create_dir_all(&dir)?;
        fs::rename(&flat, dir.join(file.file_name()))?;
        to = Some(dir);
    }
    Ok(to.context("an empty directory")?.display().to_string())
}

/// A pod on a machine, once it runs.
pub fn pod(p: &Product, machine: usize, name: &str) -> Result<RunningPod> {
    eventually(name, Duration::from_secs(20), || Ok(p.pod(machine, name).ok()))
}

/// A Job in the Domain `two-sites` whose tasks do nothing but stand there: `(name, site)`.
#[must_use]
pub fn idle_job(name: &str, domain: &str, tasks: &[(&str, &str)]) -> String {
    let mut all = format!(
        "apiVersion: rlinf.io/v1alpha1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  domain: {domain:?}\n  tasks:\n"
    );
    for (task, site) in tasks {
        all += &format!(
            "  - {{name: {task}, role: Actor, agentType: Raw, nodeSelector: {{site: {site}}}, raw: {{entrypoint: [sleep, infinity]}}}}\n"
        );
    }
    all
}

#[must_use]
pub fn domain(name: &str, cidr: &str) -> String {
    format!(
        "apiVersion: rlinf.io/v1alpha1\nkind: Domain\nmetadata: {{name: {name}}}\nspec: {{cidr: {cidr}}}\n---\n"
    )
}

/// Waits for a Job's phase.
pub fn phase(p: &mut Product, job: &str, wanted: &str, limit: Duration) -> Result<()> {
    let mut last = String::new();
    let wait = eventually(&format!("Job {job} to be {wanted}"), limit, || {
        last = p.job_phase(job).unwrap_or_default();
        Ok((last == wanted).then_some(()))
    });
    wait.with_context(|| format!("its phase is {last:?}"))
}

/// An error unless a machine whose programs have ended is as it was before they came.
pub fn clean(m: &Machine) -> Result<()> {
    let inside = |words: &[&str]| {
        let mut c = wrapped(Some(&m.place.netns), None, Path::new("sh"));
        stdout(c.args(["-c"]).args(words))
    };
    let links = inside(&["ip -o link | grep -v -e ' lo:' -e ' eth0@' || true"])?;
    ensure!(links.is_empty(), "links stay on {}: {links}", m.name);
    let rules = inside(&["nft list ruleset"])?;
    ensure!(rules.is_empty(), "rules stay on {}: {rules}", m.name);
    let forward = inside(&["cat /proc/sys/net/ipv4/ip_forward"])?;
    ensure!(forward.trim() == "0", "forwarding stays on {}", m.name);
    let run = m.dir.join("run/netns");
    let namespaces = fs::read_dir(&run).map(Iterator::count).unwrap_or(0);
    ensure!(namespaces == 0, "{namespaces} namespaces stay in {}", run.display());
    let groups = fs::read_dir(&m.cgroup)?.flatten().filter(|e| e.path().is_dir());
    let groups: Vec<_> = groups.map(|e| e.path()).collect();
    ensure!(groups.is_empty(), "cgroups stay: {groups:?}");
    let programs =
        stdout(&mut cmd("bpftool", ["cgroup", "show", &m.cgroup.display().to_string()]))?;
    ensure!(!programs.contains("rl_"), "programs stay on {}: {programs}", m.name);
    ensure!(!m.dir.join("node.sock").exists(), "the socket of {} stays", m.name);
    Ok(())
}
