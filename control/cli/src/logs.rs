//! `rlark logs`: finds the pods and reads each one's log through the API server.

use std::{
    collections::{BTreeMap, HashSet},
    io::Write as _,
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use clap::Args as ClapArgs;
use control_api::{
    labels,
    v1alpha1::{Pod, PodPhase, Task},
};
use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use kube::{
    Api,
    api::ListParams,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::task::JoinSet;

use crate::server::Server;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// job/NAME, task/NAME or pod/NAME; a pod by its name or uid.
    #[arg(value_name = "KIND/NAME")]
    target: Target,
    /// Go on with what is written from now on, also by pods that start later.
    #[arg(short, long)]
    follow: bool,
    /// Only the last N lines of each pod.
    #[arg(long, value_name = "N")]
    tail: Option<u64>,
    /// The run before the last restart.
    #[arg(short, long, conflicts_with = "follow")]
    previous: bool,
    /// Look for tasks and pods in this namespace only [default: all]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Job(String),
    Task(String),
    Pod(String),
}

impl std::str::FromStr for Target {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "expected job/NAME, task/NAME or pod/NAME".to_owned();
        let (kind, name) = text.split_once('/').ok_or_else(form)?;
        if name.is_empty() {
            return Err(form());
        }
        let name = name.to_owned();
        match kind {
            "job" | "jobs" | "rljob" => Ok(Self::Job(name)),
            "task" | "tasks" => Ok(Self::Task(name)),
            "pod" | "pods" | "rlpod" => Ok(Self::Pod(name)),
            _ => Err(form()),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Job(n) => write!(f, "job/{n}"),
            Self::Task(n) => write!(f, "task/{n}"),
            Self::Pod(n) => write!(f, "pod/{n}"),
        }
    }
}

/// Which pods are meant, decided from the objects.
struct Selection {
    /// Namespace and name of the Tasks; `None` for a pod by name.
    tasks: Option<HashSet<(String, String)>>,
    pod: String,
}

impl Selection {
    fn matches(&self, pod: &Pod) -> bool {
        match &self.tasks {
            Some(tasks) => {
                tasks.contains(&(pod.spec.task_namespace.clone(), pod.spec.task_name.clone()))
            }
            None => pod.spec.pod_name == self.pod || pod.metadata.name.as_ref() == Some(&self.pod),
        }
    }
}

pub(crate) async fn run(server: &Server, args: Args) -> Result<ExitCode> {
    let selection = select(server, &args).await?;
    if args.follow {
        follow(server, &args, selection).await
    } else {
        once(server, &args, selection).await
    }
}

fn pods(server: &Server, args: &Args) -> Api<Pod> {
    match &args.namespace {
        Some(n) => Api::namespaced(server.client.clone(), n),
        None => Api::all(server.client.clone()),
    }
}

async fn select(server: &Server, args: &Args) -> Result<Selection> {
    let label = match &args.target {
        Target::Pod(name) => return Ok(Selection { tasks: None, pod: name.clone() }),
        Target::Job(name) => Some(format!("{}={name}", labels::JOB)),
        Target::Task(_) => None,
    };
    let api: Api<Task> = match &args.namespace {
        Some(n) => Api::namespaced(server.client.clone(), n),
        None => Api::all(server.client.clone()),
    };
    let params = match &label {
        Some(label) => ListParams::default().labels(label),
        None => ListParams::default(),
    };
    let list = api.list(&params).await.map_err(|e| server.explain(e))?;
    let wanted = |t: &Task| match &args.target {
        Target::Task(name) => t.metadata.name.as_ref() == Some(name),
        _ => true,
    };
    let tasks: HashSet<_> = list
        .items
        .into_iter()
        .filter(wanted)
        .filter_map(|t| Some((t.metadata.namespace?, t.metadata.name?)))
        .collect();
    if tasks.is_empty() {
        match &args.target {
            Target::Job(name) => bail!("Job {name} has no tasks (is there such a Job?)"),
            other => bail!("there is no {other}"),
        }
    }
    Ok(Selection { tasks: Some(tasks), pod: String::new() })
}

