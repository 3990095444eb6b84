//! `rlark flows`: one line per connection, seen from its connecting side.

use std::{
    collections::{BTreeMap, HashSet},
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
    time::Duration,
};

use anyhow::Result;
use clap::{Args as ClapArgs, ValueEnum};
use control_api::session::{Flow, FlowState, NodeFlows, Verdict, hub};

use crate::{server::Server, units};

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Show the table again every second until interrupted.
    #[arg(short, long)]
    watch: bool,
    /// Show flows that have ended, too.
    #[arg(short, long)]
    all: bool,
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    /// What the hub answers: flows of every node, both ends.
    Json,
}

const EVERY: Duration = Duration::from_secs(1);

pub(crate) async fn run(server: &Server, args: Args) -> Result<ExitCode> {
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        ticks.tick().await;
        let all: Vec<NodeFlows> = server.get(hub::FLOWS).await?;
        let text = match args.output {
            Format::Json => serde_json::to_string_pretty(&all)? + "\n",
            Format::Table => table(&all, args.all),
        };
        let mut out = std::io::stdout().lock();
        if args.watch && args.output == Format::Table && out.is_terminal() {
            // Home and clear, so that the table stands still.
            write!(out, "\x1b[H\x1b[2J")?;
        }
        write!(out, "{text}")?;
        out.flush()?;
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn has_ended(flow: &Flow) -> bool {
    matches!(flow.state, FlowState::Closed | FlowState::Reset | FlowState::Refused)
}

fn table(all: &[NodeFlows], ended_too: bool) -> String {
    let header =
        ["FROM", "TO", "PROTO", "VERDICT", "CARRIER", "STATE", "OUT", "IN", "RTT", "RETX", "AGE"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let (ended, live): (Vec<_>, Vec<_>) = visible(all).partition(|f| has_ended(f));
    rows.extend(live.into_iter().map(row));
    let hidden = if ended_too {
        rows.extend(ended.into_iter().map(row));
        0
    } else {
        ended.len()
    };
    let mut text = units::table(&rows);
    if rows.len() == 1 {
        text = match all.iter().filter(|n| n.error.is_empty()).count() {
            0 => "No node is connected.\n".to_owned(),
            1 => "No flows on 1 node.\n".to_owned(),
            n => format!("No flows on {n} nodes.\n"),
        };
    }
    if hidden > 0 {
        text.push_str(&format!("{hidden} ended not shown (--all shows them)\n"));
    }
    for node in all.iter().filter(|n| !n.error.is_empty()) {
        text.push_str(&format!("! {}: {}\n", node.node, node.error));
    }
    let mut refusals: BTreeMap<&str, u64> = BTreeMap::new();
    for (reason, n) in all.iter().flat_map(|n| &n.refusals).filter(|(_, n)| **n > 0) {
        *refusals.entry(reason).or_default() += n;
    }
    if !refusals.is_empty() {
        let words: Vec<_> = refusals.iter().map(|(r, n)| format!("{n} {r}")).collect();
        text.push_str(&format!("refused so far: {}\n", words.join(", ")));
    }
    text
}

/// Both nodes of a flow report it. The connecting one's line is shown; the other's only when that
/// one is missing (its node is not connected).
fn visible(all: &[NodeFlows]) -> impl Iterator<Item = &Flow> {
    let flows = || all.iter().flat_map(|n| &n.flows);
    let key = |f: &Flow| (f.domain.clone(), f.protocol, f.from, f.to);
    let outgoing: HashSet<_> = flows().filter(|f| f.outgoing).map(key).collect();
    let mut shown: Vec<&Flow> =
        flows().filter(|f| f.outgoing || !outgoing.contains(&key(f))).collect();
    shown.sort_by(|a, b| (&a.from_pod, &a.to_pod, a.from).cmp(&(&b.from_pod, &b.to_pod, b.from)));
    shown.into_iter()
}

fn row(flow: &Flow) -> Vec<String> {
    let end = |pod: &str, address: &std::net::SocketAddr| {
        if pod.is_empty() { address.to_string() } else { format!("{pod} {address}") }
    };
    let verdict = match flow.verdict {
        Verdict::Direct => "direct",
        Verdict::Relay => "relay",
        Verdict::Deny => "deny",
    };
    let state = match flow.state {
        FlowState::Opening => "opening",
        FlowState::Open => "open",
        FlowState::HalfClosed => "half-closed",
        FlowState::Closed => "closed",
        FlowState::Reset => "reset",
        FlowState::Refused => "refused",
    };
    let state = if flow.reason.is_empty() || flow.reason == state {
        state.to_owned()
    } else {
        format!("{state} ({})", flow.reason)
    };
    vec![
        end(&flow.from_pod, &flow.from),
        end(&flow.to_pod, &flow.to),
        flow.protocol.as_str().to_owned(),
        verdict.to_owned(),
        if flow.carrier.is_empty() { "-".to_owned() } else { flow.carrier.clone() },
        state,
        units::bytes(flow.bytes_out),
        units::bytes(flow.bytes_in),
        flow.rtt_us.map_or_else(|| "-".to_owned(), units::rtt),
        sent_again(flow),
        units::age(Duration::from_millis(flow.age_ms)),
    ]
}

/// Segments that were sent again; of datagrams, what was lost and nobody sends again.
fn sent_again(flow: &Flow) -> String {
    match flow.retransmits {
        _ if flow.lost > 0 => format!("{} lost", flow.lost),
        Some(n) => n.to_string(),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use control_api::session::Protocol;

    use super::*;

    fn flow(outgoing: bool, port: u16) -> Flow {
        Flow {
            protocol: Protocol::Tcp,
            id: 1,
            domain: "d".parse().unwrap(),
            from_pod: "rollout-0".to_owned(),
            from: ([10, 0, 1, 3], port).into(),
            to_pod: "actor-0".to_owned(),
            to: ([10, 0, 1, 2], 7000).into(),
            verdict: Verdict::Relay,
            carrier: "hub:cloud/gpu-1:bulk".to_owned(),
            state: FlowState::Open,
            bytes_out: 64 << 20,
            bytes_in: 10,
            rtt_us: Some(321),
            retransmits: Some(3),
            lost: 0,
            age_ms: 2000,
            outgoing,
            reason: String::new(),
        }
    }

    fn node(name: &str, flows: Vec<Flow>) -> NodeFlows {
        let node = name.parse().unwrap();
        NodeFlows { node, flows, error: String::new(), refusals: BTreeMap::new() }
    }

    #[test]
    fn a_flow_that_two_nodes_report_is_one_line() {
        let text = table(
            &[
                node("edge/robot-1", vec![flow(true, 5)]),
                node("cloud/gpu-1", vec![flow(false, 5), flow(false, 6)]),
            ],
            false,
        );
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("64.0 MiB") && text.contains("321 µs"), "{text}");
    }

    #[test]
    fn ended_flows_are_counted_and_shown_on_demand() {
        let ended = Flow { state: FlowState::Closed, ..flow(true, 6) };
        let direct = Flow { verdict: Verdict::Direct, lost: 2, ..flow(true, 5) };
        let all = [node("edge/robot-1", vec![direct, ended])];
        let text = table(&all, false);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("1 ended not shown") && text.contains(" 2 lost "), "{text}");
        assert_eq!(table(&all, true).lines().count(), 3);
    }
}
