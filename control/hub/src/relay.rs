//! Port 7443: pairs two dialled-in connections by their ticket and splices them. What flows is SSH
//! between the nodes; the hub moves ciphertext it cannot read.
//!
//! ```text
//!   unknown ─ hello with a ticket ─▶ waiting ─ other end with the ticket ─▶ paired ─▶ spliced
//!      └── 5 s, bad hello ─▶ closed     └── ticket expired, other side gone ─▶ closed
//! ```

mod door;
mod paths;
mod splicers;

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use control_api::session::{RELAY_HELLO, RELAY_PAIRED};
use datapath_net::{pace::LogPace, path};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use self::{
    door::{Door, Stranger},
    splicers::Splicers,
};
use crate::{Hub, carriers::Presented, standing::Member};

const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const TICKET_DIGITS: usize = 64;
const PAIRED_TIMEOUT: Duration = Duration::from_secs(5);

/// The relay's state: who waits, and how many are there.
#[derive(Default)]
pub(crate) struct Limits {
    waiting: Mutex<HashMap<String, oneshot::Sender<TcpStream>>>,
    door: Arc<Door>,
    unpaired: AtomicUsize,
    paired: AtomicUsize,
}

impl Limits {
    /// Unpaired connections, pairs.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.unpaired.load(Ordering::Relaxed), self.paired.load(Ordering::Relaxed))
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<String, oneshot::Sender<TcpStream>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a connection as long as it lives in a state.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a ticket leads to.
enum Met {
    /// Refused: unknown, expired, spent.
    Nobody,
    /// The first end: the partner comes through here, or not until the given moment; and whose
    /// removal ends the pair.
    Wait(oneshot::Receiver<TcpStream>, Instant, Vec<Member>),
    /// The second end: hand yourself over.
    Partner(oneshot::Sender<TcpStream>),
}

/// Why a connection on the relay's port was closed without a partner.
#[derive(Debug, thiserror::Error)]
enum RelayError {
    #[error("the hello is not {RELAY_HELLO}<ticket>")]
    Hello,
    #[error("no hello within {} s", HELLO_TIMEOUT.as_secs())]
    Late,
    #[error("too many others have not said who they are either")]
    Crowd,
    #[error("the ticket is unknown, expired or spent")]
    Ticket,
    #[error("the other end did not come")]
    Alone,
    #[error("one of its machines was removed")]
    Removed,
    #[error("the connection broke")]
    Io(#[from] io::Error),
}

impl Hub {
    /// Serves the relay's listener until `stop`; open pairs are closed then. Its
    /// threads wait awake for at most `halt_poll` (see [`datapath_net::thread`]).
    ///
    /// # Errors
    /// Its threads could not be started.
    pub async fn serve_relay(
        &self,
        listener: TcpListener,
        halt_poll: Duration,
        stop: CancellationToken,
    ) -> io::Result<()> {
        if let Err(error) = path::prepare(&listener) {
            tracing::debug!(%error, "carriers over long paths will have small windows");
        }
        let splicers = Arc::new(Splicers::start(halt_poll)?);
        let mut connections = JoinSet::new();
        let said = Arc::new(LogPace::default());
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                accepted = listener.accept() => accepted,
            };
            let (stream, remote) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, most likely: wait for some to be freed.
                    tracing::warn!(%error, "accepting on the relay failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let stranger = self.inner.relay.door.enter(remote.ip());
            let (hub, splicers, said) = (self.clone(), Arc::clone(&splicers), Arc::clone(&said));
            connections.spawn(async move {
                if let Err(error) = hub.relay(stream, stranger, &splicers).await
                    && let Some(unsaid) = said.may_say()
                {
                    tracing::info!(%error, %remote, unsaid, "relay connection closed");
                }
            });
        }
    }

