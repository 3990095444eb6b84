//! nginx with keep-alive under wrk.

use anyhow::{Context as _, Result, ensure};
use test_apps::{
    packages::Kind,
    report,
    sites::{Site, Sites, between_sites},
};
use test_kit::command::output;

use crate::LIMIT;

const PORT: &str = "8080";
/// Name and size of what is asked for.
const FILES: [(&str, &str); 2] = [("small", "2048"), ("large", "1048576")];

#[test]
fn nginx_answers_every_request_of_kept_connections() -> Result<()> {
    between_sites(&[("server", Site::Cloud), ("client", Site::Edge)], |s| {
        for (file, size) in FILES {
            let script = "mkdir -p /tmp/www && head -c \"$1\" /dev/urandom >/tmp/www/$0";
            output(&mut s.command("server", Kind::Debian, ["sh", "-c", script, file, size])?)?;
        }
        let (nginx, conf) = (s.packages.program("nginx")?, s.probe("nginx.conf")?);
        // Its own complaint about the compiled-in log, which pods cannot write, comes before the configuration.
        let words = [&*nginx, "-e", "stderr", "-c", &conf];
        let mut server = s.start("nginx", s.command("server", Kind::Debian, words)?)?;
        s.reachable("client", &s.host("server"), PORT, &mut server)?;
        for (file, size) in FILES {
            let said = load(s, file)?;
            let line = |word: &str| said.lines().find_map(|l| l.trim().strip_prefix(word));
            let rate = line("Requests/sec:").context("no rate")?.trim();
            let p99 = line("99%").context("no latency")?.trim();
            ensure!(rate.parse::<f64>()? > 10.0, "{said}");
            report(
                "nginx",
                &format!(
                    "{rate} requests/s for {size} bytes on 64 kept connections, p99 {p99}, none failed"
                ),
            );
        }
        server.running()
    })
}

fn load(s: &Sites, file: &str) -> Result<String> {
    let wrk = s.packages.program("wrk")?;
    let url = format!("http://{}:{PORT}/{file}", s.host("server"));
    let words = [
        &*wrk,
        "--threads",
        "2",
        "--connections",
        "64",
        "--duration",
        "6s",
        "--latency",
        "--timeout",
        "10s",
        &url,
    ];
    let said = s.start("wrk", s.command("client", Kind::Debian, words)?)?.finish(LIMIT)?;
    // wrk says these only when there were any.
    for failure in ["Socket errors", "Non-2xx"] {
        ensure!(!said.contains(failure), "{said}");
    }
    Ok(said)
}
