//! What connect() does inside a pod: pass, deny with the true errno, direct, relay.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use datapath_loader::{Denial, Listeners, RELAY_MARK, Reason, Route};
use rustix::io::Errno;
use socket2::{Domain, SockAddr};
use test_kernel::{DOMAIN, Lab, REMOTE, UNKNOWN, accept, connect_in, errno, is_quiet, socket_in};

const REFUSED: Option<i32> = Some(Errno::CONNREFUSED.raw_os_error());
const NO_ROUTE: Option<i32> = Some(Errno::HOSTUNREACH.raw_os_error());
const FORBIDDEN: Option<i32> = Some(Errno::ACCESS.raw_os_error());

#[test]
fn a_namespace_outside_every_domain_is_untouched() -> Result<()> {
    let lab = Lab::new()?;
    let listener = lab.b.listen("0.0.0.0:9000")?;
    let to = SocketAddr::new(lab.b.real, 9000);
    let stream = connect_in(&lab.neighbour, to)?;
    assert_eq!(stream.peer_addr()?, to);
    assert_eq!(stream.local_addr()?.ip().to_string(), "10.99.0.9");
    assert_eq!(accept(&listener)?.1, stream.local_addr()?);
    let vip = connect_in(&lab.neighbour, format!("{}:9000", lab.b.vip));
    assert_eq!(errno(&vip), Some(Errno::NETUNREACH.raw_os_error()));
    assert_eq!(lab.datapath()?.counters()?, []);
    Ok(())
}

#[test]
fn an_unknown_address_is_unreachable_at_once() -> Result<()> {
    let lab = Lab::new()?;
    let mut fastest = Duration::MAX;
    for _ in 0..50 {
        let socket = socket_in(&lab.a.netns, Domain::IPV4, None)?;
        let to = SockAddr::from(format!("{UNKNOWN}:80").parse::<SocketAddr>()?);
        let start = Instant::now();
        let result = socket.connect(&to);
        fastest = fastest.min(start.elapsed());
        assert_eq!(errno(&result), NO_ROUTE);
    }
    println!("unknown address: fastest refusal {fastest:?}");
    assert!(fastest < Duration::from_millis(1), "{fastest:?}");
    assert_eq!(errno(&lab.a.connect("[fd00:2::99]:80")), NO_ROUTE);
    assert_eq!(lab.count(Reason::UnknownVip)?, 51);
    Ok(())
}

#[test]
fn an_unknown_address_is_unreachable_for_datagrams_too() -> Result<()> {
    let lab = Lab::new()?;
    let socket = lab.a.netns.run(|| UdpSocket::bind("0.0.0.0:0"))??;
    assert_eq!(errno(&socket.send_to(b"x", (UNKNOWN, 53))), NO_ROUTE);
    assert_eq!(errno(&socket.connect((UNKNOWN, 53))), NO_ROUTE);
    let socket = lab.a.netns.run(|| UdpSocket::bind("[::]:0"))??;
    assert_eq!(errno(&socket.send_to(b"x", "[fd00:2::99]:53")), NO_ROUTE);
    assert_eq!(errno(&socket.send_to(b"x", "[::ffff:10.2.0.99]:53")), NO_ROUTE);
    Ok(())
}

#[test]
fn a_denied_address_says_why() -> Result<()> {
    let lab = Lab::new()?;
    let vip = "10.2.0.8".parse()?;
    let datapath = lab.datapath()?;
    for (denial, expected) in [
        (Denial::NotPermitted, FORBIDDEN),
        (Denial::Unreachable, NO_ROUTE),
        (Denial::Refused, REFUSED),
    ] {
        datapath.set_vip(DOMAIN, vip, Route::Deny(denial))?;
        assert_eq!(errno(&lab.a.connect("10.2.0.8:80")), expected);
    }
    Ok(())
}

#[test]
fn a_direct_connection_shows_virtual_addresses_on_both_ends() -> Result<()> {
    let lab = Lab::new()?;
    for (at, to, own) in [
        ("0.0.0.0:9000", SocketAddr::new(lab.b.vip, 9000), lab.a.vip),
        ("[::]:9001", SocketAddr::new(lab.b.vip6(), 9001), lab.a.vip6()),
    ] {
        let listener = lab.b.listen(at)?;
        let mut client = lab.a.connect(to)?;
        let (mut server, from) = accept(&listener)?;
        assert_eq!(client.peer_addr()?, to, "client's peer");
        assert_eq!(client.local_addr()?.ip(), own, "client's own");
        assert_eq!(from, client.local_addr()?, "accept's address");
        assert_eq!(server.peer_addr()?, client.local_addr()?, "server's peer");
        assert_eq!(server.local_addr()?, to, "server's own");
        client.write_all(b"x")?;
        server.read_exact(&mut [0])?;
    }
    assert_eq!(lab.count(Reason::Direct)?, 2);
    Ok(())
}

