//! The task of a flow: reads the application's socket, writes what could not be written at once,
//! and cleans up. Runs on the runtime of the lane that carries the flow.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream as StdStream},
    os::fd::AsFd as _,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use datapath_net::thread;
use datapath_wire::{
    Frame, Phase,
    flow::{Out, Role, Step},
    frame::{DATA_HEAD, GOOD_DATA, data_head},
};
use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream, sync::OwnedSemaphorePermit};

use super::{Began, Core, Flow};
use crate::{
    api::{BoxFuture, Reason, Told},
    link::Link,
    shared::{Hold as _, Shared, add},
};

/// Reads of this size or less are kept in a buffer of their own size.
const SMALL: usize = 4096;
/// So many waiting pieces are written before others get their turn.
const RUN: usize = 16;

enum Stop {
    Reset(Reason),
    /// The carrier runs on the other lane's thread.
    Move,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Self::Reset(Reason::Reset)
    }
}

/// A closed socket must tell the application the truth even if this process is killed: close means
/// reset, until the flow ended in order.
fn prepare(s: &SockRef<'_>) -> io::Result<()> {
    s.set_tcp_nodelay(true)?;
    s.set_linger(Some(Duration::ZERO))
}

/// An application's connection, from whichever thread.
pub(crate) enum Landed {
    Plain(StdStream),
    /// Registered with the interactive lane's runtime already, and prepared: its listener has the
    /// options, which accepted connections inherit.
    Here(TcpStream),
}

impl Landed {
    pub(crate) fn socket(&self) -> SockRef<'_> {
        match self {
            Self::Plain(s) => SockRef::from(s),
            Self::Here(s) => SockRef::from(s),
        }
    }

    fn register(self) -> io::Result<TcpStream> {
        match self {
            Self::Plain(s) => TcpStream::from_std(s),
            Self::Here(s) => Ok(s),
        }
    }
}

/// Opener: sends OPEN with the first bytes, then carries the flow to its end. The flow is inserted
/// in the link already.
pub(crate) async fn open(shared: &Arc<Shared>, link: &Arc<Link>, flow: Arc<Flow>, conn: Landed) {
    if let Err(e) = start(&flow, conn) {
        tracing::debug!(error = %e, src = %flow.src, "the application left before the flow began");
        flow.fail(Reason::Reset);
        return finish(shared, link, &flow);
    }
    let attached =
        link.carrier(crate::api::Lane::Interactive).is_some_and(|c| flow.attach(shared, &c));
    if !attached {
        link.need(shared);
    }
    run(shared, link, flow).await;
}

fn start(flow: &Flow, conn: Landed) -> io::Result<()> {
    if let Landed::Plain(s) = &conn {
        s.set_nonblocking(true)?;
        prepare(&conn.socket())?;
    }
    if !first_bytes(flow, &conn)? {
        // A program that connects writes at once: it may need this thread's core to do so, and bytes
        // that come after OPEN pass all machines a second time.
        thread::offer();
        first_bytes(flow, &conn)?;
    }
    flow.core.hold().sock = Some(Arc::new(conn.register()?));
    Ok(())
}

/// Takes what is there, for OPEN; false when there is nothing yet. Not part of the task's future,
/// which would otherwise keep room for the buffer as long as the flow lives.
fn first_bytes(flow: &Flow, conn: &Landed) -> io::Result<bool> {
    let mut buf = [0u8; SMALL];
    // Past the runtime, which believes that there is nothing until its reactor has looked.
    let got = match (&*conn.socket()).read(&mut buf) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
        Err(_) => {
            // It has gone already. The far end sees a connection, and its reset.
            flow.core.hold().broken = true;
            return Ok(true);
        }
        Ok(got) => got,
    };
    let mut core = flow.core.hold();
    if got == 0 {
        core.wire.tx.close();
    } else {
        let frame = small_frame(flow.wire_id, 0, buf.get(..got).unwrap_or_default());
        // The first bytes are always within the first credit.
        core.wire.tx.push(frame).map_err(io::Error::other)?;
    }
    Ok(true)
}

