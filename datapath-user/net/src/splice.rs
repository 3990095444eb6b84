//! Two TCP connections joined by splice(2): pages move between the sockets through a pipe, user space sees counts only.
//!
//! EAGAIN from splice means "socket has nothing", "socket takes nothing" or "pipe full", and does not say which. So a pipe is
//! filled only when it is empty and drained fully before the next fill: then each EAGAIN has one meaning and clears
//! the readiness of exactly that socket (`try_io`). Helps only between plain sockets of one machine.
//!
//! splice stops for good in front of a byte that was sent as urgent (`tcp_read_sock`), also where that is in line (SO_OOBINLINE),
//! and after a FIN it calls that the end. So where splice finds nothing, one byte is read.

use std::{
    future::Future,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::{
    io::{Errno, write},
    net::{RecvFlags, Shutdown, recv, shutdown},
    pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice},
};
use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream};

/// What a pipe may hold. Larger saves system calls, smaller saves memory while one side is slow.
const PIPE: usize = 256 * 1024;

/// Bytes that were passed on, readable while the copy runs.
#[derive(Debug, Default)]
pub struct Meter {
    pub a_to_b: AtomicU64,
    pub b_to_a: AtomicU64,
}

/// A copy ended before both sides had finished.
#[derive(Debug, thiserror::Error)]
pub enum SpliceError {
    #[error("cannot make a pipe")]
    Pipe(#[source] io::Error),
    #[error("cannot read from side {side}")]
    Read {
        side: char,
        #[source]
        source: io::Error,
    },
    #[error("cannot write to side {side}")]
    Write {
        side: char,
        #[source]
        source: io::Error,
    },
}

/// What a side that takes nothing any more may have said before has this long to arrive: a server answers early and closes.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Copies both ways until both sides have sent their FIN, passing each FIN on as a half-close. After an error of either
/// side (an RST, say) both get an RST, behind what that side had sent before. Both are closed on return; after both FINs what the kernel still holds is delivered,
/// even if a socket came with SO_LINGER 0. Dropping the future closes both as their SO_LINGER says.
///
/// # Errors
/// A side broke; `meter` holds what had been passed on.
pub async fn join(a: TcpStream, b: TcpStream, meter: &Meter) -> Result<(), SpliceError> {
    let there = direction((&a, 'a'), (&b, 'b'), &meter.a_to_b);
    let back = direction((&b, 'b'), (&a, 'a'), &meter.b_to_a);
    let (mut there, mut back) = (pin!(there), pin!(back));
    let done = tokio::select! {
        first = &mut there => after(first, back).await,
        first = &mut back => after(first, there).await,
    };
    for side in [&a, &b] {
        let linger = if done.is_ok() { None } else { Some(Duration::ZERO) };
        let _closed_anyway = SockRef::from(side).set_linger(linger);
    }
    done.map(drop)
}

/// The result of both directions, of which one has ended.
async fn after(
    first: Result<(), SpliceError>,
    other: impl Future<Output = Result<(), SpliceError>>,
) -> Result<(), SpliceError> {
    match first {
        Ok(()) => other.await,
        Err(e @ SpliceError::Write { .. }) => {
            let _late_or_broken_too = tokio::time::timeout(LAST_WORDS, other).await;
            Err(e)
        }
        Err(e) => Err(e),
    }
}

async fn direction(
    (from, from_name): (&TcpStream, char),
    (to, to_name): (&TcpStream, char),
    passed: &AtomicU64,
) -> Result<(), SpliceError> {
    let read = |source| SpliceError::Read { side: from_name, source };
    let failed = |source| SpliceError::Write { side: to_name, source };
    let (drain, fill) = pipe().map_err(SpliceError::Pipe)?;
    loop {
        let filled = transfer(from, Interest::READABLE, |socket| take(socket, fill.as_fd()));
        let mut held = filled.await.map_err(read)?;
        if held == 0 {
            return match shutdown(to, Shutdown::Write) {
                // The other side has gone already, and said so on its own direction.
                Ok(()) | Err(Errno::NOTCONN) => Ok(()),
                Err(e) => Err(failed(e.into())),
            };
        }
        while held > 0 {
            let sent = transfer(to, Interest::WRITABLE, |socket| {
                splice(&drain, None, socket, None, held, FLAGS)
            })
            .await
            .map_err(failed)?;
            held = held.saturating_sub(sent);
            passed.fetch_add(sent as u64, Ordering::Relaxed);
        }
        // Others share the thread, and readiness alone gives nobody else a turn.
        tokio::task::consume_budget().await;
    }
}

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

/// Fills an empty pipe from a socket; 0: the end.
fn take(socket: BorrowedFd<'_>, fill: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    match splice(socket, None, fill, None, PIPE, FLAGS) {
        Ok(0) | Err(Errno::AGAIN) => {
            let mut urgent = [0];
            match recv(socket, &mut urgent, RecvFlags::DONTWAIT)? {
                (0, _) => Ok(0),
                (_, _) => write(fill, &urgent),
            }
        }
        moved => moved,
    }
}

