//! Live flows beside one whose reader has stalled.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{
    Found,
    goals::figure,
    lab::{self, Lab},
    series::percentile,
};
use crate::{scenario::number, ui::Progress};

const PAIRS: &str = "6";

pub(super) fn run(lab: &mut Lab, found: &mut Found, _: &Progress) -> Result<()> {
    let relay = lab.path(lab::RELAY)?;
    let words = ["crowd", "--flows", "1000", "--pairs", PAIRS, "--window-ms", "1500"];
    let v = lab.traffic(&relay, &words)?;
    let windows = v.as_array().context("windows")?;
    let p99 = |stalled: bool| -> Vec<f64> {
        let of = windows.iter().filter(|w| w["stalled"] == Value::Bool(stalled));
        of.map(|w| number(w, "/answers/p99_us")).collect()
    };
    let (without, with) = (p99(false), p99(true));
    let ratios = with.iter().zip(&without).map(|(w, o)| w / o).collect();
    let (without, n) = (percentile(without, 50), with.len());
    found.rows.put("", relay.row(), "1,000 live flows.p99_us", without);
    found.rows.put("", relay.row(), "1,000 live flows, one stalled.p99_us", percentile(with, 50));
    found.figures.push(
        figure("relay.stalled.p99_ratio", percentile(ratios, 50), n).beside("p99 us", without),
    );
    Ok(())
}
