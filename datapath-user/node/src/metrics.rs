//! Prometheus metrics and health, on an address of the operator's choice. No label names a flow or
//! a pod: what grows with traffic is in `rlark flows`.

mod times;

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use axum::{Router, extract::State, http::header, response::IntoResponse, routing::get};
use datapath_relay::Lane;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use datapath_relay::Via;

use self::times::Histograms;
use crate::observe::Observer;

type Labels = Vec<(&'static str, String)>;

/// `GET /metrics` and `GET /healthz`.
pub fn router(observer: Arc<Observer>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(observer)
}

async fn metrics(State(of): State<Arc<Observer>>) -> impl IntoResponse {
    let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content)], render(&of))
}

/// The sources count by themselves; every scrape makes a fresh registry of their values.
fn render(of: &Observer) -> String {
    let mut registry = Registry::with_prefix("rlark_node");
    kernel(of, &mut registry);
    relay(of, &mut registry);
    let pods = Gauge::<i64>::default();
    pods.set(amount(of.keeper.view().pods.len()));
    registry.register("pods", "Pods attached on this node", pods);
    let refusals = Family::<Labels, Counter>::default();
    for (reason, n) in of.refusal_counts() {
        refusals.get_or_create(&vec![("reason", reason)]).inc_by(n);
    }
    registry.register("refusals", "Refused, reset and lost connections by reason", refusals);
    packets(of, &mut registry);
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => text,
        // Writing to a String does not fail; an empty scrape would be noticed.
        Err(e) => format!("# {e}\n"),
    }
}

fn kernel(of: &Observer, registry: &mut Registry) {
    let decisions = Family::<Labels, Counter>::default();
    for c in of.kernel.counts() {
        let labels = vec![("verdict", c.verdict.to_owned()), ("reason", c.reason.to_owned())];
        decisions.get_or_create(&labels).inc_by(c.count);
    }
    registry.register("decisions", "What the kernel's programs decided", decisions);
    let flows = of.kernel.direct_flows();
    let direct = Gauge::<i64>::default();
    direct.set(amount(flows.len()));
    registry.register("direct_flows", "Open direct flows from pods of this node", direct);
    let again = Gauge::<i64>::default();
    let sum = flows.iter().filter_map(|f| f.retransmits).fold(0, u64::saturating_add);
    again.set(i64::try_from(sum).unwrap_or(i64::MAX));
    let help = "Segments sent again on the direct flows that are open";
    registry.register("direct_flow_retransmits", help, again);
    let rtt = Family::<Labels, Gauge<f64, AtomicU64>>::default();
    round_trips(&rtt, &[], flows.iter().filter_map(|f| f.rtt));
    registry.register("direct_flow_rtt_seconds", "Round trips of open direct flows", rtt);
}

/// The mean and the longest, if there is any.
fn round_trips(
    into: &Family<Labels, Gauge<f64, AtomicU64>>,
    labels: &[(&'static str, String)],
    all: impl Iterator<Item = Duration>,
) {
    let all: Vec<f64> = all.map(|d| d.as_secs_f64()).collect();
    let longest = all.iter().copied().fold(0.0, f64::max);
    let mean = all.iter().sum::<f64>() / f64::from(u32::try_from(all.len()).unwrap_or(u32::MAX));
    for (stat, value) in [("mean", mean), ("max", longest)] {
        if !all.is_empty() {
            let stat = ("stat", stat.to_owned());
            into.get_or_create(&labels.iter().cloned().chain([stat]).collect()).set(value);
        }
    }
}

/// What is no stream, by Domain.
fn packets(of: &Observer, registry: &mut Registry) {
    let [packets, bytes, lost] = [(); 3].map(|()| Family::<Labels, Counter>::default());
    for (domain, counts) in of.packets.counts() {
        let ways = [
            ("out", counts.packets_out, counts.bytes_out),
            ("in", counts.packets_in, counts.bytes_in),
        ];
        for (direction, packet_count, byte_count) in ways {
            let labels = vec![("domain", domain.to_string()), ("direction", direction.to_owned())];
            packets.get_or_create(&labels).inc_by(packet_count);
            bytes.get_or_create(&labels).inc_by(byte_count);
        }
        for (reason, n) in counts.lost {
            let labels = vec![("domain", domain.to_string()), ("reason", reason.to_owned())];
            lost.get_or_create(&labels).inc_by(n);
        }
    }
    let help = "IP packets (datagrams, echoes) that crossed this node, direct ones excepted";
    registry.register("packets", help, packets);
    registry.register("packet_bytes", "Their bytes, with IP headers", bytes);
    registry.register("packets_lost", "IP packets that were lost or refused here, by reason", lost);
}

fn relay(of: &Observer, registry: &mut Registry) {
    let c = of.relay.counters();
    let gauges = [
        ("relayed_flows", "Open relayed flows", c.flows_now),
        ("carriers", "Standing carriers", c.carriers_now),
    ];
    for (name, help, value) in gauges {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    }
    let paths = Family::<Labels, Gauge>::default();
    for via in [Via::Hub, Via::Direct] {
        let n = of.relay.carriers().iter().filter(|c| c.via == via).count();
        paths.get_or_create(&vec![("path", via.as_str().to_owned())]).set(amount(n));
    }
    registry.register("carriers_by_path", "Standing carriers, through the hub and direct", paths);
    let counters = [
        ("flows_opened", "Relayed flows opened by pods of this node", c.flows_opened),
        ("flows_accepted", "Relayed flows accepted for pods of this node", c.flows_accepted),
        ("flows_closed", "Relayed flows that ended in order", c.flows_closed),
        ("flows_resumed", "Relayed flows resumed on another carrier", c.flows_resumed),
        ("flows_moved", "Relayed flows moved to another lane", c.flows_moved),
        (
            "flows_upgraded",
            "Relayed flows moved from the hub to a direct carrier",
            c.flows_upgraded,
        ),
        ("carriers_up", "Carriers established", c.carriers_up),
        ("carriers_lost", "Carriers lost", c.carriers_lost),
        ("carrier_retransmits", "Segments sent again on carriers", c.carrier_retransmits),
        ("packets_stale", "IP packets that waited for a carrier in vain", c.packets_stale),
        ("dials_failed", "Attempts to reach a peer that failed", c.dials_failed),
        ("peers_refused", "Peers that could not prove who they are", c.peers_refused),
    ];
    for (name, help, value) in counters {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
    let rtt = Family::<Labels, Gauge<f64, AtomicU64>>::default();
    let carriers = of.relay.carriers();
    let kinds: BTreeSet<_> = carriers.iter().map(|c| (c.via.as_str(), c.lane)).collect();
    for (path, lane) in kinds {
        let lane_name = match lane {
            Lane::Interactive => "interactive",
            Lane::Bulk => "bulk",
        };
        let labels = [("path", path.to_owned()), ("lane", lane_name.to_owned())];
        let alike = carriers.iter().filter(|c| c.via.as_str() == path && c.lane == lane);
        round_trips(&rtt, &labels, alike.filter_map(|c| c.rtt));
    }
    registry.register("carrier_rtt_seconds", "Round trips of standing carriers", rtt);
    let by_path = [Via::Hub, Via::Direct]
        .map(|via| (vec![("path", via.as_str())], of.relay.round_trips(via)));
    let help = "Round trips of carriers, one for each answered PING";
    registry.register("carrier_round_trip_seconds", help, Histograms(by_path.into()));
    let times = Histograms(vec![(vec![], of.relay.accepted_after())]);
    let help = "From the landing of a relayed connection to the word that the far end accepted it";
    registry.register("flow_accepted_seconds", help, times);
}

fn amount(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
