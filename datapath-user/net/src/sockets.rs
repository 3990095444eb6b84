//! The relay's sockets: listeners and delivery connections inside a pod's namespace, and their options.
#![expect(unsafe_code, reason = "TCP_INFO and two socket options that no crate here names")]

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream as StdStream},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
    time::Duration,
};

use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpStream;

use crate::netns::{Netns, visit_netns};

/// Connections from inside the pod arrive without a network between: a burst must not be dropped.
const BACKLOG: i32 = 4096;
/// That many ports may be taken at one address and free at another before it is an error.
const SAME_PORT_TRIES: u32 = 32;

/// A non-blocking listener in a namespace.
///
/// # Errors
/// The address is taken or not the namespace's own.
pub fn listen_in(netns: BorrowedFd<'_>, at: SocketAddr) -> io::Result<TcpListener> {
    let socket = visit_netns(netns, || {
        Socket::new(Domain::for_address(at), Type::STREAM.nonblocking(), Some(Protocol::TCP))
    })??;
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// The relay's listener for landed connections: at a loopback address with a port of the kernel's choice, so nothing that
/// a task may want is taken. The guard puts connections to any VIP into it; the accepted socket's local address is
/// the VIP and port that was asked for. One that shows a loopback address was not landed: close it. Accepted connections have
/// TCP_NODELAY, an urgent byte stays in its place (the relay carries bytes and no mark), and close means reset (SO_LINGER 0):
/// they inherit all three, which saves calls for each. One of IPv6 takes landed connections of IPv4 as well.
///
/// # Errors
/// No loopback interface is up.
pub fn landing_listener(netns: BorrowedFd<'_>, family_of: IpAddr) -> io::Result<TcpListener> {
    // Bound to an address of IPv6 the socket would be for that family alone.
    let loopback: IpAddr = if family_of.is_ipv4() {
        Ipv4Addr::LOCALHOST.into()
    } else {
        Ipv4Addr::LOCALHOST.to_ipv6_mapped().into()
    };
    landing_at(netns, SocketAddr::new(loopback, 0))
}

fn landing_at(netns: BorrowedFd<'_>, at: SocketAddr) -> io::Result<TcpListener> {
    let listener = listen_in(netns, at)?;
    // What lands counts as bound to the peer's port: a pod that talks to that port may listen on it all the same.
    SockRef::from(&listener).set_reuse_address(true)?;
    sockopt::set_tcp_nodelay(&listener, true)?;
    sockopt::set_socket_oobinline(&listener, true)?;
    arm_reset(&listener)?;
    Ok(listener)
}

/// Listeners with the options of [`landing_listener`], in this process's own namespace, where no guard lands anything: connections are
/// sent to their port, which is the same at all of `addresses` and of the kernel's choice. `mark` (`SO_MARK`) tells the hooks that
/// they are the relay's.
///
/// # Errors
/// An address is not there, or the mark is not permitted.
pub fn marked_landing_listeners(addresses: &[IpAddr], mark: u32) -> io::Result<Vec<TcpListener>> {
    let netns = Netns::current().map_err(io::Error::other)?;
    let listen = || -> io::Result<Vec<TcpListener>> {
        let mut all: Vec<TcpListener> = Vec::with_capacity(addresses.len());
        for address in addresses {
            let port = all.first().map_or(Ok(0), |first| first.local_addr().map(|at| at.port()))?;
            let listener = landing_at(netns.as_fd(), SocketAddr::new(*address, port))?;
            SockRef::from(&listener).set_mark(mark)?;
            all.push(listener);
        }
        Ok(all)
    };
    let mut tries = SAME_PORT_TRIES;
    loop {
        match listen() {
            // The kernel chose a port that somebody has at another of the addresses.
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && tries > 0 => tries -= 1,
            done => return done,
        }
    }
}

/// A connection to be, in this process's own namespace, whose source is known before it leaves.
#[derive(Debug)]
pub struct Bound {
    socket: Socket,
    /// Where it will come from.
    pub from: SocketAddr,
}

impl Bound {
    /// With the options of the relay's delivery sockets; `mark` is its `SO_MARK`.
    ///
    /// # Errors
    /// The address is not the machine's or has no free port, or the mark is not permitted.
    pub fn at(source: IpAddr, mark: u32) -> io::Result<Self> {
        let at = SocketAddr::new(source, 0);
        let kind = Type::STREAM.nonblocking();
        let socket = Socket::new(Domain::for_address(at), kind, Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        socket.set_out_of_band_inline(true)?;
        socket.set_linger(Some(Duration::ZERO))?;
        socket.set_mark(mark)?;
        socket.bind(&at.into())?;
        let from = socket.local_addr()?.as_socket();
        let from = from.ok_or_else(|| io::Error::other("a TCP socket without an address"))?;
        Ok(Self { socket, from })
    }

    /// As [`connect`].
    ///
    /// # Errors
    /// What connect() says.
    pub async fn connect(self, to: SocketAddr) -> io::Result<StdStream> {
        connect(self.socket, to).await
    }
}

/// Connects a non-blocking socket. A connection within one namespace stands (or is refused) by the
/// time connect() returns, though it says EINPROGRESS; then the reactor is not asked, which would
/// cost two `epoll_ctl` and a round of the loop. Cancel safe.
///
/// # Errors
/// What connect() says.
pub async fn connect(socket: Socket, to: SocketAddr) -> io::Result<StdStream> {
    match socket.connect(&to.into()) {
        Ok(()) => return Ok(socket.into()),
        Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(e) => return Err(e),
    }
    if socket.peer_addr().is_ok() {
        return Ok(socket.into());
    }
    if let Some(e) = socket.take_error()? {
        return Err(e);
    }
    let stream = TcpStream::from_std(socket.into())?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(e) => Err(e),
        None => stream.into_std(),
    }
}

/// A bind() to come chooses the address only, connect() the port.
pub(crate) fn bind_without_port(socket: BorrowedFd<'_>) -> io::Result<()> {
    // Works for IPv6 sockets too: the option lives in the common part.
    set_int(socket, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Lets an IPv6 socket be bound to an address that no interface has. Of IPv4 a local route suffices.
pub(crate) fn bind_anywhere(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_int(socket, libc::SOL_IPV6, libc::IPV6_FREEBIND, 1)
}

/// How a connection of the relay behaves.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Unsent bytes the kernel takes beyond what is in flight; small keeps queues (and latency) short.
    pub notsent_lowat: u32,
    /// First keepalive probe after this idle time, then every fifth of it.
    pub keepalive: Duration,
    /// Data unacknowledged for so long ends the connection.
    pub user_timeout: Duration,
}

impl Default for Tuning {
    /// 128 KiB; 30 s; 60 s.
    fn default() -> Self {
        Self {
            notsent_lowat: 128 * 1024,
            keepalive: Duration::from_secs(30),
            user_timeout: Duration::from_secs(60),
        }
    }
}

/// Sets the options, and TCP_NODELAY.
///
/// # Errors
/// Not a TCP socket.
pub fn tune(socket: impl AsFd, tuning: Tuning) -> io::Result<()> {
    let fd = socket.as_fd();
    keep_alive(fd, tuning)?;
    let lowat = i32::try_from(tuning.notsent_lowat).unwrap_or(i32::MAX);
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, lowat)
}

/// As [`tune`], but for what may be unsent.
///
/// # Errors
/// Not a TCP socket.
pub fn keep_alive(socket: impl AsFd, tuning: Tuning) -> io::Result<()> {
    let fd = socket.as_fd();
    let probe = (tuning.keepalive / 5).max(Duration::from_secs(1));
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, tuning.keepalive.max(Duration::from_secs(1)))?;
    sockopt::set_tcp_keepintvl(fd, probe)?;
    sockopt::set_tcp_keepcnt(fd, 5)?;
    let millis = u32::try_from(tuning.user_timeout.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(fd, millis)?;
    Ok(())
}

/// Ends a connection with RST instead of FIN: what was cut must not look finished.
pub fn reset(stream: TcpStream) {
    let _closed_anyway = arm_reset(&stream);
    drop(stream);
}

/// Makes the socket's close an RST.
///
/// # Errors
/// Not a socket.
pub fn arm_reset(socket: impl AsFd) -> io::Result<()> {
    SockRef::from(&socket.as_fd()).set_linger(Some(Duration::ZERO))
}

/// What the kernel knows of a TCP connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round trip.
    pub rtt: Duration,
    /// The shortest one of the last minutes.
    pub least_rtt: Duration,
    pub rtt_variance: Duration,
    /// Segments sent since the start, and of these again.
    pub segments: u32,
    pub retransmits: u32,
}

