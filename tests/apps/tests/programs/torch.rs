//! PyTorch: a Gloo group of four ranks.

use std::{env, time::Duration};

use anyhow::{Context as _, Result};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use serde_json::Value;
use test_apps::{
    program::Program,
    report,
    sites::{Site, Sites, between_sites},
};
use test_kit::{product::results, wait::pause};

use crate::LIMIT;

const RANKS: [(&str, Site); 4] =
    [("r0", Site::Cloud), ("r1", Site::Cloud), ("r2", Site::Edge), ("r3", Site::Edge)];
const MIB: &str = "256";
const PORT: &str = "29500";
const IDLE: Duration = Duration::from_secs(60);

#[test]
fn a_gloo_group_reduces_256_mib_and_again_after_a_silent_minute() -> Result<()> {
    between_sites(&RANKS, |s| {
        let mut ranks = start_in_random_order(s)?;
        let mut all = Vec::new();
        for rank in &mut ranks {
            all.extend(results(&rank.finish(LIMIT + IDLE)?)?);
        }
        let slowest = |field: &str| -> Result<f64> {
            let each = all.iter().map(|r| r.get(field).and_then(Value::as_f64));
            each.collect::<Option<Vec<_>>>()
                .map(|v| v.into_iter().fold(0.0, f64::max))
                .context("a result lacks a field")
        };
        let version = all.first().and_then(|r| r.get("torch")?.as_str()).context("no version")?;
        let (joined, first, second) = (slowest("joined")?, slowest("first")?, slowest("second")?);
        report(
            "PyTorch",
            &format!(
                "{version}: Gloo all-reduce of {MIB} MiB on {} ranks: {first:.2} s, after {} s of silence {second:.2} s; joined in {joined:.2} s",
                all.len(),
                IDLE.as_secs()
            ),
        );
        Ok(())
    })
}

/// The order and the gaps come from a seed that is shown and can be given again.
fn start_in_random_order(s: &Sites) -> Result<Vec<Program>> {
    let seed = match env::var("RLARK_APPS_SEED") {
        Ok(text) => text.parse().context("RLARK_APPS_SEED is not a number")?,
        Err(_) => rand::random::<u64>(),
    };
    let mut random = StdRng::seed_from_u64(seed);
    let mut order: Vec<(usize, &str)> = RANKS.iter().map(|(pod, _)| *pod).enumerate().collect();
    order.shuffle(&mut random);
    let shown: Vec<&str> = order.iter().map(|(_, pod)| *pod).collect();
    report("PyTorch", &format!("seed {seed}: ranks start in the order {}", shown.join(" ")));
    let script = s.probe("all_reduce.py")?;
    let (kind, python) = s.packages.torch_python();
    let idle = IDLE.as_secs().to_string();
    let mut ranks = Vec::new();
    for (rank, pod) in order {
        let mut c = s.command(pod, kind, [&*python, &script, MIB, &idle])?;
        c.env("MASTER_ADDR", s.host("r0")).env("MASTER_PORT", PORT);
        c.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.len().to_string());
        c.env("GLOO_SOCKET_IFNAME", "rl0").env("OMP_NUM_THREADS", "1");
        ranks.push(s.start(&format!("rank-{rank}"), c)?);
        // People and schedulers do not start all at once.
        pause(Duration::from_millis(random.random_range(0..2000)));
    }
    Ok(ranks)
}
