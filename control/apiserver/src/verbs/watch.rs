//! `watch`: a stream of JSON lines.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use control_schema::Resource;
use control_schema::table::IncludeObject;
use control_store::{Event, EventKind, Object, Watch, WatchError};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::list;
use crate::context::{Call, Selection};
use crate::convert;
use crate::negotiate::Shape;
use crate::render::{self, now_seconds};
use crate::status::ApiError;

/// How often a client that wants bookmarks gets one.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(15);
/// How long a watch lasts whose client names no time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(45 * 60);
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

pub(super) fn watch(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let selection = Selection::of(call)?;
    let encoder = Encoder {
        resource: Arc::clone(&call.resource),
        shape: call.shape,
        include: render::include(call)?,
        selection,
        columns_sent: false,
    };
    let stream = Stream::start(call, encoder)?;
    let body = futures::stream::unfold(stream, |mut stream| async move {
        let chunk = stream.next().await?;
        Some((Ok::<_, Infallible>(chunk), stream))
    });
    let mut response = Response::new(Body::from_stream(body));
    *response.status_mut() = StatusCode::OK;
    let media = match call.shape {
        Shape::Object | Shape::Metadata | Shape::MetadataList => "application/json",
        Shape::Table => "application/json;as=Table;g=meta.k8s.io;v=v1",
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    Ok(response)
}

/// The state of one watch.
struct Stream {
    encoder: Encoder,
    /// Lines to send before anything else.
    ready: Option<Bytes>,
    watch: Option<Watch>,
    bookmarks: Option<Interval>,
    deadline: Instant,
}

impl Stream {
    fn start(call: &Call<'_>, mut encoder: Encoder) -> Result<Self, ApiError> {
        let query = &call.query;
        let wanted = list::revision(&query.resource_version)?;
        let snapshot = call.inner.workspace.snapshot();
        let initial = query.send_initial_events.unwrap_or(wanted == 0);
        let mut ready = Vec::new();
        let mut position = wanted;
        if initial {
            position = snapshot.revision();
            let scope = call.scope();
            for object in snapshot.iter(&scope, None) {
                if encoder.selection.matches(&encoder.resource, &object.value) {
                    encoder.line(&mut ready, "ADDED", &object.value, Some(object));
                }
            }
            if query.send_initial_events == Some(true) && query.allow_watch_bookmarks {
                encoder.bookmark(&mut ready, position, true);
            }
        } else if wanted == 0 {
            position = snapshot.revision();
        }
        let watch = match call.inner.workspace.watch(call.scope(), position) {
            Ok(watch) => Some(watch),
            Err(error) => {
                Encoder::error(&mut ready, &ended(error));
                None
            }
        };
        let seconds = query.timeout_seconds.filter(|s| *s > 0).map(Duration::from_secs);
        let bookmarks = query.allow_watch_bookmarks.then(|| {
            let mut ticks =
                tokio::time::interval_at(Instant::now() + BOOKMARK_PERIOD, BOOKMARK_PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        Ok(Self {
            encoder,
            // An empty first chunk lets the client see the headers at once.
            ready: Some(ready.into()),
            watch,
            bookmarks,
            deadline: Instant::now() + seconds.unwrap_or(DEFAULT_TIMEOUT),
        })
    }

    /// The next lines; `None` ends the response.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(ready) = self.ready.take().filter(|r| !r.is_empty()) {
            return Some(ready);
        }
        let watch = self.watch.as_mut()?;
        let mut out = Vec::new();
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.deadline) => {
                    if self.bookmarks.is_some() {
                        self.encoder.bookmark(&mut out, watch.position(), false);
                    }
                    self.watch = None;
                    return (!out.is_empty()).then(|| out.into());
                }
                () = tick(self.bookmarks.as_mut()) => {
                    self.encoder.bookmark(&mut out, watch.position(), false);
                    return Some(out.into());
                }
                events = watch.next() => match events {
                    Ok(events) => {
                        for event in &events {
                            self.encoder.event(&mut out, event);
                        }
                        if !out.is_empty() {
                            return Some(out.into());
                        }
                    }
                    Err(error) => {
                        if error != WatchError::Closed {
                            Encoder::error(&mut out, &ended(error));
                        }
                        self.watch = None;
                        return (!out.is_empty()).then(|| out.into());
                    }
                },
            }
        }
    }
}

async fn tick(interval: Option<&mut Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}

