use std::time::Duration;

use axum::{body::Body, http::Request};
use control_api::{
    events::{Event, What},
    session::{Member, RouteUpdate},
};
use http_body_util::BodyExt as _;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tower::ServiceExt as _;

use super::*;
use crate::{
    events::Feed,
    keeper::{LocalPod, Task},
    kernel::fake::Fake,
    landing::Open,
    plan::table::tests::{domain, member},
};

struct Nothing;

impl Insight for Nothing {
    fn flows(&self) -> Vec<Flow> {
        Vec::new()
    }
    fn report(&self) -> BoxFuture<'_, NodeReport> {
        Box::pin(async { NodeReport { checks: Vec::new() } })
    }
    fn events(&self) -> Option<(NodeRef, Reader)> {
        let feed = Arc::<Feed>::default();
        let reader = feed.subscribe()?;
        feed.tell(|| What::Lost { events: 7 });
        feed.close();
        Some(("s1/n1".parse().ok()?, reader))
    }
}

impl Open for Nothing {
    fn runtime(&self) -> tokio::runtime::Handle {
        tokio::runtime::Handle::current()
    }
    fn open(
        &self,
        _: &Arc<LocalPod>,
        _: std::net::SocketAddr,
        _: std::net::SocketAddr,
        stream: tokio::net::TcpStream,
    ) {
        crate::landing::reset(stream);
    }
    fn packet(&self, _: &LocalPod, _: &[u8]) {}
    fn closed(&self, _: &LocalPod) {}

    fn refuse(
        &self,
        _: &LocalPod,
        _: std::net::SocketAddr,
        _: std::net::SocketAddr,
        stream: tokio::net::TcpStream,
        _: datapath_relay::Reason,
    ) {
        crate::landing::reset(stream);
    }
}

struct Node {
    dir: tempfile::TempDir,
    kernel: Arc<Fake>,
    keeper: Keeper,
    app: Router,
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

fn start_in(dir: tempfile::TempDir, kernel: Arc<Fake>) -> Node {
    let (keeper, inbox) = Keeper::new("s1/n1".parse().unwrap());
    let task = Task::load(
        inbox,
        dir.path(),
        Arc::clone(&kernel) as Arc<dyn crate::kernel::Kernel>,
        Arc::new(Nothing),
    )
    .unwrap();
    let stop = CancellationToken::new();
    let task = AbortOnDropHandle::new(tokio::spawn(task.run(stop.clone())));
    let app = router(keeper.clone(), Arc::new(Nothing));
    Node { dir, kernel, keeper, app, stop, task }
}

impl Node {
    fn new() -> Self {
        start_in(tempfile::tempdir().unwrap(), Arc::new(Fake::default()))
    }

    async fn restart(self) -> Self {
        self.stop.cancel();
        self.task.await.unwrap();
        start_in(self.dir, self.kernel)
    }

