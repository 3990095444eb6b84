//! Wires caches, queues and reconcilers, and owns their tasks.

use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};

use control_api::{
    labels,
    v1alpha1::{Domain, DomainPeer, Job, Node, Pod, Task, Workflow},
};
use futures::{FutureExt as _, StreamExt as _, stream};
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::{
    applier,
    controller::{self, Action},
    reflector::{ObjectRef, Store},
    watcher,
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    Config,
    backoff::Backoff,
    cache::{Cache, Kind, shown},
    context::{Context, Stores},
    domain, job, node, pod,
    status::is_overtaken,
    task, triggers, workflow,
};

/// Keys that wait per controller; a full queue holds the watches back.
const QUEUE: usize = 1024;

/// Why the controllers ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("the {part} ended by itself")]
    Ended { part: String },
    #[error("a part of the controllers panicked")]
    Panicked(#[source] tokio::task::JoinError),
    #[error("the cache of {kind} was dropped before it was filled")]
    Cache { kind: &'static str },
}

/// A key queue and where it starts.
struct Queue<K: Kind> {
    tx: mpsc::Sender<ObjectRef<K>>,
    rx: mpsc::Receiver<ObjectRef<K>>,
}

impl<K: Kind> Queue<K> {
    fn new() -> Self {
        let (tx, rx) = mpsc::channel(QUEUE);
        Self { tx, rx }
    }
}

struct Caches {
    domains: Cache<Domain>,
    peers: Cache<DomainPeer>,
    nodes: Cache<Node>,
    jobs: Cache<Job>,
    tasks: Cache<Task>,
    workflows: Cache<Workflow>,
    pods: Cache<Pod>,
    leases: Cache<Lease>,
}

struct Queues {
    domains: Queue<Domain>,
    nodes: Queue<Node>,
    jobs: Queue<Job>,
    tasks: Queue<Task>,
    workflows: Queue<Workflow>,
    pods: Queue<Pod>,
}

pub(crate) async fn run(
    client: kube::Client,
    config: Config,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    let mut caches = Caches::new(&client);
    let stores = caches.stores();
    let queues = Queues::new();
    connect(&mut caches, &queues, &stores);
    let mut parts = JoinSet::new();
    caches.start(&mut parts, &shutdown);
    let mut result = Ok(());
    match shutdown.run_until_cancelled(ready(&stores)).await {
        Some(Ok(())) => {
            let ctx = Arc::new(Context::new(client, stores, config));
            start(queues, &ctx, &mut parts, &shutdown);
        }
        Some(Err(error)) => {
            shutdown.cancel();
            result = Err(error);
        }
        None => {}
    }
    while let Some(ended) = parts.join_next().await {
        let fault = match ended {
            Ok(Ok(_)) if shutdown.is_cancelled() => continue,
            Ok(Ok(part)) => RunError::Ended { part: part.to_owned() },
            Ok(Err(error)) => error,
            Err(error) => RunError::Panicked(error),
        };
        shutdown.cancel();
        result = result.and(Err(fault));
    }
    result
}

type Parts = JoinSet<Result<&'static str, RunError>>;

impl Caches {
    fn new(client: &kube::Client) -> Self {
        let all = watcher::Config::default;
        let agents = all().labels(labels::NODE_LEASE);
        Self {
            domains: Cache::new(client, all()),
            peers: Cache::new(client, all()),
            nodes: Cache::new(client, all()),
            jobs: Cache::new(client, all()),
            tasks: Cache::new(client, all()),
            workflows: Cache::new(client, all()),
            pods: Cache::new(client, all()),
            leases: Cache::new(client, agents),
        }
    }

    fn stores(&self) -> Stores {
        Stores {
            domains: self.domains.store(),
            peers: self.peers.store(),
            nodes: self.nodes.store(),
            jobs: self.jobs.store(),
            tasks: self.tasks.store(),
            workflows: self.workflows.store(),
            pods: self.pods.store(),
            leases: self.leases.store(),
        }
    }

    fn start(self, parts: &mut Parts, shutdown: &CancellationToken) {
        spawn(parts, "watch of domains", shutdown, self.domains.run());
        spawn(parts, "watch of domainpeers", shutdown, self.peers.run());
        spawn(parts, "watch of nodes", shutdown, self.nodes.run());
        spawn(parts, "watch of jobs", shutdown, self.jobs.run());
        spawn(parts, "watch of tasks", shutdown, self.tasks.run());
        spawn(parts, "watch of workflows", shutdown, self.workflows.run());
        spawn(parts, "watch of pods", shutdown, self.pods.run());
        spawn(parts, "watch of leases", shutdown, self.leases.run());
    }
}

impl Queues {
    fn new() -> Self {
        Self {
            domains: Queue::new(),
            nodes: Queue::new(),
            jobs: Queue::new(),
            tasks: Queue::new(),
            workflows: Queue::new(),
            pods: Queue::new(),
        }
    }
}

/// Runs a part until it ends or all are asked to.
fn spawn(
    parts: &mut Parts,
    name: &'static str,
    shutdown: &CancellationToken,
    part: impl Future<Output = ()> + Send + 'static,
) {
    let shutdown = shutdown.clone();
    parts.spawn(async move {
        // Work may be cut off anywhere: every pass starts from what is observed.
        shutdown.run_until_cancelled(part).await;
        Ok(name)
    });
}

/// Who is woken by what.
fn connect(caches: &mut Caches, queues: &Queues, stores: &Stores) {
    let q = queues;
    caches.domains.feeds(&q.domains.tx, triggers::itself);
    caches.domains.feeds(&q.domains.tx, triggers::other_domains(stores.domains.clone()));
    let jobs_of_domain = triggers::jobs_of_domain(stores.jobs.clone(), stores.domains.clone());
    caches.domains.feeds(&q.jobs.tx, jobs_of_domain);
    caches.peers.feeds(&q.domains.tx, triggers::domain_of_peer);
    caches.nodes.feeds(&q.nodes.tx, triggers::itself);
    caches.nodes.feeds(&q.jobs.tx, triggers::waiting_jobs(stores.jobs.clone()));
    caches.jobs.feeds(&q.jobs.tx, triggers::itself);
    caches.jobs.feeds(&q.workflows.tx, triggers::workflow_of_job);
    caches.tasks.feeds(&q.tasks.tx, triggers::itself);
    caches.tasks.feeds(&q.jobs.tx, triggers::job_of_task);
    caches.tasks.feeds(&q.domains.tx, triggers::domain_of_task);
    caches.tasks.feeds(&q.pods.tx, triggers::pods_of_task(stores.pods.clone()));
    caches.workflows.feeds(&q.workflows.tx, triggers::itself);
    caches.pods.feeds(&q.pods.tx, triggers::itself);
    caches.pods.feeds(&q.tasks.tx, triggers::task_of_pod);
    caches.pods.feeds(&q.domains.tx, triggers::domain_of_pod);
    caches.leases.feeds(&q.nodes.tx, triggers::node_of_lease);
}

fn start(queues: Queues, ctx: &Arc<Context>, parts: &mut Parts, shutdown: &CancellationToken) {
    let s = ctx.stores.clone();
    let spec = |name| Part { name, ctx: Arc::clone(ctx), shutdown: shutdown.clone() };
    spec("domain controller").start(
        parts,
        s.domains,
        queues.domains,
        domain::reconcile,
        |e| match e {
            domain::DomainError::Status(s) => s.is_overtaken(),
            domain::DomainError::Peer { source, .. } => is_overtaken(source),
            domain::DomainError::Authority { .. } => false,
        },
    );
    spec("node controller").start(
        parts,
        s.nodes,
        queues.nodes,
        node::reconcile,
        |e| matches!(e, node::NodeError::Status(s) if s.is_overtaken()),
    );
    spec("job controller").start(parts, s.jobs, queues.jobs, job::reconcile, |e| match e {
        job::JobError::Status(s) => s.is_overtaken(),
        job::JobError::NotYetSeen { .. } => true,
        job::JobError::Task { source, .. } => is_overtaken(source),
        job::JobError::List { .. } => false,
    });
    spec("task controller").start(
        parts,
        s.tasks,
        queues.tasks,
        task::reconcile,
        |e| matches!(e, task::TaskError::Status(s) if s.is_overtaken()),
    );
    spec("workflow controller").start(
        parts,
        s.workflows,
        queues.workflows,
        workflow::reconcile,
        |e| match e {
            workflow::WorkflowError::Status(s) => s.is_overtaken(),
            workflow::WorkflowError::Job { source, .. } => is_overtaken(source),
        },
    );
    spec("pod controller").start(parts, s.pods, queues.pods, pod::reconcile, |_| false);
}

/// One controller.
struct Part {
    name: &'static str,
    ctx: Arc<Context>,
    shutdown: CancellationToken,
}

impl Part {
    /// `harmless` errors are lost races: tried again, not reported.
    fn start<K, Fut, E>(
        self,
        parts: &mut Parts,
        store: Store<K>,
        queue: Queue<K>,
        reconcile: impl Fn(Arc<K>, Arc<Context>) -> Fut + Send + 'static,
        harmless: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) where
        K: Kind,
        Fut: Future<Output = Result<Action, E>> + Send + 'static,
        E: std::error::Error + Send + Sync + 'static,
    {
        let Self { name, ctx, shutdown } = self;
        spawn(parts, name, &shutdown, control(name, store, queue, reconcile, harmless, ctx));
    }
}

/// Waits until every cache is filled: half a picture would evict addresses and make Tasks twice.
/// Called once for all controllers, because a store wakes only the last of several who wait for it.
async fn ready(stores: &Stores) -> Result<(), RunError> {
    async fn one<K: Kind>(store: &Store<K>, kind: &'static str) -> Result<(), RunError> {
        store.wait_until_ready().await.map_err(|_dropped| RunError::Cache { kind })
    }
    one(&stores.domains, "domains").await?;
    one(&stores.peers, "domainpeers").await?;
    one(&stores.nodes, "nodes").await?;
    one(&stores.jobs, "jobs").await?;
    one(&stores.tasks, "tasks").await?;
    one(&stores.workflows, "workflows").await?;
    one(&stores.pods, "pods").await?;
    one(&stores.leases, "leases").await
}

async fn control<K, Fut, E>(
    name: &'static str,
    store: Store<K>,
    queue: Queue<K>,
    reconcile: impl Fn(Arc<K>, Arc<Context>) -> Fut + Send + 'static,
    harmless: impl Fn(&E) -> bool + Send + Sync + 'static,
    ctx: Arc<Context>,
) where
    K: Kind,
    Fut: Future<Output = Result<Action, E>> + Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    let Queue { tx, rx } = queue;
    drop(tx);
    let keys = stream::unfold(rx, |mut rx| async move {
        let key = rx.recv().await?;
        Some((Ok::<_, Infallible>(key), rx))
    });
    let backoff = Arc::new(Backoff::new());
    let again = Arc::clone(&backoff);
    let policy = move |object: Arc<K>, error: &E, _: Arc<Context>| {
        let pause = again.failed(ObjectRef::from_obj(&*object));
        if harmless(error) {
            tracing::debug!(part = name, error = %shown(error), "overtaken; trying again");
        } else {
            let key = ObjectRef::from_obj(&*object);
            tracing::warn!(part = name, object = %key, error = %shown(error), ?pause, "trying again");
        }
        Action::requeue(pause)
    };
    let config =
        controller::Config::default().debounce(Duration::ZERO).concurrency(ctx.config.concurrency);
    let boxed = move |object, ctx| reconcile(object, ctx).boxed();
    let passes = applier(boxed, policy, ctx, store, keys, config);
    passes
        .for_each(|pass| {
            if let Ok((key, _)) = pass {
                backoff.succeeded(&key);
            }
            std::future::ready(())
        })
        .await;
}
