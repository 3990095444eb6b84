//! A machine without cgroup v2: no hook is asked, guards land and refuse.

use std::{net::SocketAddr, os::fd::AsFd as _, path::Path, time::Duration};

use anyhow::{Result, ensure};
use datapath_loader::{
    Config, Datapath, Denial, Hook, Listeners, MirrorId, Open, Reason, Route, mount_bpffs,
};
use datapath_net::sockets::landing_listener;
use rustix::io::Errno;
use test_kernel::{DOMAIN, Lab, REMOTE, UNKNOWN, accept, attached, errno, is_quiet};

const REFUSED: Option<i32> = Some(Errno::CONNREFUSED.raw_os_error());
const A_WHILE: Duration = Duration::from_secs(60);

/// Every member, near or far, is landed, and what the program asked for is what it is shown.
#[test]
fn every_member_is_landed_in_both_families() -> Result<()> {
    let lab = Lab::without_hooks()?;
    let relay = landing_listener(lab.a.netns.as_fd(), lab.a.vip6())?;
    lab.datapath()?.land(lab.guard_a()?.slot(), &relay)?;
    // Of its own pods' listeners such a machine knows nothing.
    let unknown = Route::Relay { listeners: Listeners::Unknown };
    for vip in [lab.b.vip, lab.b.vip6()] {
        lab.datapath()?.set_vip(DOMAIN, vip, unknown)?;
    }
    let peers = [
        format!("{REMOTE}:8080"),
        "[fd00:2::7]:8080".to_owned(),
        format!("{}:8080", lab.b.vip),
        format!("[{}]:8080", lab.b.vip6()),
    ];
    for to in peers {
        let to: SocketAddr = to.parse()?;
        let stream = lab.a.connect(to)?;
        assert_eq!(stream.peer_addr()?, to);
        let own = if to.is_ipv4() { lab.a.vip } else { lab.a.vip6() };
        assert_eq!(stream.local_addr()?.ip(), own);
        let (landed, from) = accept(&relay)?;
        let seen = [landed.local_addr()?, from].map(|at| (at.ip().to_canonical(), at.port()));
        let own = stream.local_addr()?;
        assert_eq!(seen, [to, own].map(|at| (at.ip(), at.port())));
    }
    let own = lab.a.listen("0.0.0.0:9000")?;
    lab.a.connect(SocketAddr::new(lab.a.vip, 9000))?;
    accept(&own)?;
    ensure!(is_quiet(&relay)?, "its own address is no peer");
    Ok(())
}

#[test]
fn what_hooks_would_refuse_the_guard_resets_at_once() -> Result<()> {
    let lab = Lab::without_hooks()?;
    let (relay, dp) = (lab.land()?, lab.datapath()?);
    let id = MirrorId(42);
    let route = Route::Relay { listeners: Listeners::Mirror(id) };
    dp.set_vip(DOMAIN, REMOTE.parse()?, route)?;
    dp.set_vip(DOMAIN, "10.2.0.8".parse()?, Route::Deny(Denial::NotPermitted))?;
    let open = Open { tcp: &[80], udp_on_vip: &[] };
    dp.mirror(id, None, Some(open))?;
    dp.trust_mirror(A_WHILE)?;
    let lately: SocketAddr = format!("{}:81", lab.b.vip).parse()?;
    dp.set_vip(DOMAIN, lab.b.vip, Route::Relay { listeners: Listeners::Unknown })?;
    dp.remember_refusal(DOMAIN, lately, Denial::Refused, A_WHILE)?;
    for (to, reason) in [
        (format!("{UNKNOWN}:80"), Reason::UnknownVip),
        ("[fd00:2::99]:80".to_owned(), Reason::UnknownVip),
        ("10.2.0.8:80".to_owned(), Reason::Policy),
        (format!("{REMOTE}:81"), Reason::NoListener),
        (lately.to_string(), Reason::RecentlyRefused),
    ] {
        let before = lab.count(reason)?;
        assert_eq!(errno(&lab.a.connect(&to)), REFUSED, "{to}");
        assert_eq!(lab.count(reason)?, before + 1, "{to}");
    }
    ensure!(is_quiet(&relay)?, "none of them was landed");
    lab.a.connect(format!("{REMOTE}:80"))?;
    accept(&relay)?;
    Ok(())
}

#[test]
fn a_domain_that_allows_some_ports_allows_no_other() -> Result<()> {
    let lab = Lab::without_hooks()?;
    let (relay, dp) = (lab.land()?, lab.datapath()?);
    dp.set_ports(DOMAIN, &[80..=90])?;
    dp.set_pod(lab.a.cookie, &lab.a.entry.restricted())?;
    assert_eq!(errno(&lab.a.connect(format!("{REMOTE}:91"))), REFUSED);
    assert_eq!(lab.count(Reason::Port)?, 1);
    lab.a.connect(format!("{REMOTE}:90"))?;
    accept(&relay)?;
    Ok(())
}

/// How many links are pinned in this layout's directory, of hooks and of guards.
fn pinned(pins: &Path) -> Result<(usize, usize)> {
    let directory = pins.join(format!("v{}", datapath_loader::LAYOUT));
    let (mut hooks, mut guards) = (0, 0);
    for entry in directory.read_dir()? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        hooks += usize::from(name.starts_with("link_"));
        guards += usize::from(name.starts_with("guard_"));
    }
    Ok((hooks, guards))
}

#[test]
fn hooks_that_an_earlier_process_pinned_are_taken_away() -> Result<()> {
    test_kernel::require_root()?;
    let directory = tempfile::tempdir()?;
    let _mount = mount_bpffs(directory.path())?;
    let pins = directory.path().join("rlark");
    let mut lab = Lab::with_pins(Some(&pins))?;
    lab.guards.clear();
    lab.datapath = None;
    assert_eq!(attached(lab.cgroup.path())?, Hook::CGROUP.len());
    let guards = pinned(&pins)?.1;
    ensure!(guards == 2, "{guards} guards");
    let alone = Datapath::load(Config { cgroup: None, pins: Some(pins.clone()) })?;
    assert_eq!(alone.hooks().count(), 0);
    assert_eq!(attached(lab.cgroup.path())?, 0);
    assert_eq!(pinned(&pins)?, (0, guards), "guards stay");
    alone.unpin(true)?;
    Ok(())
}