    fn netns(&self, name: &str, cookie: u64) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, cookie.to_string()).unwrap();
        path
    }

    fn hosts(&self) -> PathBuf {
        let path = self.dir.path().join("hosts");
        if !path.exists() {
            fs::write(&path, "127.0.0.1 localhost\n").unwrap();
        }
        path
    }

    async fn routes(&self, members: Vec<Member>) {
        let domains = vec![domain("d", "10.2.0.0/24", members)];
        self.keeper.update(RouteUpdate::Snapshot { domains }).await.unwrap().unwrap();
    }

    async fn put(&self, uid: &str, netns: &Path, timeout_ms: u64) -> (StatusCode, String) {
        self.put_in(uid, netns, None, timeout_ms).await
    }

    /// A pod on the host network.
    async fn put_host(&self, uid: &str, cgroup: &Path) -> (StatusCode, String) {
        let machine = self.dir.path().join("machine");
        fs::write(&machine, "machine").unwrap();
        self.put_in(uid, &machine, Some(cgroup), 1000).await
    }

    async fn put_in(
        &self,
        uid: &str,
        netns: &Path,
        cgroup: Option<&Path>,
        timeout_ms: u64,
    ) -> (StatusCode, String) {
        let request = AttachRequest {
            domain: "d".parse().unwrap(),
            netns: netns.to_owned(),
            cgroup: cgroup.map(Path::to_owned),
            hosts: Some(self.hosts()),
            timeout_ms,
        };
        self.call(
            "PUT",
            &format!("/v1/attachments/{uid}"),
            serde_json::to_string(&request).unwrap(),
        )
        .await
    }

    async fn call(&self, method: &str, path: &str, body: String) -> (StatusCode, String) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(Body::from(body))
            .unwrap();
        let answer = self.app.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    fn in_maps(&self, cookie: u64) -> bool {
        self.kernel.state.lock().unwrap().maps.pods.contains_key(&cookie)
    }

    fn log(&self) -> Vec<String> {
        self.kernel.state.lock().unwrap().log.clone()
    }

    /// Waits until the keeper has published a view in which this holds.
    async fn when(&self, what: impl FnMut(&Arc<crate::keeper::View>) -> bool) {
        let mut watch = self.keeper.watch();
        tokio::time::timeout(Duration::from_secs(5), watch.wait_for(what)).await.unwrap().unwrap();
    }
}

fn own() -> Member {
    member("a", "10.2.0.1", "s1/n1", Some("172.16.0.1"))
}

#[tokio::test]
async fn an_attached_pod_has_maps_and_names_and_loses_both_on_detach() {
    let node = Node::new();
    let netns = node.netns("ns", 7);
    node.routes(vec![own(), member("b", "10.2.0.2", "s2/n1", None)]).await;
    let (status, body) = node.put("a", &netns, 1000).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let attached: Attached = serde_json::from_str(&body).unwrap();
    let [address] = attached.addresses.as_slice() else { panic!("{attached:?}") };
    assert_eq!((address.vip, address.prefix_len), ("10.2.0.1".parse().unwrap(), 24));
    assert_eq!(attached.netns_cookie, 7);
    assert!(node.in_maps(7));
    let names = fs::read_to_string(node.hosts()).unwrap();
    assert!(names.contains("10.2.0.2 pod-b.rlark-domain"), "{names}");

    assert_eq!(node.put("a", &netns, 1000).await.0, StatusCode::OK);
    assert_eq!(node.log(), ["join a 10.2.0.1"], "a repeated request sets nothing up again");

    let (status, _) = node.call("DELETE", "/v1/attachments/a", String::new()).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert!(!node.in_maps(7));
    assert!(node.kernel.state.lock().unwrap().maps.vips.is_empty());
    assert_eq!(fs::read_to_string(node.hosts()).unwrap(), "127.0.0.1 localhost\n");
    assert_eq!(
        node.call("DELETE", "/v1/attachments/a", String::new()).await.0,
        StatusCode::NO_CONTENT
    );
}

