//! Ways to peers: through the hub, which pairs two dialled-in connections by a ticket, and past it
//! where one of the two can be reached.
//!
//! The asking node (SSH client) gets the ticket from `POST /hub/v1/carriers`; the hub tells the
//! other one (SSH server) in its session. Both then come here to [`pair`]. With the same answer come
//! the peer's addresses and a ticket for its direct port (`crate::direct`).

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use control_api::{
    direct::{DirectOffer, NO_DIRECT_ADDRESS},
    ids::{DomainName, NodeRef},
    session::{CarrierRequest, CarrierTicket, RELAY_HELLO, RELAY_PAIRED, hub},
};
use control_identity::client::{CallError, Client};
use datapath_net::path;
use datapath_relay::{BoxFuture, Lane, Path, Paths, Race};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    runtime::Handle,
    sync::watch,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use crate::direct::{self, addresses::Own};

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

/// To the first of the name's addresses that answers.
async fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for to in tokio::net::lookup_host(address).await? {
        match connect_to(to).await {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// A connection that is ready for a long path.
pub(crate) async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let is_v4 = address.is_ipv4();
    let socket = if is_v4 { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    path::prepare(&socket)?;
    socket.connect(address).await
}

/// [`Paths`] through the hub and past it, by tickets of the hub.
#[derive(Debug)]
pub struct HubPaths {
    client: Client,
    relay: String,
    /// The relay polls on its lanes' runtimes; the pooled HTTP client must not live on one.
    runtime: Handle,
    own: watch::Receiver<Arc<Own>>,
}

impl HubPaths {
    /// `relay` is `host:port` of the hub's splice. `runtime` carries the requests. `own` tells which
    /// addresses are this machine's.
    #[must_use]
    pub fn new(
        client: Client,
        relay: String,
        runtime: Handle,
        own: watch::Receiver<Arc<Own>>,
    ) -> Self {
        Self { client, relay, runtime, own }
    }

    /// Asks at `path`, which says whether for all ways or the direct one.
    async fn ask<T>(&self, path: &'static str, request: CarrierRequest) -> io::Result<T>
    where
        T: serde::de::DeserializeOwned + Send + 'static,
    {
        let client = self.client.clone();
        let ask = async move {
            let answer = match timeout(ANSWER, client.post(path, &request)).await {
                Ok(answer) => answer,
                Err(_elapsed) => {
                    client.dial_anew();
                    client.post(path, &request).await
                }
            };
            answer.map_err(|source| PairError::Ticket {
                domain: request.domain,
                peer: request.peer,
                source,
            })
        };
        let answer = AbortOnDropHandle::new(self.runtime.spawn(ask)).await;
        Ok(answer.map_err(io::Error::other)??)
    }

    fn pair(&self, ticket: CarrierTicket) -> BoxFuture<'static, io::Result<Path>> {
        let (relay, runtime) = (self.relay.clone(), self.runtime.clone());
        Box::pin(async move {
            let work = async move { pair(&relay, &ticket).await?.into_std() };
            let work = AbortOnDropHandle::new(runtime.spawn(work));
            work.await.map_err(io::Error::other)?.map(Path::hub)
        })
    }

    fn past_the_hub(&self, offer: DirectOffer) -> BoxFuture<'static, io::Result<Path>> {
        let addresses = direct::candidates(&self.own.borrow(), &offer.addresses);
        let runtime = self.runtime.clone();
        Box::pin(async move {
            let work = async move { direct::dial::dial(&offer, &addresses).await?.into_std() };
            let work = AbortOnDropHandle::new(runtime.spawn(work));
            work.await.map_err(io::Error::other)?.map(Path::direct)
        })
    }
}

fn request(domain: &DomainName, peer: &NodeRef, lane: Lane) -> CarrierRequest {
    CarrierRequest { domain: domain.clone(), peer: peer.clone(), lane }
}

impl Paths for HubPaths {
    fn dial<'a>(
        &'a self,
        domain: &'a DomainName,
        peer: &'a NodeRef,
        lane: Lane,
    ) -> BoxFuture<'a, io::Result<Path>> {
        Box::pin(async move {
            let ticket = self.ask(hub::CARRIERS, request(domain, peer, lane)).await?;
            self.pair(ticket).await
        })
    }

    fn race<'a>(
        &'a self,
        domain: &'a DomainName,
        peer: &'a NodeRef,
        lane: Lane,
    ) -> BoxFuture<'a, io::Result<Race<'a>>> {
        Box::pin(async move {
            let mut ticket: CarrierTicket =
                self.ask(hub::CARRIERS, request(domain, peer, lane)).await?;
            let offer = ticket.direct.take();
            let direct = offer.map(|offer| self.past_the_hub(offer));
            Ok(Race { hub: self.pair(ticket), direct })
        })
    }

    fn dial_direct<'a>(
        &'a self,
        domain: &'a DomainName,
        peer: &'a NodeRef,
        lane: Lane,
    ) -> BoxFuture<'a, io::Result<Path>> {
        Box::pin(async move {
            let offer = self.ask(hub::DIRECT, request(domain, peer, lane)).await;
            self.past_the_hub(offer.map_err(listens_nowhere)?).await
        })
    }
}

/// The hub's word for a peer without a direct address, as the relay wants to hear it.
fn listens_nowhere(e: io::Error) -> io::Error {
    let refusal = e.get_ref().and_then(|e| e.downcast_ref::<PairError>());
    match refusal {
        Some(PairError::Ticket { source, .. }) if source.reason() == Some(NO_DIRECT_ADDRESS) => {
            io::Error::new(io::ErrorKind::Unsupported, e)
        }
        _ => e,
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
        CarrierTicket { ticket: "ab".repeat(32), direct: None }
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
        let bad = CarrierTicket { ticket: "x\n".into(), direct: None };
        assert!(matches!(pair("127.0.0.1:1", &bad).await, Err(PairError::MalformedTicket)));
    }
}
