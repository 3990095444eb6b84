//! The controllers on our own API server, in process: the life of a Job and its Domain, with the
//! test in the place of the agents.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use control_api::{
    labels,
    v1alpha1::{
        AgentType, Domain, DomainPeer, DomainSpec, Job, JobPhase, JobSpec, JobTask, Node, NodeSpec,
        Pod, PodSpec, RawTask, Task, TaskSpec,
    },
};
use control_apiserver::{ApiServer, Options};
use control_controllers::Config;
use control_identity::{
    authorize::{Attributes, Authorizer, Decision},
    principal::Principal,
};
use control_store::Workspace;
use futures::StreamExt as _;
use k8s_openapi::{
    api::core::v1::{Event, Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::{
        WatchStreamExt as _,
        wait::{await_condition, conditions},
        watcher,
    },
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

struct Anyone;
impl Authorizer for Anyone {
    fn authorize(&self, _: &Principal, _: &Attributes<'_>) -> Decision {
        Decision::Allow
    }
}

struct World {
    client: Client,
    stop: CancellationToken,
    controllers: JoinHandle<Result<(), control_controllers::RunError>>,
    _server: ApiServer,
}

const PATIENCE: Duration = Duration::from_secs(20);

impl World {
    async fn new() -> Self {
        let to = tracing_subscriber::fmt()
            .with_env_filter("info,control_controllers=debug,kube_runtime=info");
        // The second test finds the first one's.
        drop(to.with_test_writer().try_init());
        let workspace = Workspace::in_memory(&control_store::Options::default()).unwrap();
        let server = ApiServer::new(workspace, Arc::new(Anyone), Options::default()).await.unwrap();
        let admin = Principal::Admin { name: "test".to_owned() };
        let client = Client::new(server.in_process(admin), "default");
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        for crd in control_api::crds::crds() {
            let name = crd.name_any();
            crds.create(&PostParams::default(), &crd).await.unwrap();
            let served = await_condition(crds.clone(), &name, conditions::is_crd_established());
            timeout(PATIENCE, served).await.unwrap().unwrap();
        }
        for site in ["a", "b"] {
            let namespace = serde_json::from_value::<Namespace>(
                json!({ "metadata": { "name": format!("rlark-{site}") } }),
            );
            let api: Api<Namespace> = Api::all(client.clone());
            api.create(&PostParams::default(), &namespace.unwrap()).await.unwrap();
        }
        let stop = CancellationToken::new();
        let run = control_controllers::run(client.clone(), Config::default(), stop.clone());
        let controllers = tokio::spawn(run);
        Self { client, stop, controllers, _server: server }
    }

    async fn end(self) {
        self.stop.cancel();
        timeout(PATIENCE, self.controllers).await.unwrap().unwrap().unwrap();
    }

    async fn node(&self, site: &str, name: &str) {
        let mut node =
            Node::new(name, NodeSpec { agent_type: Some(AgentType::Raw), unschedulable: false });
        node.metadata.labels = Some(BTreeMap::from([("site".to_owned(), site.to_owned())]));
        let api: Api<Node> = Api::namespaced(self.client.clone(), &format!("rlark-{site}"));
        api.create(&PostParams::default(), &node).await.unwrap();
        status(&api, name, json!({ "phase": "Online" })).await;
    }

    async fn domain(&self, name: &str, cidr: &str) {
        let spec = DomainSpec { cidr: cidr.to_owned(), ..DomainSpec::default() };
        let api: Api<Domain> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &Domain::new(name, spec)).await.unwrap();
    }

    async fn job(&self, sites: &[&str]) {
        let tasks = sites.iter().map(|site| JobTask {
            name: format!("on-{site}"),
            head: false,
            spec: TaskSpec {
                agent_type: Some(AgentType::Raw),
                role: "Actor".to_owned(),
                node_selector: BTreeMap::from([("site".to_owned(), (*site).to_owned())]),
                raw: Some(RawTask { entrypoint: vec!["true".into()], ..RawTask::default() }),
                ..TaskSpec::default()
            },
        });
        let spec = JobSpec { domain: "d".into(), tasks: tasks.collect(), ..JobSpec::default() };
        self.jobs().create(&PostParams::default(), &Job::new("j", spec)).await.unwrap();
    }

    fn jobs(&self) -> Api<Job> {
        Api::all(self.client.clone())
    }
    fn tasks(&self, site: &str) -> Api<Task> {
        Api::namespaced(self.client.clone(), &format!("rlark-{site}"))
    }
    fn pods(&self, site: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &format!("rlark-{site}"))
    }

    /// Acts as the site's agent: makes the Pod of its Task.
    async fn pod(&self, site: &str, uid: &str) {
        let spec = PodSpec {
            domain: "d".into(),
            task_namespace: format!("rlark-{site}"),
            task_name: format!("j-on-{site}"),
            pod_namespace: "rlark-system".into(),
            pod_name: format!("j-on-{site}-0"),
        };
        let api = self.pods(site);
        api.create(&PostParams::default(), &Pod::new(uid, spec)).await.unwrap();
        let running = json!({ "phase": "Running", "node": "n", "ip": "192.0.2.1" });
        status(&api, uid, running).await;
    }

    async fn phase(&self, wanted: JobPhase) -> Job {
        wait(&self.jobs(), "j", move |j: Option<&Job>| {
            j.and_then(|j| j.status.as_ref()?.phase.clone()).as_ref() == Some(&wanted)
        })
        .await
        .unwrap()
    }
}

