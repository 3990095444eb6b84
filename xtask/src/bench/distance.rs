//! The same over distance: a delay line between one site and the rest.

use std::time::Duration;

use anyhow::{Context as _, Result};
use test_kit::wait::eventually;

use super::{
    Found, bulk,
    goals::figure,
    lab::{self, Lab, Path},
    latency,
    line::Plugged,
    series::Series,
};
use crate::ui::{Progress, Unit};

pub(super) use super::line::Setting;

/// What the goals are for.
pub(super) const FAR: Setting = Setting { delay_ms: 50, mbit: 1000, loss_percent: 0.0 };

pub(super) fn settings() -> Vec<Setting> {
    let mut all = Vec::new();
    for delay_ms in [0, 10, 50] {
        for mbit in [100, 1000] {
            for loss_percent in [0.0, 1.0] {
                all.push(Setting { delay_ms, mbit, loss_percent });
            }
        }
    }
    // Last, so that the line stays so for whoever comes after.
    all.retain(|s| *s != FAR);
    all.push(FAR);
    all
}

/// Puts the line between, if it is not yet, and sets it.
pub(super) fn set(lab: &mut Lab, s: Setting) -> Result<()> {
    if lab.line.is_none() {
        lab.line = Some(Plugged::new(&lab.product)?);
    }
    let line = lab.line.as_mut().context("the line")?;
    line.set(&lab.product, s)
}

/// Lets the edge's node make its carriers anew: TCP suits itself to the path on which a connection begins, and no
/// path of these changes under its users.
fn renew(lab: &mut Lab, relay: &Path) -> Result<()> {
    let machine = lab.product.machines.get_mut(lab::ROBOT_1).context("the edge")?;
    machine.node.stop(Duration::from_secs(10))?;
    lab.product.start_node(lab::ROBOT_1)?;
    eventually("the edge to be back", Duration::from_secs(60), || {
        lab.product.alive()?;
        Ok(lab.traffic(relay, &["probe", "turn", "--count", "10"]).ok())
    })?;
    Ok(())
}

/// The line's own word: a byte there and back over TCP without us, which must be the delay twice.
fn round_trip_ms(lab: &Lab, raw: &Path) -> Result<f64> {
    let v = lab.traffic(raw, &["probe", "turn", "--count", "10"])?;
    Ok(super::series::percentile(latency::samples(&v, "us"), 50) / 1e3)
}

pub(super) fn run(lab: &mut Lab, found: &mut Found, bar: &Progress) -> Result<()> {
    let paths = lab.paths(&[lab::RAW_HUB, lab::RELAY])?;
    let (raw, relay) = (lab.path(lab::RAW_HUB)?, lab.path(lab::RELAY)?);
    let all = settings();
    bar.length(all.len() as u64, Unit::Items);
    for (n, setting) in all.into_iter().enumerate() {
        set(lab, setting)?;
        renew(lab, &relay)?;
        let line = setting.name();
        if setting.delay_ms > 0 && setting.loss_percent == 0.0 {
            let (rtt, twice) = (round_trip_ms(lab, &raw)?, f64::from(2 * setting.delay_ms));
            anyhow::ensure!(
                (twice * 0.95..twice * 1.05).contains(&rtt),
                "the line's round trip is {rtt:.1} ms, not {twice}"
            );
        }
        if setting.mbit == 1000 && setting.delay_ms > 0 {
            let (rounds, count) = if setting.delay_ms == 50 { (3, "5") } else { (3, "15") };
            let all = latency::measure(
                lab,
                &paths,
                &latency::KINDS,
                (rounds, count),
                &Progress::silent(),
            )?;
            latency::put(found, &line, &paths, &all);
            if setting == FAR {
                let get = |path| all.get(&(path, "first_byte")).context("a series");
                let (ours, r) = (get(lab::RELAY)?, get(lab::RAW_HUB)?);
                let rtt =
                    all.get(&(lab::RAW_HUB, "request_response")).context("a series")?.median();
                found.figures.push(
                    figure("relay.first_byte.50ms.rtts", ours.median() / rtt, ours.samples())
                        .beside("raw", r.median() / rtt),
                );
            }
        }
        throughput(lab, found, setting, &paths)?;
        bar.at(n as u64 + 1, &line);
    }
    Ok(())
}

fn throughput(lab: &Lab, found: &mut Found, s: Setting, paths: &[Path]) -> Result<()> {
    let (warm_up, window) = match s.delay_ms {
        50 if s == FAR => ("3500", "3500"),
        50 => ("1500", "1500"),
        _ => ("700", "1000"),
    };
    let mut all = vec![Series::default(); paths.len()];
    let ways: &[&str] = if s == FAR { &["up", "up", "down"] } else { &["up"] };
    for way in ways {
        for (path, series) in paths.iter().zip(&mut all) {
            let words = [way, "--warm-up-ms", warm_up, "--window-ms", window];
            let mbps = bulk::stream(lab, path, &words, None)? * 1e3;
            if *way == "up" {
                series.round(vec![mbps]);
            }
            found.rows.put(&s.name(), path.row(), &format!("1 flow {way}, Mbit/s"), mbps);
        }
    }
    if s == FAR {
        let (raw, ours) = (all.first().context("raw")?, all.last().context("ours")?);
        found.figures.push(
            figure("relay.throughput.50ms.mbps", ours.median(), ours.samples())
                .beside("raw", raw.median()),
        );
    }
    Ok(())
}
