//! One flow, pure: what may be sent, what must be kept, what arrived, and when it is over.
//!
//! Offsets count the bytes of a direction from 0; FIN counts one, as in TCP. Frames of one carrier
//! arrive in order; a flow may change carriers at any time. The opener alone starts that
//! ([`Flow::resume`]), so the two ends can never pick different carriers at once.

mod recv;
mod send;

pub use recv::RecvHalf;
pub use send::{Out, SendHalf};

use crate::{
    Reason,
    frame::{Frame, Open},
};

/// What each side may send before it heard from the other, and the least window of a flow.
pub const INITIAL_WINDOW: u64 = 256 * 1024;

/// What a peer did that the protocol forbids. The flow is reset, the carrier lives on.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum FlowError {
    #[error("bytes {have}..{got} are missing before offset {got}")]
    Gap { have: u64, got: u64 },
    #[error("bytes up to {end} exceed the credit of {limit}")]
    OverCredit { end: u64, limit: u64 },
    #[error("bytes up to {end} come after the end at {fin}")]
    AfterFin { end: u64, fin: u64 },
    #[error("offset {offset} is acknowledged, {end} was sent")]
    AckBeyond { offset: u64, end: u64 },
    #[error("a resume goes back to {received}, {acked} was acknowledged")]
    Backwards { received: u64, acked: u64 },
    #[error("this frame is not for this side or state of the flow")]
    Unexpected,
}

/// The life of a flow. Half-closes are seen on the halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The target has not answered yet; bytes flow already.
    Opening,
    Open,
    /// Both directions ended in order and everything is acknowledged.
    Closed,
    /// Refused, reset or given up.
    Failed(Reason),
}

/// What moves a [`Phase`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The target answered.
    Accepted,
    /// REJECT, RST, a deadline, a failed socket, a broken rule.
    Failed(Reason),
    /// Both halves are done.
    Drained,
}

impl Phase {
    /// The next phase; an ended flow stays as it ended.
    #[must_use]
    pub fn step(self, step: Step) -> Self {
        match (self, step) {
            (Self::Closed | Self::Failed(_), _) => self,
            (_, Step::Failed(r)) => Self::Failed(r),
            (_, Step::Drained) => Self::Closed,
            (_, Step::Accepted) => Self::Open,
        }
    }
    #[must_use]
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Closed | Self::Failed(_))
    }
}

/// Which end of the flow this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Opener,
    Acceptor,
}

/// How much a flow may hold.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The receive window at first, at least [`INITIAL_WINDOW`].
    pub window: u64,
    /// Unacknowledged bytes to keep at most, whatever the peer's credit.
    pub keep: u64,
}

/// Both halves and the phase of one flow.
#[derive(Debug)]
pub struct Flow {
    id: u32,
    role: Role,
    phase: Phase,
    generation: u32,
    /// The opener sent RESUME and has no answer: what the peer has is unknown.
    paused: bool,
    /// The peer's RST, and where its bytes end.
    reset: Option<(Reason, u64)>,
    pub tx: SendHalf,
    pub rx: RecvHalf,
}

impl Flow {
    /// The opening side; [`Flow::open_frame`] is its first frame.
    #[must_use]
    pub fn opening(id: u32, bounds: Bounds) -> Self {
        Self::new(id, Role::Opener, 0, bounds)
    }

    /// The accepting side, made from the peer's OPEN.
    #[must_use]
    pub fn accepting(id: u32, open: &Open, bounds: Bounds) -> Self {
        let mut f = Self::new(id, Role::Acceptor, open.generation, bounds);
        f.tx.on_credit(open.credit);
        f
    }

    fn new(id: u32, role: Role, generation: u32, b: Bounds) -> Self {
        Self {
            id,
            role,
            phase: Phase::Opening,
            generation,
            paused: false,
            reset: None,
            tx: SendHalf::new(b.keep),
            rx: RecvHalf::new(b.window),
        }
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }
    /// See [`Phase::step`].
    pub fn step(&mut self, step: Step) -> Phase {
        self.phase = self.phase.step(step);
        self.phase
    }

