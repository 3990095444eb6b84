//! A pod on the host network whose Domain has both address families, or one.

use std::{
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::fd::AsFd as _,
    time::Duration,
};

use anyhow::{Context as _, Result};
use datapath_loader::{Reason, seen::What};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use socket2::{Domain, Socket, Type};
use test_kernel::{
    Lab, REMOTE, accept, errno,
    host::{REAL, REAL6, Task, VIP, VIP6},
    is_quiet, socket_in,
};

const REMOTE6: &str = "fd00:2::7";

fn raw(of: Errno) -> Option<i32> {
    Some(of.raw_os_error())
}

fn at6(port: u16) -> String {
    format!("[{VIP6}]:{port}")
}

fn at4(port: u16) -> String {
    format!("{VIP}:{port}")
}

#[test]
fn each_family_is_relayed_by_its_own_loopback_address_and_one_port() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    let port = |l: &TcpListener| l.local_addr().map(|at| at.port());
    assert_eq!(port(&task.relay)?, port(&task.relay6)?);
    let to6: SocketAddr = format!("[{REMOTE6}]:80").parse()?;
    let only = socket_in(&lab.site, Domain::IPV6, None)?;
    only.set_only_v6(true)?;
    task.run(|| only.connect(&to6.into()))??;
    for stream in [task.connect(to6)?, only.into()] {
        let (local, peer) = task.seen(&stream)?;
        assert_eq!((local.ip().to_string(), peer), (VIP6.to_owned(), to6));
    }
    for _ in 0..2 {
        assert_eq!(task.landed6()?.1, Some(to6));
    }
    // A socket of IPv6 that speaks IPv4.
    let mapped: SocketAddr = format!("[::ffff:{REMOTE}]:81").parse()?;
    let stream = task.connect(mapped)?;
    assert_eq!(task.seen(&stream)?.0.ip().to_canonical().to_string(), VIP);
    assert_eq!(task.landed()?.1, Some(SocketAddr::new(REMOTE.parse()?, 81)));
    assert!(is_quiet(&task.relay6)?);
    assert_eq!(lab.count(Reason::Relay)?, 3);
    Ok(())
}

#[test]
fn a_direct_connection_of_ipv6_has_the_right_names_on_both_ends() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    let listener = lab.b.listen("[::]:9000")?;
    let to = SocketAddr::new(lab.b.vip6(), 9000);
    let stream = task.connect(to)?;
    let (local, peer) = task.seen(&stream)?;
    assert_eq!((local.ip().to_string(), peer), (VIP6.to_owned(), to));
    assert_eq!(stream.local_addr()?.ip().to_string(), REAL6, "outside the pod");
    let (accepted, from) = accept(&listener)?;
    assert_eq!((from, accepted.local_addr()?), (local, to));
    let flows = lab.datapath()?.direct_flows()?;
    let flow = flows.first().context("the flow is listed")?;
    assert_eq!((flow.source, flow.destination, flow.netns), (local, to, task.id.key()));
    assert_eq!(task.refused(format!("[{}]:9001", lab.b.vip6()))?, raw(Errno::CONNREFUSED));
    // The one socket takes the other family, too.
    let mapped = task.connect(format!("[::ffff:{}]:9000", lab.b.vip))?;
    assert_eq!(task.seen(&mapped)?.0.ip().to_canonical().to_string(), VIP);
    assert_eq!(accept(&listener)?.1.ip().to_canonical().to_string(), VIP);
    Ok(())
}

#[test]
fn a_listener_is_reached_by_the_families_that_it_takes() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    let only = || -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
        socket.set_only_v6(true)?;
        socket.bind(&SocketAddr::from(([0u16; 8], 7003)).into())?;
        socket.listen(8)?;
        Ok(socket.into())
    };
    let only = task.run(|| lab.site.run(only))???;
    let cases = [
        (task.listen("[::]:7001")?, 7001, true, true),
        (task.listen("0.0.0.0:7002")?, 7002, true, false),
        (only, 7003, false, true),
        (task.listen(&at6(7004))?, 7004, false, true),
        (task.listen(&at4(7005))?, 7005, true, false),
    ];
    for (listener, port, v4, v6) in cases {
        for (to, open) in [(at4(port), v4), (at6(port), v6)] {
            if !open {
                assert_eq!(errno(&lab.a.connect(&to)), raw(Errno::CONNREFUSED), "{to}");
                continue;
            }
            let stream = lab.a.connect(&to).with_context(|| to.clone())?;
            let (accepted, from) = task.run(|| accept(&listener))??;
            let canonical = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
            assert_eq!(canonical(from), stream.local_addr()?);
            assert_eq!(canonical(task.seen(&accepted)?.0).to_string(), to);
        }
    }
    let strangers = lab.site.run(|| TcpListener::bind("[::]:7009"))??;
    assert_eq!(errno(&lab.a.connect(at6(7009))), raw(Errno::CONNREFUSED));
    assert!(is_quiet(&strangers)?);
    Ok(())
}