#[test]
fn a_direct_connection_reaches_a_listener_that_is_bound_to_the_virtual_address() -> Result<()> {
    let lab = Lab::new()?;
    for (at, own) in [
        (SocketAddr::new(lab.b.vip, 9100), lab.a.vip),
        (SocketAddr::new(lab.b.vip6(), 9101), lab.a.vip6()),
    ] {
        let listener = lab.b.listen(&at.to_string())?;
        let client = lab.a.connect(at)?;
        let (server, from) = accept(&listener)?;
        assert_eq!(client.peer_addr()?, at);
        assert_eq!(from.ip(), own);
        assert_eq!(server.local_addr()?, at);
        let stranger = connect_in(&lab.neighbour, SocketAddr::new(lab.b.real, 9100));
        assert_eq!(errno(&stranger), REFUSED, "only members of the Domain get there");
    }
    assert_eq!(lab.count(Reason::VipListener)?, 2);
    Ok(())
}

#[test]
fn a_port_is_refused_exactly_while_nobody_listens() -> Result<()> {
    let lab = Lab::new()?;
    let to = SocketAddr::new(lab.b.vip, 9200);
    for round in 0..100 {
        assert_eq!(errno(&lab.a.connect(to)), REFUSED, "before round {round}");
        let listener = lab.b.listen("0.0.0.0:9200")?;
        let client = lab.a.connect(to).with_context(|| format!("round {round}"))?;
        datapath_net::sockets::arm_reset(&client)?;
        drop((client, listener));
    }
    let loopback = lab.b.listen("127.0.0.1:9200")?;
    assert_eq!(errno(&lab.a.connect(to)), REFUSED, "a loopback listener is not reachable");
    assert!(is_quiet(&loopback)?);
    assert_eq!(lab.count(Reason::NoListener)?, 101);
    Ok(())
}

#[test]
fn a_connection_to_a_real_address_keeps_its_names() -> Result<()> {
    let lab = Lab::new()?;
    let listener = lab.b.listen("0.0.0.0:9000")?;
    let to = SocketAddr::new(lab.b.real, 9000);
    let client = lab.a.connect(to)?;
    assert_eq!(client.peer_addr()?, to);
    assert_eq!(client.local_addr()?.ip(), lab.a.real);
    accept(&listener)?;
    Ok(())
}

#[test]
fn a_reused_socket_forgets_what_it_asked_before() -> Result<()> {
    let lab = Lab::new()?;
    let _b = lab.b.listen("0.0.0.0:9000")?;
    let own = lab.a.listen("127.0.0.1:0")?;
    let socket = socket_in(&lab.a.netns, Domain::IPV4, None)?;
    let vip = SocketAddr::new(lab.b.vip, 9000);
    socket.connect(&vip.into())?;
    assert_eq!(socket.peer_addr()?.as_socket(), Some(vip));
    rustix::net::connect_unspec(&socket)?;
    socket.connect(&own.local_addr()?.into())?;
    assert_eq!(socket.peer_addr()?.as_socket(), Some(own.local_addr()?));
    assert_eq!(socket.local_addr()?.as_socket().map(|a| a.ip().is_loopback()), Some(true));
    Ok(())
}

#[test]
fn v4_mapped_destinations_are_judged_alike() -> Result<()> {
    let lab = Lab::new()?;
    let listener = lab.b.listen("[::]:9000")?;
    let to = |ip: &str, port: u16| -> Result<SockAddr> {
        Ok(SockAddr::from(format!("[::ffff:{ip}]:{port}").parse::<SocketAddr>()?))
    };
    let socket = socket_in(&lab.a.netns, Domain::IPV6, None)?;
    let target = to(&lab.b.vip.to_string(), 9000)?;
    socket.connect(&target)?;
    assert_eq!(socket.peer_addr()?.as_socket(), target.as_socket());
    let own = socket.local_addr()?.as_socket().context("an address")?;
    assert_eq!(own.ip().to_canonical(), lab.a.vip);
    let (server, from) = accept(&listener)?;
    assert_eq!(from.ip().to_canonical(), lab.a.vip);
    assert_eq!(server.local_addr()?.ip().to_canonical(), lab.b.vip);
    for (ip, port, expected) in [(UNKNOWN, 80, NO_ROUTE), (&lab.b.vip.to_string(), 9, REFUSED)] {
        let socket = socket_in(&lab.a.netns, Domain::IPV6, None)?;
        assert_eq!(errno(&socket.connect(&to(ip, port)?)), expected);
    }
    Ok(())
}

