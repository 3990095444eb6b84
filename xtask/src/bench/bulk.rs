//! Throughput of one flow and of 64, both ways, and what it costs.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

use super::{
    Found,
    goals::figure,
    lab::{self, Lab, Path},
    series::Series,
};
use crate::{
    scenario::number,
    ui::{Progress, Unit},
};

const GIB: f64 = (1u64 << 30) as f64;
/// The kinds: their name, direction, flows and rounds.
const KINDS: [(&str, &str, &str, usize); 4] = [
    ("1 flow up, Gbit/s", "up", "1", 4),
    ("1 flow down, Gbit/s", "down", "1", 4),
    ("64 flows up, Gbit/s", "up", "64", 2),
    ("64 flows down, Gbit/s", "down", "64", 2),
];

/// Rounds of one flow between pods of one machine: what is held against its goal there is a ratio near one.
const NEAR_ROUNDS: usize = 9;
const WINDOW: [&str; 4] = ["--warm-up-ms", "200", "--window-ms", "800"];

/// Processor seconds by process, and the bytes that they were used for.
#[derive(Debug, Default)]
pub(super) struct Cost {
    seconds: BTreeMap<String, f64>,
    bytes: f64,
}

impl Cost {
    fn add(&mut self, before: &[(String, f64)], after: &[(String, f64)], bytes: f64) {
        self.bytes += bytes;
        for ((name, b), (_, a)) in before.iter().zip(after) {
            *self.seconds.entry(name.clone()).or_default() += a - b;
        }
    }

    fn per_gib(&self, which: impl Fn(&str) -> bool) -> f64 {
        let used: f64 = self.seconds.iter().filter(|(n, _)| which(n)).map(|(_, s)| s).sum();
        used / (self.bytes / GIB)
    }
}

/// One stream; Gbit/s.
pub(super) fn stream(
    lab: &Lab,
    path: &Path,
    words: &[&str],
    cost: Option<&mut Cost>,
) -> Result<f64> {
    let before = lab.cpu_seconds()?;
    let found = lab.traffic(path, &[&["stream"], words].concat())?;
    if let Some(cost) = cost {
        cost.add(&before, &lab.cpu_seconds()?, number(&found, "/bytes"));
    }
    Ok(number(&found, "/gbps"))
}

pub(super) fn run(lab: &mut Lab, found: &mut Found, bar: &Progress) -> Result<()> {
    let names = [lab::RAW_NEAR, lab::DIRECT, lab::RAW_SITE, lab::SEALED, lab::RAW_HUB, lab::RELAY];
    let paths = lab.paths(&names)?;
    let mut all: BTreeMap<(&str, &str), Series> = BTreeMap::new();
    let mut costs: BTreeMap<&str, Cost> = BTreeMap::new();
    bar.length(KINDS.len() as u64, Unit::Items);
    for (kind, way, flows, rounds) in KINDS {
        let near = if flows == "1" { NEAR_ROUNDS } else { rounds };
        for round in 0..near {
            for path in paths.iter().filter(|p| round < rounds || p.raw == lab::RAW_NEAR) {
                let cost = (flows == "1").then(|| costs.entry(path.name).or_default());
                let words = [&[way, "--flows", flows], WINDOW.as_slice()].concat();
                let gbps = stream(lab, path, &words, cost)?;
                all.entry((path.name, kind)).or_default().round(vec![gbps]);
            }
        }
        bar.at(all.len() as u64 / paths.len() as u64, kind);
    }
    for path in &paths {
        for ((_, kind), s) in all.iter().filter(|((name, _), _)| *name == path.name) {
            found.rows.put("", path.row(), kind, s.median());
        }
    }
    for (path, bystander) in [(lab::SEALED, lab::ROBOT_1), (lab::RELAY, lab::GPU_2)] {
        let (path, cost) = (lab.path(path)?, costs.get(path).context("a cost")?);
        let bystander = lab.product.machines.get(bystander).context("a machine")?;
        let carries = |n: &&String| !n.starts_with("rlark-agent") && **n != bystander.node.name;
        for name in cost.seconds.keys().filter(carries) {
            let what = format!("CPU of {name}, s/GiB");
            found.rows.put("", path.row(), &what, cost.per_gib(|n| n == name));
        }
    }
    let get = |path, kind: usize| -> Result<&Series> {
        all.get(&(path, KINDS.get(kind).map_or("", |k| k.0))).context("a series")
    };
    let mut both = Vec::new();
    for kind in [0, 1] {
        both.push(get(lab::DIRECT, kind)?.paired(get(lab::RAW_NEAR, kind)?, |o, r| o / r));
    }
    let ratio = both.iter().sum::<f64>() / 2.0;
    found.figures.push(
        figure("direct.throughput.ratio", ratio, 2 * NEAR_ROUNDS)
            .beside("raw Gbit/s", get(lab::RAW_NEAR, 0)?.median()),
    );
    let (up, raw) = (get(lab::RELAY, 0)?, get(lab::RAW_HUB, 0)?);
    found.figures.push(
        figure("relay.throughput.gbps", up.median(), up.samples()).beside("raw", raw.median()),
    );
    let cost = costs.get(lab::RELAY).context("a cost")?;
    let nodes = cost.per_gib(|n| n.starts_with("rlark-node"));
    found.figures.push(figure("relay.cpu_s_per_gib", nodes, 8));
    let hub = cost.per_gib(|n| n == "rlark-server") / (GIB * 8.0 / 1e9);
    found.figures.push(figure("hub.cores_per_gbps", hub, 8));
    Ok(())
}