/// Acceptor: has the owner connect to the target, then carries the flow.
pub(crate) async fn accept(shared: &Arc<Shared>, link: &Arc<Link>, flow: &Arc<Flow>) {
    if flow.core.hold().wire.phase().is_ended() {
        // Reset by the opener while it waited for its turn.
        return finish(shared, link, flow);
    }
    let deliver = shared.deliver.deliver(&link.key.domain, &link.key.peer, flow.src, flow.dst);
    let limited = tokio::time::timeout(shared.config.deliver_timeout, deliver);
    let result = tokio::select! {
        r = limited => r.unwrap_or(Err(Reason::Timeout)),
        () = flow.ended.notified() => return finish(shared, link, flow),
    };
    let sock = result.and_then(|s| delivered(shared, flow, s).map_err(|_io| Reason::Reset));
    match sock {
        Ok(sock) => {
            let mut guard = flow.core.hold();
            let core = &mut *guard;
            core.sock = Some(Arc::new(sock));
            if let Some(reason) = core.wire.reset_due() {
                core.wire.step(Step::Failed(reason));
                drop(guard);
                return finish(shared, link, flow);
            }
            core.wire.step(Step::Accepted);
            core.began = Began::Stood;
            if let Some(via) = &core.via {
                // The application knows nothing of it: it leaves with the target's first bytes.
                via.post_lazily(&Frame::Accept {
                    flow: flow.wire_id,
                    credit: core.wire.rx.limit(),
                });
            }
        }
        Err(reason) => {
            flow.reset(reason);
            return finish(shared, link, flow);
        }
    }
    shared.tell(|| Told::Opened(flow.stats(link)));
    run(shared, link, Arc::clone(flow)).await;
}

/// The target's connection stands: it gets the first bytes at once, past the runtime, which believes
/// that the socket is full until its reactor has looked.
fn delivered(shared: &Shared, flow: &Flow, conn: StdStream) -> io::Result<TcpStream> {
    let mut core = flow.core.hold();
    while !core.drain(shared, |b| (&conn).write(b)) && !core.queue.is_empty() {}
    TcpStream::from_std(conn)
}

fn run_on(shared: Arc<Shared>, link: Arc<Link>, flow: Arc<Flow>) -> BoxFuture<'static, ()> {
    Box::pin(async move { run(&shared, &link, flow).await })
}

async fn run(shared: &Arc<Shared>, link: &Arc<Link>, flow: Arc<Flow>) {
    let Some(sock) = flow.core.hold().sock.clone() else { return finish(shared, link, &flow) };
    let work =
        async { tokio::try_join!(flow.up(shared, link, &sock), flow.down(shared, link, &sock)) };
    let stop = tokio::select! {
        biased;
        () = flow.ended.notified() => None,
        r = work => r.err(),
    };
    match stop {
        Some(Stop::Move) => match sock.as_fd().try_clone_to_owned() {
            Ok(fd) => return rehome(shared, link, &flow, fd.into()),
            Err(_) => flow.reset(Reason::Limit),
        },
        Some(Stop::Reset(reason)) => flow.reset(reason),
        None => {
            let mut core = flow.core.hold();
            if let Some(reason) = core.parted {
                core.wire.step(Step::Failed(reason));
            } else if core.wire.is_drained() {
                core.wire.step(Step::Drained);
            }
        }
    }
    finish(shared, link, &flow);
}

/// Continues on the runtime of the lane that carries the flow: waking another thread for every
/// frame would cost more than the frame. The descriptor is doubled, since one belongs to the old
/// runtime's reactor.
fn rehome(shared: &Arc<Shared>, link: &Arc<Link>, flow: &Arc<Flow>, fd: StdStream) {
    let lane = {
        let mut core = flow.core.hold();
        core.home = core.via.as_ref().map_or(core.home, |v| v.lane);
        core.home
    };
    let (s, l, f) = (Arc::clone(shared), Arc::clone(link), Arc::clone(flow));
    shared.lane(lane).spawn(async move {
        match TcpStream::from_std(fd) {
            Ok(sock) => {
                f.core.hold().sock = Some(Arc::new(sock));
                run_on(s, l, f).await;
            }
            Err(_) => {
                f.reset(Reason::Limit);
                finish(&s, &l, &f);
            }
        }
    });
}

/// Takes the flow out of everything. Called once, by its task.
fn finish(shared: &Arc<Shared>, link: &Arc<Link>, flow: &Arc<Flow>) {
    link.remove(flow);
    let local = flow.local();
    let stats = flow.stats(link);
    let mut core = flow.core.hold();
    shared.limits.leave(&link.key.domain, local.ip());
    if !stats.outgoing {
        link.depart(local.ip());
    }
    shared.limits.narrow(core.wire.rx.window().saturating_sub(first_window(shared)));
    shared.limits.done_waiting(core.queue.drain(..).map(|b| b.len() as u64).sum());
    let via = core.via.take();
    if let Some(via) = &via {
        via.flows.fetch_sub(1, Relaxed);
    }
    let (owes_reset, said) = (core.owes_reset, core.wire.said());
    let sock = core.sock.take();
    let phase = core.wire.phase();
    let opener = core.wire.role() == Role::Opener;
    let whole = core.wire.rx.is_done() && (core.parted.is_some() || phase == Phase::Closed);
    drop(core);
    if let Some(s) = sock.as_ref().filter(|_| whole) {
        // The application was given everything and the end; what the kernel still holds may leave in order.
        drop(SockRef::from(&**s).set_linger(None));
    }
    match phase {
        Phase::Failed(reason) => {
            if owes_reset {
                link.insist(&shared.config, (flow.wire_id, reason, said), via.as_ref());
            }
            shared.tally.failed(reason);
            if opener {
                shared.deliver.refused(&link.key.domain, flow.dst, reason);
            }
            tracing::debug!(src = %flow.src, dst = %flow.dst, peer = %link.key.peer, %reason, "flow ended");
        }
        Phase::Opening | Phase::Open | Phase::Closed => add(&shared.tally.closed),
    }
    shared.remember(stats);
}

