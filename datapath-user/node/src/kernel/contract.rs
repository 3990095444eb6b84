//! What every [`Kernel`] keeps to, checked on the double and on the machine itself (which needs
//! root), so that tests above the seam prove something about the real one.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd as _,
    path::Path,
    time::Duration,
};

use datapath_net::netlink::Netlink;

use super::{
    Join, Kernel,
    fake::Fake,
    is_host,
    real::{Hooks, Machine},
};
use crate::plan::{
    desired::{Desired, DomainId, Face, Listeners, Pod, Way},
    diff::Op,
};

const DOMAIN: DomainId = DomainId(7);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

async fn holds(kernel: &dyn Kernel, netns: &Path) {
    assert!(kernel.identify(Path::new("/nowhere"), None).is_err());
    let cookie = kernel.identify(netns, None).unwrap();
    assert_eq!(kernel.identify(netns, None).unwrap(), cookie);
    assert!(!is_host(cookie) && kernel.identify(netns, Some(netns)).is_err());
    let vip = ip("10.214.0.1");
    let pod = Pod {
        domain: DOMAIN,
        faces: vec![
            Face { cidr: "10.214.0.0/24".parse().unwrap(), vip, real: None },
            Face { cidr: "fd00:214::/64".parse().unwrap(), vip: ip("fd00:214::1"), real: None },
        ],
        restricted: false,
    };
    let join =
        Join { uid: "a".into(), netns: netns.to_owned(), cgroup: None, cookie, pod: pod.clone() };

    assert!(kernel.tap(cookie).is_err(), "it has not joined");
    let listeners = kernel.join(join.clone()).await.unwrap();
    kernel.tap(cookie).unwrap();
    let packet = crate::packets::header::tests::udp("10.214.0.2", "10.214.0.1");
    kernel.inject(cookie, vip, &packet).unwrap();
    let [listener] = &*listeners else { panic!("one takes both families") };
    assert!(listener.local_addr().unwrap().ip().to_canonical().is_loopback());
    assert!(kernel.pod_checks(join.clone()).await.iter().all(|c| c.ok));

    let (near, far) = (ip("10.214.0.2"), ip("10.214.0.3"));
    let direct = Way::Direct { real: ip("172.29.9.9"), listeners: Listeners::There(9) };
    let relay = Way::Relay { listeners: Listeners::There(9) };
    let ops = [
        Op::PutReal(DOMAIN, ip("172.29.9.9"), near),
        Op::PutVip(DOMAIN, near, direct),
        Op::PutVip(DOMAIN, far, relay),
        Op::PutPod(cookie, pod.clone()),
    ];
    for op in ops.iter().chain(&ops) {
        kernel.apply(op).unwrap();
    }
    assert_eq!(kernel.way(DOMAIN, near), Some(direct));
    assert_eq!(kernel.way(DOMAIN, far), Some(relay));
    assert_eq!(kernel.way(DomainId(8), far), None, "Domains do not share addresses");

    let keep = Desired {
        pods: BTreeMap::from([(cookie, pod.clone())]),
        vips: BTreeMap::from([((DOMAIN, far), relay)]),
        ..Desired::default()
    };
    kernel.sweep(&keep).unwrap();
    assert_eq!(kernel.way(DOMAIN, near), None);
    assert_eq!(kernel.way(DOMAIN, far), Some(relay));

    for op in [Op::DeletePod(cookie), Op::DeleteVip(DOMAIN, far), Op::DeleteVip(DOMAIN, far)] {
        kernel.apply(&op).unwrap();
    }
    assert_eq!(kernel.way(DOMAIN, far), None);
    kernel.leave(join.clone()).await.unwrap();
    kernel.leave(join).await.unwrap();
    assert!(kernel.inject(cookie, vip, &packet).is_err());
}

#[tokio::test]
async fn the_double_keeps_to_the_contract() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "5").unwrap();
    holds(&Fake::default(), file.path()).await;
}

#[tokio::test]
async fn the_machine_keeps_to_the_contract() {
    let name = format!("rlnode-contract-{}", std::process::id());
    let netns = datapath_net::netns::NamedNetns::create(&name).unwrap();
    let machine = Machine::start(Hooks::Everywhere, None).unwrap();
    holds(&machine, netns.path()).await;
}

#[tokio::test]
async fn a_machine_without_hooks_keeps_to_it_and_knows_no_pod_on_its_own_network() {
    let name = format!("rlnode-unhooked-{}", std::process::id());
    let netns = datapath_net::netns::NamedNetns::create(&name).unwrap();
    let machine = Machine::start(Hooks::Off, None).unwrap();
    holds(&machine, netns.path()).await;
    assert!(!machine.steers() && machine.changes().is_none());
    let checks = machine.checks();
    let attached = checks.iter().find(|c| c.hop == "attached").unwrap();
    assert!(attached.ok && attached.detail.contains("every connection is relayed"), "{attached:?}");
    let mount = datapath_loader::cgroup2_mount().unwrap();
    let refused = machine.identify(Path::new("/proc/self/ns/net"), Some(&mount)).unwrap_err();
    assert_eq!(refused.about(), "cgroup");
    let why = std::error::Error::source(&refused).unwrap().to_string();
    assert!(why.contains("no cgroup hooks"), "{why}");
}

