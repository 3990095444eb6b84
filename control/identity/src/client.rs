//! HTTP over TLS to the hub: pooled HTTP/2 (or 1.1), typed JSON calls, refusals decoded.
//!
//! Used by machines ([`crate::machine::Identity::http_client`]) and by the CLI.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use control_api::session::Refusal;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    body::Incoming,
    rt::{Read, ReadBufCursor, Write},
};
use hyper_util::{
    client::legacy::{
        Client as Pool,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Of TCP alone: after a lost SYN or two a new attempt comes sooner than the kernel's next one, which waits twice as
/// long each time.
const TCP_TIMEOUT: Duration = Duration::from_secs(3);
/// Data that is unacknowledged for so long ends a connection. The kernel's retransmissions come ever more rarely; a new
/// connection works as soon as there is a way again.
const UNACKNOWLEDGED: Duration = Duration::from_secs(8);
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// No answer of the hub is larger; a stray server must not fill our memory.
const MAX_ANSWER: usize = 64 << 20;

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    host: String,
    port: u16,
}

/// The text is not `https://HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("server address {0:?} is not https://HOST[:PORT]")]
pub struct BadServerAddress(String);

impl ServerAddress {
    /// Parses `https://HOST[:PORT]`; the port defaults to 8443.
    pub fn parse(url: &str) -> Result<Self, BadServerAddress> {
        let bad = || BadServerAddress(url.to_owned());
        let Ok(uri) = url.parse::<Uri>() else { return Err(bad()) };
        if uri.scheme_str() != Some("https") || !matches!(uri.path(), "" | "/") {
            return Err(bad());
        }
        let host = uri.host().filter(|h| !h.is_empty()).ok_or_else(bad)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { host, port: uri.port_u16().unwrap_or(8443) })
    }

    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// `HOST:PORT`, an IPv6 address in brackets.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "https://{}", self.authority())
    }
}

/// Why a connection was not made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot connect to {server}")]
    Tcp {
        server: ServerAddress,
        #[source]
        source: io::Error,
    },
    #[error("no TLS connection with {server}: {source}")]
    Tls {
        server: ServerAddress,
        /// In the text, because it is the line that says "unknown issuer" or "expired".
        source: io::Error,
    },
    #[error("{server} did not answer within {} s", CONNECT_TIMEOUT.as_secs())]
    Timeout { server: ServerAddress },
    #[error("{name:?} is not a server name")]
    Name { name: String },
}

impl ConnectError {
    /// Nobody listens there, there is no way to it, or nobody says anything: the attempt cost nobody anything.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        use io::ErrorKind::{
            AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable,
            TimedOut,
        };
        let Self::Tcp { source, .. } = self else { return false };
        matches!(
            source.kind(),
            ConnectionRefused
                | NetworkUnreachable
                | HostUnreachable
                | NetworkDown
                | AddrNotAvailable
                | TimedOut
        )
    }
}

/// Dials TCP and TLS with the given settings. `name` is what the certificate must say.
pub async fn connect(
    server: &ServerAddress,
    name: &str,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>, ConnectError> {
    let Ok(name) = ServerName::try_from(name.to_owned()) else {
        return Err(ConnectError::Name { name: name.to_owned() });
    };
    let dial = async {
        let tcp = tcp(server)
            .await
            .map_err(|source| ConnectError::Tcp { server: server.clone(), source })?;
        TlsConnector::from(config)
            .connect(name, tcp)
            .await
            .map_err(|source| ConnectError::Tls { server: server.clone(), source })
    };
    match timeout(CONNECT_TIMEOUT, dial).await {
        Ok(done) => done,
        Err(_elapsed) => Err(ConnectError::Timeout { server: server.clone() }),
    }
}

async fn tcp(server: &ServerAddress) -> io::Result<TcpStream> {
    let dial = TcpStream::connect((server.host.as_str(), server.port));
    let tcp = timeout(TCP_TIMEOUT, dial).await??;
    tcp.set_nodelay(true)?;
    socket2::SockRef::from(&tcp).set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(tcp)
}

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("cannot call {path} of {server}")]
    Unreachable {
        server: String,
        path: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{path} of {server} did not answer within {} s", CALL_TIMEOUT.as_secs())]
    Timeout { server: String, path: String },
    /// The server's own words; `status` tells 403 from 409.
    #[error("{refusal}")]
    Refused { status: StatusCode, refusal: Refusal },
    #[error("{server} answered {path} with {status} and no explanation")]
    Unexpected { server: String, path: String, status: StatusCode },
    #[error("the answer of {path} is not what it should be")]
    Malformed {
        path: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("the request to {path} cannot be encoded")]
    Encode {
        path: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("{path:?} is not a path")]
    Path { path: String },
}

impl CallError {
    /// Whether the same call may succeed later without anybody changing anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Timeout { .. } => true,
            Self::Refused { status, .. } | Self::Unexpected { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::Malformed { .. } | Self::Encode { .. } | Self::Path { .. } => false,
        }
    }

    /// What the network said when no connection could be made.
    #[must_use]
    pub fn connect_error(&self) -> Option<io::ErrorKind> {
        let Self::Unreachable { source, .. } = self else { return None };
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(source.as_ref());
        while let Some(error) = cause {
            if let Some(ConnectError::Tcp { source, .. }) = error.downcast_ref() {
                return Some(source.kind());
            }
            cause = error.source();
        }
        None
    }

    /// The stable code of a refusal.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Refused { refusal, .. } => Some(&refusal.reason),
            _ => None,
        }
    }
}