/// Reads each pod's log to its end, one pod after the other.
async fn once(server: &Server, args: &Args, selection: Selection) -> Result<ExitCode> {
    let list = pods(server, args).list(&ListParams::default()).await;
    let mut found: Vec<Pod> = list
        .map_err(|e| server.explain(e))?
        .items
        .into_iter()
        .filter(|p| selection.matches(p))
        .collect();
    if found.is_empty() {
        bail!("{} has no pods yet", args.target);
    }
    found.sort_by(|a, b| a.spec.pod_name.cmp(&b.spec.pod_name));
    let prefixed = found.len() > 1;
    let mut failures = 0;
    for pod in &found {
        if let Err(error) = copy(server, args, pod, prefixed).await {
            failures += 1;
            complain(pod, &error)?;
        }
    }
    Ok(if failures == found.len() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Follows every pod that is there or comes, until all have ended.
async fn follow(server: &Server, args: &Args, selection: Selection) -> Result<ExitCode> {
    let events = watcher(pods(server, args), watcher::Config::default()).default_backoff();
    let mut objects = std::pin::pin!(events.applied_objects());
    let mut phases: BTreeMap<String, bool> = BTreeMap::new();
    let mut streams = JoinSet::new();
    // A Job of several tasks has several pods, though perhaps only one so far.
    let prefixed = selection.tasks.as_ref().is_some_and(|t| t.len() > 1);
    loop {
        tokio::select! {
            object = objects.try_next() => {
                let Some(pod) = object.context("watching the pods")? else { break };
                if !selection.matches(&pod) { continue; }
                let uid = pod.metadata.name.clone().unwrap_or_default();
                let new = !phases.contains_key(&uid);
                phases.insert(uid, is_over(&pod));
                if new {
                    let reader = Reader::of(server, args);
                    streams.spawn(async move {
                        let end = reader.copy(&pod, prefixed).await;
                        (pod, end)
                    });
                }
            }
            Some(ended) = streams.join_next(), if !streams.is_empty() => {
                if let Ok((pod, Err(error))) = ended {
                    complain(&pod, &error)?;
                }
            }
        }
        if !phases.is_empty() && streams.is_empty() && phases.values().all(|over| *over) {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_ref());
    matches!(phase, Some(PodPhase::Succeeded | PodPhase::Failed))
}

fn complain(pod: &Pod, error: &anyhow::Error) -> Result<()> {
    let words = crate::server::one_line(error);
    writeln!(std::io::stderr().lock(), "rlark: {}: {words}", pod.spec.pod_name)?;
    Ok(())
}

async fn copy(server: &Server, args: &Args, pod: &Pod, prefixed: bool) -> Result<()> {
    Reader::of(server, args).copy(pod, prefixed).await
}

/// What reading one log needs, owned, so that it can be a task.
struct Reader {
    client: kube::Client,
    query: String,
}

impl Reader {
    fn of(server: &Server, args: &Args) -> Self {
        let mut query = format!("follow={}&previous={}", args.follow, args.previous);
        if let Some(n) = args.tail {
            query.push_str(&format!("&tailLines={n}"));
        }
        Self { client: server.client.clone(), query }
    }

    /// Lines are written whole, so that those of several pods do not mix.
    async fn copy(&self, pod: &Pod, prefixed: bool) -> Result<()> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let path = format!(
            "/apis/{}/namespaces/{namespace}/pods/{name}/log?{}",
            labels::API_VERSION,
            self.query
        );
        let request = http::Request::get(path).body(Vec::new())?;
        let stream = self.client.request_stream(request).await.map_err(|e| match e {
            kube::Error::Api(status) => anyhow::anyhow!("{}", status.message),
            other => other.into(),
        })?;
        let mut stream = std::pin::pin!(stream);
        let mut line = Vec::new();
        while stream.read_until(b'\n', &mut line).await.context("the log broke off")? > 0 {
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            let mut out = std::io::stdout().lock();
            if prefixed {
                write!(out, "[{}] ", pod.spec.pod_name)?;
            }
            out.write_all(&line)?;
            out.flush()?;
            line.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_kind_and_name() {
        assert_eq!("job/a".parse(), Ok(Target::Job("a".to_owned())));
        assert_eq!("pod/x-0".parse(), Ok(Target::Pod("x-0".to_owned())));
        assert!("a".parse::<Target>().is_err());
        assert!("job/".parse::<Target>().is_err());
        assert!("node/a".parse::<Target>().is_err());
    }
}
