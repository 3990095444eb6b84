use control_api::v1alpha1::TaskSpec;
use http_body_util::BodyExt as _;
use hyper::{Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;

/// An API server with one answer to everything.
fn server(code: u16, answer: Value) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.to_string();
        async move {
            drop(request.into_body().collect().await);
            let response = Response::builder().status(code).body(Body::from(answer.into_bytes()));
            Ok::<_, std::io::Error>(response.unwrap())
        }
    });
    Client::new(service, "edge")
}

fn status(code: u16, reason: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
        "message": "said by the test" })
}

fn task(finalizers: &[&str]) -> Arc<Task> {
    let mut task = Task::new("j-b", TaskSpec::default());
    task.metadata.uid = Some("b46dae27-cb75-4481-a3f7-59d48e8f0ada".to_owned());
    task.metadata.resource_version = Some("7".to_owned());
    task.metadata.finalizers = Some(finalizers.iter().map(|f| (*f).to_owned()).collect());
    Arc::new(task)
}

/// It was deleted before the agent had a part in it: a pod would run for nobody, beside that of the next Task of its name.
#[tokio::test]
async fn a_task_that_is_gone_when_the_agent_comes_gets_no_pod() {
    let there = with_finalizer(&task(&[]), &server(404, status(404, "NotFound"))).await;
    assert!(there.unwrap().is_none());
}

/// Another Task has its name: the pass ends and the next one sees that.
#[tokio::test]
async fn a_task_that_was_replaced_ends_the_pass() {
    let there = with_finalizer(&task(&[]), &server(409, status(409, "Conflict"))).await;
    assert!(
        matches!(&there, Err(SyncError::Api(kube::Error::Api(e))) if e.is_conflict()),
        "{there:?}"
    );
}

#[tokio::test]
async fn a_task_that_is_the_agents_is_not_asked_for() {
    let there = with_finalizer(&task(&[labels::AGENT_CLEANUP]), &server(500, Value::Null)).await;
    assert!(there.unwrap().is_some());
}
