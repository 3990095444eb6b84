//! What it costs to do nothing: processor time of idle pods and flows, memory of idle flows.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use test_kit::wait::{eventually, pause};

use super::{
    Found,
    goals::figure,
    lab::{self, Holder, Lab, Path},
};
use crate::ui::Progress;

const FLOWS: usize = 10_000;
const KIB_OF: &str = "VmRSS:";

/// 10 pods, 1,000 idle flows, every process of the product together.
pub(super) fn cores(lab: &mut Lab, found: &mut Found, _: &Progress) -> Result<()> {
    let relay = lab.path(lab::RELAY)?;
    for (path, flows) in [
        (relay.clone(), 400),
        (Path { client: lab.pod(lab::ROBOT_1, "bench", "idle-1")?, ..relay.clone() }, 100),
        (Path { client: lab.pod(lab::ROBOT_1, "bench", "idle-2")?, ..relay }, 100),
        (lab.path(lab::SEALED)?, 400),
    ] {
        let holder = Holder::start(lab, &path, flows)?;
        lab.holders.push(holder);
    }
    // What setting up leaves to do is not idleness.
    pause(Duration::from_secs(2));
    let (start, before) = (Instant::now(), lab.product.cpu_seconds()?);
    pause(Duration::from_secs(10));
    let used = (lab.product.cpu_seconds()? - before) / start.elapsed().as_secs_f64();
    found.figures.push(figure("idle.cpu.cores", used, 1));
    release(lab)
}

/// Ends the holders and waits until the nodes have noticed.
fn release(lab: &mut Lab) -> Result<()> {
    lab.holders.clear();
    eventually("the idle flows to be gone", Duration::from_secs(30), || {
        let all: usize =
            lab.nodes().iter().filter_map(|pid| descriptors(*pid).ok()).max().unwrap_or(0);
        Ok((all < 500).then_some(()))
    })
}

fn descriptors(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

fn resident_kib(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix(KIB_OF)).context("no VmRSS")?;
    line.split_whitespace().next().context("no VmRSS")?.parse().context("VmRSS")
}

/// Resident memory of each of the two nodes before and with [`FLOWS`] more idle flows; the larger counts.
pub(super) fn memory(lab: &mut Lab, found: &mut Found, _: &Progress) -> Result<()> {
    let relay = lab.path(lab::RELAY)?;
    let nodes = lab.nodes();
    let both: Vec<u32> =
        [lab::GPU_1, lab::ROBOT_1].iter().filter_map(|m| nodes.get(*m).copied()).collect();
    let measured = |pids: &[u32]| pids.iter().map(|p| resident_kib(*p)).collect::<Result<Vec<_>>>();
    // So that buffers which stay are there before.
    let few = Holder::start(lab, &relay, 100)?;
    let before = measured(&both)?;
    let holder = Holder::start(lab, &relay, FLOWS)?;
    lab.holders.extend([few, holder]);
    pause(Duration::from_secs(1));
    let after = measured(&both)?;
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let each: Vec<f64> = after.iter().zip(&before).map(|(a, b)| (a - b) / FLOWS as f64).collect();
    for (which, kib) in ["server's node", "client's node"].into_iter().zip(&each) {
        found.rows.put("", relay.row(), &format!("idle flow, {which}, KiB"), *kib);
    }
    let worst = each.into_iter().fold(f64::NAN, f64::max);
    found.figures.push(figure("relay.idle_flow.kib", worst, FLOWS));
    release(lab)
}
