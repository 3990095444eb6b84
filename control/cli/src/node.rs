//! Asking the `rlark-node` of this machine, over its socket.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use control_api::session::Refusal;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::{net::UnixStream, task::JoinSet};

/// An answer whose body may be without end.
pub(crate) struct Answer {
    pub(crate) body: Incoming,
    /// Ends with the answer.
    _connection: JoinSet<()>,
}

pub(crate) async fn get(socket: &Path, path: &str) -> Result<Answer> {
    let stream = UnixStream::connect(socket)
        .await
        .with_context(|| format!("cannot connect to {}", socket.display()))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        // Its errors are those of the answer, which has them too.
        drop(connection.await);
    });
    let request =
        http::Request::get(path).header(http::header::HOST, "node").body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await.context("rlark-node does not answer")?;
    let status = answer.status();
    if status.is_success() {
        return Ok(Answer { body: answer.into_body(), _connection: driver });
    }
    let body = answer.into_body().collect().await?.to_bytes();
    match serde_json::from_slice::<Refusal>(&body) {
        Ok(refusal) => bail!("{}", refusal.message),
        Err(_) => bail!("rlark-node answered {status}"),
    }
}
