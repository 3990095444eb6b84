use std::net::IpAddr;

use axum::http::Request;
use control_api::{
    direct::PeerMachine,
    ids::{DomainName, NodeRef},
};
use control_identity::session::SessionState;
use datapath_relay::{BoxFuture, Lane, Paths, RelayConfig};
use http_body_util::BodyExt as _;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tower::ServiceExt as _;

use super::*;
use crate::{
    direct::{expected::Expected, peers::Peers},
    kernel::fake::Fake,
    node::Core,
    plan::table::tests::{domain, member},
};

struct Nowhere;

impl Paths for Nowhere {
    fn dial<'a>(
        &'a self,
        _: &'a DomainName,
        _: &'a NodeRef,
        _: Lane,
    ) -> BoxFuture<'a, std::io::Result<Path>> {
        Box::pin(async { Err(std::io::Error::other("no way")) })
    }
}

struct Node {
    app: Router,
    metrics: Router,
    keeper: Keeper,
    expected: Arc<Expected>,
    _task: AbortOnDropHandle<()>,
    _dir: tempfile::TempDir,
}

fn node() -> Node {
    let dir = tempfile::tempdir().unwrap();
    let (_, session) = watch::channel(SessionState::Connected);
    let core = Core::build(
        RelayConfig::new("s1/n1".parse().unwrap()),
        dir.path(),
        Arc::new(Fake::default()),
        Arc::new(Nowhere),
        session,
    )
    .unwrap();
    let Core { keeper, task, relay, observer, mirror, .. } = core;
    let (_, open) = watch::channel(Arc::default());
    let task = AbortOnDropHandle::new(tokio::spawn(task.run(CancellationToken::new())));
    let tracker = TaskTracker::new();
    let metrics = crate::metrics::router(Arc::clone(&observer));
    let (_, own) = watch::channel(Arc::default());
    let expected = Arc::<Expected>::default();
    let peers = Arc::new(Peers::new(relay.clone(), Some(Arc::clone(&expected))));
    let direct = Direct { expected: Some(Arc::clone(&expected)), peers, own };
    let app =
        router(keeper.clone(), relay, observer, (mirror, open), ("127.0.0.1:1", direct), tracker);
    Node { app, metrics, keeper, expected, _task: task, _dir: dir }
}

