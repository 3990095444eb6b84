//! The figures that the data path is held to, and their goals.

use crate::report::{Figure, Goal};

use Goal::{AtLeast, AtMost};

/// Name, unit, goal.
const GOALS: [(&str, &str, Goal); 18] = [
    ("direct.throughput.ratio", "", AtLeast(0.98)),
    ("direct.connect.extra_us", "us", AtMost(5.0)),
    ("refused.p50_us", "us", AtMost(5.0)),
    ("unknown.p50_us", "us", AtMost(5.0)),
    ("relay.first_byte.p50_us", "us", AtMost(150.0)),
    ("relay.first_byte.50ms.rtts", "RTT", AtMost(1.05)),
    ("relay.throughput.gbps", "Gbit/s", AtLeast(5.0)),
    ("relay.cpu_s_per_gib", "s", AtMost(1.0)),
    ("relay.throughput.50ms.mbps", "Mbit/s", AtLeast(900.0)),
    ("hub.cores_per_gbps", "cores", AtMost(0.04)),
    ("relay.flows_per_s_core", "1/s", AtLeast(5000.0)),
    ("relay.idle_flow.kib", "KiB", AtMost(4.0)),
    ("relay.stalled.p99_ratio", "", AtMost(1.05)),
    ("idle.cpu.cores", "cores", AtMost(0.01)),
    ("cut.resume_ms", "ms", AtMost(1000.0)),
    ("udp.relay.extra_us", "us", AtMost(100.0)),
    ("udp.direct.extra_us", "us", AtMost(5.0)),
    ("kubectl.get.p50_ms", "ms", AtMost(30.0)),
];

/// A figure with its unit and goal, or without a goal if it is none of these.
pub(super) fn figure(name: &str, value: f64, samples: usize) -> Figure {
    let known = GOALS.iter().find(|g| g.0 == name);
    let (unit, goal) = known.map_or(("", Goal::None), |g| (g.1, g.2));
    Figure::new(name, value, unit, goal, samples)
}

/// In the order of the goals; the others follow. With `all`, a figure that nobody measured stands as missed.
pub(super) fn in_order(mut figures: Vec<Figure>, which: &str) -> Vec<Figure> {
    let mut all = Vec::new();
    for (name, ..) in GOALS {
        match figures.iter().position(|f| f.name == name) {
            Some(at) => all.push(figures.remove(at)),
            None if which == "all" => all.push(figure(name, f64::NAN, 0)),
            None => {}
        }
    }
    all.extend(figures);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_nobody_measured_is_missed() {
        let all = in_order(vec![figure("hub.cores_per_gbps", 0.01, 3)], "all");
        assert_eq!(all.len(), GOALS.len());
        assert_eq!(all.iter().filter(|f| f.pass).count(), 1);
    }
}
