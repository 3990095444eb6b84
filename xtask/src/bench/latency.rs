//! connect(), first byte, request and response, datagrams, refusals.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::Value;

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

const ROUNDS: usize = 10;
/// Samples of a round.
const COUNT: &str = "150";
pub(super) const KINDS: [&str; 3] = ["flow", "turn", "datagram"];
/// Without datagrams.
pub(super) const OF_FLOWS: [&str; 2] = ["flow", "turn"];

/// By path and what was measured.
pub(super) type All = BTreeMap<(&'static str, &'static str), Series>;

/// The samples in a result's array.
pub(super) fn samples(v: &Value, name: &str) -> Vec<f64> {
    v[name].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// Some kinds over every path, in turns.
pub(super) fn measure(
    lab: &Lab,
    paths: &[Path],
    kinds: &[&str],
    (rounds, count): (usize, &str),
    bar: &Progress,
) -> Result<All> {
    let mut all = All::new();
    bar.length(rounds as u64, Unit::Items);
    for round in 0..rounds {
        for kind in kinds {
            for path in paths {
                let found = lab.traffic(path, &["probe", kind, "--count", count])?;
                let mut add = |what, from| {
                    all.entry((path.name, what)).or_default().round(samples(&found, from));
                };
                match *kind {
                    "flow" => {
                        add("connect", "connect_us");
                        add("first_byte", "us");
                    }
                    "turn" => add("request_response", "us"),
                    _ => add("datagram", "us"),
                }
            }
        }
        bar.at(round as u64 + 1, "");
    }
    Ok(all)
}

/// Puts medians and tails into the rows.
pub(super) fn put(found: &mut Found, line: &str, paths: &[Path], all: &All) {
    for path in paths {
        for ((_, what), s) in all.iter().filter(|((name, _), _)| *name == path.name) {
            for percent in [50, 99] {
                let what = format!("{what}.p{percent}_us");
                found.rows.put(line, path.row(), &what, s.percentile(percent));
            }
        }
    }
}

pub(super) fn run(lab: &mut Lab, found: &mut Found, bar: &Progress) -> Result<()> {
    let names = [lab::RAW_NEAR, lab::DIRECT, lab::RAW_SITE, lab::SEALED, lab::RAW_HUB, lab::RELAY];
    let paths = lab.paths(&names)?;
    // Carriers are made when they are first needed; that is not what is measured.
    for path in &paths {
        lab.traffic(path, &["probe", "turn", "--count", "50"])?;
    }
    let all = measure(lab, &paths, &KINDS, (ROUNDS, COUNT), bar)?;
    put(found, "", &paths, &all);
    let get = |path, what| all.get(&(path, what)).context("a series");
    let extra = |ours, raw, what| -> Result<(f64, usize, f64)> {
        let (o, r) = (get(ours, what)?, get(raw, what)?);
        Ok((o.paired(r, |o, r| o - r), o.samples(), r.median()))
    };
    for (name, (ours, raw, what)) in [
        ("direct.connect.extra_us", (lab::DIRECT, lab::RAW_NEAR, "connect")),
        ("udp.direct.extra_us", (lab::DIRECT, lab::RAW_NEAR, "datagram")),
        ("udp.relay.extra_us", (lab::RELAY, lab::RAW_HUB, "datagram")),
    ] {
        let (value, n, beside) = extra(ours, raw, what)?;
        found.figures.push(figure(name, value, n).beside("raw", beside));
    }
    let (first, raw) = (get(lab::RELAY, "first_byte")?, get(lab::RAW_HUB, "first_byte")?);
    found.figures.push(
        figure("relay.first_byte.p50_us", first.median(), first.samples())
            .beside("raw", raw.median()),
    );
    refusals(lab, found)
}

/// Who asks matters to how the answer is known: the worse of the same machine and the other site counts.
fn refusals(lab: &Lab, found: &mut Found) -> Result<()> {
    let (near, far) = (lab.path(lab::DIRECT)?, lab.path(lab::RELAY)?);
    let (raw_near, raw_far) = (lab.path(lab::RAW_NEAR)?, lab.path(lab::RAW_HUB)?);
    let at = |p: &Path, host: Option<&str>| {
        let own = p.to.rsplit_once(':').map_or("", |(h, _)| h);
        Path { to: host.unwrap_or(own).to_owned(), ..p.clone() }
    };
    let asked = [
        ("refused", at(&near, None)),
        ("refused", at(&far, None)),
        ("refused", at(&raw_near, None)),
        ("refused", at(&raw_far, None)),
        ("unknown", at(&near, Some(lab::NOBODY))),
        ("unknown", at(&far, Some(lab::NOBODY))),
    ];
    let mut all: BTreeMap<(&str, &str), Series> = BTreeMap::new();
    let mut told = BTreeMap::new();
    for round in 0..6 {
        for (what, path) in &asked {
            let to = format!("{}:{}", path.to, 10_000 + 100 * round);
            let path = Path { to, ..path.clone() };
            let v = lab.traffic(&path, &["probe", "refusal", "--count", "100"])?;
            all.entry((what, path.name)).or_default().round(samples(&v, "us"));
            *told.entry((*what, path.name)).or_insert(0.0) += number(&v, "/told_by_connect");
        }
    }
    for ((what, path), s) in &all {
        let raw = asked.iter().find(|a| a.1.name == *path).map_or("", |a| a.1.raw);
        for percent in [50, 99] {
            let name = format!("{what}.p{percent}_us");
            found.rows.put("", (path, raw), &name, s.percentile(percent));
        }
    }
    for ((what, path), n) in told {
        let raw = asked.iter().find(|a| a.1.name == path).map_or("", |a| a.1.raw);
        found.rows.put("", (path, raw), &format!("{what}, told by connect(), of 600"), n);
    }
    for what in ["refused", "unknown"] {
        let of = |path| all.get(&(what, path)).map_or(f64::NAN, Series::median);
        let worse = of(lab::DIRECT).max(of(lab::RELAY));
        let raw = all.get(&("refused", lab::RAW_NEAR)).map_or(f64::NAN, Series::median);
        let name = format!("{what}.p50_us");
        found.figures.push(figure(&name, worse, 600).beside("raw reset", raw));
    }
    Ok(())
}
