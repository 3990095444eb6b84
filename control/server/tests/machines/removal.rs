//! What is over at once when an administrator removes a machine, and what a Domain does not inherit.

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::WatchParams;

use super::*;

/// Milliseconds on an idle machine.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(2);

const PODS: &str = "/apis/rlinf.io/v1alpha1/namespaces/rlark-site-a/pods";

/// The Kubernetes API as the machine's own programs use it.
pub(crate) fn kubernetes(of: &Identity) -> kube::Client {
    let paths = of.paths();
    let mut config = kube::Config::new(of.server().to_string().parse().unwrap());
    config.default_namespace = of.machine().cluster.namespace();
    config.root_cert_file = Some(paths.ca);
    config.tls_server_name = Some(of.server_name().to_owned());
    config.auth_info = kube::config::AuthInfo {
        client_certificate: Some(paths.certificate.display().to_string()),
        client_key: Some(paths.key.display().to_string()),
        ..kube::config::AuthInfo::default()
    };
    kube::Client::try_from(config).unwrap()
}

/// The reason of a refusal. A connection that was closed is dialled again.
async fn refused<T: std::fmt::Debug, F: Future<Output = Result<T, CallError>>>(
    mut call: impl FnMut() -> F,
) -> String {
    for _ in 0..3 {
        match call().await {
            Err(CallError::Refused { status, refusal }) => {
                assert_eq!(status, http::StatusCode::FORBIDDEN);
                return refusal.reason;
            }
            Err(CallError::Unreachable { .. }) => {}
            other => panic!("not refused: {other:?}"),
        }
    }
    panic!("never answered")
}

#[tokio::test]
async fn a_removed_machine_is_out_at_once_and_its_watches_and_session_end() {
    let lab = Lab::start().await;
    let mut node = connect(lab.node("site-a", "n1").await);
    node.reaches(SessionState::Connected).await;
    assert!(matches!(node.next().await, RouteUpdate::Snapshot { .. }));
    let agent = lab.enrolled(MachineRole::Agent, "site-a", "n1").await;
    let other = lab.enrolled(MachineRole::Agent, "site-a", "n2").await;
    let calls = agent.http_client();
    calls.get::<serde_json::Value>(PODS).await.unwrap();
    let watch = |of: &Identity| {
        let pods: Api<Pod> = Api::default_namespaced(kubernetes(of));
        async move { pods.watch(&WatchParams::default(), "0").await.unwrap().boxed() }
    };
    let (mut watched, mut stays) = (watch(&agent).await, watch(&other).await);

    let records: Api<ConfigMap> = Api::namespaced(lab.client.clone(), "rlark-system");
    for role in ["node", "agent"] {
        let name = format!("machine.{role}.site-a.n1");
        records.delete(&name, &DeleteParams::default()).await.unwrap();
    }
    let ended = timeout(AT_ONCE, async { while let Ok(Some(_)) = watched.try_next().await {} });
    ended.await.unwrap();
    let gone = async {
        while !lab.sessions().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(AT_ONCE, gone).await.unwrap();
    let get = || calls.get::<serde_json::Value>(PODS);
    assert_eq!(refused(get).await, "machine-removed");
    let request = CarrierRequest {
        domain: "d".parse().unwrap(),
        peer: "site-b/n1".parse().unwrap(),
        lane: Lane::Bulk,
    };
    let dial = node.identity.http_client();
    let carrier = || dial.post::<_, CarrierTicket>(hub::CARRIERS, &request);
    assert_eq!(refused(carrier).await, "machine-removed");
    let key = DomainCertificateRequest { domain: "d".parse().unwrap(), public_key: String::new() };
    let certificate = || dial.post::<_, DomainCertificateResponse>(hub::DOMAIN_CERTIFICATES, &key);
    assert_eq!(refused(certificate).await, "machine-removed");

    // Nobody else is disturbed, and the name is free for another key, which the old one is not.
    other.http_client().get::<serde_json::Value>(PODS).await.unwrap();
    assert!(timeout(Duration::from_millis(50), stays.next()).await.is_err());
    let config = lab.machine("again", MachineRole::Agent, "n1");
    let again = Identity::open(&config, Some(&lab.token("site-a", 60, 1).await)).await.unwrap();
    again.http_client().get::<serde_json::Value>(PODS).await.unwrap();
    assert_eq!(refused(get).await, "machine-removed");
    assert!(lab.sessions().await.is_empty(), "the removed node does not come back");

    node.stop.cancel();
    // The store is locked as long as a client of it lives.
    drop((watched, stays, records));
    let address: SocketAddr = lab.url.trim_start_matches("https://").parse().unwrap();
    let lab = Lab::start_in(lab.stop().await, address).await;
    assert_eq!(refused(get).await, "machine-removed", "a restart forgets nothing");
    again.http_client().get::<serde_json::Value>(PODS).await.unwrap();
    lab.stop().await;
}

#[tokio::test]
async fn a_domain_does_not_inherit_the_authority_of_an_earlier_one_of_its_name() {
    let lab = Lab::start().await;
    let domains: Api<Domain> = Api::all(lab.client.clone());
    let secrets: Api<Secret> = Api::namespaced(lab.client.clone(), "rlark-system");
    let make = async |name: &str| {
        let spec = DomainSpec { cidr: "10.0.1.0/24".to_owned(), ..DomainSpec::default() };
        domains.create(&PostParams::default(), &Domain::new(name, spec)).await.unwrap()
    };
    // The Secret that was made for this very Domain.
    let authority = async |domain: &Domain| {
        let name = format!("domain-ca-{}", domain.metadata.name.as_deref().unwrap());
        let made = async {
            loop {
                let found = secrets.get_opt(&name).await.unwrap();
                let uid = found.as_ref().and_then(|s| s.metadata.annotations.as_ref());
                if uid.and_then(|a| a.get("rlark.io/domain-uid")) == domain.metadata.uid.as_ref() {
                    return found.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, made).await.unwrap()
    };
    let public = |secret: &Secret| secret.data.as_ref().unwrap()["ca.pub"].0.clone();
    let first = authority(&make("a").await).await;

    // What a Domain leaves behind that is deleted while nobody looks, and one from before.
    for (name, annotated) in [("b", true), ("c", false)] {
        let mut left = first.clone();
        left.metadata = kube::api::ObjectMeta {
            name: Some(format!("domain-ca-{name}")),
            annotations: left.metadata.annotations.filter(|_| annotated),
            ..kube::api::ObjectMeta::default()
        };
        secrets.create(&PostParams::default(), &left).await.unwrap();
        let second = authority(&make(name).await).await;
        assert_ne!(public(&second), public(&first), "{name}");
        assert!(second.metadata.owner_references.is_some());
    }
    // Deleted and made anew so fast that a watch may see one change only.
    domains.delete("a", &DeleteParams::default()).await.unwrap();
    let again = authority(&make("a").await).await;
    assert_ne!(public(&again), public(&first));
    lab.stop().await;
}