/// `TCP_INFO`.
///
/// # Errors
/// Not a TCP socket.
pub fn tcp_info(socket: impl AsFd) -> io::Result<TcpInfo> {
    // SAFETY: plain integers, for which zero is valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length =
        libc::socklen_t::try_from(size_of::<libc::tcp_info>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes into `info`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TcpInfo {
        rtt: Duration::from_micros(info.tcpi_rtt.into()),
        least_rtt: Duration::from_micros(info.tcpi_min_rtt.into()),
        rtt_variance: Duration::from_micros(info.tcpi_rttvar.into()),
        segments: info.tcpi_segs_out,
        retransmits: info.tcpi_total_retrans,
    })
}

pub(crate) fn set_int(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: i32,
) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<i32>()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads the four bytes of `value`.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// By what strangers are counted: the address, or of IPv6 the /64 that whoever has one address has.
#[must_use]
pub fn block(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::{netns::Netns, stock::Stock, vip::VipInterface};

    type Tested = Result<(), Box<dyn std::error::Error>>;

    #[tokio::test]
    async fn a_delivery_shows_the_peers_vip_and_reports_a_refusal() -> Tested {
        delivered([10, 2, 0, 4].into(), [10, 2, 0, 77].into(), [10, 2, 0, 0].into(), 24).await
    }

    #[tokio::test]
    async fn a_delivery_of_ipv6_does_too() -> Tested {
        delivered("fd00:2::4".parse()?, "fd00:2::77".parse()?, "fd00:2::".parse()?, 64).await
    }

    async fn delivered(vip: IpAddr, peer: IpAddr, network: IpAddr, prefix_length: u8) -> Tested {
        let netns = Netns::anonymous()?;
        let rl0 = VipInterface { name: "rl0".to_owned(), vip, network, prefix_length };
        rl0.ensure(netns.as_fd())?;
        let app = tokio::net::TcpListener::from_std(listen_in(
            netns.as_fd(),
            SocketAddr::new(vip, 9000),
        )?)?;
        let to = SocketAddr::new(vip, 9000);
        let stock = Stock::new(Arc::new(netns.try_clone()?), 0);
        let stream = stock.deliver(peer, to).await?;
        tune(&stream, Tuning::default())?;
        let (accepted, from) = app.accept().await?;
        assert_eq!(from.ip(), peer);
        assert_eq!(accepted.local_addr()?, to);
        assert!(tcp_info(&stream)?.rtt > Duration::ZERO);
        reset(TcpStream::from_std(stream)?);
        accepted.readable().await?;
        let end = accepted.try_read(&mut [0]).map_err(|e| e.kind());
        assert_eq!(end, Err(io::ErrorKind::ConnectionReset));
        let refused = stock.deliver(peer, SocketAddr::new(vip, 9)).await;
        assert_eq!(refused.map_err(|e| e.kind()).err(), Some(io::ErrorKind::ConnectionRefused));
        Ok(())
    }

    #[test]
    fn relay_listeners_of_both_families_have_one_port()
    -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let netns = Netns::anonymous()?;
        netns.run(|| {
            crate::netlink::Netlink::in_netns(Netns::current()?.as_fd())?.set_up("lo")?;
            let both = ["127.0.0.1".parse()?, "::1".parse()?];
            let all = marked_landing_listeners(&both, 7)?;
            let at = |l: &TcpListener| l.local_addr();
            let found = all.iter().map(at).collect::<io::Result<Vec<_>>>()?;
            assert_eq!(found.iter().map(SocketAddr::ip).collect::<Vec<_>>(), both);
            let ports: Vec<u16> = found.iter().map(SocketAddr::port).collect();
            assert!(matches!(*ports, [v4, v6] if v4 == v6 && v4 > 0), "{ports:?}");
            for listener in &all {
                assert_eq!(SockRef::from(listener).mark()?, 7);
            }
            let absent = marked_landing_listeners(&["10.9.9.9".parse()?], 7);
            assert_eq!(absent.err().map(|e| e.kind()), Some(io::ErrorKind::AddrNotAvailable));
            Ok(())
        })?
    }

    #[tokio::test]
    async fn what_lands_has_the_listeners_options() -> Result<(), Box<dyn std::error::Error>> {
        let netns = Netns::current()?;
        let listener = landing_listener(netns.as_fd(), Ipv4Addr::LOCALHOST.into())?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let _client = TcpStream::connect(listener.local_addr()?).await?;
        let (landed, _) = listener.accept().await?;
        assert!(landed.nodelay()?);
        assert_eq!(SockRef::from(&landed).linger()?, Some(Duration::ZERO));
        Ok(())
    }
}
