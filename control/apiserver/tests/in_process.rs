//! kube-rs without a socket: what controllers rely on.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use control_apiserver::{ApiServer, Options, Policy, ROUTES};
use control_identity::authorize::{Attributes, Authorizer, Decision};
use control_identity::principal::Principal;
use control_store::Workspace;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tower::ServiceExt;

/// Admins may do everything, others nothing.
struct AdminsOnly;

impl Authorizer for AdminsOnly {
    fn authorize(&self, who: &Principal, _what: &Attributes<'_>) -> Decision {
        match who {
            Principal::Admin { .. } => Decision::Allow,
            _ => Decision::Deny(String::new()),
        }
    }
}

async fn server() -> ApiServer {
    let workspace = Workspace::in_memory(&control_store::Options::default()).unwrap();
    ApiServer::new(workspace, Arc::new(AdminsOnly), Options::default()).await.unwrap()
}

fn admin(server: &ApiServer) -> Client {
    Client::new(server.in_process(Principal::Admin { name: "admin".to_owned() }), "default")
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": value}})).unwrap()
}

fn code<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> (u16, String) {
    match result.unwrap_err() {
        kube::Error::Api(status) => (status.code, status.message),
        other => (0, other.to_string()),
    }
}

#[tokio::test]
async fn an_update_from_a_stale_copy_is_a_conflict_and_loses_nothing() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(admin(&server));
    let first = maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let mut fresh = first.clone();
    fresh.data.as_mut().unwrap().insert("k".to_owned(), "2".to_owned());
    maps.replace("a", &PostParams::default(), &fresh).await.unwrap();
    let stale = code(maps.replace("a", &PostParams::default(), &first).await);
    assert_eq!(stale.0, 409);
    assert!(stale.1.contains("the object has been modified"), "{}", stale.1);
    assert_eq!(maps.get("a").await.unwrap().data.unwrap().get("k").unwrap(), "2");
    let again = code(maps.create(&PostParams::default(), &config_map("a", "1")).await);
    assert_eq!(again, (409, "configmaps \"a\" already exists".to_owned()));
}

#[tokio::test]
async fn a_list_goes_on_at_its_revision() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(admin(&server));
    for n in 0..5 {
        maps.create(&PostParams::default(), &config_map(&format!("m{n}"), "1")).await.unwrap();
    }
    let page = maps.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(page.metadata.remaining_item_count, Some(3));
    maps.delete("m3", &DeleteParams::default()).await.unwrap();
    let token = page.metadata.continue_.unwrap();
    let rest = maps.list(&ListParams::default().continue_token(&token)).await.unwrap();
    let names: Vec<String> = rest.items.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["m2", "m3", "m4"]);
}

#[tokio::test]
async fn a_watch_resumes_and_says_when_an_object_leaves_the_selection() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(admin(&server));
    let start = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut labelled = config_map("a", "1");
    labelled.labels_mut().insert("app".to_owned(), "x".to_owned());
    maps.create(&PostParams::default(), &labelled).await.unwrap();
    let unlabel = Patch::Merge(json!({"metadata": {"labels": {"app": null}}}));
    maps.patch("a", &PatchParams::default(), &unlabel).await.unwrap();
    let selected = WatchParams::default().labels("app=x").timeout(5);
    let events: Vec<_> =
        maps.watch(&selected, &start).await.unwrap().take(2).try_collect().await.unwrap();
    assert!(
        matches!(events.as_slice(), [WatchEvent::Added(_), WatchEvent::Deleted(_)]),
        "{events:?}"
    );
}

#[tokio::test]
async fn a_streaming_list_ends_with_its_bookmark() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(admin(&server));
    maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let stream = watcher(maps, watcher::Config::default().streaming_lists());
    let seen: Vec<_> = stream.take(3).try_collect().await.unwrap();
    assert!(
        matches!(
            seen.as_slice(),
            [watcher::Event::Init, watcher::Event::InitApply(_), watcher::Event::InitDone]
        ),
        "{seen:?}"
    );
}

#[tokio::test]
async fn dependents_go_with_their_owner_and_finalizers_hold() {
    let server = server().await;
    let client = admin(&server);
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let owner = namespaces
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": "owner"}})).unwrap(),
        )
        .await
        .unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let mut dependent = config_map("a", "1");
    dependent.metadata.owner_references = Some(vec![
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Namespace", "name": "owner", "uid": owner.uid().unwrap(),
        }))
        .unwrap(),
    ]);
    dependent.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    maps.create(&PostParams::default(), &dependent).await.unwrap();
    namespaces.delete("owner", &DeleteParams::default()).await.unwrap();
    let marked = eventually(|| async {
        maps.get("a").await.ok().filter(|m| m.metadata.deletion_timestamp.is_some())
    });
    marked.await;
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("a", &PatchParams::default(), &release).await.unwrap();
    assert_eq!(code(maps.get("a").await), (404, "configmaps \"a\" not found".to_owned()));
}

async fn eventually<T, F: Future<Output = Option<T>>>(mut condition: impl FnMut() -> F) -> T {
    tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            if let Some(found) = condition().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn every_route_refuses_strangers_unless_it_is_for_everyone() {
    let server = server().await;
    for route in ROUTES {
        let path = route
            .path
            .replace("{group}", "rbac.authorization.k8s.io")
            .replace("{version}", "v1")
            .replace("{*object}", "roles")
            .replace("{*group_version}", "api/v1");
        let request = axum::http::Request::get(&path).body(axum::body::Body::empty()).unwrap();
        let status = server.router().oneshot(request).await.unwrap().status().as_u16();
        match route.policy {
            Policy::Anyone => assert_eq!(status, 200, "{path}"),
            Policy::Authenticated | Policy::Authorized => assert_eq!(status, 403, "{path}"),
        }
    }
    let open: Vec<&str> =
        ROUTES.iter().filter(|r| r.policy == Policy::Anyone).map(|r| r.path).collect();
    assert_eq!(
        open,
        [
            "/healthz",
            "/healthz/ping",
            "/livez",
            "/livez/ping",
            "/readyz",
            "/readyz/ping",
            "/version",
            "/version/",
            "/api",
            "/api/",
            "/apis",
            "/apis/",
            "/apis/{group}",
            "/apis/{group}/",
            "/api/{version}",
            "/api/{version}/",
            "/apis/{group}/{version}",
            "/apis/{group}/{version}/"
        ]
    );
}