async fn call(app: &Router, path: &str, body: impl Into<Body>) -> (StatusCode, String) {
    let request =
        Request::post(path).header("content-type", "application/json").body(body.into()).unwrap();
    let answer = app.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

fn lines(updates: &[RouteUpdate]) -> String {
    updates.iter().map(|u| serde_json::to_string(u).unwrap() + "\n").collect()
}

fn snapshot() -> RouteUpdate {
    let members =
        vec![member("a", "10.2.0.1", "s1/n1", None), member("b", "10.2.0.2", "s2/n1", None)];
    RouteUpdate::Snapshot { domains: vec![domain("d", "10.2.0.0/24", members)] }
}

#[tokio::test]
async fn routes_arrive_in_order_however_the_stream_is_cut_into_pieces() {
    let node = node();
    let gone = RouteUpdate::MemberGone { domain: "d".parse().unwrap(), uid: "b".into() };
    let text = lines(&[snapshot(), RouteUpdate::KeepAlive, gone]);
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
        text.as_bytes().chunks(7).map(|c| Ok(c.to_vec())).collect();
    let body = Body::from_stream(futures::stream::iter(pieces));
    let (status, text) = call(&node.app, machine::ROUTES, body).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let view = node.keeper.view();
    let d = view.table.domain(&"d".parse().unwrap()).unwrap();
    let at = |ip: &str| d.holder(ip.parse::<IpAddr>().unwrap()).is_some();
    assert!(at("10.2.0.1") && !at("10.2.0.2"));
}

#[tokio::test]
async fn a_stream_that_does_not_begin_with_a_snapshot_or_falls_out_of_step_ends() {
    let node = node();
    let (status, text) = call(&node.app, machine::ROUTES, lines(&[RouteUpdate::KeepAlive])).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(text.contains("snapshot"), "{text}");
    let stray = RouteUpdate::MemberGone { domain: "other".parse().unwrap(), uid: "x".into() };
    let (status, text) = call(&node.app, machine::ROUTES, lines(&[snapshot(), stray])).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(text.contains("out-of-step"), "{text}");
    let (status, _) = call(&node.app, machine::ROUTES, "{\"type\":\"nonsense\"}\n").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn only_a_peer_with_a_pod_in_the_domain_is_dialled() {
    let node = node();
    call(&node.app, machine::ROUTES, lines(&[snapshot()])).await;
    let request = |peer: &str| {
        serde_json::json!({"domain": "d", "peer": peer, "lane": "bulk",
            "ticket": {"ticket": "ab".repeat(32)}})
        .to_string()
    };
    assert_eq!(call(&node.app, machine::DIAL, request("s9/n9")).await.0, StatusCode::FORBIDDEN);
    assert_eq!(call(&node.app, machine::DIAL, request("s2/n1")).await.0, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_peer_may_come_directly_with_a_ticket_until_its_machine_is_removed_or_another() {
    let node = node();
    let peers = |machine: &str| RouteUpdate::Peers {
        peers: vec![PeerMachine { node: "s2/n1".parse().unwrap(), machine: machine.to_owned() }],
    };
    let one = |machine: Option<&str>| RouteUpdate::Peer {
        node: "s2/n1".parse().unwrap(),
        machine: machine.map(ToOwned::to_owned),
    };
    let expect = |peer: &str, ticket: &str| {
        serde_json::json!({"domain": "d", "peer": peer, "lane": "bulk",
            "offer": {"ticket": ticket, "addresses": ["192.0.2.1:7400"]}})
        .to_string()
    };
    let come = |ticket: &str| node.expected.take(std::time::Instant::now(), ticket).is_some();
    call(&node.app, machine::ROUTES, lines(&[snapshot(), peers("m1")])).await;
    let stranger = call(&node.app, machine::EXPECT, expect("s9/n9", "t0")).await.0;
    assert_eq!((stranger, come("t0")), (StatusCode::FORBIDDEN, false));
    let told = call(&node.app, machine::EXPECT, expect("s2/n1", "t1")).await.0;
    assert_eq!((told, come("t1"), come("t1")), (StatusCode::ACCEPTED, true, false));

    // The same again is no news; all else cuts it off, whatever stream tells it.
    let changes: [(&[RouteUpdate], bool); 5] = [
        (&[snapshot(), peers("m1"), one(Some("m1"))], true),
        (&[snapshot(), peers("m2")], false),
        (&[snapshot(), one(Some("m3"))], false),
        (&[snapshot(), one(None)], false),
        (&[snapshot(), one(Some("m4")), peers("m4")], true),
    ];
    for (i, (updates, may_come)) in changes.into_iter().enumerate() {
        let ticket = format!("c{i}");
        call(&node.app, machine::EXPECT, expect("s2/n1", &ticket)).await;
        call(&node.app, machine::ROUTES, lines(updates)).await;
        assert_eq!(come(&ticket), may_come, "{updates:?}");
    }
    let dial = serde_json::json!({"domain": "d", "peer": "s2/n1", "lane": "bulk",
        "ticket": {"ticket": "ab".repeat(32), "direct": {"ticket": "t2", "addresses": []}}});
    call(&node.app, machine::DIAL, dial.to_string()).await;
    assert!(come("t2"), "it comes with the call to the hub's relay as well");
}

#[tokio::test]
async fn a_probe_names_the_first_hop_that_fails() {
    let node = node();
    let probe = |to: &str| {
        serde_json::json!({"domain": "d", "from": "a", "to": to, "port": 80}).to_string()
    };
    let last = |text: &str| {
        let report: ProbeReport = serde_json::from_str(text).unwrap();
        report.hops.last().unwrap().clone()
    };
    let (_, text) = call(&node.app, machine::PROBE, probe("b")).await;
    assert_eq!((last(&text).hop.as_str(), last(&text).ok), ("policy", false));
    call(&node.app, machine::ROUTES, lines(&[snapshot()])).await;
    let (_, text) = call(&node.app, machine::PROBE, probe("nobody")).await;
    assert!(last(&text).detail.contains("nobody"), "{text}");
    let (_, text) = call(&node.app, machine::PROBE, probe("b")).await;
    assert_eq!(last(&text).hop, "attachment", "{text}");
}

#[tokio::test]
async fn metrics_are_served_in_the_text_form_of_openmetrics() {
    let node = node();
    let request = Request::get("/metrics").body(Body::empty()).unwrap();
    let answer = node.metrics.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap();
    assert!(text.contains("rlark_node_pods 0\n") && text.ends_with("# EOF\n"), "{text}");
}
