//! Ways to peers: for now through the hub, which pairs two dialled-in connections by a ticket.
//!
//! The asking node (SSH client) gets the ticket from `POST /hub/v1/carriers`; the hub tells the
//! other one (SSH server) in its session. Both then come here to [`pair`].

use std::{io, time::Duration};

use control_api::{
    ids::{DomainName, NodeRef},
    session::{CarrierRequest, CarrierTicket, RELAY_HELLO, RELAY_PAIRED, hub},
};
use control_identity::client::{CallError, Client};
use datapath_net::path;
use datapath_relay::{BoxFuture, Lane, Path, Paths};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    runtime::Handle,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

/// A hub that says nothing for so long is asked again over a new connection: the old one may lead nowhere. Longer than
/// the hub waits for a peer.
const ANSWER: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// As long as the hub keeps a ticket.
const PAIR_TIMEOUT: Duration = Duration::from_secs(30);

/// Why there is no carrier through the hub.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    #[error("no ticket for a carrier to {peer} in Domain {domain}: {source}")]
    Ticket { domain: DomainName, peer: NodeRef, source: CallError },
    #[error("the ticket is not 64 hexadecimal digits")]
    MalformedTicket,
    #[error("cannot connect to the hub's relay {address}: {source}")]
    Connect { address: String, source: io::Error },
    #[error("the hub's relay {address} did not answer within {} s", CONNECT_TIMEOUT.as_secs())]
    ConnectTimeout { address: String },
    #[error("the peer did not come to the hub's relay within {} s", PAIR_TIMEOUT.as_secs())]
    PairTimeout,
    #[error("the hub's relay closed the connection instead of pairing it: {source}")]
    NotPaired { source: io::Error },
    #[error("the hub's relay answered something else than PAIRED")]
    Answer,
}

impl PairError {
    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::ConnectTimeout { .. } | Self::PairTimeout => io::ErrorKind::TimedOut,
            Self::Connect { source, .. } | Self::NotPaired { source } => source.kind(),
            Self::Ticket { source, .. } => {
                source.connect_error().unwrap_or(io::ErrorKind::NotConnected)
            }
            Self::MalformedTicket | Self::Answer => io::ErrorKind::InvalidData,
        }
    }
}

impl From<PairError> for io::Error {
    fn from(e: PairError) -> Self {
        Self::new(e.kind(), e)
    }
}

/// Redeems a ticket at the hub's relay and waits for the peer.
///
/// # Errors
/// See [`PairError`]; the ticket is used up in any case.
pub async fn pair(address: &str, ticket: &CarrierTicket) -> Result<TcpStream, PairError> {
    if ticket.ticket.len() != 64 || !ticket.ticket.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(PairError::MalformedTicket);
    }
    let mut stream = match timeout(CONNECT_TIMEOUT, connect(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(source)) => return Err(PairError::Connect { address: address.to_owned(), source }),
        Err(_) => return Err(PairError::ConnectTimeout { address: address.to_owned() }),
    };
    let paired = async {
        stream.set_nodelay(true)?;
        let hello = format!("{RELAY_HELLO}{}\n", ticket.ticket);
        stream.write_all(hello.as_bytes()).await?;
        let mut answer = [0; RELAY_PAIRED.len()];
        stream.read_exact(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    match timeout(PAIR_TIMEOUT, paired).await {
        Ok(Ok(answer)) if answer == RELAY_PAIRED => Ok(stream),
        Ok(Ok(_)) => Err(PairError::Answer),
        Ok(Err(source)) => Err(PairError::NotPaired { source }),
        Err(_) => Err(PairError::PairTimeout),
    }
}

async fn ticket(client: &Client, request: &CarrierRequest) -> Result<CarrierTicket, CallError> {
    match timeout(ANSWER, client.post(hub::CARRIERS, request)).await {
        Ok(answer) => answer,
        Err(_elapsed) => {
            client.dial_anew();
            client.post(hub::CARRIERS, request).await
        }
    }
}

/// To the first of the name's addresses that answers, ready for a long path.
async fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for to in tokio::net::lookup_host(address).await? {
        let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        path::prepare(&socket)?;
        match socket.connect(to).await {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// [`Paths`] through the hub.
#[derive(Debug)]
pub struct HubPaths {
    client: Client,
    relay: String,
    /// The relay polls on its lanes' runtimes; the pooled HTTP client must not live on one.
    runtime: Handle,
}

impl HubPaths {
    /// `relay` is `host:port` of the hub's splice. `runtime` carries the requests.
    #[must_use]
    pub fn new(client: Client, relay: String, runtime: Handle) -> Self {
        Self { client, relay, runtime }
    }
}

impl Paths for HubPaths {
    fn dial<'a>(
        &'a self,
        domain: &'a DomainName,
        peer: &'a NodeRef,
        lane: Lane,
    ) -> BoxFuture<'a, io::Result<Path>> {
        let (client, relay) = (self.client.clone(), self.relay.clone());
        let request = CarrierRequest { domain: domain.clone(), peer: peer.clone(), lane };
        let work =
            AbortOnDropHandle::new(self.runtime.spawn(async move {
                let ticket = ticket(&client, &request).await.map_err(|source| {
                    PairError::Ticket { domain: request.domain, peer: request.peer, source }
                })?;
                pair(&relay, &ticket).await?.into_std()
            }));
        Box::pin(async move { work.await.map_err(io::Error::other)?.map(Path::hub) })
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A hub that reads the hello line, answers these bytes and closes.
    async fn hub(answer: &'static [u8]) -> (String, AbortOnDropHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = vec![0; RELAY_HELLO.len() + 65];
            stream.read_exact(&mut hello).await.unwrap();
            stream.write_all(answer).await.unwrap();
            String::from_utf8(hello).unwrap()
        }));
        (address, task)
    }

    fn ticket() -> CarrierTicket {
        CarrierTicket { ticket: "ab".repeat(32) }
    }

    #[tokio::test]
    async fn a_paired_connection_carries_the_peers_bytes_from_the_first_on() {
        let (address, task) = hub(b"PAIRED\nSSH-2.0-x").await;
        let mut stream = pair(&address, &ticket()).await.unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "SSH-2.0-x");
        assert_eq!(task.await.unwrap(), format!("RLARK-RELAY/1 {}\n", "ab".repeat(32)));
    }

    #[tokio::test]
    async fn a_hub_that_does_not_pair_is_an_error_of_its_own_kind() {
        let (address, _task) = hub(b"").await;
        assert!(matches!(pair(&address, &ticket()).await, Err(PairError::NotPaired { .. })));
        let (address, _task) = hub(b"HTTP/1.").await;
        assert!(matches!(pair(&address, &ticket()).await, Err(PairError::Answer)));
        let bad = CarrierTicket { ticket: "x\n".into() };
        assert!(matches!(pair("127.0.0.1:1", &bad).await, Err(PairError::MalformedTicket)));
    }
}
