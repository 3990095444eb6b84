//! `probe/conformance`: its serving half in one pod, its checking half in another.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use anyhow::{Result, ensure};
use test_kit::{
    command::{cmd, on_path, output},
    process::Process,
    product::Product,
    wait::eventually,
};

use crate::{PYTHON, pod, probe_directory};

const LIMIT: Duration = Duration::from_secs(30);

/// Where the checks are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// Beside the server: the direct path.
    SameSite,
    /// At another site: through the relay.
    OtherSite,
}

/// What a pod is called, at which site, on which machine.
const SERVER: (&str, &str, usize) = ("server", "cloud", 0);

/// Two sites, a pod that serves, and the checks with these names (or all but the strict ones) in
/// another.
pub fn run(from: From, names: &[&str], env: &[(&str, &str)]) -> Result<()> {
    run_in("10.98.0.0/24", from, names, env)
}

/// As [`run`], in a Domain with this subnet (and, after a comma, more of its specification).
pub fn run_in(cidr: &str, from: From, names: &[&str], env: &[(&str, &str)]) -> Result<()> {
    let mut p = crate::two_sites()?;
    let result = checked(&mut p, cidr, from, names, env);
    result.map_err(|e| p.explain(e))
}

fn checked(
    p: &mut Product,
    cidr: &str,
    from: From,
    names: &[&str],
    env: &[(&str, &str)],
) -> Result<()> {
    let client = match from {
        From::SameSite => ("near", "cloud", 0),
        From::OtherSite => ("far", "edge", 1),
    };
    let job = crate::idle_job("j", "d", &[(SERVER.0, SERVER.1), (client.0, client.1)]);
    p.apply(&(crate::domain("d", cidr) + &job))?;
    crate::phase(p, "j", "Running", LIMIT)?;
    let [server, asker] =
        [SERVER, client].map(|(name, _, machine)| pod(p, machine, &format!("j-{name}-0")));
    let (server, asker) = (server?, asker?);
    // Sites choose their private addresses without knowing of each other.
    let same = server.real == asker.real;
    ensure!(same == (from == From::OtherSite), "real addresses {} {}", server.real, asker.real);
    let script = probe_directory(p, "conformance")?;
    let go = go_program(p)?;
    let with = |c: &mut Command| {
        c.env("PYTHONDONTWRITEBYTECODE", "1").env("GO_PROGRAM", &go).envs(env.iter().copied());
        c.env("RELAYED", if from == From::OtherSite { "1" } else { "0" });
        c.env("PEER_NAMES", both_names(SERVER)).env("OWN_NAMES", both_names(client));
    };
    let mut serve = server.command([PYTHON, &script, "serve", &server.vip]);
    with(&mut serve);
    let mut probe = serving(p, &mut serve)?;
    let mut check = asker.command([PYTHON, &script, "check", &server.vip, &asker.vip]);
    with(&mut check);
    let out = check.args(names).output();
    probe.kill()?;
    probe.wait()?;
    let out = out?;
    let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    ensure!(out.status.success() && said.contains(" checks, 0 failed"), "{said}");
    p.machines
        .iter_mut()
        .try_for_each(|m| m.node.check().and_then(|()| Process::check(&mut m.agent)))
}

fn both_names((name, site, _): (&str, &str, usize)) -> String {
    format!("j-{name}-0.rlark-domain j-{name}-0.{site}.d.rlark")
}

fn serving(p: &Product, c: &mut Command) -> Result<Child> {
    let log = p.lab.dir().join("probe.log");
    let said = File::create(&log)?;
    let mut child = c.stdout(said.try_clone()?).stderr(said).spawn()?;
    let up = eventually("the probe to serve", LIMIT, || {
        let said = fs::read_to_string(&log)?;
        ensure!(child.try_wait()?.is_none(), "the probe ended: {said}");
        Ok(said.contains("serving").then_some(()))
    });
    if up.is_err() {
        child.kill()?;
        child.wait()?;
    }
    up.map(|()| child)
}

/// The Go probe, where there is a compiler; else an empty word.
fn go_program(p: &Product) -> Result<String> {
    if !on_path("go") {
        return Ok(String::new());
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("probe/go/main.go");
    let built = p.lab.dir().join("go-probe");
    let mut c = cmd("go", ["build", "-o"]);
    output(c.arg(&built).arg(&source).env("CGO_ENABLED", "0").current_dir(p.lab.dir()))?;
    Ok(p.lab.share(&built)?.display().to_string())
}
