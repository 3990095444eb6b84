//! Datagrams of a site: at native speed, under virtual names on both ends.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::AsFd as _,
    time::Duration,
};

use anyhow::Result;
use datapath_loader::Reason;
use datapath_net::netns::Netns;
use rustix::io::Errno;
use test_kernel::{Lab, errno};

fn udp(netns: &Netns, at: &str) -> Result<UdpSocket> {
    let socket = netns.run(|| UdpSocket::bind(at))??;
    socket.set_read_timeout(Some(Duration::from_secs(3)))?;
    Ok(socket)
}

fn receive(socket: &UdpSocket) -> io::Result<(Vec<u8>, SocketAddr)> {
    let mut buffer = vec![0; 70_000];
    let (n, from) = socket.recv_from(&mut buffer)?;
    buffer.truncate(n);
    Ok((buffer, from))
}

/// The form in which a socket of the other family shows an address.
fn mapped(ip: IpAddr, wide: bool) -> IpAddr {
    match ip {
        IpAddr::V4(v4) if wide => v4.to_ipv6_mapped().into(),
        ip => ip,
    }
}

#[test]
fn unconnected_sockets_see_virtual_addresses_both_ways() -> Result<()> {
    let lab = Lab::new()?;
    for (any, to, own, wide) in [
        ("0.0.0.0", lab.b.vip, lab.a.vip, false),
        ("[::]", lab.b.vip6(), lab.a.vip6(), true),
        ("[::]", lab.b.vip, lab.a.vip, true),
    ] {
        let server = udp(&lab.b.netns, &format!("{any}:9000"))?;
        let client = udp(&lab.a.netns, &format!("{any}:0"))?;
        let to = SocketAddr::new(mapped(to, wide), 9000);
        client.send_to(b"question", to)?;
        let (got, from) = receive(&server)?;
        assert_eq!((got.as_slice(), from.ip()), (&b"question"[..], mapped(own, wide)));
        assert_eq!(from.port(), client.local_addr()?.port());
        server.send_to(b"answer", from)?;
        assert_eq!(receive(&client)?, (b"answer".to_vec(), to));
    }
    assert_eq!(lab.count(Reason::Direct)?, 6);
    Ok(())
}

#[test]
fn a_connected_socket_talks_to_its_peer_alone_and_hears_of_a_closed_port() -> Result<()> {
    let lab = Lab::new()?;
    for (any, to, own) in [("0.0.0.0", lab.b.vip, lab.a.vip), ("[::]", lab.b.vip6(), lab.a.vip6())]
    {
        let server = udp(&lab.b.netns, &format!("{any}:9001"))?;
        let client = udp(&lab.a.netns, &format!("{any}:0"))?;
        let to = SocketAddr::new(to, 9001);
        client.connect(to)?;
        assert_eq!(client.peer_addr()?, to);
        assert_eq!(client.local_addr()?.ip(), own);
        client.send(b"x")?;
        let (_, from) = receive(&server)?;
        assert_eq!(from, client.local_addr()?);
        server.send_to(b"y", from)?;
        assert_eq!(receive(&client)?, (b"y".to_vec(), to));
        drop(server);
        client.send(b"x")?;
        let refused = client.recv(&mut [0]);
        assert_eq!(errno(&refused), Some(Errno::CONNREFUSED.raw_os_error()));
        // A datagram aside does not change whom the socket is connected to.
        let other = udp(&lab.b.netns, &format!("{any}:9002"))?;
        client.send_to(b"z", SocketAddr::new(to.ip(), 9002))?;
        assert_eq!(receive(&other)?.0, b"z");
        assert_eq!(client.peer_addr()?, to);
    }
    Ok(())
}

#[test]
fn who_speaks_to_a_real_address_is_answered_from_it() -> Result<()> {
    let lab = Lab::new()?;
    let server = udp(&lab.b.netns, "0.0.0.0:9003")?;
    let client = udp(&lab.a.netns, "0.0.0.0:0")?;
    let to = SocketAddr::new(lab.b.real, 9003);
    client.send_to(b"x", to)?;
    let (_, from) = receive(&server)?;
    server.send_to(b"y", from)?;
    assert_eq!(receive(&client)?.1, to);
    Ok(())
}

