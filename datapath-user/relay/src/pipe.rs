//! The TCP stream under SSH. Reads are batched; writes never block the session loop, which reports
//! its backlog instead: russh does not read while it writes, so over a plain socket two full
//! directions wait for each other for ever.

use std::sync::Arc;
use std::{
    io,
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Notify,
};

/// Above this many unsent bytes the frames wait in their queue, where small ones can overtake.
const HIGH: usize = 128 << 10;
const READ: usize = 64 << 10;
/// Sent bytes are cut off the backlog's front when they are more than this.
const COMPACT: usize = 1 << 20;

/// How full a [`Pipe`] is.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    backlog: AtomicUsize,
    low: Notify,
}

impl Gate {
    fn set(&self, n: usize) {
        if self.backlog.swap(n, Ordering::SeqCst) >= HIGH && n < HIGH {
            self.low.notify_waiters();
        }
    }
    /// Waits until the backlog is below the mark.
    pub(crate) async fn open(&self) {
        while self.backlog.load(Ordering::SeqCst) >= HIGH {
            let low = self.low.notified();
            if self.backlog.load(Ordering::SeqCst) < HIGH {
                break;
            }
            low.await;
        }
    }
}

/// A TCP stream whose writes always succeed at once, into a buffer if need be.
#[derive(Debug)]
pub(crate) struct Pipe {
    tcp: TcpStream,
    incoming: Box<[u8]>,
    at: usize,
    end: usize,
    backlog: Vec<u8>,
    sent: usize,
    gate: Arc<Gate>,
}

impl Pipe {
    pub(crate) fn new(tcp: TcpStream, gate: Arc<Gate>) -> Self {
        let incoming = vec![0; READ].into_boxed_slice();
        Self { tcp, incoming, at: 0, end: 0, backlog: Vec::new(), sent: 0, gate }
    }

    fn drain(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(rest) = self.backlog.get(self.sent..).filter(|r| !r.is_empty()) {
            match Pin::new(&mut self.tcp).poll_write(cx, rest) {
                Poll::Ready(r) => self.sent += r?,
                Poll::Pending => break,
            }
        }
        if self.sent == self.backlog.len() {
            self.backlog.clear();
            self.sent = 0;
        } else if self.sent > COMPACT {
            self.backlog.drain(..self.sent);
            self.sent = 0;
        }
        self.gate.set(self.backlog.len() - self.sent);
        Ok(())
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let me = &mut *self;
        // The session reads whenever it has nothing to do: that is when the backlog moves on.
        if !me.backlog.is_empty() {
            me.drain(cx)?;
        }
        if me.at == me.end {
            if out.remaining() >= me.incoming.len() {
                return Pin::new(&mut me.tcp).poll_read(cx, out);
            }
            let mut b = ReadBuf::new(&mut me.incoming);
            match Pin::new(&mut me.tcp).poll_read(cx, &mut b) {
                Poll::Ready(r) => r?,
                Poll::Pending => return Poll::Pending,
            }
            (me.at, me.end) = (0, b.filled().len());
        }
        let n = out.remaining().min(me.end - me.at);
        out.put_slice(me.incoming.get(me.at..me.at + n).unwrap_or_default());
        me.at += n;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let me = &mut *self;
        let mut rest = buf;
        while me.backlog.is_empty() && !rest.is_empty() {
            match Pin::new(&mut me.tcp).poll_write(cx, rest) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(r) => rest = rest.get(r?..).unwrap_or_default(),
                Poll::Pending => break,
            }
        }
        if !rest.is_empty() {
            me.backlog.extend_from_slice(rest);
            me.drain(cx)?;
        }
        Poll::Ready(Ok(buf.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
