//! The probe: name → policy → route → verdict → carrier → datagrams → listener, in the order of the path. The
//! first hop that fails ends it, because it explains the rest.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use control_api::session::{FlowState, Member, ProbeHop, ProbeRequest};
use tokio::{net::TcpStream, time::Instant};

use super::{Observer, hop};
use crate::{
    hosts,
    keeper::{LocalPod, View},
    plan::{desired::Way, table::Domain},
};

/// For the connection and for the far end's answer, each.
const LIMIT: Duration = Duration::from_secs(5);
/// The relay has no event for one flow; this is how often its list is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Both ends, found.
struct Ends {
    domain: Arc<Domain>,
    pod: Arc<LocalPod>,
    from: Member,
    to: Member,
    /// The target's address that is being proved.
    vip: IpAddr,
}

pub(super) async fn run(of: &Observer, request: &ProbeRequest) -> Vec<ProbeHop> {
    let view = of.keeper.view();
    let mut hops = Vec::new();
    let mut ends = match find(of, &view, request) {
        Ok(ends) => ends,
        Err(failed) => return vec![failed],
    };
    // One after the other, each as a path of its own.
    for vip in ends.to.vips.clone() {
        ends.vip = vip;
        let steps = [name(&ends), policy(&ends), route(&ends), verdict(of, &ends)];
        hops.extend(steps);
        if hops.iter().all(|hop| hop.ok) {
            hops.extend(connect(of, &ends, request.port).await);
            if hops.iter().all(|h| h.ok || h.hop == "listener") {
                let datagrams = datagrams(of, &ends).await;
                // The listener, if that fails, has the last word.
                let last = hops.last().filter(|h| !h.ok).map_or(hops.len(), |_| hops.len() - 1);
                hops.insert(last, datagrams);
            }
        }
        if let Some(failed) = hops.iter().position(|hop| !hop.ok) {
            hops.truncate(failed + 1);
            break;
        }
    }
    hops
}

fn find(of: &Observer, view: &View, request: &ProbeRequest) -> Result<Ends, ProbeHop> {
    let me = of.keeper.me();
    let policy = |why: String| hop("policy", false, why);
    let name = &request.domain;
    let domain = view
        .table
        .domain(name)
        .ok_or_else(|| policy(format!("node {me} has no pod in Domain {name}")))?;
    let member = |pod: &str| {
        let found = domain.find(pod, me).cloned();
        found.ok_or_else(|| policy(format!("Domain {name} has no pod {pod}")))
    };
    let (from, to) = (member(&request.from)?, member(&request.to)?);
    let pod = view.pods.get(&from.uid).ok_or_else(|| {
        hop("attachment", false, format!("pod {} is not attached on node {me}", from.pod))
    })?;
    let first = to.vips.first().copied();
    let vip = first.ok_or_else(|| policy(format!("pod {} has no address", to.pod)))?;
    Ok(Ends { domain: Arc::clone(domain), pod: Arc::clone(pod), from, to, vip })
}

fn name(ends: &Ends) -> ProbeHop {
    let Some(path) = &ends.pod.hosts else {
        return hop("name", true, "the runtime gave no hosts file, names are its own affair");
    };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) => return hop("name", false, format!("{}: {e}", path.display())),
    };
    let (Member { pod, node, .. }, vip) = (&ends.to, ends.vip);
    let short = format!("{pod}{}", hosts::SHORT);
    let long = format!("{pod}.{}.{}{}", node.cluster, ends.domain.name, hosts::LONG);
    match [short.clone(), long].into_iter().find(|n| hosts::resolves(&text, n, vip)) {
        Some(name) => hop("name", true, format!("{name} is {vip} in pod {}", ends.from.pod)),
        None => {
            let why = format!("{} does not lead from {short} to {vip}", path.display());
            hop("name", false, why)
        }
    }
}

fn policy(ends: &Ends) -> ProbeHop {
    let encrypted =
        if ends.domain.encrypt_within_site { ", encrypted within the site" } else { "" };
    let name = &ends.domain.name;
    hop("policy", true, format!("both are members of Domain {name}{encrypted}"))
}

fn route(ends: &Ends) -> ProbeHop {
    let (Member { pod, node, .. }, vip) = (&ends.to, ends.vip);
    let holder = ends.domain.holder(vip);
    if let Some(other) = holder.filter(|h| h.uid != ends.to.uid) {
        return hop("route", false, format!("{vip} of pod {pod} is held by pod {}", other.pod));
    }
    let real =
        ends.to.real_for(vip).map_or_else(|| "no real address".to_owned(), |ip| ip.to_string());
    hop("route", true, format!("{vip} is pod {pod} on node {node} ({real})"))
}

