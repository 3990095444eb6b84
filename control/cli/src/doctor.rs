//! `rlark doctor`: is everything there, and if two pods do not talk, at which hop does it end?

use std::{io::Write as _, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use clap::Args as ClapArgs;
use control_api::{
    attach::{NodeReport, SOCKET},
    session::{MachineRole, MachineSession, ProbeHop, ProbeReport, ProbeRequest, hub},
    v1alpha1::{Node, NodePhase, Pod},
};
use http_body_util::BodyExt as _;
use kube::{Api, api::ListParams};
use tokio::time::timeout;

use crate::{
    node,
    server::{Server, one_line},
    units,
};

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Prove the path from this pod (or task) …
    #[arg(long, value_name = "POD", requires_all = ["to", "port"])]
    from: Option<String>,
    /// … to this one …
    #[arg(long, value_name = "POD", requires_all = ["from", "port"])]
    to: Option<String>,
    /// … on this TCP port.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Socket of this machine's rlark-node.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
}

/// Prints checks and remembers whether all were good.
#[derive(Default)]
struct Report {
    failed: usize,
}

impl Report {
    fn check(&mut self, ok: bool, what: &str, detail: &str) -> Result<()> {
        if !ok {
            self.failed += 1;
        }
        let mark = if ok { '✓' } else { '✗' };
        let detail = detail.replace('\n', " ");
        writeln!(std::io::stdout().lock(), "{mark} {what:<12} {detail}")?;
        Ok(())
    }

    fn hops(&mut self, hops: &[ProbeHop]) -> Result<()> {
        hops.iter().try_for_each(|h| self.check(h.ok, &h.hop, &h.detail))
    }