async fn status<K>(api: &Api<K>, name: &str, status: Value)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let patch = Patch::Merge(json!({ "status": status }));
    api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

async fn wait<K>(
    api: &Api<K>,
    name: &str,
    condition: impl Fn(Option<&K>) -> bool + Send,
) -> Option<K>
where
    K: Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static,
{
    match timeout(PATIENCE, Box::pin(await_condition(api.clone(), name, condition))).await {
        Ok(found) => found.unwrap(),
        Err(_elapsed) => panic!("still {:#?}", api.get_opt(name).await.unwrap()),
    }
}

fn reason(job: Option<&Job>) -> Option<&str> {
    let conditions = &job?.status.as_ref()?.conditions;
    conditions.iter().find(|c| c.type_ == "Placed").map(|c| c.reason.as_str())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_waits_for_its_domain_and_place_then_runs_stops_and_runs_afresh() {
    let w = Box::pin(World::new()).await;
    w.node("a", "n1").await;
    w.job(&["a", "b"]).await;
    wait(&w.jobs(), "j", |j| reason(j) == Some("DomainNotFound")).await;
    w.domain("d", "10.0.1.0/24").await;
    wait(&w.jobs(), "j", |j| reason(j) == Some("Unschedulable")).await;
    w.node("b", "n2").await;
    wait(&w.jobs(), "j", |j| reason(j) == Some("Placed")).await;

    let task = w.tasks("a").get("j-on-a").await.unwrap();
    assert_eq!(task.annotations()[labels::NODE], "n1");
    assert_eq!(task.owner_references()[0].name, "j");

    w.pod("a", "uid-a").await;
    w.pod("b", "uid-b").await;
    w.phase(JobPhase::Running).await;
    let domains: Api<Domain> = Api::all(w.client.clone());
    let allocations = |d: Option<&Domain>| {
        d.and_then(|d| d.status.clone()).map(|s| s.ip_allocations).unwrap_or_default()
    };
    let d = wait(&domains, "d", move |d: Option<&Domain>| {
        let all = allocations(d);
        all.len() == 2 && all.iter().all(|a| a.job == "j" && a.task.starts_with("j-on-"))
    })
    .await
    .unwrap();
    let peers: Api<DomainPeer> = Api::namespaced(w.client.clone(), "rlark-a");
    let peer = wait(&peers, "d", |p: Option<&DomainPeer>| p.is_some()).await.unwrap();
    assert_eq!(peer.spec.pods.len(), 1, "its own site's pod only");
    assert_eq!(peer.spec.pods[0].uid, "uid-a");
    assert!(d.status.unwrap().ip_allocations.iter().any(|a| a.ip == peer.spec.pods[0].ip));

    status(&w.pods("a"), "uid-a", json!({ "phase": "Succeeded" })).await;
    status(&w.pods("b"), "uid-b", json!({ "phase": "Succeeded" })).await;
    let done = w.phase(JobPhase::Succeeded).await;
    assert!(done.status.unwrap().end_time.is_some());
    wait(&peers, "d", |p: Option<&DomainPeer>| p.is_none()).await;
    let events: Api<Event> = Api::namespaced(w.client.clone(), "default");
    let told = watcher(events, watcher::Config::default())
        .applied_objects()
        .any(|e| std::future::ready(e.unwrap().reason.as_deref() == Some("Succeeded")));
    assert!(timeout(PATIENCE, told).await.unwrap());

    let merge = |spec: Value| Patch::Merge(json!({ "spec": spec }));
    let params = PatchParams::default();
    w.jobs().patch("j", &params, &merge(json!({ "stopped": true }))).await.unwrap();
    w.phase(JobPhase::Stopped).await;
    wait(&w.pods("a"), "uid-a", |p: Option<&Pod>| p.is_none()).await;
    w.jobs().patch("j", &params, &merge(json!({ "stopped": false }))).await.unwrap();
    w.phase(JobPhase::Pending).await;
    let again = wait(&w.tasks("a"), "j-on-a", |t: Option<&Task>| t.is_some()).await.unwrap();
    assert_ne!(again.uid(), task.uid());

    w.jobs().delete("j", &DeleteParams::background()).await.unwrap();
    wait(&w.tasks("a"), "j-on-a", |t: Option<&Task>| t.is_none()).await;
    w.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_or_overlapping_subnet_is_reported() {
    let w = Box::pin(World::new()).await;
    w.domain("bad", "10.0.0.0/33").await;
    w.domain("first", "10.0.0.0/16").await;
    let api: Api<Domain> = Api::all(w.client.clone());
    let because = |wanted: &'static str| {
        move |d: Option<&Domain>| {
            d.and_then(|d| d.status.as_ref())
                .is_some_and(|s| s.conditions.iter().any(|c| c.reason == wanted))
        }
    };
    wait(&api, "bad", because("InvalidCIDR")).await;
    wait(&api, "first", because("AddressesGiven")).await;
    for (ports, reason) in [("80-", "InvalidPorts"), ("80-90", "AddressesGiven")] {
        let patch = json!({"spec": {"allowedPorts": [ports]}});
        api.patch("first", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        wait(&api, "first", because(reason)).await;
    }
    w.domain("second", "10.0.1.0/24").await;
    wait(&api, "second", because("OverlappingCIDR")).await;
    api.delete("first", &DeleteParams::default()).await.unwrap();
    wait(&api, "second", because("AddressesGiven")).await;
    w.end().await;
}