#[test]
fn a_socket_that_is_connected_anew_shows_its_new_peer() -> Result<()> {
    let lab = Lab::new()?;
    let client = udp(&lab.a.netns, "0.0.0.0:0")?;
    let member = SocketAddr::new(lab.b.vip, 9005);
    let outside = SocketAddr::from(([10, 99, 0, 9], 53));
    for to in [member, outside, member, SocketAddr::new(lab.b.real, 9005)] {
        client.connect(to)?;
        assert_eq!(client.peer_addr()?, to);
    }
    Ok(())
}

#[test]
fn one_sockets_peers_keep_the_names_that_they_were_asked_by() -> Result<()> {
    let lab = Lab::new()?;
    let server = udp(&lab.b.netns, "0.0.0.0:9006")?;
    let client = udp(&lab.a.netns, "0.0.0.0:0")?;
    let asked = SocketAddr::new(lab.b.vip, 9006);
    client.send_to(b"x", asked)?;
    let (_, from) = receive(&server)?;
    // Meanwhile it asks another by its real address.
    lab.datapath()?.set_real(test_kernel::DOMAIN, "10.99.0.9".parse()?, "10.2.0.8".parse()?)?;
    client.send_to(b"x", "10.99.0.9:9007")?;
    server.send_to(b"y", from)?;
    assert_eq!(receive(&client)?.1, asked);
    Ok(())
}

#[test]
fn a_neighbour_cannot_speak_for_a_member() -> Result<()> {
    let lab = Lab::new()?;
    let server = udp(&lab.b.netns, "0.0.0.0:9008")?;
    server.set_read_timeout(Some(Duration::from_millis(300)))?;
    let injector = datapath_net::packet::Injector::open(lab.neighbour.as_fd())?;
    // UDP from a remote member's address to the pod's real one, port 9008, without a checksum.
    let mut packet = vec![0x45, 0, 0, 29, 0, 1, 0, 0, 64, 17, 0, 0, 10, 2, 0, 7, 10, 99, 0, 2];
    packet.extend([0x13, 0x88, 0x23, 0x30, 0, 9, 0, 0, b'!']);
    injector.send(lab.b.real, &packet)?;
    let nothing = receive(&server).map_err(|e| e.kind());
    assert_eq!(nothing.err(), Some(io::ErrorKind::WouldBlock));
    // The same from itself arrives: it is not the packet that is bad.
    packet.splice(12..16, [10, 99, 0, 9]);
    injector.send(lab.b.real, &packet)?;
    assert_eq!(receive(&server)?.0, b"!");
    Ok(())
}

#[test]
fn a_stranger_keeps_its_own_address() -> Result<()> {
    let lab = Lab::new()?;
    let server = udp(&lab.b.netns, "0.0.0.0:9004")?;
    let stranger = udp(&lab.neighbour, "0.0.0.0:0")?;
    stranger.send_to(b"x", SocketAddr::new(lab.b.real, 9004))?;
    assert_eq!(receive(&server)?.1.ip().to_string(), "10.99.0.9");
    Ok(())
}

#[test]
fn a_datagram_to_another_site_stays_in_the_pod_until_the_node_reads_it() -> Result<()> {
    let lab = Lab::new()?;
    let own = udp(&lab.a.netns, "0.0.0.0:9005")?;
    own.set_read_timeout(Some(Duration::from_millis(200)))?;
    let client = udp(&lab.a.netns, "0.0.0.0:0")?;
    client.send_to(b"x", (test_kernel::REMOTE, 9005))?;
    let nothing = receive(&own).map_err(|e| e.kind());
    assert_eq!(nothing.err(), Some(io::ErrorKind::WouldBlock), "the pod's own socket is not it");
    assert_eq!(lab.count(Reason::Datagram)?, 1);
    Ok(())
}