/// One splice that moved something, or found the end.
async fn transfer(
    socket: &TcpStream,
    interest: Interest,
    mut call: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    loop {
        socket.ready(interest).await?;
        match socket.try_io(interest, || Ok(call(socket.as_fd())?)) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (drain, fill) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // Over the user's quota of pipe pages the default of 64 KiB does as well.
    let _quota = fcntl_setpipe_size(&fill, PIPE);
    Ok((drain, fill))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    type Tested = Result<(), Box<dyn std::error::Error>>;

    async fn pair() -> io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let client = TcpStream::connect(listener.local_addr()?).await?;
        Ok((client, listener.accept().await?.0))
    }

    fn pattern(length: usize, seed: usize) -> Vec<u8> {
        (0..length).map(|i| u8::try_from((i * 31 + i / 997 + seed) % 251).unwrap_or(0)).collect()
    }

    #[tokio::test]
    async fn both_ways_at_once_arrive_whole_and_half_close_is_passed_on() -> Tested {
        let ((mut left, a), (b, mut right)) = (pair().await?, pair().await?);
        let meter = Meter::default();
        let (one, other) = (pattern(8 << 20, 1), pattern(3 << 20, 2));
        let apps = async {
            let (mut left_read, mut left_write) = left.split();
            let (mut right_read, mut right_write) = right.split();
            let (mut got_right, mut got_left) = (Vec::new(), Vec::new());
            let there = async {
                left_write.write_all(&one).await?;
                left_write.shutdown().await
            };
            let back = async {
                // Answers only after the other side's end: the half-close must not close this way.
                right_read.read_to_end(&mut got_right).await?;
                right_write.write_all(&other).await?;
                right_write.shutdown().await
            };
            tokio::try_join!(there, back, left_read.read_to_end(&mut got_left))?;
            assert!(got_right == one && got_left == other);
            io::Result::Ok(())
        };
        let (joined, apps) = tokio::join!(join(a, b, &meter), apps);
        apps?;
        joined?;
        assert_eq!(meter.a_to_b.load(Ordering::Relaxed), 8 << 20);
        assert_eq!(meter.b_to_a.load(Ordering::Relaxed), 3 << 20);
        Ok(())
    }

    /// A landed connection comes with SO_LINGER 0, with which close throws away what is not yet sent.
    #[tokio::test]
    async fn after_both_ends_a_late_reader_still_gets_everything() -> Tested {
        let ((mut left, a), (b, right)) = (pair().await?, pair().await?);
        crate::sockets::arm_reset(&a)?;
        crate::sockets::arm_reset(&b)?;
        let meter = Meter::default();
        let (total, right) = (1 << 20, right.into_std()?);
        let apps = async {
            left.write_all(&pattern(total, 4)).await?;
            left.shutdown().await
        };
        right.shutdown(std::net::Shutdown::Write)?;
        let (joined, apps) = tokio::join!(join(a, b, &meter), apps);
        apps?;
        joined?;
        right.set_nonblocking(false)?;
        right.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut got = Vec::new();
        io::Read::read_to_end(&mut &right, &mut got)?;
        assert_eq!(got.len(), total);
        Ok(())
    }

    #[tokio::test]
    async fn a_reset_is_passed_on_as_a_reset() -> Tested {
        let ((left, a), (b, mut right)) = (pair().await?, pair().await?);
        let meter = Meter::default();
        let apps = async {
            crate::sockets::reset(left);
            right.read(&mut [0]).await.map_err(|e| e.kind())
        };
        let (joined, seen) = tokio::join!(join(a, b, &meter), apps);
        assert!(matches!(joined, Err(SpliceError::Read { side: 'a', .. })), "{joined:?}");
        assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));
        Ok(())
    }

    /// The answer is behind much that the server leaves unread.
    #[tokio::test]
    async fn what_was_said_before_a_reset_arrives() -> Tested {
        let ((mut left, a), (b, mut right)) = (pair().await?, pair().await?);
        let meter = Meter::default();
        let server = async {
            right.read_exact(&mut [0; 1000]).await?;
            right.write_all(b"too large").await?;
            drop(right);
            io::Result::Ok(())
        };
        let client = async {
            let sent = left.write_all(&vec![7; 64 << 20]).await;
            let mut got = Vec::new();
            let end = left.read_to_end(&mut got).await;
            (sent.is_err(), got, end.map_err(|e| e.kind()).err())
        };
        let (joined, served, (broke, got, end)) = tokio::join!(join(a, b, &meter), server, client);
        served?;
        assert!(joined.is_err(), "the server reads no more");
        assert!(broke, "nobody takes it");
        assert_eq!(got, b"too large");
        assert!(matches!(end, None | Some(io::ErrorKind::ConnectionReset)), "{end:?}");
        Ok(())
    }

    #[tokio::test]
    async fn an_urgent_byte_stays_in_its_place_and_stops_nothing() -> Tested {
        for pause in [false, true] {
            let ((left, a), (b, mut right)) = (pair().await?, pair().await?);
            SockRef::from(&a).set_out_of_band_inline(true)?;
            let meter = Meter::default();
            let apps = async {
                let left = SockRef::from(&left);
                left.send(b"abc")?;
                let mut got = vec![0; 3];
                if pause {
                    right.read_exact(&mut got).await?;
                }
                left.send_out_of_band(b"U")?;
                if pause {
                    got.push(right.read_u8().await?);
                }
                left.send(b"def")?;
                left.shutdown(std::net::Shutdown::Write)?;
                if !pause {
                    got.clear();
                }
                right.read_to_end(&mut got).await?;
                right.shutdown().await?;
                io::Result::Ok(got)
            };
            let (joined, got) = tokio::join!(join(a, b, &meter), apps);
            assert_eq!(got?, b"abcUdef", "read between: {pause}");
            joined?;
            assert_eq!(meter.a_to_b.load(Ordering::Relaxed), 7);
        }
        Ok(())
    }

    #[tokio::test]
    async fn a_slow_reader_holds_the_sender_back() -> Tested {
        let ((mut left, a), (b, mut right)) = (pair().await?, pair().await?);
        let meter = Meter::default();
        let total = 64 << 20;
        let sender = async {
            left.write_all(&pattern(total, 3)).await?;
            left.shutdown().await
        };
        let reader = async {
            let mut got = 0;
            let mut buffer = vec![0; 1 << 20];
            loop {
                let n = right.read(&mut buffer).await?;
                if n == 0 {
                    right.shutdown().await?;
                    return io::Result::Ok(got);
                }
                got += n;
                tokio::task::yield_now().await;
            }
        };
        let (joined, sent, got) = tokio::join!(join(a, b, &meter), sender, reader);
        sent?;
        joined?;
        assert_eq!(got?, total);
        Ok(())
    }
}
