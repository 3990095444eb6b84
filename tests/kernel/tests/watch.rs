//! What the hooks tell while somebody reads, and that they are silent otherwise.

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
    os::fd::AsFd as _,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use datapath_loader::seen::{Connection, End, Seen, Watch, What};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_kernel::{Lab, UNKNOWN, accept};

const WHILE: Duration = Duration::from_secs(60);

fn watch(lab: &Lab) -> Result<Watch> {
    lab.datapath()?.watch(WHILE)?;
    lab.datapath()?.take_watch().context("nobody else took it")
}

fn next(watch: &mut Watch) -> Result<Seen> {
    loop {
        if let Some(seen) = watch.pop() {
            return Ok(seen);
        }
        let deadline = Timespec { tv_sec: 3, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&watch.as_fd(), PollFlags::IN)], Some(&deadline))?;
        ensure!(ready > 0, "nothing was told");
    }
}

#[test]
fn a_refusal_says_who_asked_for_what_and_why() -> Result<()> {
    let lab = Lab::new()?;
    let mut watch = watch(&lab)?;
    let closed = SocketAddr::new(lab.b.vip, 81);
    let unknown = SocketAddr::new(UNKNOWN.parse()?, 80);
    for (to, reason, errno) in [(closed, "no_listener", 111), (unknown, "unknown_vip", 113)] {
        ensure!(lab.a.connect(to).is_err());
        let seen = next(&mut watch)?;
        let what = What::Refused { reason, errno, pid: std::process::id() };
        assert_eq!((seen.netns, seen.destination, seen.what), (lab.a.cookie, to, what));
    }
    Ok(())
}

/// What was told of a connection over which pod a asks pod b; `reset`: b ends it so.
fn told(lab: &Lab, watch: &mut Watch, to: &str, reset: bool) -> Result<(Connection, End)> {
    let listener = lab.b.listen(&format!("{to}:80"))?;
    let target = if to.starts_with('[') { lab.b.vip6() } else { lab.b.vip };
    let mut client = lab.a.connect(SocketAddr::new(target, 80))?;
    let (mut server, _) = accept(&listener)?;
    let seen = next(watch)?;
    let What::Opened(opened) = seen.what else { bail!("{seen:?}") };
    assert_eq!(opened.source, client.local_addr()?);
    assert_eq!(seen.destination, SocketAddr::new(target, 80));
    client.write_all(b"question")?;
    server.read_exact(&mut [0; 8])?;
    server.write_all(b"answer")?;
    client.read_exact(&mut [0; 6])?;
    if reset {
        datapath_net::sockets::arm_reset(&server)?;
        drop(server);
        ensure!(client.read(&mut [0; 1]).is_err());
    } else {
        drop(server);
        ensure!(client.read(&mut [0; 1])? == 0);
    }
    drop(client);
    let seen = next(watch)?;
    let What::Ended(ended, end) = seen.what else { bail!("{seen:?}") };
    assert_eq!((ended.cookie, ended.source), (opened.cookie, opened.source));
    Ok((ended, end))
}

#[test]
fn a_direct_connection_is_told_with_the_bytes_of_its_applications() -> Result<()> {
    let lab = Lab::new()?;
    let mut watch = watch(&lab)?;
    for to in ["0.0.0.0", "[::]"] {
        for (reset, want) in [(false, End::InOrder), (true, End::Reset)] {
            let (ended, end) = told(&lab, &mut watch, to, reset)?;
            assert_eq!((end, ended.bytes_out, ended.bytes_in), (want, 8, 6), "{to} {ended:?}");
            assert_eq!(ended.retransmits, 0);
            assert!(ended.rtt.is_some());
        }
    }
    Ok(())
}

#[test]
fn the_connecting_side_may_close_first() -> Result<()> {
    let lab = Lab::new()?;
    let mut watch = watch(&lab)?;
    let listener = lab.b.listen("0.0.0.0:80")?;
    let mut client = lab.a.connect(SocketAddr::new(lab.b.vip, 80))?;
    let (mut server, _) = accept(&listener)?;
    ensure!(matches!(next(&mut watch)?.what, What::Opened(_)));
    client.write_all(b"question")?;
    client.shutdown(std::net::Shutdown::Write)?;
    let mut got = Vec::new();
    server.read_to_end(&mut got)?;
    server.write_all(b"answer")?;
    drop(server);
    got.clear();
    client.read_to_end(&mut got)?;
    let What::Ended(ended, end) = next(&mut watch)?.what else { bail!("not the end") };
    assert_eq!((end, ended.bytes_out, ended.bytes_in), (End::InOrder, 8, 6), "{ended:?}");
    Ok(())
}

#[test]
fn hooks_that_nobody_reads_tell_nothing() -> Result<()> {
    let lab = Lab::new()?;
    let mut watch = watch(&lab)?;
    lab.datapath()?.watch(Duration::ZERO)?;
    ensure!(lab.a.connect(SocketAddr::new(lab.b.vip, 81)).is_err());
    ensure!(watch.pop().is_none() && watch.lost(lab.datapath()?)? == 0);
    Ok(())
}

#[test]
fn what_finds_no_room_is_counted() -> Result<()> {
    let lab = Lab::new()?;
    let mut watch = watch(&lab)?;
    // 512 KiB of records of 112 bytes and a head of 8.
    for _ in 0..5000 {
        ensure!(lab.a.connect(SocketAddr::new(lab.b.vip, 81)).is_err());
    }
    let lost = watch.lost(lab.datapath()?)?;
    let told = std::iter::from_fn(|| watch.pop()).count();
    assert_eq!(told as u64 + lost, 5000);
    assert!(lost > 0 && watch.lost(lab.datapath()?)? == 0);
    Ok(())
}