/// Gives the TLS settings for each new connection, so that renewed certificates take effect.
pub(crate) type ConfigSource = Arc<dyn Fn() -> Arc<ClientConfig> + Send + Sync>;

/// A pooled client of one server; cheap to clone.
#[derive(Clone)]
pub struct Client {
    server: ServerAddress,
    connector: Connector,
    pool: Arc<ArcSwap<Pool<Connector, Full<Bytes>>>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Client {
    /// A client with fixed settings. `name` is what the server's certificate must say.
    #[must_use]
    pub fn new(server: ServerAddress, name: &str, config: ClientConfig) -> Self {
        let config = Arc::new(config);
        Self::with_source(server, name, Arc::new(move || Arc::clone(&config)))
    }

    pub(crate) fn with_source(server: ServerAddress, name: &str, source: ConfigSource) -> Self {
        let connector = Connector { server: server.clone(), name: name.to_owned(), source };
        let pool = Arc::new(ArcSwap::from_pointee(pool(connector.clone())));
        Self { server, connector, pool }
    }

    /// Later calls, of all clones, use a new connection. For when the one in use may lead nowhere: it would take its
    /// pings' time to tell.
    pub fn dial_anew(&self) {
        self.pool.store(Arc::new(pool(self.connector.clone())));
    }

    #[must_use]
    pub fn server(&self) -> &ServerAddress {
        &self.server
    }

    /// `POST` of JSON; an empty success answer decodes as `()` does (JSON `null`).
    pub async fn post<Req, Resp>(&self, path: &str, body: &Req) -> Result<Resp, CallError>
    where
        Req: Serialize + Sync + ?Sized,
        Resp: DeserializeOwned,
    {
        let body = serde_json::to_vec(body)
            .map_err(|source| CallError::Encode { path: path.to_owned(), source })?;
        self.call(Method::POST, path, body.into()).await
    }

    /// `GET` of JSON.
    pub async fn get<Resp: DeserializeOwned>(&self, path: &str) -> Result<Resp, CallError> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    /// `GET` whose successful answer is a stream (logs). Only its head is waited for with a limit.
    pub async fn stream(&self, path: &str) -> Result<Response<Incoming>, CallError> {
        let answer = self.send(Method::GET, path, Bytes::new()).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let (status, bytes) = self.collect(path, answer).await?;
        Err(self.refusal(path, status, &bytes))
    }

    async fn call<Resp: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Resp, CallError> {
        let answer = self.send(method, path, body).await?;
        let (status, bytes) = self.collect(path, answer).await?;
        if !status.is_success() {
            return Err(self.refusal(path, status, &bytes));
        }
        let bytes = if bytes.is_empty() { Bytes::from_static(b"null") } else { bytes };
        serde_json::from_slice(&bytes)
            .map_err(|source| CallError::Malformed { path: path.to_owned(), source })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, CallError> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.server))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body));
        let Ok(request) = request else { return Err(CallError::Path { path: path.to_owned() }) };
        let answer = self.pool.load().request(request);
        match timeout(CALL_TIMEOUT, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) => Err(self.unreachable(path, e.into())),
            Err(_elapsed) => Err(self.late(path)),
        }
    }

    async fn collect(
        &self,
        path: &str,
        answer: Response<Incoming>,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let status = answer.status();
        match timeout(CALL_TIMEOUT, Limited::new(answer.into_body(), MAX_ANSWER).collect()).await {
            Ok(Ok(body)) => Ok((status, body.to_bytes())),
            Ok(Err(e)) => Err(self.unreachable(path, e)),
            Err(_elapsed) => Err(self.late(path)),
        }
    }

    fn unreachable(
        &self,
        path: &str,
        source: Box<dyn std::error::Error + Send + Sync>,
    ) -> CallError {
        CallError::Unreachable { server: self.server.to_string(), path: path.to_owned(), source }
    }

    fn late(&self, path: &str) -> CallError {
        CallError::Timeout { server: self.server.to_string(), path: path.to_owned() }
    }

    /// Our own [`Refusal`], or the message of a Kubernetes `Status`.
    fn refusal(&self, path: &str, status: StatusCode, body: &[u8]) -> CallError {
        match serde_json::from_slice(body) {
            Ok(refusal) => CallError::Refused { status, refusal },
            Err(_) => CallError::Unexpected {
                server: self.server.to_string(),
                path: path.to_owned(),
                status,
            },
        }
    }
}

fn pool(connector: Connector) -> Pool<Connector, Full<Bytes>> {
    Pool::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(Duration::from_secs(10))
        .http2_keep_alive_timeout(Duration::from_secs(10))
        .build(connector)
}

/// Makes the pool's connections; the URI is ignored, there is one server.
#[derive(Clone)]
struct Connector {
    server: ServerAddress,
    name: String,
    source: ConfigSource,
}

impl tower::Service<Uri> for Connector {
    type Response = Transport;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Transport, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let stream = connect(&this.server, &this.name, (this.source)()).await?;
            Ok(Transport(TokioIo::new(stream)))
        })
    }
}

/// A TLS stream that tells the pool which HTTP version was negotiated.
struct Transport(TokioIo<TlsStream<TcpStream>>);

impl Connection for Transport {
    fn connected(&self) -> Connected {
        let h2 = self.0.inner().get_ref().1.alpn_protocol() == Some(b"h2");
        if h2 { Connected::new().negotiated_h2() } else { Connected::new() }
    }
}

impl Read for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Transport {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
