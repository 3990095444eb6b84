//! A pod's log, as the Kubernetes API serves it: found in the pod's agent through its session.

use axum::{
    body::Body,
    extract::Query,
    response::{IntoResponse, Response},
};
use control_api::{
    ids::ClusterId,
    session::{MachineRole, machine},
    v1alpha1::Pod,
};
use http::{Method, StatusCode, Uri, header};
use kube::Api;
use serde::Deserialize;
use serde_json::json;

use crate::{Hub, sessions::CallError};

/// The query of `pods/log` as far as runtimes serve it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LogQuery {
    pub follow: bool,
    pub tail_lines: Option<u64>,
    /// The run before the last restart.
    pub previous: bool,
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("{0}")]
    BadQuery(String),
    #[error("pods.rlinf.io {0:?} not found")]
    NoPod(String),
    #[error("pod {0:?} is not in a site's namespace, so no agent has its log")]
    NoSite(String),
    #[error("no agent of site {cluster} is connected; its log of pod {pod:?} is out of reach")]
    NoAgent { cluster: ClusterId, pod: String },
    #[error("{0}")]
    Agent(String),
    #[error("the agent does not answer: {0}")]
    Unreachable(String),
    #[error("reading the pod failed")]
    Api(#[source] Box<kube::Error>),
}

impl LogError {
    fn status(&self) -> (StatusCode, &'static str) {
        match self {
            Self::BadQuery(_) => (StatusCode::BAD_REQUEST, "BadRequest"),
            Self::NoPod(_) | Self::Agent(_) => (StatusCode::NOT_FOUND, "NotFound"),
            Self::NoSite(_) => (StatusCode::BAD_REQUEST, "BadRequest"),
            Self::NoAgent { .. } | Self::Unreachable(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
            }
            Self::Api(_) => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        }
    }
}

/// A Kubernetes `Status`, because that is what clients of this path read.
impl IntoResponse for LogError {
    fn into_response(self) -> Response {
        let (code, reason) = self.status();
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.to_string(), "reason": reason, "code": code.as_u16(),
        });
        (code, axum::Json(status)).into_response()
    }
}

impl Hub {
    /// Serves `GET .../namespaces/NAMESPACE/pods/NAME/log?…`; the caller has authorised it.
    pub async fn pod_log(&self, namespace: &str, name: &str, uri: &Uri) -> Response {
        let query = match Query::<LogQuery>::try_from_uri(uri) {
            Ok(Query(query)) => query,
            Err(e) => return LogError::BadQuery(e.body_text()).into_response(),
        };
        match self.open_log(namespace, name, &query).await {
            Ok(answer) => answer,
            Err(error) => {
                if let LogError::Api(source) = &error {
                    tracing::error!(%source, pod = name, "reading a pod for its log failed");
                }
                error.into_response()
            }
        }
    }

    async fn open_log(
        &self,
        namespace: &str,
        name: &str,
        query: &LogQuery,
    ) -> Result<Response, LogError> {
        let api: Api<Pod> = Api::namespaced(self.inner.client.clone(), namespace);
        let pod = api.get_opt(name).await.map_err(|e| LogError::Api(Box::new(e)))?;
        let pod = pod.ok_or_else(|| LogError::NoPod(name.to_owned()))?;
        let cluster = ClusterId::from_namespace(namespace)
            .ok_or_else(|| LogError::NoSite(name.to_owned()))?;
        let node = pod.status.as_ref().map(|s| s.node.as_str()).unwrap_or_default();
        let sessions = &self.inner.sessions;
        let agent = sessions
            .agent_for(&cluster, node)
            .ok_or_else(|| LogError::NoAgent { cluster, pod: name.to_owned() })?;
        let mut path = format!(
            "{}/{name}/log?follow={}&previous={}",
            machine::PODS,
            query.follow,
            query.previous
        );
        if let Some(lines) = query.tail_lines {
            path.push_str(&format!("&tailLines={lines}"));
        }
        let answer = sessions
            .request(MachineRole::Agent, &agent, Method::GET, &path, Body::empty())
            .await
            .map_err(|e| match e {
                CallError::Refused { refusal, .. } => LogError::Agent(refusal.message),
                other => LogError::Unreachable(other.to_string()),
            })?;
        let text = (header::CONTENT_TYPE, "text/plain; charset=utf-8");
        Ok(([text], Body::new(answer.into_body())).into_response())
    }
}