/// Direct connections reach it there, so relayed ones do.
#[tokio::test]
async fn a_listener_on_the_real_address_alone_is_delivered_to() {
    let name = format!("rlnode-real-{}", std::process::id());
    let netns = datapath_net::netns::NamedNetns::create(&name).unwrap();
    let (vip, real, peer) = (ip("10.214.0.1"), ip("172.29.9.8"), ip("10.214.0.2"));
    let mut links = Netlink::in_netns(netns.netns().as_fd()).unwrap();
    links.set_up("lo").unwrap();
    links.add_address("lo", real, 32).unwrap();
    let machine = Machine::start(Hooks::Everywhere, None).unwrap();
    let cookie = machine.identify(netns.path(), None).unwrap();
    let face = Face { cidr: "10.214.0.0/24".parse().unwrap(), vip, real: Some(real) };
    let pod = Pod { domain: DOMAIN, faces: vec![face], restricted: false };
    let join = Join { uid: "r".into(), netns: netns.path().to_owned(), cgroup: None, cookie, pod };
    let _landing = machine.join(join.clone()).await.unwrap();
    let listen = |at: SocketAddr| netns.netns().run(move || std::net::TcpListener::bind(at));
    let listener = listen((real, 7000).into()).unwrap().unwrap();
    let deliver =
        |port| machine.connect(cookie, Some(peer), (vip, port).into(), Duration::from_secs(3));
    deliver(7000).await.unwrap();
    assert_eq!(listener.accept().unwrap().1.ip(), peer);
    let refused = deliver(7001).await.map_err(|e| e.kind());
    assert_eq!(refused.err(), Some(std::io::ErrorKind::ConnectionRefused));
    machine.leave(join).await.unwrap();
}

/// Gone with its test, and empty by then.
struct Cgroup(std::path::PathBuf);

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _reported_by_the_test = std::fs::remove_dir(&self.0);
    }
}

#[tokio::test]
async fn a_pod_on_the_host_network_has_listeners_of_both_families_and_refuses_what_it_has_not() {
    let mount = datapath_loader::cgroup2_mount().unwrap();
    let cgroup = Cgroup(mount.join(format!("rlnode-host-{}", std::process::id())));
    std::fs::create_dir(&cgroup.0).unwrap();
    let machine = Machine::start(Hooks::Everywhere, None).unwrap();
    let netns = Path::new("/proc/self/ns/net");
    assert!(machine.identify(netns, None).is_err(), "it is the machine's own");
    assert!(machine.identify(netns, Some(&mount)).is_err(), "all the machine");
    let cookie = machine.identify(netns, Some(&cgroup.0)).unwrap();
    let faces = [("10.214.0.1", "10.214.0.0/24"), ("fd00:214::1", "fd00:214::/64")];
    let faces =
        faces.map(|(vip, cidr)| Face { cidr: cidr.parse().unwrap(), vip: ip(vip), real: None });
    let pod = Pod { domain: DOMAIN, faces: faces.to_vec(), restricted: false };
    let join = Join {
        uid: "h".into(),
        netns: netns.to_owned(),
        cgroup: Some(cgroup.0.clone()),
        cookie,
        pod: pod.clone(),
    };
    let listeners = machine.join(join.clone()).await.unwrap();
    let at: Vec<_> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
    assert_eq!(at.iter().map(|at| at.ip()).collect::<Vec<_>>(), [ip("127.0.0.1"), ip("::1")]);
    assert!(at.iter().all(|other| other.port() == at[0].port()), "{at:?}");
    machine.apply(&Op::PutPod(cookie, pod)).unwrap();
    assert!(machine.pod_checks(join.clone()).await.iter().all(|c| c.ok));
    for (peer, own) in [("10.214.0.2", "10.214.0.1"), ("fd00:214::2", "fd00:214::1")] {
        let to = (ip(own), 7000).into();
        let refused = machine.connect(cookie, Some(ip(peer)), to, Duration::from_secs(3)).await;
        // With the errno, from which the far end makes its own.
        let errno = refused.err().and_then(|e| e.raw_os_error());
        assert_eq!(errno, Some(rustix::io::Errno::CONNREFUSED.raw_os_error()), "{own}");
    }
    assert!(machine.tap(cookie).is_err() && machine.inject(cookie, ip("10.214.0.1"), &[]).is_err());
    machine.apply(&Op::DeletePod(cookie)).unwrap();
    machine.leave(join.clone()).await.unwrap();
    machine.leave(join).await.unwrap();
}