pub(super) fn first_window(shared: &Shared) -> u64 {
    shared.config.window.max(datapath_wire::flow::INITIAL_WINDOW)
}

fn small_frame(flow: u32, offset: u64, bytes: &[u8]) -> Bytes {
    let mut b = BytesMut::with_capacity(DATA_HEAD + bytes.len());
    b.put_slice(&data_head(flow, offset, bytes.len()));
    b.put_slice(bytes);
    b.freeze()
}

/// Resolves when the socket failed; an application's reset must be seen even while nothing is read.
async fn failure(sock: &TcpStream) {
    match sock.ready(Interest::ERROR).await {
        Ok(_) if matches!(sock.take_error(), Ok(None)) => std::future::pending().await,
        _ => {}
    }
}

impl Core {
    /// Writes a run of what waits for the application; true when it takes no more for now.
    pub(super) fn drain(
        &mut self,
        shared: &Shared,
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> bool {
        for _ in 0..RUN {
            let Some(front) = self.queue.front_mut() else { break };
            match write(front) {
                Ok(n) => {
                    shared.limits.done_waiting(n as u64);
                    self.wire.rx.delivered(n);
                    if n == front.len() {
                        self.queue.pop_front();
                    } else {
                        drop(front.split_to(n));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => {
                    self.broken = true;
                    let lost: usize = self.queue.drain(..).map(|b| b.len()).sum();
                    shared.limits.done_waiting(lost as u64);
                    self.wire.rx.delivered(lost);
                }
            }
        }
        false
    }
}

impl Flow {
    /// Application to peer.
    async fn up(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        link: &Arc<Link>,
        sock: &TcpStream,
    ) -> Result<(), Stop> {
        let (mut large, mut drained) = (false, false);
        loop {
            let (send, budget, done, is_over) = {
                let c = self.core.hold();
                if c.must_move() {
                    return Err(Stop::Move);
                }
                let live = c.via.as_ref().is_some_and(|v| !v.is_dead());
                let done = c.wire.tx.is_done() || c.parted.is_some();
                let budget = c.wire.budget();
                let reads_no_more = done || (budget == 0 && !c.wire.is_paused());
                (live && c.wire.wants_send(), budget, done, c.broken && reads_no_more)
            };
            if is_over {
                return Err(self.after_all_was_sent().await);
            }
            if done {
                // From now on the other direction looks for the socket's failure.
                self.rx_wake.notify_one();
                return Ok(());
            }
            if send {
                // Never closed, so there is always a turn in the end.
                if let Ok(turn) = Arc::clone(&self.turn).acquire_owned().await {
                    shared.tell_listeners();
                    self.send_one(turn);
                }
                continue;
            }
            if budget == 0 {
                tokio::select! {
                    () = self.tx_wake.notified() => continue,
                    () = failure(sock) => return Err(self.after_all_was_sent().await),
                }
            }
            if std::mem::take(&mut drained) {
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                biased;
                () = self.tx_wake.notified() => continue,
                r = sock.readable() => r?,
            }
            let most = usize::try_from(budget).unwrap_or(GOOD_DATA).min(GOOD_DATA);
            let most = if large { most } else { most.min(SMALL) };
            match self.read(sock, most) {
                Ok(n) => {
                    // The rest of a credit may be little; the application was not.
                    large = n == most || n >= SMALL;
                    // Nothing more is there, most likely: what was read leaves before that is tried.
                    drained = n < most;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(self.after_all_was_sent().await),
            }
            if self.core.hold().wants_bulk(shared) {
                self.to_bulk(shared, link);
            }
        }
    }

    /// Reads once, straight behind the room for the frame's head.
    fn read(&self, sock: &TcpStream, most: usize) -> io::Result<usize> {
        // The sending loop is the only one that pushes, so the offset holds.
        let offset = self.core.hold().wire.tx.end();
        let (n, frame) = if most <= SMALL {
            let mut b = [0u8; SMALL];
            let n = sock.try_read(b.get_mut(..most).unwrap_or_default())?;
            (n, small_frame(self.wire_id, offset, b.get(..n).unwrap_or_default()))
        } else {
            let mut b = BytesMut::with_capacity(DATA_HEAD + most);
            b.put_bytes(0, DATA_HEAD);
            let n = sock.try_read_buf(&mut (&mut b).limit(most))?;
            if n < most / 2 {
                (n, small_frame(self.wire_id, offset, b.get(DATA_HEAD..).unwrap_or_default()))
            } else {
                let head = data_head(self.wire_id, offset, n);
                b.iter_mut().zip(head).for_each(|(to, from)| *to = from);
                (n, b.freeze())
            }
        };
        let mut core = self.core.hold();
        if n == 0 && core.broken {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if n == 0 {
            core.wire.tx.close();
        } else if core.wire.tx.push(frame).is_err() {
            // Credit never shrinks and only this loop uses it.
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(n)
    }

    /// The application is gone, not what it said: the flow is reset when the peer was sent all of it, on the carrier of that time or on
    /// the next, and a peer that was not reached yet hears of the flow.
    async fn after_all_was_sent(&self) -> Stop {
        // Never closed. OPEN and DATA in the carrier's queue have the turn: the reset does not overtake them there.
        while let Ok(turn) = Arc::clone(&self.turn).acquire_owned().await {
            let sends = {
                let mut core = self.core.hold();
                let live = core.via.as_ref().is_some_and(|v| !v.is_dead());
                let sends = live && core.wire.wants_send();
                let sent = core.began >= Began::Sent && !core.wire.is_paused();
                let arrives = live || core.wire.tx.unacked() == 0;
                let needless = core.parted.is_some() || !core.wire.needs_peer();
                if needless || (sent && arrives && !core.wire.wants_send()) {
                    self.reset_with(&mut core, Reason::Reset);
                    break;
                }
                sends
            };
            if sends {
                self.send_one(turn);
            } else {
                drop(turn);
                self.tx_wake.notified().await;
            }
        }
        Stop::Reset(Reason::Reset)
    }

    fn send_one(&self, turn: OwnedSemaphorePermit) {
        let mut core = self.core.hold();
        let Some(via) = core.via.clone() else { return };
        let frame = match core.wire.poll_send() {
            Some(Out::Data(frame)) => frame,
            Some(Out::Fin(offset)) => Frame::Fin { flow: self.wire_id, offset }.to_bytes(),
            None => return,
        };
        drop(core);
        // A closed queue: the frame is kept, and sent again on the next carrier.
        drop(via.send(frame, turn));
    }

    /// Peer to application: what the receiving loop could not write at once.
    async fn down(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        link: &Arc<Link>,
        sock: &TcpStream,
    ) -> Result<(), Stop> {
        loop {
            let (waits, more) = self.write_some(shared, link, sock)?;
            let done = {
                let c = self.core.hold();
                if c.must_move() {
                    return Err(Stop::Move);
                }
                if c.broken && c.wire.tx.is_done() {
                    return Err(Stop::Reset(Reason::Reset));
                }
                c.wire.rx.is_done() || c.broken
            };
            if done {
                // With a socket that is broken the other direction ends the flow.
                self.tx_wake.notify_one();
                return Ok(());
            }
            if more {
                tokio::task::yield_now().await;
            } else if waits {
                sock.writable().await?;
            } else {
                // An application that has said its end can still be killed.
                let ended = self.core.hold().wire.tx.is_done();
                tokio::select! {
                    () = self.rx_wake.notified() => {}
                    () = failure(sock), if ended => return Err(Stop::Reset(Reason::Reset)),
                }
            }
        }
    }

    /// Whether the socket is full, and whether the run was cut short.
    fn write_some(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        link: &Arc<Link>,
        sock: &TcpStream,
    ) -> Result<(bool, bool), Stop> {
        let mut guard = self.core.hold();
        let core = &mut *guard;
        let full = core.drain(shared, |b| sock.try_write(b));
        if core.wire.rx.at_fin() {
            core.broken |= SockRef::from(sock).shutdown(Shutdown::Write).is_err();
            core.wire.rx.fin_delivered();
        }
        let owes = core.settle(shared, self.wire_id);
        let (more, home) = (!full && !core.queue.is_empty(), core.home);
        drop(guard);
        if owes {
            link.owe(shared, home, self);
        }
        Ok((full, more))
    }
}
