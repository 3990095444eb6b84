//! Every route, and who gets through: without a certificate, with a machine's, with another site's,
//! with an admin's.

use super::*;

/// Who calls.
struct Callers {
    nobody: Client,
    node: Client,
    agent: Client,
    /// An agent of another site.
    other: Client,
    admin: Client,
}

async fn callers(lab: &Lab) -> Callers {
    let ca = std::fs::read_to_string(lab.dir.path().join("server/ca.pem")).unwrap();
    let bare = tls::client_config(&ca, None, &tls::HTTP_ALPN).unwrap();
    Callers {
        nobody: Client::new(ServerAddress::parse(&lab.url).unwrap(), "127.0.0.1", bare),
        node: lab.node("site-a", "n1").await.http_client(),
        agent: lab.enrolled(MachineRole::Agent, "site-a", "n1").await.http_client(),
        other: lab.enrolled(MachineRole::Agent, "site-b", "n1").await.http_client(),
        admin: lab.admin.clone(),
    }
}

/// The status of an answer; 200 for any success.
async fn status(client: &Client, method: &str, path: &str) -> u16 {
    let body = serde_json::json!({});
    let answer = match method {
        "GET" => client.get::<serde_json::Value>(path).await,
        _ => client.post::<_, serde_json::Value>(path, &body).await,
    };
    match answer {
        Ok(_) | Err(CallError::Malformed { .. }) => 200,
        Err(CallError::Refused { status, .. } | CallError::Unexpected { status, .. }) => {
            status.as_u16()
        }
        Err(other) => panic!("{method} {path}: {other:?}"),
    }
}

/// Whether the policy let the call through: an empty body is refused by the handler after that.
fn let_in(status: u16) -> bool {
    !matches!(status, 401 | 403)
}

#[tokio::test]
async fn every_route_of_the_hub_lets_in_whom_its_policy_names() {
    use control_hub::Policy;
    let lab = Lab::start().await;
    let c = callers(&lab).await;
    for (method, path, policy) in control_hub::routes().table() {
        let who = [&c.nobody, &c.node, &c.agent, &c.other, &c.admin];
        let mut found = Vec::new();
        for client in who {
            found.push(let_in(status(client, method, path).await));
        }
        let wanted = match policy {
            Policy::JoinToken => [true; 5],
            Policy::MachineInGrace => [false, true, true, true, false],
            Policy::Nodes => [false, true, false, false, false],
            Policy::Admins => [false, false, false, false, true],
        };
        assert_eq!(found, wanted, "{method} {path} for nobody, node, agent, other site's, admin");
        assert_eq!(status(&c.nobody, method, path).await == 401, *policy != Policy::JoinToken);
    }
    lab.stop().await;
}

#[tokio::test]
async fn objects_are_for_those_who_may_and_for_nobody_else() {
    let lab = Lab::start().await;
    let c = callers(&lab).await;
    let group = "/apis/rlinf.io/v1alpha1";
    let own = format!("{group}/namespaces/rlark-site-a");
    // For nobody, the node, the agent of the site, the agent of another, an admin.
    for (path, wanted) in [
        ("/version".to_owned(), [200, 200, 200, 200, 200]),
        ("/apis".to_owned(), [200, 200, 200, 200, 200]),
        ("/".to_owned(), [403, 200, 200, 200, 200]),
        ("/openapi/v2".to_owned(), [403, 200, 200, 200, 200]),
        ("/no-such-page".to_owned(), [403, 404, 404, 404, 404]),
        (format!("{own}/tasks"), [403, 403, 200, 403, 200]),
        (format!("{own}/pods"), [403, 403, 200, 403, 200]),
        (format!("{own}/nodes"), [403, 403, 200, 403, 200]),
        (format!("{own}/addons"), [403, 403, 200, 403, 200]),
        (format!("{own}/domainpeers"), [403, 403, 200, 403, 200]),
        (format!("{group}/pods"), [403, 403, 403, 403, 200]),
        (format!("{group}/jobs"), [403, 403, 403, 403, 200]),
        (format!("{group}/domains"), [403, 403, 403, 403, 200]),
        ("/api/v1/namespaces/rlark-site-a/secrets".to_owned(), [403, 403, 403, 403, 200]),
        ("/api/v1/namespaces/rlark-system/secrets".to_owned(), [403, 403, 403, 403, 200]),
        ("/api/v1/namespaces/rlark-system/configmaps".to_owned(), [403, 403, 403, 403, 200]),
        ("/api/v1/nodes".to_owned(), [403, 403, 403, 403, 404]),
        (format!("/api/kubernetes{own}/tasks"), [403, 403, 200, 403, 200]),
        ("/api/kubernetes/api/v1/namespaces".to_owned(), [403, 403, 403, 403, 200]),
    ] {
        let mut found = Vec::new();
        for client in [&c.nobody, &c.node, &c.agent, &c.other, &c.admin] {
            found.push(status(client, "GET", &path).await);
        }
        assert_eq!(found, wanted, "GET {path}");
    }
    lab.stop().await;
}

/// The Task that stands in `place` is changed by an agent that runs it, and by one that does not.
#[tokio::test]
async fn an_agent_changes_of_a_task_what_is_its_own_to_change() {
    let lab = Lab::start().await;
    lab.enrolled(MachineRole::Agent, "site-a", "n1").await;
    let tasks: Api<Task> = Api::namespaced(lab.client.clone(), "rlark-site-a");
    let mut task = Task::new("t", TaskSpec { domain: "d".to_owned(), ..TaskSpec::default() });
    task.metadata.annotations = Some([("rlark.io/node".to_owned(), "n1".to_owned())].into());
    task.metadata.labels = Some([("rlinf.io/job".to_owned(), "j".to_owned())].into());
    tasks.create(&PostParams::default(), &task).await.unwrap();
    let as_agent = |name: &str, lab: &Lab| {
        let config = lab.machine(&format!("site-a-{name}-Agent"), MachineRole::Agent, name);
        Identity::load(&config).unwrap()
    };
    lab.enrolled(MachineRole::Agent, "site-a", "n2").await;
    let (own, other) = (as_agent("n1", &lab), as_agent("n2", &lab));
    let patch = async |who: &Identity, change: serde_json::Value| {
        let tasks: Api<Task> = Api::default_namespaced(removal::kubernetes(who));
        match tasks.patch("t", &PatchParams::default(), &Patch::Merge(change)).await {
            Ok(_) => None,
            Err(kube::Error::Api(status)) => Some(*status),
            Err(other) => panic!("{other:?}"),
        }
    };
    let finalizer = serde_json::json!({"metadata": {"finalizers": ["rlark.io/agent-cleanup"]}});
    assert!(patch(&other, finalizer.clone()).await.is_some());
    assert!(patch(&own, finalizer).await.is_none());
    for (change, field) in [
        (serde_json::json!({"spec": {"domain": "secret"}}), "spec.domain"),
        (serde_json::json!({"metadata": {"labels": {"rlinf.io/job": "x"}}}), "metadata.labels"),
        (serde_json::json!({"metadata": {"annotations": null}}), "metadata.annotations"),
        (
            serde_json::json!({"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "u"},
            ]}}),
            "metadata.ownerReferences",
        ),
    ] {
        let status = patch(&own, change).await.unwrap();
        assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
        let named = status.details.unwrap().causes.iter().any(|c| c.field == field);
        assert!(named && status.message.contains(field), "{field}: {}", status.message);
    }
    lab.stop().await;
}