    /// Everything went both ways and is acknowledged: step with [`Step::Drained`].
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.tx.is_done() && self.rx.is_done()
    }

    /// False once the peer has everything and this side has everything of the peer's: what is left to
    /// deliver here needs no carrier, and the peer may have forgotten the flow.
    #[must_use]
    pub fn needs_peer(&self) -> bool {
        !(self.tx.is_done() && self.rx.has_fin())
    }

    /// The OPEN of this flow (opener); the first bytes, if any, are added by the caller.
    #[must_use]
    pub fn open_frame(&self, src: std::net::SocketAddr, dst: std::net::SocketAddr) -> Open {
        Open { generation: self.generation, credit: self.rx.limit(), src, dst }
    }

    /// Whether [`Flow::poll_send`] has something.
    #[must_use]
    pub fn wants_send(&self) -> bool {
        !self.paused && self.tx.has_unsent()
    }

    /// The next frame to put on the current carrier, if there is one and the peer's state is known.
    pub fn poll_send(&mut self) -> Option<Out> {
        if self.paused { None } else { self.tx.poll_send() }
    }

    /// How many more bytes may be read from the application now.
    #[must_use]
    pub fn budget(&self) -> u64 {
        if self.paused { 0 } else { self.tx.budget() }
    }

    /// The peer is asked what it has, and has not answered.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// For an RST from this side: where the bytes end that the peer can still get, because they are all on their way.
    #[must_use]
    pub fn said(&self) -> u64 {
        let end = self.tx.end();
        if self.wants_send() || self.paused { self.tx.acked().min(end) } else { end }
    }

    /// RST. The first one counts; it is due ([`Flow::reset_due`]) when everything before `after` is here.
    pub fn on_rst(&mut self, reason: Reason, after: u64) {
        self.reset.get_or_insert((reason, after));
    }

    /// The peer's reset, once nothing that was sent before it is missing.
    #[must_use]
    pub fn reset_due(&self) -> Option<Reason> {
        let (reason, after) = self.reset?;
        (self.rx.total() >= after).then_some(reason)
    }

    /// The peer's reset is here before what it sent before.
    #[must_use]
    pub fn reset_waits(&self) -> bool {
        self.reset.is_some() && self.reset_due().is_none()
    }

    /// What is missing before the peer's reset was lost with its carrier, and the peer has forgotten it.
    pub fn reset_waits_no_more(&mut self) {
        if let Some((_, after)) = &mut self.reset {
            *after = 0;
        }
    }

    /// Opener: continue on another carrier. Returns RESUME, or `None` when the peer may never have
    /// seen the flow: then OPEN is sent again and everything from offset 0 follows it.
    pub fn resume(&mut self) -> Option<Frame<'static>> {
        self.generation = self.generation.wrapping_add(1);
        let unknown = self.tx.acked() == 0 && self.rx.received() == 0;
        if self.phase == Phase::Opening && unknown {
            self.paused = false;
            self.tx.repeat();
            return None;
        }
        self.paused = true;
        let (received, limit) = (self.rx.received(), self.rx.limit());
        Some(Frame::Resume { flow: self.id, generation: self.generation, received, limit })
    }

    /// Acceptor: the opener continues on another carrier. Returns RESUMED for that carrier, or
    /// `None` when the frame is older than the current carrier and must change nothing.
    ///
    /// # Errors
    /// Offsets that cannot be, or this side is the opener.
    pub fn on_resume(
        &mut self,
        generation: u32,
        received: u64,
        limit: u64,
    ) -> Result<Option<Frame<'static>>, FlowError> {
        if self.role != Role::Acceptor {
            return Err(FlowError::Unexpected);
        }
        if generation <= self.generation {
            return Ok(None);
        }
        self.tx.rewind(received)?;
        self.tx.on_credit(limit);
        self.generation = generation;
        let (received, limit) = (self.rx.received(), self.rx.limit());
        Ok(Some(Frame::Resumed { flow: self.id, generation, received, limit }))
    }

    /// Acceptor: OPEN came again because the opener could not know that the first arrived.
    ///
    /// # Errors
    /// As [`Flow::on_resume`].
    pub fn on_reopen(&mut self, open: &Open) -> Result<Option<Frame<'static>>, FlowError> {
        // It did not know of us when it sent this; what it has acknowledged, on whatever way, it has.
        self.on_resume(open.generation, self.tx.acked(), open.credit)
    }

    /// Opener: the peer's answer. False when it belongs to an earlier attempt.
    ///
    /// # Errors
    /// Offsets that cannot be, or this side is the acceptor.
    pub fn on_resumed(
        &mut self,
        generation: u32,
        received: u64,
        limit: u64,
    ) -> Result<bool, FlowError> {
        if self.role != Role::Opener {
            return Err(FlowError::Unexpected);
        }
        if generation != self.generation {
            return Ok(false);
        }
        if self.paused {
            self.tx.rewind(received)?;
            self.paused = false;
        } else {
            self.tx.on_ack(received)?;
        }
        self.tx.on_credit(limit);
        Ok(true)
    }
}
