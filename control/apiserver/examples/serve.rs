//! An API server in memory on a loopback port, open to whoever reaches it: to try kubectl against.
//!
//!     cargo run -p control-apiserver --example serve -- 127.0.0.1:8001 [OBJECTS]
//!     kubectl --server http://127.0.0.1:8001 api-resources
//!
//! With OBJECTS, so many config maps are created first, to measure lists with.

use std::sync::Arc;

use axum::serve::ListenerExt;
use control_apiserver::{ApiServer, Options};
use control_identity::authorize::{Attributes, Authorizer, Decision};
use control_identity::principal::Principal;
use control_store::{Key, Precondition, Workspace};
use serde_json::json;

struct Everything;

impl Authorizer for Everything {
    fn authorize(&self, _who: &Principal, _what: &Attributes<'_>) -> Decision {
        Decision::Allow
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8001".to_owned());
    let objects: usize = arguments.next().map_or(Ok(0), |n| n.parse())?;
    let workspace = Workspace::in_memory(&control_store::Options::default())?;
    for n in 0..objects {
        let name = format!("object-{n}");
        let value = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default", "uid": name,
                         "creationTimestamp": "2026-01-01T00:00:00Z"},
            "data": {"key": "value"},
        });
        let key = Key::new("", "configmaps", "default", &name);
        workspace.put(key, value, Precondition::Any).await?;
    }
    let server = ApiServer::new(workspace, Arc::new(Everything), Options::default()).await?;
    let who = Principal::Admin { name: "admin".to_owned() };
    let router = server.router().layer(axum::Extension(who));
    // Without TCP_NODELAY the tail of every larger response waits for the client's delayed ACK.
    let listener = tokio::net::TcpListener::bind(&address).await?.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::warn!(%error, "cannot set TCP_NODELAY");
        }
    });
    axum::serve(listener, router).await?;
    Ok(())
}
