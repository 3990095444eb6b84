//! Dials a peer's direct port: all its addresses, a little after one another, and the first that
//! answers to the ticket is it. Addresses of private ranges may be somebody else's here, so a TCP
//! connection alone proves nothing.

use std::{io, net::SocketAddr, time::Duration};

use control_api::direct::{DirectOffer, HELLO, READY};
use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::carriers::connect_to;

/// One address, from its start: connection, ticket, answer. Two round trips.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Between the starts.
const STAGGER: Duration = Duration::from_millis(25);

/// Why there is no direct connection.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    #[error("the peer listens at no address that could be its own")]
    NoAddress,
    #[error("the ticket is not 64 hexadecimal digits")]
    MalformedTicket,
    #[error("{0}")]
    Failed(String),
}

impl From<DirectError> for io::Error {
    fn from(e: DirectError) -> Self {
        let kind = match &e {
            DirectError::NoAddress => io::ErrorKind::Unsupported,
            DirectError::MalformedTicket => io::ErrorKind::InvalidData,
            DirectError::Failed(_) => io::ErrorKind::NotConnected,
        };
        Self::new(kind, e)
    }
}

/// Tries `addresses` with the ticket of `offer`.
///
/// # Errors
/// See [`DirectError`]; the ticket may be used up.
pub async fn dial(offer: &DirectOffer, addresses: &[SocketAddr]) -> Result<TcpStream, DirectError> {
    if offer.ticket.len() != 64 || !offer.ticket.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(DirectError::MalformedTicket);
    }
    if addresses.is_empty() {
        return Err(DirectError::NoAddress);
    }
    let mut delay = Duration::ZERO;
    let mut attempts: FuturesUnordered<_> = addresses
        .iter()
        .map(|address| {
            let begin = sleep(delay);
            delay += STAGGER;
            async move {
                begin.await;
                let result = timeout(ATTEMPT, attempt(*address, &offer.ticket)).await;
                result
                    .unwrap_or_else(|_late| Err(io::ErrorKind::TimedOut.into()))
                    .map_err(|e| format!("{address}: {e}"))
            }
        })
        .collect();
    let mut failures = Vec::new();
    while let Some(result) = attempts.next().await {
        match result {
            Ok(stream) => return Ok(stream),
            Err(why) => failures.push(why),
        }
    }
    failures.sort();
    Err(DirectError::Failed(failures.join(", ")))
}

async fn attempt(address: SocketAddr, ticket: &str) -> io::Result<TcpStream> {
    let mut stream = connect_to(address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(format!("{HELLO}{ticket}\n").as_bytes()).await?;
    let mut answer = [0; READY.len()];
    stream.read_exact(&mut answer).await?;
    if answer == READY {
        Ok(stream)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "somebody else is there"))
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn offer() -> DirectOffer {
        DirectOffer { ticket: "ab".repeat(32), addresses: vec![] }
    }

    /// Reads a hello, says `answer` and closes; its address.
    async fn peer(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_exact(&mut [0; HELLO.len() + 65]).await.unwrap();
            stream.write_all(answer).await.unwrap();
        });
        at
    }

    #[tokio::test]
    async fn the_first_address_that_answers_to_the_ticket_is_the_peer() {
        // Accepts and says nothing, refuses, says something else; then the peer.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refusing = closed.local_addr().unwrap();
        drop(closed);
        let (other, right) = (peer(b"HTTP/1.1").await, peer(b"READY\nSSH").await);
        let all = [silent.local_addr().unwrap(), refusing, other, right];
        let mut stream = dial(&offer(), &all).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), right);
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "SSH", "what follows the answer is untouched");
    }

    #[tokio::test]
    async fn a_peer_that_is_not_there_is_given_up_soon_and_why_is_told() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = silent.local_addr().unwrap();
        let begin = std::time::Instant::now();
        let e = dial(&offer(), &[at]).await.unwrap_err();
        assert!(begin.elapsed() < ATTEMPT * 3, "{:?}", begin.elapsed());
        assert!(e.to_string().contains(&at.to_string()), "{e}");
        let e = dial(&offer(), &[]).await.unwrap_err();
        assert_eq!(io::Error::from(e).kind(), io::ErrorKind::Unsupported);
        let bad = DirectOffer { ticket: "x\n".to_owned(), addresses: vec![] };
        assert!(matches!(dial(&bad, &[at]).await, Err(DirectError::MalformedTicket)));
    }
}