fn verdict(of: &Observer, ends: &Ends) -> ProbeHop {
    if ends.to.uid == ends.from.uid {
        return hop("verdict", true, "the pod's own address: pass");
    }
    match of.kernel.way(ends.pod.domain_id, ends.vip) {
        Some(Way::Direct { real, .. }) => hop("verdict", true, format!("direct to {real}")),
        Some(Way::Relay { .. }) => hop("verdict", true, "relay"),
        None => hop("verdict", false, "the kernel denies it: no entry for this address"),
    }
}

/// A relayed connect succeeds as soon as it has landed, so the far end's answer is waited for as
/// well: data, an orderly end, a reset, or the flow shown as open.
async fn connect(of: &Observer, ends: &Ends, port: u16) -> Vec<ProbeHop> {
    let target = SocketAddr::new(ends.vip, port);
    let relayed = ends.to.uid != ends.from.uid
        && matches!(of.kernel.way(ends.pod.domain_id, ends.vip), Some(Way::Relay { .. }))
        && ends.to.node != *of.keeper.me();
    let started = Instant::now();
    let cookie = ends.pod.attached.netns_cookie;
    let stream = of.kernel.connect(cookie, None, target, LIMIT).await;
    let stream = stream.and_then(TcpStream::from_std);
    let answer = match stream {
        Err(e) => Err(format!("connect to {target}: {e}")),
        Ok(stream) if relayed => settle(of, &stream, target).await,
        Ok(_) => Ok(()),
    };
    let mut hops = Vec::new();
    if relayed {
        let carrier = carrier(of, ends);
        let up = carrier.ok;
        hops.push(carrier);
        if !up {
            return hops;
        }
    }
    hops.push(match answer {
        Ok(()) => {
            let took = started.elapsed().as_micros();
            hop("listener", true, format!("{target} answered after {took} µs"))
        }
        Err(why) => hop("listener", false, why),
    });
    hops
}

/// A true echo from the pod's own address to the other's: out of the pod's namespace by its interface, through the node there and
/// into the other pod, and back. What is no stream goes this way, also within a site.
async fn datagrams(of: &Observer, ends: &Ends) -> ProbeHop {
    let (cookie, to) = (ends.pod.attached.netns_cookie, ends.vip);
    let from = ends.pod.vip_towards(to);
    match of.kernel.echo(cookie, from, to, LIMIT).await {
        Ok(took) => {
            let took = took.as_micros();
            hop("datagrams", true, format!("{to} answered an echo from {from} after {took} µs"))
        }
        Err(e) => hop("datagrams", false, format!("an echo from {from} to {to}: {e}")),
    }
}

fn carrier(of: &Observer, ends: &Ends) -> ProbeHop {
    let peer = &ends.to.node;
    let mut all = of.relay.carriers();
    all.retain(|c| c.peer == *peer && c.domain == ends.domain.name);
    if all.is_empty() {
        return hop("carrier", false, format!("no carrier to node {peer} could be made"));
    }
    let text = |c: &datapath_relay::CarrierStats| {
        let rtt = c.rtt.map_or_else(String::new, |d| format!(" ({} µs)", d.as_micros()));
        format!("{}{rtt}", c.name)
    };
    hop("carrier", true, all.iter().map(text).collect::<Vec<_>>().join(", "))
}

async fn settle(of: &Observer, stream: &TcpStream, target: SocketAddr) -> Result<(), String> {
    let source = stream.local_addr().map_err(|e| e.to_string())?;
    let deadline = Instant::now() + LIMIT;
    let mut broken = None;
    loop {
        let flow = of.relay.flows().into_iter().find(|f| f.src == source && f.dst == target);
        let reason = flow.as_ref().and_then(|f| f.reason);
        match flow.map(|f| f.state) {
            Some(FlowState::Open | FlowState::HalfClosed | FlowState::Closed) => return Ok(()),
            Some(FlowState::Reset | FlowState::Refused) => {
                let why = reason.map_or("reset", |r| r.as_str());
                return Err(format!("{target} is {why}"));
            }
            Some(FlowState::Opening) | None => {}
        }
        // The socket hears of the end before the list does, but not of the reason.
        if let Some(e) = broken {
            return Err(format!("{target}: {e}"));
        }
        if Instant::now() > deadline {
            return Err(format!("{target} gave no answer within {} s", LIMIT.as_secs()));
        }
        if let Ok(Err(e)) = tokio::time::timeout(LOOK, peek(stream)).await {
            tokio::time::sleep(LOOK).await;
            broken = Some(e);
        }
    }
}

/// Ends with the error that the socket received; data and an orderly end are left to the flow list.
async fn peek(stream: &TcpStream) -> std::io::Result<()> {
    stream.readable().await?;
    let mut byte = [0];
    stream.peek(&mut byte).await?;
    std::future::pending().await
}
