//! IP packets in and out of one namespace: what its programs send to an interface that leads nowhere is read
//! ([`Tap`]), and packets from elsewhere arrive over `lo` ([`Injector`]). A socket that is bound to the interface as a device
//! (SO_BINDTODEVICE) therefore sends but does not receive.
//!
//! For everything that is no stream: the kernels at both ends speak to each other, so ports, refusals, echoes, lengths and
//! fragments are theirs, and nothing between keeps state.
#![expect(
    unsafe_code,
    reason = "AF_PACKET addresses, raw sends, and one ioctl that no crate here names"
)]

mod stray;

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    sync::{Mutex, PoisonError},
};

use rustix::net::{RecvFlags, recv};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::io::unix::AsyncFd;

use crate::netns::visit_netns;

/// The longest packet; [`crate::vip`] makes it the interface's MTU, so that the kernel splits longer ones.
pub const MTU: u32 = 65_400;

/// Packets that wait for their reader, in bytes as the kernel counts; more are lost, as on any network.
const TAP_BUFFER: usize = 1 << 20;

/// Longer than any frame with what stands in front of it.
const LONGEST: usize = 66_000;

/// Reads what is sent out of an interface.
#[derive(Debug)]
pub struct Tap {
    socket: AsyncFd<OwnedFd>,
    stray: Option<Stray>,
}

/// What is meant for the interface and leaves by `lo` ([`stray`]).
#[derive(Debug)]
struct Stray {
    socket: AsyncFd<OwnedFd>,
    /// Of a train of datagrams those that were not taken yet.
    rest: Mutex<VecDeque<Vec<u8>>>,
}

/// The network of which a [`Tap`] reads datagrams that leave by `lo`, and the namespace's own address in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub own: Ipv4Addr,
    pub network: Ipv4Addr,
    pub prefix_length: u8,
}

impl Tap {
    /// In the namespace. The packets have their checksums (the interface is told that it cannot compute them). Must be
    /// called inside the runtime on which it is read.
    ///
    /// # Errors
    /// There is no such interface, or no CAP_NET_RAW.
    pub fn open(
        netns: BorrowedFd<'_>,
        interface: &str,
        network: Option<Network>,
    ) -> io::Result<Self> {
        let stray = network.and_then(|n| {
            let opened = visit_netns(netns, || stray::open(n.own, n.network, n.prefix_length));
            let warn = |error: &io::Error| {
                tracing::warn!(%error, "answers by the interface on which it was asked are lost");
            };
            opened.and_then(|opened| opened).inspect_err(warn).ok()
        });
        let socket = visit_netns(netns, || {
            let kind = Type::DGRAM.nonblocking();
            // No protocol yet: nothing is received before it is bound to its interface.
            let socket = Socket::new(Domain::PACKET, kind, None)?;
            complete_checksums(socket.as_fd(), interface)?;
            let index = rustix::net::netdevice::name_to_index(socket.as_fd(), interface)?;
            socket.bind(&packet_address(index, libc::ETH_P_ALL)?)?;
            io::Result::Ok(socket)
        })??;
        socket.set_recv_buffer_size(TAP_BUFFER)?;
        let mut tap = Self::over(socket.into())?;
        if let Some(socket) = stray {
            // SAFETY: as in `over`.
            let socket = unsafe { AsyncFd::register(socket) }?;
            tap.stray = Some(Stray { socket, rest: Mutex::default() });
        }
        Ok(tap)
    }

    /// Over any datagram socket.
    ///
    /// # Errors
    /// It cannot be registered with the runtime.
    pub fn over(socket: OwnedFd) -> io::Result<Self> {
        // SAFETY: an OwnedFd keeps its descriptor for its whole life.
        Ok(Self { socket: unsafe { AsyncFd::register(socket) }?, stray: None })
    }

    /// The next packet.
    ///
    /// # Errors
    /// The interface is gone or down.
    pub async fn next<'b>(&self, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
        let n = match &self.stray {
            None => receive(&self.socket, buffer).await?,
            Some(stray) => {
                let packet = tokio::select! {
                    n = receive(&self.socket, buffer) => Err(n?),
                    packet = stray.next() => Ok(packet?),
                };
                match packet {
                    Err(n) => n,
                    Ok(packet) => {
                        let n = packet.len().min(buffer.len());
                        buffer.iter_mut().zip(packet).for_each(|(to, from)| *to = from);
                        n
                    }
                }
            }
        };
        Ok(buffer.get(..n).unwrap_or_default())
    }
}

