//! New flows: how many a core can set up.

use anyhow::Result;

use super::{
    Found,
    goals::figure,
    lab::{self, Lab},
    series::Series,
};
use crate::{scenario::number, ui::Progress};

const ROUNDS: usize = 3;

/// Flows per second of the relay's processor time: both nodes and the hub together.
pub(super) fn run(lab: &mut Lab, found: &mut Found, _: &Progress) -> Result<()> {
    let paths = lab.paths(&[lab::RAW_HUB, lab::RELAY, lab::RAW_SITE, lab::SEALED])?;
    let (mut per_core, mut flows) = (Series::default(), 0.0);
    let mut rates: Vec<Series> = vec![Series::default(); paths.len()];
    for _ in 0..ROUNDS {
        for (path, rate) in paths.iter().zip(&mut rates) {
            let before: f64 = lab.cpu_seconds()?.iter().map(|(_, s)| s).sum();
            let v = lab.traffic(path, &["churn", "--window-ms", "1500"])?;
            let used = lab.cpu_seconds()?.iter().map(|(_, s)| s).sum::<f64>() - before;
            let n = number(&v, "/flows");
            rate.round(vec![n / number(&v, "/seconds")]);
            if path.name == lab::RELAY {
                per_core.round(vec![n / used]);
                flows += n;
            }
        }
    }
    for (path, rate) in paths.iter().zip(&rates) {
        found.rows.put("", path.row(), "new flows, 1/s", rate.median());
    }
    let wall = rates.get(1).map_or(f64::NAN, Series::median);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    let f = figure("relay.flows_per_s_core", per_core.median(), flows as usize);
    found.figures.push(f.beside("flows/s", wall));
    Ok(())
}
