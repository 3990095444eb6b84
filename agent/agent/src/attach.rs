//! Asks `rlark-node` on this machine to take a pod into its Domain: JSON over HTTP/1 on a Unix
//! socket ([`control_api::attach`]).

use std::{io, path::PathBuf, time::Duration};

use bytes::Bytes;
use control_api::{
    attach::{AttachRequest, Attached},
    session::Refusal,
};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Method, Request, StatusCode, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

/// Why a pod is not in its Domain (yet). All of it may pass.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error("rlark-node does not listen on {socket}: is it running?")]
    NoNode {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("rlark-node refuses: {0}")]
    Refused(#[source] Refusal),
    #[error("rlark-node answered {status} without an explanation")]
    Unexpected { status: StatusCode },
    #[error("rlark-node did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("the connection to rlark-node broke")]
    Http(#[source] hyper::Error),
    #[error("the answer of rlark-node cannot be read")]
    Answer(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// No answer is larger.
const MAX_ANSWER: usize = 16 << 20;
/// For everything that does not wait for the control plane.
const PROMPT: Duration = Duration::from_secs(10);

/// The node's socket.
#[derive(Clone, Debug)]
pub(crate) struct NodeSocket(pub PathBuf);

impl NodeSocket {
    /// Attaches, or finds it attached. Waits as long as the request says for the pod's address.
    pub(crate) async fn attach(
        &self,
        uid: &str,
        request: &AttachRequest,
    ) -> Result<Attached, AttachError> {
        let limit = Duration::from_millis(request.timeout_ms) + PROMPT;
        let body = serde_json::to_vec(request).map_err(|e| AttachError::Answer(e.into()))?;
        let path = format!("/v1/attachments/{uid}");
        self.call(Method::PUT, &path, body.into(), limit).await
    }

    /// Detaches; one that is not attached is fine.
    pub(crate) async fn detach(&self, uid: &str) -> Result<(), AttachError> {
        let path = format!("/v1/attachments/{uid}");
        self.call(Method::DELETE, &path, Bytes::new(), PROMPT).await
    }

    /// What is attached now.
    pub(crate) async fn list(&self) -> Result<Vec<Attached>, AttachError> {
        self.call(Method::GET, "/v1/attachments", Bytes::new(), PROMPT).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<T, AttachError> {
        match tokio::time::timeout(limit, self.exchange(method, path, body)).await {
            Ok(done) => done,
            Err(_elapsed) => Err(AttachError::Timeout(limit)),
        }
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, AttachError> {
        let stream = UnixStream::connect(&self.0)
            .await
            .map_err(|source| AttachError::NoNode { socket: self.0.clone(), source })?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(AttachError::Http)?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "rlark-node")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|e| AttachError::Answer(e.into()))?;
        let answer = async {
            let answer = sender.send_request(request).await.map_err(AttachError::Http)?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
            Ok((status, body.map_err(AttachError::Answer)?.to_bytes()))
        };
        // The connection is driven here and ends with this call: nothing is left to own.
        let (status, body) = tokio::select! {
            answer = answer => answer?,
            broken = connection => match broken {
                Err(e) => return Err(AttachError::Http(e)),
                Ok(()) => return Err(AttachError::Answer("it closed the connection".into())),
            },
        };
        if !status.is_success() {
            return Err(match serde_json::from_slice::<Refusal>(&body) {
                Ok(refusal) => AttachError::Refused(refusal),
                Err(_not_ours) => AttachError::Unexpected { status },
            });
        }
        let body: &[u8] = if body.is_empty() { b"null" } else { &body };
        serde_json::from_slice(body).map_err(|e| AttachError::Answer(e.into()))
    }
}

#[cfg(test)]
mod tests {
    use axum::{Json, Router, http::StatusCode, routing::put};
    use control_api::attach::VirtualAddress;

    use super::*;

    #[tokio::test]
    async fn attaching_and_refusals_cross_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("node.sock");
        let node = NodeSocket(socket.clone());
        let error = node.list().await.unwrap_err();
        assert!(matches!(error, AttachError::NoNode { .. }), "{error}");

        let attached = Attached {
            uid: "u".into(),
            domain: "d".parse().unwrap(),
            addresses: vec![VirtualAddress { vip: "10.0.0.1".parse().unwrap(), prefix_len: 24 }],
            interface: "rl0".into(),
            netns_cookie: 7,
        };
        let answer = attached.clone();
        let refusal =
            Refusal { reason: "no-address".into(), message: "domain d has no address left".into() };
        let app = Router::new()
            .route("/v1/attachments/u", put(async || Json(answer)).delete(StatusCode::NO_CONTENT))
            .route("/v1/attachments/v", put(async || (StatusCode::CONFLICT, Json(refusal))));
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let server = axum::serve(listener, app).into_future();
        let request = AttachRequest {
            domain: "d".parse().unwrap(),
            netns: "/run/n".into(),
            cgroup: None,
            hosts: None,
            timeout_ms: 1000,
        };
        let calls = async {
            assert_eq!(node.attach("u", &request).await.unwrap(), attached);
            node.detach("u").await.unwrap();
            let error = node.attach("v", &request).await.unwrap_err();
            assert_eq!(error.to_string(), "rlark-node refuses: domain d has no address left");
        };
        tokio::select! {
            _ = server => panic!("the server ended"),
            () = calls => {}
        }
    }
}