async fn receive(socket: &AsyncFd<OwnedFd>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut ready = socket.readable().await?;
        let got = ready.try_io(|s| Ok(recv(s.get_ref(), &mut *buffer, RecvFlags::empty())?));
        match got {
            Ok(Ok((n, _))) => return Ok(n),
            Ok(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(e)) => return Err(e),
            Err(_would_block) => {}
        }
    }
}

impl Stray {
    /// Cancel-safe: what was read is kept.
    async fn next(&self) -> io::Result<Vec<u8>> {
        loop {
            let next = self.rest.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            if let Some(packet) = next {
                return Ok(packet);
            }
            let mut frame = vec![0; LONGEST];
            let n = receive(&self.socket, &mut frame).await?;
            let packets = stray::packets(frame.get(..n).unwrap_or_default()).unwrap_or_default();
            self.rest.lock().unwrap_or_else(PoisonError::into_inner).extend(packets);
        }
    }
}

/// Puts packets into a namespace, at its own addresses.
#[derive(Debug)]
pub struct Injector {
    v4: Socket,
    v6: Option<Socket>,
}

impl Injector {
    /// Into the namespace.
    ///
    /// # Errors
    /// No CAP_NET_RAW.
    pub fn open(netns: BorrowedFd<'_>) -> io::Result<Self> {
        // IPPROTO_RAW: the header is the sender's.
        let raw = Some(Protocol::from(libc::IPPROTO_RAW));
        let open = || {
            let v4 = Socket::new(Domain::IPV4, Type::RAW.nonblocking(), raw)?;
            // A machine may be without IPv6.
            let v6 = Socket::new(Domain::IPV6, Type::RAW.nonblocking(), raw).ok();
            io::Result::Ok(Self { v4, v6 })
        };
        visit_netns(netns, open)?
    }

    /// Delivers a whole IP packet that is for `to`, one of the namespace's own addresses.
    ///
    /// # Errors
    /// The packet is no IP packet of that family, or there is no room: then it is lost.
    pub fn send(&self, to: IpAddr, packet: &[u8]) -> io::Result<()> {
        let socket = match (to, &self.v6) {
            (IpAddr::V4(_), _) => &self.v4,
            (IpAddr::V6(_), Some(v6)) => v6,
            (IpAddr::V6(_), None) => return Err(io::ErrorKind::Unsupported.into()),
        };
        socket.send_to(packet, &SocketAddr::new(to, 0).into()).map(drop)
    }
}

fn packet_address(index: u32, protocol: libc::c_int) -> io::Result<SockAddr> {
    let index = i32::try_from(index).map_err(io::Error::other)?;
    // SAFETY: the closure writes a whole sockaddr_ll, which is shorter than the storage, and says so.
    let made = unsafe {
        SockAddr::try_init(|storage, length| {
            let mut to: libc::sockaddr_ll = std::mem::zeroed();
            to.sll_family = u16::try_from(libc::AF_PACKET).map_err(io::Error::other)?;
            to.sll_protocol = u16::try_from(protocol).map_err(io::Error::other)?.to_be();
            to.sll_ifindex = index;
            storage.cast::<libc::sockaddr_ll>().write(to);
            *length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>())
                .map_err(io::Error::other)?;
            Ok(())
        })
    };
    made.map(|((), address)| address)
}

