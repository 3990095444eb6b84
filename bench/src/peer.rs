//! Finding the server: by name, again and again, as any distributed program starts.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

/// What a server says of a connection.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Seen {
    /// Who the server takes the client for, and its own address on this connection.
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// The server's real address on its site's network, from `POD_IP`.
    pub(crate) real: Option<String>,
}

pub(crate) fn resolve(name: &str) -> Result<SocketAddr> {
    let mut all = name.to_socket_addrs().with_context(|| format!("cannot resolve {name}"))?;
    all.next().with_context(|| format!("{name} has no address"))
}

/// A connection with the request's first byte sent.
pub(crate) fn dial(to: SocketAddr, request: &[u8]) -> std::io::Result<TcpStream> {
    let mut s = TcpStream::connect_timeout(&to, Duration::from_secs(10))?;
    s.set_nodelay(true)?;
    s.write_all(request)?;
    Ok(s)
}

/// Thousands of flows are thousands of descriptors: as many as are allowed.
pub(crate) fn raise_limit() -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("cannot raise the limit of open files")
}

fn ask(name: &str) -> Result<(SocketAddr, Seen)> {
    let to = resolve(name)?;
    let mut s = dial(to, b"i")?;
    s.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut text = String::new();
    s.read_to_string(&mut text)?;
    Ok((to, serde_json::from_str(&text).context("an answer that is not ours")?))
}

/// Asks until the server answers, for at most `limit`.
#[expect(clippy::disallowed_methods, reason = "the pace of a retry loop")]
pub(crate) fn find(name: &str, limit: Duration) -> Result<(SocketAddr, Seen)> {
    let start = Instant::now();
    loop {
        match ask(name) {
            Ok(found) => return Ok(found),
            Err(e) if start.elapsed() > limit => {
                bail!(e.context(format!("{name} did not answer within {limit:?}")))
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
