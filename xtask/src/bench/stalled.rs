//! Live flows beside one whose reader has stalled.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{
    Found,
    goals::figure,
    lab::{self, Lab, Path},
    series::percentile,
};
use crate::{scenario::number, ui::Progress};

/// Without a stalled reader, and with one: the windows' p99.
struct Windows {
    without: Vec<f64>,
    with: Vec<f64>,
}

impl Windows {
    fn measure(lab: &Lab, path: &Path, pairs: &str) -> Result<Self> {
        let words = ["crowd", "--flows", "1000", "--pairs", pairs, "--window-ms", "1500"];
        let v = lab.traffic(path, &words)?;
        let windows = v.as_array().context("windows")?;
        let p99 = |stalled: bool| -> Vec<f64> {
            let of = windows.iter().filter(|w| w["stalled"] == Value::Bool(stalled));
            of.map(|w| number(w, "/answers/p99_us")).collect()
        };
        Ok(Self { without: p99(false), with: p99(true) })
    }

    /// The median of the pairs.
    fn ratio(&self) -> f64 {
        let pairs = self.with.iter().zip(&self.without);
        percentile(pairs.map(|(w, o)| w / o).collect(), 50)
    }
}

pub(super) fn run(lab: &mut Lab, found: &mut Found, _: &Progress) -> Result<()> {
    let (relay, raw) = (lab.path(lab::RELAY)?, lab.path(lab::RAW_HUB)?);
    let ours = Windows::measure(lab, &relay, "6")?;
    let beside = Windows::measure(lab, &raw, "3")?;
    for (path, w) in [(&raw, &beside), (&relay, &ours)] {
        let row = path.row();
        let p99 = |v: &[f64]| percentile(v.to_vec(), 50);
        found.rows.put("", row, "1,000 live flows.p99_us", p99(&w.without));
        found.rows.put("", row, "1,000 live flows, one stalled.p99_us", p99(&w.with));
    }
    let n = ours.with.len();
    found
        .figures
        .push(figure("relay.stalled.p99_ratio", ours.ratio(), n).beside("raw", beside.ratio()));
    Ok(())
}