#[test]
fn bind_takes_the_pods_addresses_for_what_leads_to_them_and_nothing_else() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    for (at, inside, outside) in [
        (at4(7001), at4(7001), format!("{REAL}:7001")),
        (at6(7002), at6(7002), format!("[{REAL6}]:7002")),
        (
            format!("[::ffff:{VIP}]:7003"),
            format!("[::ffff:{VIP}]:7003"),
            format!("[::ffff:{REAL}]:7003"),
        ),
        ("[::]:7004".to_owned(), "[::]:7004".to_owned(), "[::]:7004".to_owned()),
        ("127.0.0.1:7005".to_owned(), "127.0.0.1:7005".to_owned(), "127.0.0.1:7005".to_owned()),
    ] {
        let listener = task.listen(&at)?;
        assert_eq!(task.run(|| listener.local_addr())??.to_string(), inside);
        assert_eq!(listener.local_addr()?.to_string(), outside);
    }
    // The peers' addresses are no interface's here.
    for foreign in [format!("{}:0", lab.b.vip), format!("[{}]:0", lab.b.vip6())] {
        let bound = task.run(|| lab.site.run(|| TcpListener::bind(&foreign)))??;
        assert_eq!(errno(&bound), raw(Errno::ADDRNOTAVAIL), "{foreign}");
    }
    // The relay's sockets are not the pod's, and nobody else is in the Domain.
    let marked = socket_in(&lab.site, Domain::IPV6, Some(format!("[{REAL6}]:0").parse()?))?;
    assert_eq!(marked.local_addr()?.as_socket().context("an address")?.ip().to_string(), REAL6);
    assert_eq!(errno(&lab.site.run(|| TcpListener::bind(at6(0)))?), raw(Errno::ADDRNOTAVAIL));
    Ok(())
}

#[test]
fn in_a_domain_of_one_family_the_other_ones_any_address_is_itself() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    task.put(&[(VIP, Some(REAL))])?;
    let listener = task.listen("[::]:7001")?;
    assert_eq!(listener.local_addr()?.to_string(), "[::]:7001");
    let stream = lab.a.connect(at4(7001))?;
    let (_, from) = task.run(|| accept(&listener))??;
    assert_eq!(from.port(), stream.local_addr()?.port());
    // Addresses of the other family are none of the Domain's.
    assert_eq!(task.refused(format!("[{REMOTE6}]:80"))?, raw(Errno::NETUNREACH));
    task.put(&[(VIP6, Some(REAL6))])?;
    let listener = task.listen("0.0.0.0:7002")?;
    assert_eq!(listener.local_addr()?.to_string(), "0.0.0.0:7002");
    assert_eq!(task.refused(format!("{REMOTE}:80"))?, raw(Errno::NETUNREACH));
    let _stream = task.connect(format!("[{REMOTE6}]:80"))?;
    assert!(task.landed6()?.1.is_some());
    Ok(())
}

#[test]
fn a_datagram_of_ipv6_within_the_site_is_answered() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    let far = lab.b.netns.run(|| UdpSocket::bind("[::]:5353"))??;
    let near = task.run(|| lab.site.run(|| UdpSocket::bind("[::]:0")))???;
    for socket in [&far, &near] {
        socket.set_read_timeout(Some(Duration::from_secs(3)))?;
    }
    let mut got = [0; 8];
    for (vip, own) in [(lab.b.vip6(), VIP6), (lab.b.vip, VIP)] {
        let to = match vip {
            std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
            v6 => v6,
        };
        task.run(|| near.send_to(b"q", (to, 5353)))??;
        let (_, from) = far.recv_from(&mut got)?;
        assert_eq!(from.ip().to_canonical().to_string(), own);
        far.send_to(b"a", from)?;
        let (n, from) = task.run(|| near.recv_from(&mut got))??;
        assert_eq!((n, from), (1, SocketAddr::new(to, 5353)));
    }
    let sent = task.run(|| near.send_to(b"x", (REMOTE6, 53)))?;
    assert_eq!(errno(&sent), raw(Errno::NETUNREACH));
    Ok(())
}

#[test]
fn a_family_that_the_relay_does_not_listen_on_is_refused_and_the_other_one_not() -> Result<()> {
    let lab = Lab::new()?;
    let mut task = Task::new(&lab)?;
    let port = task.relay6.local_addr()?;
    let elsewhere = lab.site.run(|| TcpListener::bind("[::1]:0"))??;
    drop(std::mem::replace(&mut task.relay6, elsewhere));
    assert_eq!(task.refused(format!("[{REMOTE6}]:80"))?, raw(Errno::CONNREFUSED));
    let taken = lab.site.run(|| TcpListener::bind(port))??;
    assert_eq!(task.refused(format!("[{REMOTE6}]:80"))?, raw(Errno::CONNREFUSED));
    assert!(is_quiet(&taken)?);
    assert_eq!(lab.count(Reason::NoRelay)?, 2);
    let _stream = task.connect(format!("{REMOTE}:80"))?;
    assert!(task.landed()?.1.is_some());
    Ok(())
}

#[test]
fn who_was_refused_is_told_by_the_pods_key() -> Result<()> {
    let lab = Lab::new()?;
    let task = Task::new(&lab)?;
    let datapath = lab.datapath()?;
    let mut watch = datapath.take_watch().context("nobody else reads")?;
    datapath.watch(Duration::from_secs(60))?;
    let to: SocketAddr = "[fd00:2::99]:80".parse()?;
    assert_eq!(task.refused(to)?, raw(Errno::HOSTUNREACH));
    let limit = Timespec { tv_sec: 3, tv_nsec: 0 };
    let told = loop {
        match watch.pop() {
            Some(told) => break told,
            None => {
                let fd = watch.as_fd();
                let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit))?;
                anyhow::ensure!(ready > 0, "nothing was told");
            }
        }
    };
    assert_eq!((told.netns, told.destination), (task.id.key(), to));
    let What::Refused { errno, pid, .. } = told.what else { panic!("{told:?}") };
    assert_eq!(Some(errno.cast_signed()), raw(Errno::HOSTUNREACH));
    assert_eq!(pid, std::process::id());
    Ok(())
}
