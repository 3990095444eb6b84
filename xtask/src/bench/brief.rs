//! What the demo measures with `--json`: few figures, in its own lab, inside tasks of real Jobs, by a
//! program that knows nothing of RLark. Its goals are the demo's; the bench has its own.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;
use test_kit::{
    product::{Product, results, text},
    wait::{eventually, pause},
};

use super::objects;
use crate::{
    report::{Figure, Goal},
    scenario::{self, number},
    ui::Steps,
};

const MANIFEST: &str = include_str!("brief.yaml");

/// All figures, in a lab whose two sites are up.
pub(crate) fn measure(p: &mut Product, steps: &mut Steps) -> Result<Vec<Figure>> {
    let mut all = Vec::new();
    steps.step("start servers and idle flows", |_| {
        p.apply(MANIFEST)?;
        eventually("the idle flows to stand", Duration::from_secs(120), || {
            p.alive()?;
            let logs = p.logs("bench-idle").unwrap_or_default();
            Ok(logs.contains("IDLE ").then_some(()))
        })
    })?;
    all.push(steps.step("idle for 10 s", |_| idle(p))?);
    let direct = steps.step("within a site: raw and direct in turns", |b| job(p, "direct", b))?;
    let raw = steps.step("between sites: raw, through one NAT", |_| scenario::raw(p))?;
    let relay = steps.step("between sites: relayed", |b| job(p, "relay", b))?;
    all.extend(direct_figures(&direct)?);
    all.extend(relay_figures(&relay, &raw)?);
    all.push(steps.step("kubectl get beside 10,000 objects", |_| objects::kubectl_get(p))?);
    Ok(all)
}

/// Runs one measuring Job of the manifest to its end.
fn job(p: &mut Product, kind: &str, bar: &crate::ui::Progress) -> Result<Vec<Value>> {
    let name = format!("bench-{kind}");
    p.apply(&measuring_job(&name, kind))?;
    scenario::finish(p, &name, bar, |_| true)?;
    results(&p.logs(&name)?)
}

/// A Job with one measuring task: `direct` beside the server, `relay` at the other site.
fn measuring_job(name: &str, kind: &str) -> String {
    let (site, raw) = if kind == "direct" { ("cloud", "\"--raw\", ") } else { ("edge", "") };
    format!(
        r#"apiVersion: rlinf.io/v1alpha1
kind: Job
metadata: {{ name: {name} }}
spec:
  domain: bench
  tasks:
    - name: client
      role: Rollout
      agentType: Raw
      nodeSelector: {{ site: {site} }}
      raw:
        artifact: file:///opt/rlark/bin/rlark-traffic
        entrypoint: ["rlark-traffic", "measure", {raw}"--label", "{kind}", "--mib", "256", "--rounds", "11",
          "--to", "bench-server-server-0.rlark-domain:7000"]
"#
    )
}

/// Cores used by all of the product's processes together while nothing happens.
fn idle(p: &mut Product) -> Result<Figure> {
    let (start, before) = (Instant::now(), p.cpu_seconds()?);
    pause(Duration::from_secs(10));
    let used = (p.cpu_seconds()? - before) / start.elapsed().as_secs_f64();
    Ok(Figure::new("idle.cpu.cores", used, "cores", Goal::AtMost(0.01), 1))
}

fn path<'a>(all: &'a [Value], which: &str) -> Result<&'a Value> {
    let found = all.iter().find(|v| text(v, "/path") == which);
    found.with_context(|| format!("no result over the {which} path"))
}

fn direct_figures(all: &[Value]) -> Result<Vec<Figure>> {
    let (ours, raw) = (path(all, "virtual")?, path(all, "raw")?);
    let raw_up = number(raw, "/up_gbps");
    let (connect, raw_connect) = (number(ours, "/connect/p50_us"), number(raw, "/connect/p50_us"));
    Ok(vec![
        Figure::new("direct.throughput.ratio", paired(ours, raw)?, "", Goal::AtLeast(0.95), 11)
            .beside("raw Gbit/s", raw_up),
        Figure::new(
            "direct.connect.extra_us",
            connect - raw_connect,
            "us",
            Goal::AtMost(10.0),
            samples(ours),
        )
        .beside("raw", raw_connect),
        datagram("udp.direct.extra_us", ours, raw, 5.0),
    ])
}

fn relay_figures(relay: &[Value], raw: &Value) -> Result<Vec<Figure>> {
    let ours = path(relay, "virtual")?;
    let raw_up = number(raw, "/up_gbps");
    let least = 3.0f64.min(0.2 * raw_up);
    let n = samples(ours);
    Ok(vec![
        Figure::new(
            "relay.first_byte.p50_us",
            number(ours, "/first_byte/p50_us"),
            "us",
            Goal::AtMost(500.0),
            n,
        )
        .beside("raw", number(raw, "/first_byte/p50_us")),
        Figure::new(
            "relay.first_byte.p99_us",
            number(ours, "/first_byte/p99_us"),
            "us",
            Goal::None,
            n,
        )
        .beside("raw", number(raw, "/first_byte/p99_us")),
        Figure::new(
            "relay.request_response.p50_us",
            number(ours, "/request_response/p50_us"),
            "us",
            Goal::None,
            n,
        )
        .beside("raw", number(raw, "/request_response/p50_us")),
        Figure::new(
            "relay.throughput.gbps",
            number(ours, "/up_gbps"),
            "Gbit/s",
            Goal::AtLeast(least),
            11,
        )
        .beside("raw", raw_up),
        Figure::new(
            "relay.throughput.down.gbps",
            number(ours, "/down_gbps"),
            "Gbit/s",
            Goal::None,
            11,
        )
        .beside("raw", number(raw, "/down_gbps")),
        datagram("udp.relay.extra_us", ours, raw, 100.0),
    ])
}

/// The median of the rounds' ratios: what the machine does meanwhile falls on both of a round.
fn paired(ours: &Value, raw: &Value) -> Result<f64> {
    let rounds = |v: &Value| -> Vec<f64> {
        let all = v.pointer("/rounds_gbps").and_then(Value::as_array);
        all.into_iter().flatten().filter_map(Value::as_f64).collect()
    };
    let mut all: Vec<f64> = rounds(ours).iter().zip(rounds(raw)).map(|(o, r)| o / r).collect();
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().context("no round")
}

/// What a datagram and its echo take longer than without us.
fn datagram(name: &'static str, ours: &Value, raw: &Value, at_most: f64) -> Figure {
    let p50 = |v| number(v, "/datagram/p50_us");
    Figure::new(name, p50(ours) - p50(raw), "us", Goal::AtMost(at_most), samples(ours))
        .beside("raw", p50(raw))
}

fn samples(v: &Value) -> usize {
    let n = v.pointer("/first_byte/samples").and_then(Value::as_u64);
    n.and_then(|n| n.try_into().ok()).unwrap_or(0)
}