/// Tells the kernel that `interface` computes no checksums and cuts no segments: packets are whole when they are sent there.
fn complete_checksums(socket: BorrowedFd<'_>, interface: &str) -> io::Result<()> {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    const ETHTOOL_STXCSUM: u32 = 0x17;
    let mut value = [ETHTOOL_STXCSUM, 0];
    // SAFETY: plain bytes and pointers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = interface.as_bytes();
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    // SAFETY: the kernel reads the request and the two words behind it, both alive.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, sync::Arc, time::Duration};

    use socket2::SockRef;

    use super::*;
    use crate::{netns::Netns, vip::VipInterface};

    type Tested = Result<(), Box<dyn std::error::Error>>;

    /// A namespace with a VIP, its tap and its injector.
    struct Pod {
        netns: Netns,
        tap: Tap,
        injector: Arc<Injector>,
    }

    fn pod(vip: &str, network: &str, prefix_length: u8) -> Result<Pod, Box<dyn std::error::Error>> {
        let netns = Netns::anonymous()?;
        let (vip, network) = (vip.parse()?, network.parse()?);
        VipInterface { name: "rl0".to_owned(), vip, network, prefix_length }
            .ensure(netns.as_fd())?;
        let own = match (vip, network) {
            (IpAddr::V4(own), IpAddr::V4(network)) => Some(Network { own, network, prefix_length }),
            _ => None,
        };
        let tap = Tap::open(netns.as_fd(), "rl0", own)?;
        let injector = Arc::new(Injector::open(netns.as_fd())?);
        Ok(Pod { netns, tap, injector })
    }

    /// Where a packet goes, if it is for one of `to`.
    fn destination(packet: &[u8], to: IpAddr) -> bool {
        match to {
            IpAddr::V4(v4) => packet.get(16..20) == Some(&v4.octets()) && packet[0] >> 4 == 4,
            IpAddr::V6(v6) => packet.get(24..40) == Some(&v6.octets()) && packet[0] >> 4 == 6,
        }
    }

    /// Carries packets from one pod to another for ever.
    async fn carry(from: &Tap, to: &Injector, vip: IpAddr) -> io::Result<()> {
        let mut buffer = vec![0; 65_536];
        loop {
            let packet = from.next(&mut buffer).await?;
            if destination(packet, vip) {
                to.send(vip, packet)?;
            }
        }
    }

    /// Two pods that reach each other by packets alone.
    async fn between(
        a: (&str, Pod),
        b: (&str, Pod),
        work: impl FnOnce(&Netns, &Netns) -> Result<(), String> + Send + 'static,
    ) -> Tested {
        let (a_vip, b_vip): (IpAddr, IpAddr) = (a.0.parse()?, b.0.parse()?);
        let (a_netns, b_netns) = (a.1.netns.try_clone()?, b.1.netns.try_clone()?);
        let work = tokio::task::spawn_blocking(move || work(&a_netns, &b_netns));
        tokio::select! {
            r = carry(&a.1.tap, &b.1.injector, b_vip) => r?,
            r = carry(&b.1.tap, &a.1.injector, a_vip) => r?,
            done = work => done??,
        }
        Ok(())
    }

    fn socket(netns: &Netns, at: &str) -> Result<UdpSocket, String> {
        let socket = netns.run(|| UdpSocket::bind(at)).map_err(|e| e.to_string())?;
        let socket = socket.map_err(|e| format!("{at}: {e}"))?;
        socket.set_read_timeout(Some(Duration::from_secs(5))).map_err(|e| e.to_string())?;
        Ok(socket)
    }

    fn talk(a: &Netns, b: &Netns, any: &str, b_vip: &str, a_vip: &str) -> Result<(), String> {
        let say = |e: io::Error| e.to_string();
        let server = socket(b, &format!("{any}:5000"))?;
        let client = socket(a, &format!("{any}:0"))?;
        let mut buffer = vec![0; 70_000];
        // 65,507 bytes are the most that UDP over IPv4 takes: more than the MTU, so in fragments.
        for length in [0, 1, 1400, 60_000, 65_507] {
            let sent: Vec<u8> = (0..length).map(|i| u8::try_from(i % 251).unwrap_or(0)).collect();
            client.send_to(&sent, format!("{b_vip}:5000")).map_err(say)?;
            let (n, from) = server.recv_from(&mut buffer).map_err(say)?;
            assert_eq!(from.ip().to_string(), a_vip.trim_matches(['[', ']']));
            assert_eq!(from.port(), client.local_addr().map_err(say)?.port());
            assert!(buffer.get(..n) == Some(&sent), "{length}");
            server.send_to(&sent, from).map_err(say)?;
            let (n, from) = client.recv_from(&mut buffer).map_err(say)?;
            assert_eq!((n, from.to_string()), (length, format!("{b_vip}:5000")));
        }
        // The server may speak first, on the client's own port.
        server
            .send_to(b"news", format!("{a_vip}:{}", client.local_addr().map_err(say)?.port()))
            .map_err(say)?;
        assert_eq!(client.recv_from(&mut buffer).map_err(say)?.0, 4);
        // Nobody there: the other kernel's refusal arrives.
        client.connect(format!("{b_vip}:9")).map_err(say)?;
        client.send(b"?").map_err(say)?;
        let refused = client.recv(&mut buffer).map_err(|e| e.kind());
        assert_eq!(refused, Err(io::ErrorKind::ConnectionRefused));
        Ok(())
    }

    #[tokio::test]
    async fn datagrams_cross_whole_with_their_names_and_refusals() -> Tested {
        let a = pod("10.2.0.1", "10.2.0.0", 24)?;
        let b = pod("10.2.0.2", "10.2.0.0", 24)?;
        between(("10.2.0.1", a), ("10.2.0.2", b), |a, b| {
            talk(a, b, "0.0.0.0", "10.2.0.2", "10.2.0.1")
        })
        .await
    }

    #[tokio::test]
    async fn datagrams_of_ipv6_too() -> Tested {
        let a = pod("fd00:2::1", "fd00:2::", 64)?;
        let b = pod("fd00:2::2", "fd00:2::", 64)?;
        between(("fd00:2::1", a), ("fd00:2::2", b), |a, b| {
            talk(a, b, "[::]", "[fd00:2::2]", "[fd00:2::1]")
        })
        .await
    }

    /// As `IP_PKTINFO` with the interface on which the question came, which is `lo`.
    #[tokio::test]
    async fn datagrams_that_leave_by_lo_cross_too() -> Tested {
        let a = pod("10.2.0.1", "10.2.0.0", 24)?;
        let b = pod("10.2.0.2", "10.2.0.0", 24)?;
        between(("10.2.0.1", a), ("10.2.0.2", b), |a, b| {
            let say = |e: io::Error| e.to_string();
            let (client, server) = (socket(a, "10.2.0.1:6000")?, socket(b, "10.2.0.2:5000")?);
            SockRef::from(&server).bind_device(Some(b"lo")).map_err(say)?;
            let mut buffer = vec![0; 70_000];
            for length in [0, 1, 1400, 60_000] {
                let sent: Vec<u8> =
                    (0..length).map(|i| u8::try_from(i % 251).unwrap_or(0)).collect();
                server.send_to(&sent, "10.2.0.1:6000").map_err(say)?;
                let (n, from) = client.recv_from(&mut buffer).map_err(say)?;
                assert_eq!(from.to_string(), "10.2.0.2:5000");
                assert!(buffer.get(..n) == Some(&sent), "{length}");
            }
            // What is the pod's own stays its own.
            let own = socket(b, "10.2.0.2:5001")?;
            server.send_to(b"mine", "10.2.0.2:5001").map_err(say)?;
            assert_eq!(own.recv_from(&mut buffer).map_err(say)?.0, 4);
            Ok(())
        })
        .await
    }

    #[tokio::test]
    async fn an_echo_is_answered_by_the_other_end_only() -> Tested {
        let a = pod("10.2.0.1", "10.2.0.0", 24)?;
        let b = pod("10.2.0.2", "10.2.0.0", 24)?;
        between(("10.2.0.1", a), ("10.2.0.2", b), |a, _| {
            let say = |e: io::Error| e.to_string();
            let open = || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4));
            let ping = a.run(open).map_err(|e| e.to_string())?.map_err(say)?;
            ping.set_read_timeout(Some(Duration::from_millis(500))).map_err(say)?;
            let request = [8, 0, 0xf7, 0xb1, 0, 77, 0, 1];
            let mut answer = [std::mem::MaybeUninit::uninit(); 100];
            let at = |ip: &str| format!("{ip}:0").parse::<SocketAddr>().map_err(|e| e.to_string());
            ping.send_to(&request, &at("10.2.0.2")?.into()).map_err(say)?;
            let (_, from) = ping.recv_from(&mut answer).map_err(say)?;
            assert_eq!(from.as_socket(), Some(at("10.2.0.2")?));
            // Nobody holds this one, so nobody may answer for it.
            ping.send_to(&request, &at("10.2.0.99")?.into()).map_err(say)?;
            let silence = ping.recv_from(&mut answer).map_err(|e| e.kind());
            assert_eq!(silence.err(), Some(io::ErrorKind::WouldBlock));
            Ok(())
        })
        .await
    }
}
