//! What is known of listeners: of this machine's pods by the hooks, of other machines' by their word.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsFd as _,
    time::Duration,
};

use anyhow::Result;
use datapath_loader::{ANY_V6_ONLY, Events, Listeners, MirrorId, Open, Protocol, Reason, Route};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use socket2::{Domain, Socket, Type};
use test_kernel::{DOMAIN, Lab, REMOTE, accept, errno};

const REFUSED: Option<i32> = Some(Errno::CONNREFUSED.raw_os_error());
const FOREVER: Duration = Duration::from_secs(60);

fn remote(port: u16) -> SocketAddr {
    SocketAddr::new([10, 2, 0, 7].into(), port)
}

/// [`REMOTE`] is relayed and its machine says what listens there.
fn mirrored(lab: &Lab) -> Result<MirrorId> {
    let id = MirrorId(42);
    let route = Route::Relay { listeners: Listeners::Mirror(id) };
    lab.datapath()?.set_vip(DOMAIN, REMOTE.parse()?, route)?;
    Ok(id)
}

#[test]
fn a_port_where_nobody_listens_far_away_is_refused_here_and_at_once() -> Result<()> {
    let lab = Lab::new()?;
    let (relay, id, dp) = (lab.land()?, mirrored(&lab)?, lab.datapath()?);
    let open = Some(Open { tcp: &[80, 8080], udp_on_vip: &[] });
    dp.mirror(id, None, open)?;
    dp.trust_mirror(FOREVER)?;
    assert_eq!(errno(&lab.a.connect(remote(81))), REFUSED);
    assert_eq!(lab.count(Reason::NoListener)?, 1);
    for port in [80, 8080] {
        lab.a.connect(remote(port))?;
        accept(&relay)?;
    }
    // The port opens, another closes.
    dp.mirror(id, open, Some(Open { tcp: &[81, 8080], udp_on_vip: &[] }))?;
    lab.a.connect(remote(81))?;
    accept(&relay)?;
    assert_eq!(errno(&lab.a.connect(remote(80))), REFUSED);
    Ok(())
}

#[test]
fn what_is_unknown_or_stale_refuses_nothing() -> Result<()> {
    let lab = Lab::new()?;
    let (relay, id, dp) = (lab.land()?, mirrored(&lab)?, lab.datapath()?);
    let passes = || -> Result<()> {
        lab.a.connect(remote(81))?;
        accept(&relay).map(drop)
    };
    dp.trust_mirror(FOREVER)?;
    passes()?;
    let none = Some(Open::default());
    dp.mirror(id, None, none)?;
    assert_eq!(errno(&lab.a.connect(remote(81))), REFUSED);
    dp.trust_mirror(Duration::ZERO)?;
    passes()?;
    dp.trust_mirror(FOREVER)?;
    assert_eq!(errno(&lab.a.connect(remote(81))), REFUSED);
    dp.mirror(id, none, None)?;
    passes()?;
    dp.mirror(id, None, none)?;
    dp.forget_mirror()?;
    dp.trust_mirror(FOREVER)?;
    passes()?;
    assert_eq!(lab.count(Reason::NoListener)?, 2);
    Ok(())
}

#[test]
fn a_listener_that_is_known_outweighs_an_older_refusal() -> Result<()> {
    let lab = Lab::new()?;
    let (relay, id, dp) = (lab.land()?, mirrored(&lab)?, lab.datapath()?);
    dp.remember_refusal(DOMAIN, remote(80), datapath_loader::Denial::Refused, FOREVER)?;
    assert_eq!(errno(&lab.a.connect(remote(80))), REFUSED);
    dp.mirror(id, None, Some(Open { tcp: &[80], udp_on_vip: &[] }))?;
    lab.a.connect(remote(80))?;
    accept(&relay).map(drop)
}

/// Pods tell each other ports ("connect to 40123") faster than machines do.
#[test]
fn where_the_peers_own_kernel_is_asked_anyway_it_has_the_last_word() -> Result<()> {
    let lab = Lab::new()?;
    let (id, dp) = (MirrorId(44), lab.datapath()?);
    let route = Route::Direct { real: lab.b.real, listeners: Listeners::Mirror(id) };
    dp.set_vip(DOMAIN, lab.b.vip, route)?;
    dp.mirror(id, None, Some(Open { tcp: &[1], udp_on_vip: &[] }))?;
    dp.trust_mirror(FOREVER)?;
    let to = SocketAddr::new(lab.b.vip, 9350);
    let listener = lab.b.listen("0.0.0.0:9350")?;
    lab.a.connect(to)?;
    accept(&listener)?;
    drop(listener);
    assert_eq!(errno(&lab.a.connect(to)), REFUSED);
    assert_eq!(lab.count(Reason::NoListener)?, 0);
    Ok(())
}

