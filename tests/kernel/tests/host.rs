//! A pod on the host network: a cgroup in the site's own namespace, which is the machine's here.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
};

use anyhow::{Context as _, Result};
use datapath_loader::{Listeners, RELAY_MARK, Reason, Route};
use rustix::io::Errno;
use socket2::Domain;
use test_kernel::{
    DOMAIN, Lab, REMOTE, UNKNOWN, accept, connect_in, errno,
    host::{REAL, REAL6, Task, VIP, VIP6},
    is_quiet, socket_in,
};

fn raw(of: Errno) -> Option<i32> {
    Some(of.raw_os_error())
}

#[test]
fn a_relayed_connection_is_sent_to_the_relays_port_with_what_it_asked_for() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    for (to, mapped) in [(format!("{REMOTE}:80"), false), (format!("[::ffff:{REMOTE}]:81"), true)] {
        let mut stream = task.connect(&to)?;
        let (local, peer) = task.seen(&stream)?;
        assert_eq!(peer, to.parse()?);
        assert_eq!(local.ip().to_canonical().to_string(), VIP);
        assert_eq!(local.is_ipv6(), mapped);
        let (mut relay, asked) = task.landed()?;
        let port = peer.port();
        assert_eq!(asked, Some(SocketAddr::new(REMOTE.parse()?, port)));
        assert_eq!(relay.peer_addr()?.port(), local.port(), "the port is the task's own");
        stream.write_all(b"question")?;
        let mut got = [0; 8];
        relay.read_exact(&mut got)?;
        assert_eq!(&got, b"question");
    }
    // Bound to an address of the machine, as programs with several interfaces do.
    let bound =
        task.run(|| socket_in(&lab.site, Domain::IPV4, Some(format!("{REAL}:0").parse()?)))??;
    let to: SocketAddr = format!("{REMOTE}:82").parse()?;
    task.run(|| bound.connect(&to.into()))??;
    assert_eq!(task.landed()?.1, Some(to));
    assert_eq!(lab.count(Reason::Relay)?, 3);
    Ok(())
}

#[test]
fn a_direct_connection_has_the_right_names_on_both_ends() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    let listener = lab.b.listen("0.0.0.0:9000")?;
    let stream = task.connect(format!("{}:9000", lab.b.vip))?;
    let (local, peer) = task.seen(&stream)?;
    assert_eq!((local.ip().to_string(), peer.ip()), (VIP.to_owned(), lab.b.vip));
    let (accepted, from) = accept(&listener)?;
    assert_eq!(from, local, "not the address of the bridge");
    assert_eq!(accepted.local_addr()?, peer);
    let flows = lab.datapath()?.direct_flows()?;
    let flow = flows.first().context("the flow is listed")?;
    assert_eq!((flow.source, flow.destination, flow.netns), (local, peer, task.id.key()));
    assert_eq!(task.refused(format!("{}:9001", lab.b.vip))?, raw(Errno::CONNREFUSED));
    Ok(())
}

#[test]
fn what_cannot_be_reached_is_refused_at_once() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    assert_eq!(task.refused(format!("{UNKNOWN}:80"))?, raw(Errno::HOSTUNREACH));
    let socket = task.run(|| lab.site.run(|| UdpSocket::bind("0.0.0.0:0")))???;
    let sent = task.run(|| socket.send_to(b"x", (REMOTE, 53)))?;
    assert_eq!(errno(&sent), raw(Errno::NETUNREACH));
    assert_eq!(lab.count(Reason::HostDatagram)?, 1);
    assert!(is_quiet(&task.relay)?);
    Ok(())
}

#[test]
fn a_datagram_within_the_site_is_answered() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    let far = lab.b.netns.run(|| UdpSocket::bind("0.0.0.0:5353"))??;
    let near = task.run(|| lab.site.run(|| UdpSocket::bind("0.0.0.0:0")))???;
    for socket in [&far, &near] {
        socket.set_read_timeout(Some(std::time::Duration::from_secs(3)))?;
    }
    task.run(|| near.send_to(b"q", (lab.b.vip, 5353)))??;
    let mut got = [0; 8];
    let (_, from) = far.recv_from(&mut got)?;
    assert_eq!(from.ip().to_string(), VIP);
    far.send_to(b"a", from)?;
    let (n, from) = task.run(|| near.recv_from(&mut got))??;
    assert_eq!((n, from), (1, SocketAddr::new(lab.b.vip, 5353)));
    Ok(())
}

