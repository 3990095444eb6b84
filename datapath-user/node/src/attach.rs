//! The Unix socket on which runtimes hand over pods; the contract is `control_api::attach`.
//!
//! | refusal `reason` | meaning | status |
//! |---|---|---|
//! | `bad-request` | the body is not an `AttachRequest` | 400 |
//! | `netns`, `cgroup`, `hosts` | the path does not name what it should; a cgroup is missing, or one too many | 422 |
//! | `netns-in-use`, `cgroup-in-use` | the namespace or cgroup belongs to another pod | 409 |
//! | `no-address` | the control plane gave the pod no address in time | 504 |
//! | `kernel` | a step in the kernel failed; nothing of the pod is left behind | 500 |
//! | `too-many-readers` | sixteen read the events already | 429 |
//! | `shutting-down` | the node stops | 503 |

use std::{
    fs, io,
    os::unix::{fs::PermissionsExt as _, net::UnixStream as StdUnixStream},
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path as UrlPath, State, rejection::JsonRejection},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{get, put},
};
use control_api::{
    attach::{AttachRequest, Attached, NodeReport},
    events,
    ids::NodeRef,
    session::{Flow, Refusal},
};
use futures::{StreamExt as _, future::BoxFuture, stream};
use tokio::net::UnixListener;

use crate::{
    events::{self as feed, Reader},
    keeper::Keeper,
};

/// What the socket shows of the running node besides its pods.
pub trait Insight: Send + Sync + 'static {
    fn flows(&self) -> Vec<Flow>;
    fn report(&self) -> BoxFuture<'_, NodeReport>;
    /// What happens from now on, and where; `None` when there are too many readers already.
    fn events(&self) -> Option<(NodeRef, Reader)>;
}

/// Why the socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("another rlark-node is answering on {path}")]
    InUse { path: PathBuf },
    #[error("{path} exists and is not a socket")]
    NotASocket { path: PathBuf },
    #[error("cannot listen on {path}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Binds the socket with mode 0600; a dead one left by an earlier process is replaced.
///
/// # Errors
/// When a live node owns it or the path cannot be used.
pub fn bind(path: &Path) -> Result<UnixListener, SocketError> {
    use std::os::unix::fs::FileTypeExt as _;
    let io = |source| SocketError::Io { path: path.to_owned(), source };
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(io)?;
    }
    match fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(SocketError::NotASocket { path: path.to_owned() });
        }
        Ok(_) if StdUnixStream::connect(path).is_ok() => {
            return Err(SocketError::InUse { path: path.to_owned() });
        }
        Ok(_) => fs::remove_file(path).map_err(io)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(io(e)),
    }
    // Between bind and chmod only the umask protects the socket, so it is made under another name.
    let temporary = path.with_extension("new");
    match fs::remove_file(&temporary) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(io(e)),
        _ => {}
    }
    let listener = UnixListener::bind(&temporary).map_err(io)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o600)).map_err(io)?;
    fs::rename(&temporary, path).map_err(io)?;
    Ok(listener)
}

#[derive(Clone)]
struct App {
    keeper: Keeper,
    insight: Arc<dyn Insight>,
}

/// The routes of the socket.
pub fn router(keeper: Keeper, insight: Arc<dyn Insight>) -> Router {
    Router::new()
        .route("/v1/attachments/{uid}", put(attach).delete(detach))
        .route("/v1/attachments", get(list))
        .route("/v1/flows", get(flows))
        .route("/v1/doctor", get(doctor))
        .route(events::PATH, get(events))
        .fallback(|| async { Refused(StatusCode::NOT_FOUND, unknown_route()) })
        .with_state(App { keeper, insight })
}

struct Refused(StatusCode, Refusal);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

impl From<Refusal> for Refused {
    fn from(r: Refusal) -> Self {
        let status = match r.reason.as_str() {
            "bad-request" => StatusCode::BAD_REQUEST,
            "netns" | "cgroup" | "hosts" => StatusCode::UNPROCESSABLE_ENTITY,
            "netns-in-use" | "cgroup-in-use" => StatusCode::CONFLICT,
            "too-many-readers" => StatusCode::TOO_MANY_REQUESTS,
            "no-address" => StatusCode::GATEWAY_TIMEOUT,
            "shutting-down" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, r)
    }
}

fn unknown_route() -> Refusal {
    Refusal { reason: "not-found".into(), message: "rlark-node has no such path".into() }
}

async fn attach(
    State(app): State<App>,
    UrlPath(uid): UrlPath<String>,
    body: Result<Json<AttachRequest>, JsonRejection>,
) -> Result<Json<Attached>, Refused> {
    let bad = |message| Refusal { reason: "bad-request".into(), message };
    let Json(request) = body.map_err(|e| bad(format!("pod {uid}: {}", e.body_text())))?;
    if uid.is_empty() || uid.len() > 253 || uid.chars().any(char::is_control) {
        return Err(bad(format!("{uid:?} is not a pod uid")).into());
    }
    Ok(Json(app.keeper.attach(uid, request).await?))
}

async fn detach(
    State(app): State<App>,
    UrlPath(uid): UrlPath<String>,
) -> Result<StatusCode, Refused> {
    app.keeper.detach(uid).await.map_err(Refusal::from)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn list(State(app): State<App>) -> Json<Vec<Attached>> {
    Json(app.keeper.view().pods.values().map(|p| p.attached.clone()).collect())
}

async fn flows(State(app): State<App>) -> Json<Vec<Flow>> {
    Json(app.insight.flows())
}

async fn doctor(State(app): State<App>) -> Json<NodeReport> {
    Json(app.insight.report().await)
}

/// Line by line, until the reader goes; its connection's buffer and its queue are all that it may fall behind.
async fn events(State(app): State<App>) -> Result<Response, Refused> {
    let Some((node, reader)) = app.insight.events() else {
        let message = "too many read the events of this node already, or it stops".to_owned();
        return Err(Refusal { reason: "too-many-readers".into(), message }.into());
    };
    let first = Arc::new(feed::first(node));
    let later = stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((event, reader))
    });
    let lines = stream::iter([first]).chain(later).map(|event| {
        let mut line = serde_json::to_vec(&*event)?;
        line.push(b'\n');
        Ok::<_, serde_json::Error>(line)
    });
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

#[cfg(test)]
#[path = "attach_tests.rs"]
mod tests;