#[tokio::test]
async fn an_attach_waits_for_its_address() {
    let node = Node::new();
    let netns = node.netns("ns", 7);
    let (answer, ()) = tokio::join!(node.put("a", &netns, 10_000), async {
        node.routes(vec![]).await;
        node.routes(vec![own()]).await;
    });
    assert_eq!(answer.0, StatusCode::OK, "{}", answer.1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_an_address_is_refused_by_name_when_its_time_is_up() {
    let node = Node::new();
    let netns = node.netns("ns", 7);
    node.routes(vec![member("a", "10.2.0.1", "s1/other", None)]).await;
    let (status, body) = node.put("a", &netns, 500).await;
    let refusal: Refusal = serde_json::from_str(&body).unwrap();
    assert_eq!((status, refusal.reason.as_str()), (StatusCode::GATEWAY_TIMEOUT, "no-address"));
    assert!(refusal.message.contains("pod a") && refusal.message.contains("s1/other"), "{refusal}");
}

#[tokio::test]
async fn bad_requests_are_refused_with_what_is_wrong() {
    let node = Node::new();
    node.routes(vec![own(), member("b", "10.2.0.2", "s1/n1", None)]).await;
    let cases = [
        (r#"{"domain":"D!","netns":"/x","timeoutMs":1}"#, StatusCode::BAD_REQUEST, "bad-request"),
        (r#"{"domain":"d","netns":"/x","timeoutMs":1,"x":1}"#, StatusCode::BAD_REQUEST, "x"),
        (
            r#"{"domain":"d","netns":"/nowhere","timeoutMs":1}"#,
            StatusCode::UNPROCESSABLE_ENTITY,
            "/nowhere",
        ),
    ];
    for (body, status, word) in cases {
        let (got, text) = node.call("PUT", "/v1/attachments/a", body.to_owned()).await;
        assert_eq!(got, status, "{text}");
        assert!(text.contains(word), "{text}");
    }
    let netns = node.netns("ns", 7);
    assert_eq!(node.put("a", &netns, 1000).await.0, StatusCode::OK);
    let (status, text) = node.put("b", &netns, 1000).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(text.contains("pod a"), "{text}");
}

#[tokio::test]
async fn a_failing_step_leaves_nothing_behind() {
    for step in ["join", "pod"] {
        let node = Node::new();
        let netns = node.netns("ns", 7);
        node.routes(vec![own()]).await;
        node.kernel.state.lock().unwrap().broken.insert(step);
        let (status, text) = node.put("a", &netns, 1000).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{text}");
        {
            let state = node.kernel.state.lock().unwrap();
            assert!(
                state.joined.is_empty() && state.maps.pods.is_empty() && state.maps.vips.is_empty()
            );
        }
        assert_eq!(fs::read_to_string(node.hosts()).unwrap(), "127.0.0.1 localhost\n");
        node.kernel.state.lock().unwrap().broken.clear();
        assert_eq!(node.put("a", &netns, 1000).await.0, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_restarted_node_adopts_its_pods_without_the_hub_and_drops_vanished_ones() {
    let node = Node::new();
    let (netns, other) = (node.netns("ns", 7), node.netns("other", 8));
    node.routes(vec![own(), member("b", "10.2.0.2", "s1/n1", None)]).await;
    assert_eq!(node.put("a", &netns, 1000).await.0, StatusCode::OK);
    assert_eq!(node.put("b", &other, 1000).await.0, StatusCode::OK);
    fs::remove_file(&other).unwrap();
    let node = node.restart().await;
    node.when(|v| v.pods.len() == 1).await;
    assert!(node.in_maps(7) && !node.in_maps(8));
    let (_, list) = node.call("GET", "/v1/attachments", String::new()).await;
    let list: Vec<Attached> = serde_json::from_str(&list).unwrap();
    assert_eq!(list.iter().map(|a| a.uid.as_str()).collect::<Vec<_>>(), ["a"]);
}

#[tokio::test]
async fn a_node_that_is_out_of_descriptors_takes_no_pod_for_gone() {
    let node = Node::new();
    let netns = node.netns("ns", 7);
    node.routes(vec![own()]).await;
    assert_eq!(node.put("a", &netns, 1000).await.0, StatusCode::OK);
    node.kernel.state.lock().unwrap().broken.insert("identify");
    let node = node.restart().await;
    node.when(|v| v.pods.len() == 1).await;
    assert!(node.in_maps(7));
    node.kernel.state.lock().unwrap().broken.clear();
    let node = node.restart().await;
    node.when(|v| v.pods.len() == 1).await;
}

#[tokio::test]
async fn a_pod_on_the_host_network_is_its_cgroup() {
    let node = Node::new();
    let (cgroup, key) = (node.netns("cgroup", 7), 1 << 63 | 7);
    node.routes(vec![own(), member("b", "10.2.0.2", "s1/n1", None)]).await;
    let (status, body) = node.put_host("a", &cgroup).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let attached: Attached = serde_json::from_str(&body).unwrap();
    assert_eq!((attached.netns_cookie, attached.interface.as_str()), (key, ""));
    assert!(node.in_maps(key) && !node.in_maps(7));
    assert!(node.kernel.state.lock().unwrap().taps.is_empty(), "it has no interface to read");

    let (status, text) = node.put_host("b", &cgroup).await;
    assert_eq!(status, StatusCode::CONFLICT, "{text}");
    assert!(text.contains("cgroup-in-use") && text.contains("pod a"), "{text}");
    let namespace = node.netns("ns", 8);
    let (status, text) = node.put_in("b", &namespace, Some(&cgroup), 1000).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{text}");
    assert!(text.contains(r#""reason":"cgroup""#), "{text}");
    let (status, text) = node.put("b", &node.dir.path().join("machine"), 1000).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{text}");
    assert!(text.contains(r#""reason":"netns""#), "{text}");

    let node = node.restart().await;
    node.when(|v| v.pods.len() == 1).await;
    assert!(node.in_maps(key));
    fs::remove_file(&cgroup).unwrap();
    let node = node.restart().await;
    let (_, list) = node.call("GET", "/v1/attachments", String::new()).await;
    assert_eq!(list, "[]");
    let (status, _) = node.call("DELETE", "/v1/attachments/a", String::new()).await;
    assert_eq!((status, node.in_maps(key)), (StatusCode::NO_CONTENT, false));
}

#[tokio::test]
async fn a_new_address_moves_the_pod_and_a_withdrawn_one_cuts_it_off() {
    let node = Node::new();
    let netns = node.netns("ns", 7);
    node.routes(vec![own()]).await;
    assert_eq!(node.put("a", &netns, 1000).await.0, StatusCode::OK);
    node.routes(vec![member("a", "10.2.0.9", "s1/n1", None)]).await;
    let vip: std::net::IpAddr = "10.2.0.9".parse().unwrap();
    node.when(|v| v.pods.get("a").is_some_and(|p| p.attached.is_vip(vip))).await;
    assert_eq!(node.log(), ["join a 10.2.0.1", "leave a", "join a 10.2.0.9"]);
    node.routes(vec![]).await;
    node.when(|v| v.pods.is_empty()).await;
    {
        let state = node.kernel.state.lock().unwrap();
        assert_eq!(state.maps.pods.get(&7).unwrap().domain, crate::plan::desired::NOWHERE);
        assert!(state.maps.vips.is_empty());
        assert!(
            state.joined.contains_key("a"),
            "the guard stays, or the pod's packets would leave for the site's network"
        );
    }
    assert!(!fs::read_to_string(node.hosts()).unwrap().contains("10.2.0"));
    node.routes(vec![member("a", "10.2.0.9", "s1/n1", None)]).await;
    node.when(|v| v.pods.contains_key("a")).await;
    assert_eq!(node.log().len(), 3, "it only got its place in the maps again");
}

#[tokio::test]
async fn stopping_hands_all_pods_to_the_kernel_for_taking_down() {
    let node = Node::new();
    let netns = node.netns("ns", 7);
    node.routes(vec![own()]).await;
    assert_eq!(node.put("a", &netns, 1000).await.0, StatusCode::OK);
    let node = node.restart().await;
    assert!(node.log().contains(&"shut down with 1 pods".to_owned()));
}

#[tokio::test]
async fn events_are_lines_that_begin_with_who_tells_and_end_with_the_node() {
    let (status, body) = Node::new().call("GET", "/v1/events", String::new()).await;
    let lines: Vec<Event> = body.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let what: Vec<_> = lines.into_iter().map(|event| event.what).collect();
    let node = "s1/n1".parse().unwrap();
    assert_eq!(what, [What::Listening { node }, What::Lost { events: 7 }]);
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_live_socket_is_not_taken_and_a_dead_one_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/node.sock");
    let first = bind(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(bind(&path), Err(SocketError::InUse { .. })));
    drop(first);
    drop(bind(&path).unwrap());
    fs::remove_file(&path).unwrap();
    fs::write(&path, "x").unwrap();
    assert!(matches!(bind(&path), Err(SocketError::NotASocket { .. })));
}