#[test]
fn others_on_the_machine_are_untouched() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    let listener = lab.b.listen("0.0.0.0:9000")?;
    let before = lab.datapath()?.counters()?;
    for vip in [format!("{REMOTE}:80"), format!("{}:9000", lab.b.vip), format!("{UNKNOWN}:80")] {
        assert_eq!(errno(&connect_in(&lab.site, vip)), raw(Errno::NETUNREACH));
    }
    let real = SocketAddr::new(lab.b.real, 9000);
    let stream = connect_in(&lab.site, real)?;
    assert_eq!(stream.peer_addr()?, real);
    assert_eq!(stream.local_addr()?.ip().to_string(), "10.99.0.254");
    assert_eq!(accept(&listener)?.1, stream.local_addr()?);
    let bound = lab.site.run(|| TcpListener::bind(format!("{VIP}:0")))?;
    assert_eq!(errno(&bound), raw(Errno::ADDRNOTAVAIL));
    let own = lab.site.run(|| TcpListener::bind("0.0.0.0:7001"))??;
    assert!(!lab.datapath()?.is_listening(task.id.key(), own.local_addr()?)?);
    assert_eq!(lab.datapath()?.counters()?, before);
    // Nobody but the pod speaks through its port, not even with the port of one that did.
    let spoken = task.connect(format!("{REMOTE}:80"))?;
    let (landed, source) = accept(&task.relay)?;
    drop((landed, spoken));
    let socket = socket_in(&lab.site, Domain::IPV4, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&source.into())?;
    socket.connect(&task.relay.local_addr()?.into())?;
    assert_eq!(task.landed()?.1, None);
    Ok(())
}

#[test]
fn a_cgroup_below_the_pods_is_the_pods() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    let below = task.path.join("task/worker");
    fs::create_dir_all(&below)?;
    let to = format!("{REMOTE}:80");
    let _stream = task.run_in(&below, || connect_in(&lab.site, &to))??;
    assert_eq!(task.landed()?.1, Some(to.parse()?));
    Ok(())
}

#[test]
fn only_the_pods_own_listeners_are_reached() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    let at = |port| format!("{VIP}:{port}");
    let strangers = lab.site.run(|| TcpListener::bind("0.0.0.0:7001"))??;
    assert_eq!(errno(&lab.a.connect(at(7001))), raw(Errno::CONNREFUSED));
    for listener in [task.listen("0.0.0.0:7002")?, task.listen(&at(7003))?] {
        let port = task.run(|| listener.local_addr())??.port();
        let stream = lab.a.connect(at(port))?;
        assert_eq!(stream.peer_addr()?.to_string(), at(port));
        let (accepted, from) = task.run(|| accept(&listener))??;
        assert_eq!(from, SocketAddr::new(lab.a.vip, stream.local_addr()?.port()));
        assert_eq!(task.seen(&accepted)?.0.to_string(), at(port));
        drop(listener);
        assert_eq!(errno(&lab.a.connect(at(port))), raw(Errno::CONNREFUSED), "{port}");
    }
    let on_vip = task.listen(&at(7004))?;
    assert_eq!(task.run(|| on_vip.local_addr())??.to_string(), at(7004));
    assert_eq!(on_vip.local_addr()?.to_string(), format!("{REAL}:7004"), "outside the pod");
    let _loopback = task.listen("127.0.0.1:7005")?;
    assert_eq!(errno(&lab.a.connect(at(7005))), raw(Errno::CONNREFUSED));
    // The pod itself comes to its own by its VIP.
    let own = task.connect(at(7004))?;
    let (local, peer) = task.seen(&own)?;
    assert_eq!((local.ip().to_string(), peer.to_string()), (VIP.to_owned(), at(7004)));
    let (accepted, from) = task.run(|| accept(&on_vip))??;
    assert_eq!((from, task.seen(&accepted)?), (local, (peer, local)));
    // From the same port a stranger is only itself.
    socket2::SockRef::from(&own).set_linger(Some(std::time::Duration::ZERO))?;
    drop((own, accepted));
    let again = socket_in(&lab.site, Domain::IPV4, None)?;
    again.set_reuse_address(true)?;
    again.bind(&format!("{REAL}:{}", local.port()).parse::<SocketAddr>()?.into())?;
    again.connect(&on_vip.local_addr()?.into())?;
    assert_eq!(task.run(|| accept(&on_vip))??.1.ip().to_string(), REAL);
    assert!(is_quiet(&strangers)?);
    Ok(())
}