    async fn relay(
        &self,
        mut stream: TcpStream,
        mut stranger: Stranger,
        splicers: &Splicers,
    ) -> Result<(), RelayError> {
        let relay = &self.inner.relay;
        let counted = Counted::new(&relay.unpaired);
        stream.set_nodelay(true)?;
        // A stranger must not fill what its listener was given for long paths.
        path::at_rest(&stream)?;
        let ticket = tokio::select! {
            said = timeout(HELLO_TIMEOUT, hello(&mut stream)) => said.map_err(|_late| RelayError::Late)??,
            () = stranger.shown_out() => return Err(RelayError::Crowd),
        };
        let met = self.meet(&ticket);
        // Whoever waits now has a ticket, and of those there are so many.
        drop(stranger);
        match met {
            Met::Nobody => Err(RelayError::Ticket),
            Met::Partner(partner) => partner.send(stream).map_err(|_gone| RelayError::Alone),
            Met::Wait(partner, until, ends) => {
                let mut partner = self.wait(&ticket, partner, &stream, until).await?;
                drop(counted);
                let _paired = Counted::new(&relay.paired);
                join(&mut stream, &mut partner).await?;
                let suited = paths::suit([&stream, &partner]);
                tokio::select! {
                    end = splicers.join(stream, partner) => {
                        tracing::debug!(?end, "relayed carrier ended");
                        Ok(())
                    }
                    () = suited => Ok(()),
                    () = self.removal_of_any(&ends) => Err(RelayError::Removed),
                }
            }
        }
    }

    /// Presents a ticket and registers as waiting in one step, so that the second end always finds
    /// the first.
    fn meet(&self, ticket: &str) -> Met {
        let mut waiting = self.inner.relay.waiting();
        match self.inner.tickets.present(ticket, Instant::now()) {
            Presented::Refused => Met::Nobody,
            Presented::First(until, ends) => {
                let (sender, receiver) = oneshot::channel();
                waiting.insert(ticket.to_owned(), sender);
                Met::Wait(receiver, until, ends)
            }
            Presented::Second => waiting.remove(ticket).map_or(Met::Nobody, Met::Partner),
        }
    }

    async fn removal_of_any(&self, ends: &[Member]) {
        match ends {
            [] => std::future::pending().await,
            ends => {
                let removals = ends.iter().map(|end| Box::pin(self.removal(end)));
                futures::future::select_all(removals).await;
            }
        }
    }

    /// Waits for the partner; ends early when this side hangs up.
    async fn wait(
        &self,
        ticket: &str,
        partner: oneshot::Receiver<TcpStream>,
        stream: &TcpStream,
        until: Instant,
    ) -> Result<TcpStream, RelayError> {
        // Nothing may be sent before PAIRED, so readable means closed (or a fault).
        let mut one = [0; 1];
        let outcome = tokio::select! {
            partner = partner => partner.map_err(|_closed| RelayError::Alone),
            _ = stream.peek(&mut one) => Err(RelayError::Alone),
            () = tokio::time::sleep_until(until.into()) => Err(RelayError::Alone),
        };
        if outcome.is_err() {
            self.inner.relay.waiting().remove(ticket);
            self.inner.tickets.withdraw(ticket);
        }
        outcome
    }
}

async fn hello(stream: &mut TcpStream) -> Result<String, RelayError> {
    let mut line = vec![0; RELAY_HELLO.len() + TICKET_DIGITS + 1];
    stream.read_exact(&mut line).await?;
    let ticket = line
        .strip_prefix(RELAY_HELLO.as_bytes())
        .and_then(|rest| rest.strip_suffix(b"\n"))
        .filter(|t| t.iter().all(u8::is_ascii_hexdigit))
        .ok_or(RelayError::Hello)?;
    String::from_utf8(ticket.to_vec()).map_err(|_not_text| RelayError::Hello)
}

async fn join(a: &mut TcpStream, b: &mut TcpStream) -> Result<(), RelayError> {
    let both = async {
        a.write_all(RELAY_PAIRED).await?;
        b.write_all(RELAY_PAIRED).await
    };
    match timeout(PAIRED_TIMEOUT, both).await {
        Ok(written) => Ok(written?),
        Err(_elapsed) => Err(RelayError::Late),
    }
}