#[test]
fn addresses_that_were_listened_on_once_do_not_use_up_the_map() -> Result<()> {
    let lab = Lab::new()?;
    lab.b.netns.run(|| -> Result<()> {
        for n in 0..70_000_u32 {
            let at = Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 0).to_bits() + n);
            drop(std::net::TcpListener::bind((at, 9600))?);
        }
        Ok(())
    })??;
    let _listener = lab.b.listen("0.0.0.0:9601")?;
    lab.a.connect(SocketAddr::new(lab.b.vip, 9601))?;
    Ok(())
}

/// All changes until there are none for a moment that is long for a ring buffer.
fn drain(events: &mut Events) -> Result<Vec<(Protocol, u16)>> {
    let mut all = Vec::new();
    loop {
        while let Some(changed) = events.pop() {
            all.push((changed.protocol, changed.at.port()));
        }
        let tenth = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let mut fds = [PollFd::new(&*events, PollFlags::IN)];
        if poll(&mut fds, Some(&tenth))? == 0 {
            return Ok(all);
        }
    }
}

#[test]
fn every_beginning_and_end_is_told() -> Result<()> {
    let lab = Lab::new()?;
    let dp = lab.datapath()?;
    let mut events = dp.take_events().expect("the first");
    assert!(dp.take_events().is_none());
    let listener = lab.b.listen("0.0.0.0:9400")?;
    assert_eq!(drain(&mut events)?, [(Protocol::Tcp, 9400)]);
    assert!(dp.is_listening(lab.b.cookie, "0.0.0.0:9400".parse()?)?);
    drop(listener);
    let vip = SocketAddr::new(lab.b.vip, 9401);
    let udp = lab.b.netns.run(|| std::net::UdpSocket::bind(vip))??;
    let _other = lab.b.netns.run(|| std::net::UdpSocket::bind("0.0.0.0:9402"))??;
    assert_eq!(drain(&mut events)?, [(Protocol::Tcp, 9400), (Protocol::Udp, 9401)]);
    assert!(!dp.is_listening(lab.b.cookie, "0.0.0.0:9400".parse()?)?);
    assert!(dp.is_udp_on_vip(lab.b.cookie, 9401)? && !dp.is_udp_on_vip(lab.b.cookie, 9402)?);
    drop(udp);
    assert_eq!(drain(&mut events)?, [(Protocol::Udp, 9401)]);
    assert!(!dp.is_udp_on_vip(lab.b.cookie, 9401)?);
    assert!(!events.have_lost(dp)?);
    // Nobody reads while more happens than there is room for.
    for _ in 0..8000 {
        drop(lab.b.listen("0.0.0.0:9403")?);
    }
    drain(&mut events)?;
    assert!(events.have_lost(dp)? && !events.have_lost(dp)?);
    Ok(())
}

#[test]
fn seeding_again_forgets_what_has_ended() -> Result<()> {
    let lab = Lab::new()?;
    let dp = lab.datapath()?;
    lab.cgroup.leave()?;
    let unseen = lab.b.listen("0.0.0.0:9300");
    lab.cgroup.enter()?;
    let unseen = unseen?;
    let seed = || -> Result<usize> {
        let found = datapath_net::procfs::listeners(lab.b.netns.as_fd())?;
        Ok(dp.seed_listeners(lab.b.cookie, found)?)
    };
    assert_eq!(seed()?, 1);
    let to = SocketAddr::new(lab.b.vip, 9300);
    lab.a.connect(to)?;
    drop(unseen);
    assert_eq!(seed()?, 0);
    assert_eq!(errno(&lab.a.connect(to)), REFUSED);
    let _seen = lab.b.listen("0.0.0.0:9300")?;
    assert_eq!(seed()?, 0, "the hooks know it");
    lab.a.connect(to)?;
    Ok(())
}

