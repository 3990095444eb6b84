//! The guard alone: what holds when the hooks are gone, and against the pod's neighbours.

use std::{net::SocketAddr, os::fd::AsFd as _, process::Command};

use anyhow::{Result, ensure};
use datapath_loader::Reason;
use rustix::io::Errno;
use test_kernel::{Lab, REMOTE, accept, connect_in, errno, is_quiet};

const REFUSED: Option<i32> = Some(Errno::CONNREFUSED.raw_os_error());

#[test]
fn without_hooks_nothing_meant_for_a_peer_reaches_the_pod_itself() -> Result<()> {
    let mut lab = Lab::new()?;
    let own = lab.a.listen("0.0.0.0:9200")?;
    drop(lab.datapath.take());
    for to in [lab.b.vip.to_string(), REMOTE.to_owned(), "10.2.0.99".to_owned()] {
        assert_eq!(errno(&lab.a.connect(format!("{to}:9200"))), REFUSED, "{to}");
    }
    assert_eq!(errno(&lab.a.connect("[fd00:2::7]:9200")), REFUSED);
    assert!(is_quiet(&own)?);
    lab.a.connect(SocketAddr::new(lab.a.vip, 9200))?;
    lab.guards.clear();
    lab.a.connect(format!("{REMOTE}:9200"))?;
    assert!(!is_quiet(&own)?, "this is what the guard is for");
    Ok(())
}

#[test]
fn without_hooks_relayed_connections_still_land() -> Result<()> {
    let mut lab = Lab::new()?;
    let relay = lab.land()?;
    drop(lab.datapath.take());
    let to: SocketAddr = format!("{REMOTE}:8080").parse()?;
    lab.a.connect(to)?;
    assert_eq!(accept(&relay)?.0.local_addr()?, to);
    Ok(())
}

#[test]
fn a_neighbour_can_neither_reach_a_virtual_address_nor_be_landed() -> Result<()> {
    let lab = Lab::new()?;
    let relay = lab.land()?;
    let app = lab.a.listen("0.0.0.0:9000")?;
    lab.neighbour.run(|| -> Result<()> {
        for arguments in [
            ["route", "add", "10.2.0.0/24", "via", "10.99.0.1"].as_slice(),
            &["-6", "route", "add", "fd00:2::/64", "via", "fd99::1"],
        ] {
            ensure!(Command::new("ip").args(arguments).status()?.success(), "{arguments:?}");
        }
        Ok(())
    })??;
    for (round, to) in [
        format!("{}:9000", lab.a.vip),
        format!("{REMOTE}:9000"),
        format!("[{}]:9000", lab.a.vip6()),
        "[fd00:2::7]:9000".to_owned(),
    ]
    .into_iter()
    .enumerate()
    {
        let before = lab.count(Reason::Injected)?;
        assert!(connect_in(&lab.neighbour, &to).is_err(), "{to}");
        assert!(lab.count(Reason::Injected)? > before, "round {round}: {to} met the guard");
    }
    assert!(is_quiet(&relay)? && is_quiet(&app)?);
    connect_in(&lab.neighbour, SocketAddr::new(lab.a.real, 9000))?;
    accept(&app)?;
    Ok(())
}

#[test]
fn a_slot_is_used_again_and_no_listener_of_before_is_in_it() -> Result<()> {
    let mut lab = Lab::new()?;
    let relay = lab.land()?;
    let slot = lab.guard_a()?.slot();
    drop(lab.guards.remove(0));
    let config = datapath_loader::GuardConfig { netns: lab.a.cookie, pod: lab.a.entry };
    let again = lab.datapath()?.attach_guard(lab.a.netns.as_fd(), config)?;
    assert_eq!(again.slot(), slot);
    assert_eq!(errno(&lab.a.connect(format!("{REMOTE}:80"))), REFUSED);
    assert!(is_quiet(&relay)?);
    Ok(())
}
