//! Redis under its own benchmark.

use anyhow::{Context as _, Result, ensure};
use test_apps::{
    packages::Kind,
    report,
    sites::{Site, between_sites},
};

use crate::LIMIT;

const PORT: &str = "6380";
const KINDS: [&str; 4] = ["set", "get", "lpush", "incr"];

#[test]
fn redis_answers_every_command() -> Result<()> {
    between_sites(&[("server", Site::Cloud), ("client", Site::Edge)], |s| {
        let (redis, bench) =
            (s.packages.program("redis-server")?, s.packages.program("redis-benchmark")?);
        let words =
            [&*redis, "--port", PORT, "--protected-mode", "no", "--save", "", "--dir", "/tmp"];
        let mut server = s.start("redis", s.command("server", Kind::Debian, words)?)?;
        let host = s.host("server");
        s.reachable("client", &host, PORT, &mut server)?;
        let kinds = KINDS.join(",");
        let words =
            [&*bench, "-h", &host, "-p", PORT, "-n", "20000", "-c", "50", "-t", &kinds, "--csv"];
        let mut client = s.start("redis-benchmark", s.command("client", Kind::Debian, words)?)?;
        let said = client.finish(LIMIT)?;
        // "test","rps","avg_latency_ms",…; one line for each kind that was answered to its end.
        let rates = said.lines().filter_map(|l| {
            let mut fields = l.split(',').map(|f| f.trim_matches('"'));
            Some((fields.next()?, fields.next()?.parse::<f64>().ok()?))
        });
        let rates: Vec<_> = rates.collect();
        for kind in KINDS {
            let name = kind.to_uppercase();
            let rate = rates.iter().find(|(n, _)| n.starts_with(&name));
            let rate = rate.with_context(|| format!("no {kind}: {said}"))?.1;
            ensure!(rate > 50.0, "{kind}: {said}");
        }
        // Not those with an explanation, which only prepare another.
        let shown = rates.iter().filter(|(name, _)| !name.contains(' '));
        let shown: Vec<_> = shown.map(|(name, rate)| format!("{name} {rate:.0}/s")).collect();
        report("Redis", &format!("50 clients: {}", shown.join(", ")));
        server.running()
    })
}