    fn end(&self) -> ExitCode {
        if self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

pub(crate) async fn run(server: Result<Server>, args: Args) -> Result<ExitCode> {
    if let (Some(from), Some(to), Some(port)) = (&args.from, &args.to, args.port) {
        return prove(&server?, from, to, port).await;
    }
    let mut report = Report::default();
    match server {
        Ok(server) => overview(&server, &mut report).await?,
        Err(error) => report.check(false, "kubeconfig", &one_line(&error))?,
    }
    this_machine(&args, &mut report).await?;
    Ok(report.end())
}

async fn overview(server: &Server, report: &mut Report) -> Result<()> {
    let from = server.kubeconfig.display();
    let ready = http::Request::get("/readyz").body(Vec::new())?;
    match server.client.request_text(ready).await {
        Ok(_) => report.check(true, "server", &format!("{} is ready ({from})", server.url))?,
        Err(e) => {
            return report.check(false, "server", &one_line(&server.explain(e)));
        }
    }
    let sessions: Vec<MachineSession> = match server.get(hub::SESSIONS).await {
        Ok(sessions) => sessions,
        Err(e) => return report.check(false, "identity", &one_line(&e)),
    };
    report.check(true, "identity", &format!("{} may administer this server", server.user))?;
    if sessions.is_empty() {
        report.check(
            false,
            "sessions",
            "no machine is connected; see `rlark token create --help`",
        )?;
    }
    for s in &sessions {
        let role = match s.role {
            MachineRole::Agent => "agent",
            MachineRole::Node => "node",
        };
        let age = units::age(Duration::from_secs(s.age_seconds));
        report.check(
            true,
            "session",
            &format!("{role} {} from {} for {age}", s.machine, s.remote),
        )?;
    }
    nodes(server, &sessions, report).await
}

/// Each Node object should be Online and have both its machines' sessions.
async fn nodes(server: &Server, sessions: &[MachineSession], report: &mut Report) -> Result<()> {
    let api: Api<Node> = Api::all(server.client.clone());
    let list = api.list(&ListParams::default()).await.map_err(|e| server.explain(e))?;
    for node in list.items {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let namespace = node.metadata.namespace.as_deref().unwrap_or_default();
        let Some(cluster) = control_api::ids::ClusterId::from_namespace(namespace) else {
            continue;
        };
        let status = node.status.as_ref();
        let online = status.and_then(|s| s.phase.as_ref()) == Some(&NodePhase::Online);
        let data_path = sessions.iter().any(|s| {
            s.role == MachineRole::Node
                && s.machine.cluster == cluster
                && s.machine.node.as_str() == name
        });
        let detail = match (online, data_path) {
            (true, true) => format!("{cluster}/{name} is Online, its data path is connected"),
            (true, false) => {
                format!("{cluster}/{name} is Online, but its rlark-node has no session")
            }
            (false, _) => format!("{cluster}/{name} is not Online: its rlark-agent is silent"),
        };
        report.check(online && data_path, "node", &detail)?;
    }
    Ok(())
}

/// The kernel and the attachments of the machine that this runs on, if it is one of ours.
async fn this_machine(args: &Args, report: &mut Report) -> Result<()> {
    if !args.socket.exists() {
        if args.socket.as_os_str() == SOCKET {
            return Ok(());
        }
        return report.check(
            false,
            "this node",
            &format!("{} does not exist", args.socket.display()),
        );
    }
    match timeout(Duration::from_secs(10), node_report(&args.socket)).await {
        Ok(Ok(node)) => report.hops(&node.checks),
        Ok(Err(e)) => report.check(false, "this node", &one_line(&e)),
        Err(_elapsed) => report.check(false, "this node", "rlark-node does not answer"),
    }
}

async fn node_report(socket: &std::path::Path) -> Result<NodeReport> {
    let answer = node::get(socket, "/v1/doctor").await?;
    let body = answer.body.collect().await?.to_bytes();
    Ok(serde_json::from_slice(&body)?)
}

async fn prove(server: &Server, from: &str, to: &str, port: u16) -> Result<ExitCode> {
    let api: Api<Pod> = Api::all(server.client.clone());
    let all = api.list(&ListParams::default()).await.map_err(|e| server.explain(e))?.items;
    let (from, to) = (resolve(&all, from)?, resolve(&all, to)?);
    let mut report = Report::default();
    if from.spec.domain.is_empty() || from.spec.domain != to.spec.domain {
        let detail = format!(
            "{} is in {}, {} in {}: only pods of one Domain reach each other",
            from.spec.pod_name,
            domain_of(from),
            to.spec.pod_name,
            domain_of(to)
        );
        report.check(false, "domain", &detail)?;
        return Ok(report.end());
    }
    let request = ProbeRequest {
        domain: from.spec.domain.parse().context("the pod's Domain")?,
        from: from.metadata.name.clone().unwrap_or_default(),
        to: to.metadata.name.clone().unwrap_or_default(),
        port,
    };
    let answer: ProbeReport = server.post(hub::PROBE, &request).await?;
    report.hops(&answer.hops)?;
    let first = answer.hops.iter().find(|h| !h.ok);
    let mut out = std::io::stdout().lock();
    let (a, b) = (&from.spec.pod_name, &to.spec.pod_name);
    match first {
        None => writeln!(out, "{a} reaches {b} on port {port}.")?,
        Some(hop) => {
            writeln!(out, "{a} does not reach {b} on port {port}: it ends at {}.", hop.hop)?
        }
    }
    Ok(report.end())
}

fn domain_of(pod: &Pod) -> String {
    let name = &pod.spec.domain;
    if name.is_empty() { "no Domain".to_owned() } else { format!("Domain {name}") }
}

/// By pod name, uid or task name; live pods first, the youngest of them.
fn resolve<'a>(pods: &'a [Pod], name: &str) -> Result<&'a Pod> {
    let named = |p: &&Pod| {
        p.spec.pod_name == name
            || p.metadata.name.as_deref() == Some(name)
            || p.spec.task_name == name
    };
    let over = |p: &Pod| {
        use control_api::v1alpha1::PodPhase::{Failed, Succeeded};
        matches!(p.status.as_ref().and_then(|s| s.phase.as_ref()), Some(Succeeded | Failed))
    };
    pods.iter()
        .filter(named)
        .max_by_key(|p| (!over(p), p.metadata.creation_timestamp.clone()))
        .with_context(|| format!("there is no pod or task {name}"))
}