#[test]
fn a_datagram_for_a_socket_that_is_bound_to_its_vip_leaves_for_the_node() -> Result<()> {
    let lab = Lab::new()?;
    let client = lab.a.netns.run(|| std::net::UdpSocket::bind("0.0.0.0:0"))??;
    for (vip, wide) in [(lab.b.vip, false), (lab.b.vip6(), true)] {
        let client6 = lab.a.netns.run(|| std::net::UdpSocket::bind("[::]:0"))??;
        let client = if wide { &client6 } else { &client };
        let (direct, left) = (lab.count(Reason::Direct)?, lab.count(Reason::Datagram)?);
        let to = SocketAddr::new(vip, 9500);
        let server = lab.b.netns.run(|| std::net::UdpSocket::bind(to))??;
        let twin = server.try_clone()?;
        client.send_to(b"x", to)?;
        drop(server);
        client.send_to(b"x", to)?;
        assert_eq!(lab.count(Reason::Datagram)?, left + 2);
        drop(twin);
        client.send_to(b"x", to)?;
        assert_eq!(lab.count(Reason::Direct)?, direct + 1);
        // Bound on another machine of the site.
        let id = MirrorId(43);
        let real = if wide { lab.b.real6() } else { lab.b.real };
        let route = |listeners| Route::Direct { real, listeners };
        lab.datapath()?.set_vip(DOMAIN, vip, route(Listeners::Mirror(id)))?;
        lab.datapath()?.mirror(id, None, Some(Open { tcp: &[], udp_on_vip: &[9500] }))?;
        client.send_to(b"x", to)?;
        assert_eq!(lab.count(Reason::Datagram)?, left + 3);
        lab.datapath()?.set_vip(DOMAIN, vip, route(Listeners::Here(lab.b.cookie)))?;
        // One that was heard of by what it sent is answered there.
        lab.datapath()?.answer_on_vip(DOMAIN, to, FOREVER)?;
        client.send_to(b"x", to)?;
        assert_eq!(lab.count(Reason::Datagram)?, left + 4);
        lab.datapath()?.answer_on_vip(DOMAIN, to, Duration::ZERO)?;
    }
    Ok(())
}

#[test]
fn a_port_that_the_domain_does_not_allow_is_eacces() -> Result<()> {
    let lab = Lab::new()?;
    let dp = lab.datapath()?;
    dp.set_ports(DOMAIN, &[22..=22, 7000..=7200, 65535..=65535])?;
    dp.set_pod(lab.a.cookie, &lab.a.entry.restricted())?;
    let _listeners = [lab.b.listen("0.0.0.0:7100")?, lab.b.listen("0.0.0.0:7201")?];
    lab.a.connect(SocketAddr::new(lab.b.vip, 7100))?;
    let denied = Some(Errno::ACCESS.raw_os_error());
    assert_eq!(errno(&lab.a.connect(SocketAddr::new(lab.b.vip, 7201))), denied);
    let udp = lab.a.netns.run(|| std::net::UdpSocket::bind("0.0.0.0:0"))??;
    udp.send_to(b"x", SocketAddr::new(lab.b.vip, 7000))?;
    assert_eq!(errno(&udp.send_to(b"x", SocketAddr::new(lab.b.vip, 53))), denied);
    assert_eq!(lab.count(Reason::Port)?, 2);
    let server = lab.a.netns.run(|| std::net::UdpSocket::bind("0.0.0.0:7000"))??;
    server.send_to(b"an answer", SocketAddr::new(lab.b.vip, 40_000))?;
    // What is not the Domain's is none of its business, and another list takes the place of the first.
    udp.send_to(b"x", SocketAddr::new([10, 99, 0, 9].into(), 53))?;
    dp.set_ports(DOMAIN, &[7201..=7201])?;
    lab.a.connect(SocketAddr::new(lab.b.vip, 7201))?;
    assert_eq!(errno(&lab.a.connect(SocketAddr::new(lab.b.vip, 7100))), denied);
    Ok(())
}

#[test]
fn a_listener_is_open_to_the_families_that_reach_it() -> Result<()> {
    let lab = Lab::new()?;
    let only = lab.b.netns.run(|| -> std::io::Result<_> {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(socket2::Protocol::TCP))?;
        socket.set_only_v6(true)?;
        socket.bind(&SocketAddr::from(([0u16; 8], 9603)).into())?;
        socket.listen(8)?;
        Ok(socket)
    })??;
    let (_v4, _both) = (lab.b.listen("0.0.0.0:9601")?, lab.b.listen("[::]:9602")?);
    let cases = [(9601, true, false), (9602, true, true), (9603, false, true)];
    let mut refused = 0;
    for (port, v4, v6) in cases {
        for (vip, open) in [(lab.b.vip, v4), (lab.b.vip6(), v6)] {
            let result = lab.a.connect(SocketAddr::new(vip, port));
            assert_eq!(errno(&result), if open { None } else { REFUSED }, "{vip} {port}");
            refused += u64::from(!open);
            // By the hook, not by the far kernel.
            assert_eq!(lab.count(Reason::NoListener)?, refused, "{vip} {port}");
        }
    }
    let listed = lab.datapath()?.listeners()?;
    let at = |port| listed.iter().find(|l| l.at.port() == port).map(|l| l.at.ip());
    assert_eq!(at(9601), Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
    assert_eq!((at(9602), at(9603)), (Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED)), Some(ANY_V6_ONLY)));
    drop(only);
    Ok(())
}
