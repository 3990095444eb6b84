//! PostgreSQL with pgbench at the other site.

use anyhow::{Context as _, Result, ensure};
use test_apps::{
    packages::Kind,
    report,
    sites::{Site, between_sites},
};
use test_kit::command::output;

use crate::LIMIT;

const PORT: &str = "5432";
const DATA: &str = "/tmp/data";

#[test]
fn pgbench_has_no_failed_transaction() -> Result<()> {
    between_sites(&[("server", Site::Cloud), ("client", Site::Edge)], |s| {
        let pg = |name: &str| s.packages.program(name);
        let (initdb, postgres, bench) = (pg("initdb")?, pg("postgres")?, pg("pgbench")?);
        let user = "--username=postgres";
        output(
            &mut s.unprivileged("server", &[&initdb, user, "--auth=reject", "--pgdata", DATA])?,
        )?;
        // The server believes the client's address: nobody but the other pod, under its own address, gets in.
        let rule = format!("host all all {}/32 trust", s.vip("client")?);
        let script = "echo \"$1\" >\"$0/pg_hba.conf\"";
        output(&mut s.unprivileged("server", &["sh", "-c", script, DATA, &rule])?)?;
        let words = [&*postgres, "-D", DATA, "-h", "*", "-p", PORT, "-k", "/tmp"];
        let mut server = s.start("postgres", s.unprivileged("server", &words)?)?;
        server.says("ready to accept connections", LIMIT)?;
        let host = s.host("server");
        s.reachable("client", &host, PORT, &mut server)?;
        let there = ["--host", &host, "--port", PORT, user, "postgres"];
        let init = [&*bench, "--initialize", "--scale", "10", "--quiet"];
        let init = init.into_iter().chain(there);
        let mut init = s.start("pgbench-init", s.command("client", Kind::Debian, init)?)?;
        init.finish(LIMIT)?;
        let filled = init.seconds();
        let load = [&*bench, "--client", "8", "--jobs", "2", "--time", "15"];
        let load = load.into_iter().chain(there);
        let said = s.start("pgbench", s.command("client", Kind::Debian, load)?)?.finish(LIMIT)?;
        ensure!(said.contains("number of failed transactions: 0 (0.000%)"), "{said}");
        let after = |text: &str| said.lines().find_map(|l| l.strip_prefix(text));
        let tps = after("tps = ").and_then(|l| l.split(' ').next()).context(said.clone())?;
        let latency = after("latency average = ").context("no latency")?;
        ensure!(tps.parse::<f64>()? > 10.0, "{said}");
        report(
            "PostgreSQL",
            &format!(
                "pgbench {tps} transactions/s by 8 clients, {latency} each, none failed; filled in {filled:.1} s"
            ),
        );
        server.running()
    })
}
