//! The demo's scenario, with the server killed and restarted in the middle.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use test_kit::{
    command::{cmd, stdout},
    product::{Product, results, text},
    wait::eventually,
};

fn finished(p: &mut Product, job: &str) -> Result<()> {
    eventually(&format!("Job {job} to succeed"), Duration::from_secs(240), || {
        p.alive()?;
        match p.job_phase(job).as_deref() {
            Ok("Succeeded") => Ok(Some(())),
            Ok("Failed") => bail!("the Job failed:\n{}", p.logs(job)?),
            _ => Ok(None),
        }
    })
}

fn streaming(p: &mut Product, job: &str) -> Result<()> {
    eventually("the workers to stream", Duration::from_secs(120), || {
        p.alive()?;
        Ok(p.logs(job).unwrap_or_default().contains("PROGRESS trajectory").then_some(()))
    })
}

#[test]
fn a_job_of_two_sites_survives_a_crash_of_the_server() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let run = |p: &mut Product| -> Result<()> {
        // More data than the demo, so that the crash falls into the transfer.
        let manifest = test_e2e::example()?.replace("trajectory-mib=128", "trajectory-mib=1024");
        p.apply(&manifest)?;
        streaming(p, "two-sites")?;
        p.server.as_mut().map_or(Ok(()), test_kit::process::Process::kill)?;
        p.start_server()?;
        finished(p, "two-sites")?;
        let workers = results(&p.logs("two-sites")?)?;
        ensure!(workers.len() == 2, "two workers report: {workers:?}");
        for w in &workers {
            ensure!(text(w, "/checksums") == "ok", "{w}");
            // Names are right on both ends: virtual addresses of the Domain, never real ones.
            for end in ["/seen/peer", "/seen/local"] {
                ensure!(text(w, end).starts_with("10.98.0."), "{end} in {w}");
            }
        }
        Ok(())
    };
    run(&mut p).map_err(|e| p.explain(e))
}

#[test]
fn nothing_is_left_behind() -> Result<()> {
    let state = || -> Result<String> {
        let links = stdout(&mut cmd("ip", ["-br", "link"]))?;
        let nft = stdout(&mut cmd("nft", ["list", "ruleset"]))?;
        Ok(links + &nft)
    };
    let before = state()?;
    let mut p = test_e2e::two_sites()?;
    let (id, dir, cgroup) =
        (p.lab.id().to_owned(), p.lab.dir().to_owned(), p.cgroup.path().to_owned());
    p.apply(&test_e2e::example()?)?;
    // In the middle of a run: that is where people press Ctrl-C.
    let streams = streaming(&mut p, "two-sites");
    streams.map_err(|e| p.explain(e))?;
    drop(p);
    ensure!(state()? == before, "links or rules changed:\n{before}\n{}", state()?);
    ensure!(!dir.exists() && !cgroup.exists(), "{} or {} stays", dir.display(), cgroup.display());
    let names = stdout(&mut cmd("ip", ["netns", "list"]))?;
    ensure!(!names.contains(&id), "namespaces stay: {names}");
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    ensure!(!mounts.contains(&id), "mounts stay: {mounts}");
    for p in std::fs::read_dir("/proc")?.flatten() {
        let line = std::fs::read(p.path().join("cmdline")).unwrap_or_default();
        ensure!(!String::from_utf8_lossy(&line).contains(&id), "a process stays: {:?}", p.path());
    }
    Ok(())
}
