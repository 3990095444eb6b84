//! Throughput over a window of time, after a start that is not counted.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::{
    peer,
    serve::REPORT,
    stats::{gbps, result},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    Up,
    Down,
}

#[derive(Args, Debug)]
pub(crate) struct Stream {
    way: Way,
    /// HOST:PORT of a server.
    #[arg(long)]
    to: String,
    #[arg(long, default_value_t = 1)]
    flows: usize,
    /// Milliseconds that are not counted: what a flow needs to reach its rate.
    #[arg(long, default_value_t = 300)]
    warm_up_ms: u64,
    /// Milliseconds that are.
    #[arg(long, default_value_t = 1000)]
    window_ms: u64,
}

#[derive(Serialize)]
struct Found {
    gbps: f64,
    /// All that arrived, also outside the window.
    bytes: u64,
}

/// How much had arrived after how long, as the receiver counts.
#[derive(Clone, Copy, Default)]
struct Mark {
    at: Duration,
    bytes: u64,
}

/// What one flow saw: the marks nearest the window's ends, and the end.
#[derive(Default)]
struct Marks {
    from: Mark,
    to: Mark,
    last: Mark,
}

impl Stream {
    pub(crate) fn run(&self) -> Result<()> {
        let to = peer::resolve(&self.to)?;
        // One clock: flows that begin late would else be counted in a window in which others have ended.
        let start = Instant::now();
        let all = thread::scope(|scope| {
            let flows: Vec<_> =
                (0..self.flows.max(1)).map(|_| scope.spawn(|| self.flow(to, start))).collect();
            let joined = flows.into_iter().map(|f| match f.join() {
                Ok(outcome) => outcome,
                Err(_panic) => bail!("a flow's thread panicked"),
            });
            joined.collect::<Result<Vec<Marks>>>()
        })?;
        let moved: u64 = all.iter().map(|m| m.to.bytes - m.from.bytes).sum();
        ensure!(moved > 0, "nothing moved in the window");
        // One flow is as fast as from mark to mark. Of many, some starve for a moment and then come in a burst: what
        // counts is what all of them moved in the window.
        let took = match all.as_slice() {
            [one] => one.to.at - one.from.at,
            _ => Duration::from_millis(self.window_ms),
        };
        result(&Found { gbps: gbps(moved, took), bytes: all.iter().map(|m| m.last.bytes).sum() })
    }

    fn flow(&self, to: SocketAddr, start: Instant) -> Result<Marks> {
        if self.way == Way::Up { self.up(to, start) } else { self.down(to, start) }
    }

    fn window(&self) -> (Duration, Duration) {
        let from = Duration::from_millis(self.warm_up_ms);
        (from, from + Duration::from_millis(self.window_ms))
    }

    /// The server says what has arrived: what the client has written may lie in any buffer between.
    fn up(&self, to: SocketAddr, start: Instant) -> Result<Marks> {
        let mut request = vec![b'w'];
        request.extend(20u64.to_be_bytes());
        let mut s = peer::dial(to, &request)?;
        let (done, mut reports) = (AtomicBool::new(false), s.try_clone()?);
        thread::scope(|scope| {
            let seen = scope.spawn(|| -> Result<Marks> {
                let marks = self.read(|| report(&mut reports, start), &done);
                done.store(true, Relaxed);
                marks
            });
            let b = vec![7; 1 << 20];
            while !done.load(Relaxed) {
                if let Err(e) = s.write_all(&b) {
                    // The reader's finding, if it has one, says more.
                    drop(s.shutdown(Shutdown::Both));
                    bail!(anyhow::Error::from(e).context("sending"));
                }
            }
            s.shutdown(Shutdown::Write)?;
            seen.join().map_err(|_panic| anyhow::anyhow!("the reports' reader panicked"))?
        })
    }

    fn down(&self, to: SocketAddr, start: Instant) -> Result<Marks> {
        let mut s = peer::dial(to, b"G")?;
        let mut b = vec![0; 1 << 20];
        let mut bytes = 0;
        let next = || match s.read(&mut b)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                bytes += n as u64;
                Ok(Some(Mark { at: start.elapsed(), bytes }))
            }
        };
        let marks = self.read(next, &AtomicBool::new(true))?;
        // The server would go on for ever: this ends it at once.
        socket2::SockRef::from(&s).set_linger(Some(Duration::ZERO))?;
        Ok(marks)
    }

    /// Follows the marks through the window, says so in `done`, and goes on to the end if `done` was not set before.
    fn read(
        &self,
        mut next: impl FnMut() -> io::Result<Option<Mark>>,
        done: &AtomicBool,
    ) -> Result<Marks> {
        let ((from, to), to_the_end) = (self.window(), !done.load(Relaxed));
        let mut m = Marks::default();
        while let Some(mark) = next().context("while the flow ran")? {
            m.last = mark;
            if mark.at <= from {
                m.from = mark;
            }
            if mark.at <= to {
                m.to = mark;
            }
            if mark.at >= to {
                if !to_the_end {
                    return Ok(m);
                }
                done.store(true, Relaxed);
            }
        }
        Ok(m)
    }
}

/// The server's next report, `None` after its last.
fn report(s: &mut TcpStream, start: Instant) -> io::Result<Option<Mark>> {
    let mut b = [0; REPORT];
    match s.read_exact(&mut b) {
        Ok(()) => Ok(Some(Mark { at: start.elapsed(), bytes: u64::from_be_bytes(b) })),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}
