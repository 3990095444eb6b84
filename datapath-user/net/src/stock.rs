//! Sockets made ahead inside one namespace. Entering and leaving it costs as much as several sockets, and
//! the application at the other end of a relayed flow waits meanwhile.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd as _,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    netns::{Netns, visit_netns},
    sockets::{bind_anywhere, bind_without_port, connect},
};

/// So many at a time; at most so many lie idle.
const BATCH: usize = 8;

/// Delivery sockets of one namespace, which they keep alive as the descriptor does.
#[derive(Debug)]
pub struct Stock {
    netns: Arc<Netns>,
    mark: u32,
    v4: Mutex<Vec<Socket>>,
    v6: Mutex<Vec<Socket>>,
}

impl Stock {
    /// `mark` is the sockets' `SO_MARK`, by which the hooks know that they may be bound to other pods' addresses.
    #[must_use]
    pub fn new(netns: Arc<Netns>, mark: u32) -> Self {
        Self { netns, mark, v4: Mutex::default(), v6: Mutex::default() }
    }

    /// Connects with a peer's VIP as source, so that the application sees whom it talks to. The source port is chosen at
    /// connect() (`IP_BIND_ADDRESS_NO_PORT`): unique per destination, not per address. The connection is non-blocking and
    /// has TCP_NODELAY and SO_LINGER 0. Cancel safe.
    ///
    /// # Errors
    /// What connect() says: ECONNREFUSED when nobody listens.
    pub async fn deliver(&self, source: IpAddr, to: SocketAddr) -> io::Result<std::net::TcpStream> {
        let socket = self.take(to)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
        connect(socket, to).await
    }

    fn take(&self, to: SocketAddr) -> io::Result<Socket> {
        let of = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        let mut ready = of.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.is_empty() {
            visit_netns(self.netns.as_fd(), || {
                fill(&mut ready, Domain::for_address(to), self.mark)
            })??;
        }
        ready.pop().ok_or_else(|| io::Error::other("no socket was made"))
    }
}

/// Makes a batch; with descriptors running out, as many as there are.
fn fill(ready: &mut Vec<Socket>, domain: Domain, mark: u32) -> io::Result<()> {
    for _ in 0..BATCH {
        match make(domain, mark) {
            Ok(socket) => ready.push(socket),
            Err(e) if ready.is_empty() => return Err(e),
            Err(_) => break,
        }
    }
    Ok(())
}

fn make(domain: Domain, mark: u32) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    bind_without_port(socket.as_fd())?;
    if domain == Domain::IPV6 {
        bind_anywhere(socket.as_fd())?;
    }
    // The pod may want to listen on a port that one of its peers talks from or to.
    socket.set_reuse_address(true)?;
    socket.set_mark(mark)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_out_of_band_inline(true)?;
    socket.set_linger(Some(Duration::ZERO))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets::listen_in;

    #[tokio::test]
    async fn more_connections_than_a_batch_come_from_the_given_source() -> io::Result<()> {
        let netns = Arc::new(Netns::anonymous().map_err(io::Error::other)?);
        let at = SocketAddr::from(([127, 0, 0, 1], 9000));
        let listener = tokio::net::TcpListener::from_std(listen_in(netns.as_fd(), at)?)?;
        let stock = Stock::new(Arc::clone(&netns), 0);
        let source = IpAddr::from([127, 0, 0, 77]);
        let mut all = Vec::new();
        for _ in 0..2 * BATCH + 1 {
            all.push(stock.deliver(source, at).await?);
            assert_eq!(listener.accept().await?.1.ip(), source);
        }
        let idle = stock.v4.lock().unwrap_or_else(PoisonError::into_inner).len();
        assert_eq!(idle, BATCH - 1);
        let refused = stock.deliver(source, ([127, 0, 0, 1], 9).into()).await;
        assert_eq!(refused.map_err(|e| e.kind()).err(), Some(io::ErrorKind::ConnectionRefused));
        Ok(())
    }
}
