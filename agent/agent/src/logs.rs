//! What the hub may ask of this machine inside its session: a pod's captured output.

use std::sync::Arc;

use agent_workload::{
    logs::reader::{LogError, LogOptions, LogReader},
    raw::{RawRuntime, error::PodError},
    spec::PodUid,
};
use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use control_api::session::{Refusal, machine};
use futures::stream;
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    #[serde(default)]
    follow: bool,
    tail_lines: Option<usize>,
    #[serde(default)]
    previous: bool,
}

/// The routes of an agent's session.
pub(crate) fn router(runtime: Arc<RawRuntime>) -> Router {
    Router::new().route(&format!("{}/{{uid}}/log", machine::PODS), get(log)).with_state(runtime)
}

async fn log(
    State(runtime): State<Arc<RawRuntime>>,
    Path(uid): Path<String>,
    Query(asked): Query<Asked>,
) -> Response {
    let Ok(uid) = uid.parse::<PodUid>() else {
        return refuse(StatusCode::NOT_FOUND, "no-such-pod", format!("there is no pod {uid:?}"));
    };
    let options =
        LogOptions { follow: asked.follow, tail: asked.tail_lines, previous: asked.previous };
    match runtime.logs(&uid, options) {
        Ok(reader) => stream(reader),
        Err(error @ PodError::Unknown { .. }) => {
            refuse(StatusCode::NOT_FOUND, "no-such-pod", error.to_string())
        }
        Err(PodError::Log(error @ LogError::NoPrevious)) => {
            refuse(StatusCode::BAD_REQUEST, "no-previous", error.to_string())
        }
        Err(error) => {
            let text = crate::connect::with_causes(&error);
            refuse(StatusCode::INTERNAL_SERVER_ERROR, "unreadable", text)
        }
    }
}

/// The reader goes away with the response, so a caller that leaves costs nothing.
fn stream(reader: LogReader) -> Response {
    let chunks = stream::unfold(reader, async |mut reader| {
        let chunk = reader.next().await?;
        Some((chunk, reader))
    });
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    (headers, Body::from_stream(chunks)).into_response()
}

fn refuse(status: StatusCode, reason: &str, message: String) -> Response {
    (status, Json(Refusal { reason: reason.to_owned(), message })).into_response()
}
