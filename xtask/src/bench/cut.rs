//! An outage of the hub's link under load, and how soon bytes move again.

use std::{
    io::Write as _,
    process::{Child, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use test_kit::{
    command::cmd,
    product::results,
    wait::{eventually, pause},
};

use super::{
    Found,
    goals::figure,
    lab::{self, Lab, Path},
    series::percentile,
};
use crate::{
    scenario::EDGE,
    ui::{Progress, Unit},
};

const CUT: Duration = Duration::from_secs(30);
/// Flows that talk, and flows that send and as many that receive.
const TURNS: &str = "32";

/// A client whose flows go on; told to end by closing its input.
struct Client {
    child: Child,
    log: std::path::PathBuf,
}

impl Client {
    fn start(lab: &Lab, path: &Path, name: &str, words: &[&str]) -> Result<Self> {
        let log = lab.product.lab.dir().join(format!("outage-{name}.log"));
        let file = std::fs::File::create(&log)?;
        let words = [&["outage", "--to", &path.to], words].concat();
        let mut c = lab.command(&path.client, &words)?;
        c.stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(file);
        Ok(Self { child: c.spawn().context("cannot start a client")?, log })
    }

    /// The flows, each with when it moved again.
    fn end(mut self) -> Result<Vec<Value>> {
        drop(self.child.stdin.take());
        eventually("the flows to end", Duration::from_secs(90), || Ok(self.child.try_wait()?))?;
        let found = results(&std::fs::read_to_string(&self.log)?)?;
        let flows = found.into_iter().next().context("no result")?;
        Ok(flows.as_array().cloned().unwrap_or_default())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A link that is cut, so that an error on the way joins it again.
trait Link {
    fn set(&self, lab: &Lab, up: bool) -> Result<()>;
}

/// The site's own interface goes down: its machines are told that there is no route.
struct Interface;
/// Packets vanish on the way: nobody is told anything.
struct Silence;

impl Link for Interface {
    fn set(&self, lab: &Lab, up: bool) -> Result<()> {
        lab.product.sites.get(EDGE).context("the site")?.uplink(up)
    }
}

impl Link for Silence {
    fn set(&self, lab: &Lab, up: bool) -> Result<()> {
        let script = if up {
            "delete table inet cut"
        } else {
            r#"table inet cut {
                chain passing {
                    type filter hook forward priority -10
                    iifname "to-edge" drop
                    oifname "to-edge" drop
                }
            }
            "#
        };
        let router = format!("--net=/run/netns/{}-inet", lab.product.lab.id());
        let mut c = cmd("nsenter", [router.as_str(), "nft", "-f", "-"]);
        let mut child = c.stdin(Stdio::piped()).spawn().context("cannot start nft")?;
        child.stdin.take().context("nft's input")?.write_all(script.as_bytes())?;
        ensure!(child.wait()?.success(), "nft did not take: {script}");
        Ok(())
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

pub(super) fn run(lab: &mut Lab, found: &mut Found, bar: &Progress) -> Result<()> {
    let (relay, raw) = (lab.path(lab::RELAY)?, lab.path(lab::RAW_HUB)?);
    let ours = Client::start(lab, &relay, "relay", &["--turns", TURNS])?;
    let beside = Client::start(lab, &raw, "raw", &["--turns", "4", "--bulk", "0"])?;
    pause(Duration::from_secs(2));
    let links: [&dyn Link; 2] = [&Silence, &Interface];
    bar.length(2 * CUT.as_secs(), Unit::Items);
    let mut back = Vec::new();
    for (n, link) in links.iter().enumerate() {
        link.set(lab, false)?;
        let waited = (0..CUT.as_secs()).try_for_each(|s| {
            pause(Duration::from_secs(1));
            bar.at(n as u64 * CUT.as_secs() + s, "");
            test_kit::lab::interrupted()
        });
        link.set(lab, true)?;
        waited?;
        back.push(now());
        // Long enough to see what needs the longest that TCP backs off within such a cut.
        pause(Duration::from_secs(4));
    }
    let (ours, beside) = (ours.end()?, beside.end()?);
    let resumed = resumptions(&ours, &back);
    let lost = ours.iter().filter(|f| !f["error"].is_null()).count();
    for flow in ours.iter().filter(|f| !f["error"].is_null()) {
        found.notes.push(format!("cut: a flow was lost: {flow}"));
    }
    let n = resumed.len();
    let worst_raw = percentile(resumptions(&beside, &back), 50);
    for (what, percent) in [("resumed after a cut.p50_ms", 50), ("resumed after a cut.p99_ms", 99)]
    {
        found.rows.put("", relay.row(), what, percentile(resumed.clone(), percent));
        let raw_value = percentile(resumptions(&beside, &back), percent);
        found.rows.put("", raw.row(), what, raw_value);
    }
    found
        .figures
        .push(figure("cut.resume_ms", percentile(resumed, 99), n).beside("raw p50", worst_raw));
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    found.figures.push(figure("cut.flows_lost", lost as f64, ours.len()));
    Ok(())
}

/// For each flow and cut, milliseconds from the link's return to the first byte; without end when none came
/// before the next cut.
fn resumptions(flows: &[Value], back: &[f64]) -> Vec<f64> {
    let mut all = Vec::new();
    for flow in flows {
        let moved = super::latency::samples(flow, "moved_at");
        for (n, at) in back.iter().enumerate() {
            let next = back.get(n + 1).map_or(f64::INFINITY, |b| b - CUT.as_secs_f64());
            // The link works a moment before its command has ended.
            let first = moved.iter().find(|m| **m > at - 1.0 && **m < next);
            all.push(first.map_or(f64::INFINITY, |m| ((m - at) * 1e3).max(0.0)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_does_not_move_again_is_never_fast() {
        let flows = [
            serde_json::json!({"moved_at": [100.2, 134.5]}),
            serde_json::json!({"moved_at": [100.1]}),
        ];
        let all = resumptions(&flows, &[100.0, 134.0]);
        let rounded: Vec<f64> = all.iter().map(|ms| ms.round()).collect();
        assert_eq!(rounded, [200.0, 500.0, 100.0, f64::INFINITY]);
    }
}
