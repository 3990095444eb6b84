//! Joins the API server's `pods/log` to the hub, which reaches the agents.

use std::sync::OnceLock;

use axum::{body::Body, response::IntoResponse as _};
use control_apiserver::{Subresource, Target};
use control_hub::WeakHub;
use futures::{FutureExt as _, future::BoxFuture};
use http::{Request, Response, StatusCode};

/// The hub needs a client of the API server, which is made with this; so the hub comes later.
#[derive(Debug, Default)]
pub(crate) struct PodLogs {
    pub(crate) hub: OnceLock<WeakHub>,
}

impl Subresource for PodLogs {
    fn call(&self, target: Target, request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        let hub = self.hub.get().and_then(WeakHub::upgrade);
        async move {
            let Some(hub) = hub else {
                return StatusCode::SERVICE_UNAVAILABLE.into_response();
            };
            let namespace = target.namespace.unwrap_or_default();
            let name = target.name.unwrap_or_default();
            hub.pod_log(&namespace, &name, request.uri()).await
        }
        .boxed()
    }
}
