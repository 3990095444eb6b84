//! gRPC: a bidirectional stream, a large message, and a stream that stands through an outage.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use test_apps::{
    packages::Kind,
    report,
    sites::{Site, between_sites},
};
use test_kit::{command::output, product::results, wait::pause};

use crate::{LIMIT, RESUME};

const PORT: &str = "50051";
const AWAY: Duration = Duration::from_secs(10);

#[test]
fn a_grpc_stream_stands_through_an_outage() -> Result<()> {
    between_sites(&[("server", Site::Cloud), ("client", Site::Edge)], |s| {
        let (python, script) = (s.packages.python_program("python")?, s.probe("grpc_stream.py")?);
        let words = [&*python, &script, "serve", PORT];
        let mut server = s.start("grpc-server", s.command("server", Kind::Python, words)?)?;
        server.says("SERVING", LIMIT)?;
        let host = s.host("server");
        let words = [&*python, &script, "check", &host, PORT];
        let mut client = s.start("grpc-client", s.command("client", Kind::Python, words)?)?;
        client.says("STANDING", LIMIT)?;
        let away = s.outage(AWAY)?.as_secs_f64();
        // Some messages after it.
        pause(Duration::from_secs(3));
        output(&mut s.command("client", Kind::Python, ["touch", "/tmp/stop"])?)?;
        let all = results(&client.finish(LIMIT)?)?;
        let result = all.first().context("no result")?;
        let figure = |name: &str| result.get(name).and_then(Value::as_f64).context("no figure");
        let gap = figure("gap")?;
        ensure!(gap > away * 0.8, "the longest silence was {gap} s: there was no outage");
        ensure!(gap < away + RESUME, "a silence of {gap} s, when the server was away for {away} s");
        report(
            "gRPC",
            &format!(
                "10,000 messages both ways at {:.0}/s, 100 MB both ways in {:.2} s, a stream of {} messages with a silence of {gap:.1} s when the server was away for {away:.1} s",
                figure("rate")?,
                figure("large")?,
                figure("messages")?
            ),
        );
        server.running()
    })
}
