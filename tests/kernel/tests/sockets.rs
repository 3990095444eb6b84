//! What programs may do with sockets in a pod, as they could on a network: bind, listen, choose an interface.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, Result};
use datapath_loader::Reason;
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use test_kernel::{Lab, Pod, REMOTE, UNKNOWN, accept, errno, is_quiet, socket_in};

const NOT_AVAILABLE: Option<i32> = Some(Errno::ADDRNOTAVAIL.raw_os_error());
const REFUSED: Option<i32> = Some(Errno::CONNREFUSED.raw_os_error());
const IN_USE: Option<i32> = Some(Errno::ADDRINUSE.raw_os_error());

fn bind(pod: &Pod, kind: Type, at: SocketAddr) -> Result<io::Result<Socket>> {
    Ok(pod.netns.run(|| -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(at), kind, None)?;
        socket.bind(&at.into())?;
        Ok(socket)
    })?)
}

#[test]
fn an_address_of_a_peer_cannot_be_bound() -> Result<()> {
    let lab = Lab::new()?;
    for kind in [Type::STREAM, Type::DGRAM] {
        for address in [lab.b.vip, lab.b.vip6(), REMOTE.parse()?, UNKNOWN.parse()?] {
            let bound = bind(&lab.a, kind, SocketAddr::new(address, 0))?;
            assert_eq!(errno(&bound), NOT_AVAILABLE, "{kind:?} {address}");
        }
        let any = [IpAddr::from([0, 0, 0, 0]), "::".parse()?];
        let own = [lab.a.vip, lab.a.vip6(), lab.a.real, lab.a.real6(), [127, 0, 0, 1].into()];
        for address in any.into_iter().chain(own) {
            let bound = bind(&lab.a, kind, SocketAddr::new(address, 0))?;
            assert_eq!(errno(&bound), None, "{kind:?} {address}");
        }
    }
    assert_eq!(lab.count(Reason::ForeignAddress)?, 8);
    Ok(())
}

#[test]
fn a_socket_that_is_bound_to_rl0_reaches_and_is_reached() -> Result<()> {
    let lab = Lab::new()?;
    let relay = lab.land()?;
    let at = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 9000);
    let server = lab.b.netns.run(|| -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        socket.bind_device(Some(b"rl0"))?;
        socket.bind(&at.into())?;
        socket.listen(8)?;
        Ok(socket.into())
    })??;
    for (to, listener) in
        [(SocketAddr::new(lab.b.vip, 9000), &server), (format!("{REMOTE}:80").parse()?, &relay)]
    {
        let client = socket_in(&lab.a.netns, Domain::IPV4, None)?;
        client.bind_device(Some(b"rl0"))?;
        client.connect_timeout(&to.into(), Duration::from_secs(2))?;
        let (_, from) = accept(listener)?;
        assert_eq!(from.ip(), lab.a.vip);
    }
    Ok(())
}

#[test]
fn datagrams_of_a_socket_that_is_bound_to_rl0_arrive() -> Result<()> {
    let lab = Lab::new()?;
    let server = lab.b.netns.run(|| -> io::Result<UdpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        socket.bind_device(Some(b"rl0"))?;
        socket.bind(&SocketAddr::from(([0, 0, 0, 0], 9000)).into())?;
        Ok(socket.into())
    })??;
    server.set_read_timeout(Some(Duration::from_secs(2)))?;
    let client = lab.a.netns.run(|| UdpSocket::bind("0.0.0.0:0"))??;
    client.send_to(b"question", SocketAddr::new(lab.b.vip, 9000))?;
    let mut buffer = [0; 16];
    let (n, from) = server.recv_from(&mut buffer)?;
    assert_eq!((buffer.get(..n), from.ip()), (Some(b"question".as_slice()), lab.a.vip));
    Ok(())
}

/// As Go makes every listener.
fn multipath(pod: &Pod, at: SocketAddr) -> Result<TcpListener> {
    const MPTCP: i32 = 262;
    let listener = pod.netns.run(|| -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(MPTCP.into()))?;
        socket.bind(&at.into())?;
        socket.listen(8)?;
        Ok(socket.into())
    })?;
    listener.context("a multipath TCP listener")
}

#[test]
fn a_direct_connection_to_a_listener_that_the_guard_cannot_hold_lands_on_the_relay() -> Result<()> {
    let lab = Lab::new()?;
    let at = SocketAddr::new(lab.b.vip, 9000);
    let server = multipath(&lab.b, at)?;
    let guard = lab.guards.get(1).context("pod b's guard")?;
    assert_eq!(errno(&lab.a.connect(at)), REFUSED, "no relay");
    let relay = lab.land_in(&lab.b, guard)?;
    let client = lab.a.connect(at)?;
    let (landed, from) = accept(&relay)?;
    // The relay of this test is itself among the hooked.
    assert_eq!((landed.local_addr()?, from.ip()), (at, lab.a.vip));
    assert_eq!(client.peer_addr()?, at);
    assert!(is_quiet(&server)?);
    // Nobody but a member is let in by that door.
    let outside = test_kernel::connect_in(&lab.neighbour, SocketAddr::new(lab.b.real, 9000));
    assert_eq!(errno(&outside), REFUSED);
    Ok(())
}

#[test]
fn a_listener_for_ipv6_alone_is_closed_for_ipv4() -> Result<()> {
    let lab = Lab::new()?;
    let only = lab.b.netns.run(|| -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
        socket.set_only_v6(true)?;
        socket.bind(&"[::]:9000".parse::<SocketAddr>().map_err(io::Error::other)?.into())?;
        socket.listen(8)?;
        Ok(socket.into())
    })??;
    assert_eq!(errno(&lab.a.connect(SocketAddr::new(lab.b.vip, 9000))), REFUSED);
    assert_eq!(lab.count(Reason::NoListener)?, 1, "the hook knew");
    let _client = lab.a.connect(SocketAddr::new(lab.b.vip6(), 9000))?;
    accept(&only)?;
    Ok(())
}

#[test]
fn a_pod_listens_on_the_port_at_which_it_talks_to_a_peer() -> Result<()> {
    let lab = Lab::new()?;
    let relay = lab.land()?;
    let _client = lab.a.connect(format!("{REMOTE}:9000"))?;
    let _landed = accept(&relay)?;
    for at in ["0.0.0.0:9000", "[::]:9000"] {
        let listen = || -> Result<io::Result<Socket>> {
            let bound = bind(&lab.a, Type::STREAM, at.parse()?)?;
            Ok(bound.and_then(|s| s.listen(8).map(|()| s)))
        };
        let first = listen()?.with_context(|| at.to_owned())?;
        assert_eq!(errno(&listen()?), IN_USE, "two listeners on {at}");
        drop(first);
    }
    Ok(())
}