#[test]
fn a_relayed_connection_lands_with_every_name_right() -> Result<()> {
    let lab = Lab::new()?;
    let relay = lab.land()?;
    let to: SocketAddr = format!("{REMOTE}:8080").parse()?;
    for _ in 0..100 {
        let client = lab.a.connect(to)?;
        let (landed, from) = accept(&relay)?;
        assert_eq!(landed.local_addr()?, to, "the relay learns what was asked for");
        assert_eq!(from.ip(), lab.a.vip);
        assert_eq!(client.peer_addr()?, to);
        assert_eq!(client.local_addr()?, from);
    }
    assert_eq!((lab.count(Reason::Relay)?, lab.count(Reason::Landed)?), (100, 100));
    lab.datapath()?.unland(lab.guard_a()?.slot())?;
    assert_eq!(errno(&lab.a.connect(to)), REFUSED, "without a relay: at once, not a hang");
    Ok(())
}

#[test]
fn a_v6_relayed_connection_lands_on_a_dual_stack_listener() -> Result<()> {
    let lab = Lab::new()?;
    let relay = lab.a.listen("[::]:0")?;
    lab.datapath()?.land(lab.guard_a()?.slot(), &relay)?;
    for to in ["[fd00:2::7]:8080".parse::<SocketAddr>()?, format!("{REMOTE}:8081").parse()?] {
        let client = lab.a.connect(to)?;
        let (landed, _) = accept(&relay)?;
        let local = landed.local_addr()?;
        assert_eq!((local.ip().to_canonical(), local.port()), (to.ip(), to.port()));
        assert_eq!(client.peer_addr()?, to);
    }
    Ok(())
}

