//! What lands keeps the address that was asked for, so a pod's connections differ by it: there is no end at 28,000, where the
//! ports for one rewritten destination would be used up.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::fd::OwnedFd,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use test_kernel::{Lab, REMOTE};

/// Processes at either end: one may have fewer files open than connections are wanted.
const PROCESSES: u16 = 4;
const EACH: usize = 15_360;
const LIMIT: Duration = Duration::from_secs(60);

/// `probe/many.py`, until dropped.
struct Many {
    child: Child,
    said: PathBuf,
}

impl Many {
    fn start(said: PathBuf, stdin: Stdio, words: &[&str]) -> Result<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../e2e/probe/many.py");
        let out = File::create(&said)?;
        let mut command = Command::new("/usr/bin/python3");
        command.arg(script).args(words).stdin(stdin).stdout(out.try_clone()?).stderr(out);
        Ok(Self { child: command.spawn()?, said })
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.said).unwrap_or_default()
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("its stdin")?;
        Ok(writeln!(stdin, "{line}")?)
    }

    fn has_said(&mut self, word: &str, until: Instant) -> Result<()> {
        while !self.text().contains(word) {
            if let Some(status) = self.child.try_wait()? {
                bail!("ended with {status}: {}", self.text());
            }
            ensure!(Instant::now() < until, "no {word:?} in: {}", self.text());
            // The pace of the look, not of what is looked for.
            let tenth = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            rustix::event::poll(&mut [], Some(&tenth))?;
        }
        Ok(())
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// TCP sockets of the process's namespace.
fn sockets(of: &Many) -> Result<usize> {
    let mut text = String::new();
    File::open(format!("/proc/{}/net/sockstat", of.child.id()))?.read_to_string(&mut text)?;
    let line = text.lines().find_map(|l| l.strip_prefix("TCP: inuse ")).context("TCP")?;
    Ok(line.split(' ').next().unwrap_or_default().parse()?)
}

#[test]
fn one_pod_has_more_than_sixty_thousand_landed_connections_at_a_time() -> Result<()> {
    let begin = Instant::now();
    let until = begin + LIMIT;
    let lab = Lab::new()?;
    let dir = tempfile::tempdir()?;
    let relay: TcpListener = lab.land()?;
    let each = EACH.to_string();
    let mut ends = Vec::new();
    for n in 0..PROCESSES {
        let listener = OwnedFd::from(relay.try_clone()?);
        let said = dir.path().join(format!("relay-{n}"));
        ends.push(Many::start(said, listener.into(), &["serve", &each])?);
    }
    let mut clients = Vec::new();
    for n in 0..PROCESSES {
        let (said, port) = (dir.path().join(format!("client-{n}")), (7001 + n).to_string());
        let words = ["hold", REMOTE, &port, &each];
        let start = || Many::start(said, Stdio::piped(), &words);
        clients.push(lab.a.netns.run(start)??);
    }
    for client in &mut clients {
        client.has_said("held", until)?;
    }
    let held = begin.elapsed();
    let all = usize::from(PROCESSES) * EACH;
    assert!(all > 60_000);
    let open = sockets(clients.first().context("one")?)?;
    assert!(open >= 2 * all, "{open} sockets for {all} connections");
    for client in &mut clients {
        client.tell("echo 64")?;
    }
    for client in &mut clients {
        client.has_said("done echo", until)?;
    }
    println!(
        "{all} landed connections of one pod after {held:.1?}, sampled after {:.1?}",
        begin.elapsed()
    );
    Ok(())
}
