//! Our direct port. Whoever comes says one line within two seconds; without a ticket that the hub
//! announced the connection is closed before any cryptography. Few may be at that point at a time,
//! fewer from one address, and who is turned away comes through the hub.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use control_api::direct::{HELLO, READY};
use datapath_net::{path, sockets::block};
use datapath_relay::{Path, Relay};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_util::task::TaskTracker;

use super::expected::Expected;
use crate::{keeper::chain, refusals::Refusals};

const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
const TICKET_DIGITS: usize = 64;
/// Connections that have not shown a ticket yet; and of those from one address.
const MAX_STRANGERS: usize = 64;
const MAX_FROM_ONE: usize = 8;
const BACKLOG: i32 = 256;
/// Out of descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a connection was turned away; the reasons in the counts of refusals.
#[derive(Debug, thiserror::Error)]
enum Turned {
    #[error("too many connections have not said who they are")]
    Busy,
    #[error("no hello within {} s", HELLO_TIMEOUT.as_secs())]
    Late,
    #[error("the hello is not {HELLO}<ticket>")]
    Hello,
    #[error("the ticket is unknown, expired or spent")]
    Ticket,
    #[error("the connection broke")]
    Io(#[from] io::Error),
}

impl Turned {
    fn reason(&self) -> &'static str {
        match self {
            Self::Busy => "direct-busy",
            Self::Late | Self::Hello => "direct-hello",
            Self::Ticket => "direct-ticket",
            Self::Io(_) => "direct-broken",
        }
    }
}

/// Binds all addresses of the machine, of both families where there are two.
///
/// # Errors
/// The port is taken.
pub fn bind(port: u16) -> io::Result<TcpListener> {
    let open = |at: SocketAddr| {
        let socket =
            Socket::new(Domain::for_address(at), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        if at.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&at.into())?;
        // Carriers may have a long way; what the peer is told of the window it is told at the start.
        path::prepare(&socket)?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    };
    match open((Ipv6Addr::UNSPECIFIED, port).into()) {
        // A machine without IPv6.
        Err(e) if lacks_ipv6(&e) => open((Ipv4Addr::UNSPECIFIED, port).into()),
        other => other,
    }
}

fn lacks_ipv6(e: &io::Error) -> bool {
    use rustix::io::Errno;
    let no_ipv6 = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL];
    Errno::from_io_error(e).is_some_and(|errno| no_ipv6.contains(&errno))
}

/// Strangers at the door, by address.
#[derive(Debug, Default)]
struct Door(Mutex<HashMap<IpAddr, usize>>);

impl Door {
    fn enter(self: &Arc<Self>, ip: IpAddr) -> Option<Stranger> {
        let ip = block(ip);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = all.values().sum();
        let own = all.entry(ip).or_default();
        if total >= MAX_STRANGERS || *own >= MAX_FROM_ONE {
            return None;
        }
        *own += 1;
        Some(Stranger { door: Arc::clone(self), ip })
    }
}

/// Counted until dropped.
struct Stranger {
    door: Arc<Door>,
    ip: IpAddr,
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut all = self.door.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = all.get_mut(&self.ip) {
            *n -= 1;
            if *n == 0 {
                all.remove(&self.ip);
            }
        }
    }
}

/// Serves the port until dropped.
pub struct Listener {
    pub expected: Arc<Expected>,
    pub relay: Relay,
    pub refusals: Arc<Mutex<Refusals>>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listener(..)")
    }
}

impl Listener {
    /// Until dropped; who is at the door then is gone a few seconds later.
    pub async fn serve(self, listener: TcpListener) {
        let (me, door, strangers) = (Arc::new(self), Arc::<Door>::default(), TaskTracker::new());
        loop {
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accepting on the direct port failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(stranger) = door.enter(from.ip()) else {
                me.turn_away(from, &Turned::Busy);
                continue;
            };
            let me = Arc::clone(&me);
            strangers.spawn(async move {
                let _stranger = stranger;
                if let Err(turned) = me.admit(stream).await {
                    me.turn_away(from, &turned);
                }
            });
        }
    }

    fn turn_away(&self, from: SocketAddr, turned: &Turned) {
        // Anybody can cause it, as often as he likes.
        tracing::debug!(%from, error = chain(turned), "turned away from the direct port");
        Refusals::count_as(&self.refusals, turned.reason());
    }

    async fn admit(&self, mut stream: TcpStream) -> Result<(), Turned> {
        stream.set_nodelay(true)?;
        // A stranger gets no large buffer; the relay sizes those of a carrier.
        path::at_rest(&stream)?;
        let hello = timeout(HELLO_TIMEOUT, hello(&mut stream)).await;
        let ticket = hello.map_err(|_late| Turned::Late)??;
        let meeting = self.expected.take(Instant::now(), &ticket).ok_or(Turned::Ticket)?;
        let ready = timeout(HELLO_TIMEOUT, stream.write_all(READY)).await;
        ready.map_err(|_late| Turned::Late)??;
        let path = Path::direct(stream.into_std()?);
        if let Err(e) = self.relay.accept(&meeting.domain, &meeting.peer, meeting.lane, path) {
            tracing::warn!(?meeting, error = chain(&e), "direct carrier refused");
        }
        Ok(())
    }
}

async fn hello(stream: &mut TcpStream) -> Result<String, Turned> {
    let mut line = [0; HELLO.len() + TICKET_DIGITS + 1];
    stream.read_exact(&mut line).await?;
    let digits = line.strip_prefix(HELLO.as_bytes()).and_then(|rest| rest.strip_suffix(b"\n"));
    let digits = digits.filter(|t| t.iter().all(u8::is_ascii_hexdigit)).ok_or(Turned::Hello)?;
    String::from_utf8(digits.to_vec()).map_err(|_not_text| Turned::Hello)
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