fn ended(error: WatchError) -> ApiError {
    match error {
        WatchError::Expired { wanted, floor } => {
            ApiError::Expired { message: format!("too old resource version: {wanted} ({floor})") }
        }
        WatchError::Closed => ApiError::Unavailable { message: "shutting down".to_owned() },
    }
}

/// Turns store events into the lines one client wants to see.
struct Encoder {
    resource: Arc<Resource>,
    shape: Shape,
    include: IncludeObject,
    selection: Selection,
    columns_sent: bool,
}

impl Encoder {
    /// A change as the client's selection sees it: an object that starts to match is added, one
    /// that ceases to match is deleted.
    fn event(&mut self, out: &mut Vec<u8>, event: &Event) {
        let object = &event.object;
        let matches = |value: &Value| self.selection.matches(&self.resource, value);
        let now = event.kind != EventKind::Deleted && matches(&object.value);
        let before = match (&event.previous, event.kind) {
            (Some(previous), _) => matches(&previous.value),
            (None, EventKind::Added) => false,
            // The state before is unknown: tell the client rather than leave a ghost.
            (None, _) => true,
        };
        match (before, now) {
            (false, false) => {}
            (false, true) => self.line(out, "ADDED", &object.value, Some(object)),
            (true, true) => self.line(out, "MODIFIED", &object.value, Some(object)),
            (true, false) if event.kind == EventKind::Deleted => {
                self.line(out, "DELETED", &object.value, Some(object));
            }
            (true, false) => {
                let last = event.previous.as_ref().map_or(&object.value, |p| &p.value);
                let mut value = last.clone();
                if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
                    let revision = Value::from(object.revision.to_string());
                    metadata.insert("resourceVersion".to_owned(), revision);
                }
                self.line(out, "DELETED", &value, None);
            }
        }
    }

    fn line(&mut self, out: &mut Vec<u8>, ty: &str, stored: &Value, object: Option<&Object>) {
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(ty.as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        match (self.shape, object) {
            (Shape::Object, Some(object)) => {
                out.extend_from_slice(&convert::served_json(&self.resource, object));
            }
            (Shape::Object, None) => {
                let served = convert::served(&self.resource, stored);
                out.extend_from_slice(served.to_string().as_bytes());
            }
            (Shape::Metadata | Shape::MetadataList, _) => {
                let served = convert::served(&self.resource, stored);
                out.extend_from_slice(convert::partial(&served).to_string().as_bytes());
            }
            (Shape::Table, _) => {
                let served = convert::served(&self.resource, stored);
                let version = served.pointer("/metadata/resourceVersion").cloned();
                let table = self.table(std::iter::once(&*served), version.unwrap_or_default());
                out.extend_from_slice(table.to_string().as_bytes());
            }
        }
        out.extend_from_slice(b"}\n");
    }

    /// Only the first Table of a watch carries the columns.
    fn table<'a>(&mut self, rows: impl Iterator<Item = &'a Value>, version: Value) -> Value {
        let metadata = json!({"resourceVersion": version});
        let mut table = self.resource.columns.table(rows, metadata, now_seconds(), self.include);
        if self.columns_sent
            && let Some(map) = table.as_object_mut()
        {
            map.insert("columnDefinitions".to_owned(), Value::Null);
        }
        self.columns_sent = true;
        table
    }

    fn bookmark(&mut self, out: &mut Vec<u8>, revision: u64, initial_end: bool) {
        let mut metadata = Map::new();
        metadata.insert("resourceVersion".to_owned(), Value::from(revision.to_string()));
        if initial_end {
            metadata.insert("annotations".to_owned(), json!({INITIAL_EVENTS_END: "true"}));
        }
        let object = match self.shape {
            Shape::Object => json!({
                "kind": self.resource.kind, "apiVersion": self.resource.api_version(),
                "metadata": metadata,
            }),
            Shape::Metadata | Shape::MetadataList => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
            }),
            Shape::Table => self.table(std::iter::empty(), Value::from(revision.to_string())),
        };
        let line = json!({"type": "BOOKMARK", "object": object});
        out.extend_from_slice(line.to_string().as_bytes());
        out.push(b'\n');
    }

    fn error(out: &mut Vec<u8>, error: &ApiError) {
        let line = json!({"type": "ERROR", "object": error.status()});
        out.extend_from_slice(line.to_string().as_bytes());
        out.push(b'\n');
    }
}