#[test]
fn one_pod_holds_more_relayed_connections_than_it_has_ports() -> Result<()> {
    let lab = Lab::new()?;
    let relay = lab.land()?;
    lab.a
        .netns
        .run(|| std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40009"))??;
    let mut held = Vec::new();
    for port in 8000..8050 {
        held.push(lab.a.connect(format!("{REMOTE}:{port}"))?);
        held.push(accept(&relay)?.0);
    }
    assert_eq!(held.len(), 100);
    Ok(())
}

#[test]
fn a_socket_bound_to_its_virtual_address_goes_through_the_relay() -> Result<()> {
    let lab = Lab::new()?;
    let relay = lab.land()?;
    let _b = lab.b.listen("0.0.0.0:9000")?;
    let source = SocketAddr::new(lab.a.vip, 0);
    let socket = socket_in(&lab.a.netns, Domain::IPV4, Some(source))?;
    let to = SocketAddr::new(lab.b.vip, 9000);
    socket.connect(&to.into())?;
    let (landed, from) = accept(&relay)?;
    assert_eq!((landed.local_addr()?, from.ip()), (to, lab.a.vip));
    assert_eq!(lab.count(Reason::BoundToVip)?, 1);
    Ok(())
}

#[tokio::test]
async fn a_delivery_from_a_peers_address_passes_hooks_and_guard() -> Result<()> {
    let lab = Lab::new()?;
    let app = lab.a.listen("0.0.0.0:9000")?;
    let to = SocketAddr::new(lab.a.vip, 9000);
    let peer = REMOTE.parse()?;
    let stock =
        datapath_net::stock::Stock::new(std::sync::Arc::new(lab.a.netns.try_clone()?), RELAY_MARK);
    let stream = stock.deliver(peer, to).await?;
    let (server, from) = accept(&app)?;
    assert_eq!(from.ip(), peer);
    assert_eq!(server.local_addr()?, to);
    assert_eq!(stream.local_addr()?, from);
    Ok(())
}

#[test]
fn the_pod_reaches_itself_at_its_own_virtual_address() -> Result<()> {
    let lab = Lab::new()?;
    let listener = lab.a.listen(&format!("{}:9000", lab.a.vip))?;
    let client = lab.a.connect(SocketAddr::new(lab.a.vip, 9000))?;
    assert_eq!(accept(&listener)?.1, client.local_addr()?);
    assert_eq!(errno(&lab.a.connect(SocketAddr::new(lab.a.vip, 9))), REFUSED);
    let listener = lab.a.listen("[::]:9001")?;
    for own in [lab.a.vip, lab.a.vip6()] {
        lab.a.connect(SocketAddr::new(own, 9001)).with_context(|| own.to_string())?;
        accept(&listener)?;
    }
    Ok(())
}

#[test]
fn a_refusal_from_afar_is_remembered_for_its_time() -> Result<()> {
    let lab = Lab::new()?;
    let relay = lab.land()?;
    let to: SocketAddr = format!("{REMOTE}:8080").parse()?;
    let datapath = lab.datapath()?;
    datapath.remember_refusal(DOMAIN, to, Denial::Refused, Duration::from_secs(60))?;
    assert_eq!(errno(&lab.a.connect(to)), REFUSED);
    assert!(is_quiet(&relay)?);
    lab.a.connect(format!("{REMOTE}:8081"))?;
    accept(&relay)?;
    assert!(datapath.forget_refusal(DOMAIN, to)?);
    lab.a.connect(to)?;
    accept(&relay)?;
    datapath.remember_refusal(DOMAIN, to, Denial::Refused, Duration::ZERO)?;
    lab.a.connect(to)?;
    assert_eq!(lab.count(Reason::RecentlyRefused)?, 1);
    Ok(())
}

#[test]
fn direct_flows_are_listed_while_they_live() -> Result<()> {
    let lab = Lab::new()?;
    let listener = lab.b.listen("0.0.0.0:9000")?;
    let client = lab.a.connect(SocketAddr::new(lab.b.vip, 9000))?;
    let (server, from) = accept(&listener)?;
    let flows = lab.datapath()?.direct_flows()?;
    let [flow] = flows.as_slice() else { anyhow::bail!("{flows:?}") };
    assert_eq!((flow.domain, flow.netns, flow.established), (DOMAIN, lab.a.cookie, true));
    assert_eq!((flow.source, flow.destination), (from, client.peer_addr()?));
    assert_eq!(flow.real, lab.b.real);
    datapath_net::sockets::arm_reset(&client)?;
    drop((client, server));
    assert_eq!(lab.datapath()?.direct_flows()?, []);
    Ok(())
}

#[test]
fn listeners_are_mirrored_and_old_ones_can_be_seeded() -> Result<()> {
    use std::os::fd::AsFd as _;
    let lab = Lab::new()?;
    lab.cgroup.leave()?;
    let unseen = lab.b.listen("0.0.0.0:9300");
    lab.cgroup.enter()?;
    let (unseen, _seen) = (unseen?, lab.b.listen("[::]:9301")?);
    let datapath = lab.datapath()?;
    let ports = || -> Result<Vec<u16>> {
        let mut ports: Vec<_> = datapath.listeners()?.iter().map(|l| l.at.port()).collect();
        ports.sort_unstable();
        Ok(ports)
    };
    assert_eq!(ports()?, [9301]);
    let to = SocketAddr::new(lab.b.vip, 9300);
    assert_eq!(errno(&lab.a.connect(to)), REFUSED);
    let found = datapath_net::procfs::listeners(lab.b.netns.as_fd())?;
    assert_eq!(datapath.seed_listeners(lab.b.cookie, found)?, 1);
    assert_eq!(ports()?, [9300, 9301]);
    lab.a.connect(to)?;
    drop(unseen);
    assert_eq!(errno(&lab.a.connect(to)), REFUSED, "the peer's own RST");
    datapath.remove_pod(lab.b.cookie)?;
    assert_eq!(ports()?, [0u16; 0]);
    Ok(())
}

#[test]
fn reconciling_routes_writes_the_difference_only() -> Result<()> {
    let lab = Lab::new()?;
    let datapath = lab.datapath()?;
    let mut routes = std::collections::BTreeMap::new();
    routes.insert(REMOTE.parse()?, Route::Relay { listeners: Listeners::Unknown });
    routes.insert(
        lab.b.vip,
        Route::Direct { real: lab.b.real, listeners: Listeners::Here(lab.b.cookie) },
    );
    let changes = datapath.reconcile(DOMAIN, &routes)?;
    assert_eq!(
        (changes.written, changes.removed),
        (0, 4 + 3),
        "a, a6, b6, remote6; names of the first three"
    );
    assert_eq!(datapath.reconcile(DOMAIN, &routes)?, datapath_loader::Changes::default());
    assert_eq!(datapath.vips(DOMAIN)?.len(), 2);
    datapath.reconcile(DOMAIN, &std::collections::BTreeMap::new())?;
    assert_eq!(errno(&lab.a.connect(format!("{REMOTE}:80"))), NO_ROUTE);
    Ok(())
}