#[test]
fn what_the_relay_delivers_comes_from_the_peer() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    let listener = task.listen("0.0.0.0:7000")?;
    let to: SocketAddr = format!("{REAL}:7000").parse()?;
    let deliver = |peer: Option<&str>| -> Result<SocketAddr> {
        let socket = socket_in(&lab.site, Domain::IPV4, Some(format!("{REAL}:0").parse()?))?;
        let from = socket.local_addr()?.as_socket().context("an address")?;
        if let Some(peer) = peer {
            socket.set_mark(RELAY_MARK)?;
            let peer = SocketAddr::new(peer.parse()?, from.port());
            lab.datapath()?.announce_peer(task.id, from, to.port(), peer)?;
        }
        socket.connect(&to.into())?;
        let (accepted, seen) = task.run(|| accept(&listener))??;
        assert_eq!(seen.port(), from.port());
        let (local, peer) = task.seen(&accepted)?;
        assert_eq!(peer, seen);
        assert_eq!(local.ip().to_string(), if seen.ip() == from.ip() { REAL } else { VIP });
        Ok(seen)
    };
    assert_eq!(deliver(Some(REMOTE))?.ip().to_string(), REMOTE);
    assert_eq!(deliver(None)?.ip().to_string(), REAL);
    Ok(())
}

#[test]
fn without_an_address_of_the_site_everything_goes_by_loopback() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    // Of IPv4 it has one.
    task.put(&[(VIP, Some(REAL)), (VIP6, None)])?;
    let datapath = lab.datapath()?;
    let (vip, listeners) = (VIP6.parse()?, Listeners::Here(task.id.key()));
    datapath.remove_real(DOMAIN, REAL6.parse()?)?;
    datapath.set_vip(DOMAIN, vip, Route::Relay { listeners })?;

    let to: SocketAddr = "[fd00:2::7]:80".parse()?;
    let stream = task.connect(to)?;
    let (local, peer) = task.seen(&stream)?;
    assert_eq!((local.ip(), peer), (vip, to));
    assert_eq!(task.landed6()?.1, Some(to));

    let own = SocketAddr::new(vip, 7003);
    assert_eq!(task.refused(own)?, raw(Errno::CONNREFUSED), "by the hook: nobody listens");
    let listener = task.listen(&own.to_string())?;
    assert_eq!(task.run(|| listener.local_addr())??, own);
    assert_eq!(listener.local_addr()?, SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 7003));
    let _by_the_relay = task.connect(own)?;
    assert_eq!(task.landed6()?.1, Some(own));

    let source = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0);
    let delivery = socket_in(&lab.site, Domain::IPV6, Some(source))?;
    let from = delivery.local_addr()?.as_socket().context("an address")?;
    let peer = SocketAddr::new(to.ip(), from.port());
    datapath.announce_peer(task.id, from, own.port(), peer)?;
    delivery.set_mark(RELAY_MARK)?;
    delivery.connect(&listener.local_addr()?.into())?;
    let (accepted, seen) = task.run(|| accept(&listener))??;
    assert_eq!(seen, peer);
    assert_eq!(task.seen(&accepted)?, (own, peer));
    Ok(())
}

#[test]
fn a_port_that_the_relay_has_left_gets_nothing() -> Result<()> {
    let lab = Lab::new()?;
    let mut task = Task::new(&lab)?;
    let port = task.relay.local_addr()?;
    let elsewhere = lab.site.run(|| TcpListener::bind("127.0.0.1:0"))??;
    drop(std::mem::replace(&mut task.relay, elsewhere));
    let taken = lab.site.run(|| TcpListener::bind(port))??;
    assert_eq!(task.refused(format!("{REMOTE}:80"))?, raw(Errno::CONNREFUSED));
    assert!(is_quiet(&taken)?);
    assert_eq!(lab.count(Reason::NoRelay)?, 1);
    // The next process's listener.
    task.relay_anew()?;
    let _stream = task.connect(format!("{REMOTE}:80"))?;
    assert!(task.landed()?.1.is_some());
    Ok(())
}

#[test]
fn a_pod_that_leaves_is_a_process_like_any_other() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    let datapath = lab.datapath()?;
    let _listener = task.listen("0.0.0.0:7000")?;
    assert_eq!(datapath.host_pods()?.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [task.id]);
    assert!(datapath.pods()?.iter().all(|(cookie, _)| *cookie != task.machine));
    datapath.remove_host_pod(task.machine, task.id)?;
    assert!(datapath.host_pods()?.is_empty() && datapath.listeners()?.is_empty());
    assert_eq!(task.refused(format!("{REMOTE}:80"))?, raw(Errno::NETUNREACH));
    Ok(())
}
