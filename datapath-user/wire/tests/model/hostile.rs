//! One end of a flow against a peer that says anything: nothing panics, and what the peer may not change stays.

use bytes::{Buf as _, Bytes, BytesMut};
use datapath_wire::{
    FlowError, Frame, Open, Phase, Reason,
    flow::{Bounds, Flow, INITIAL_WINDOW, Out, Step},
    frame::{DATA_HEAD, HEAD, MAX_DATA, data_head},
};

const KEEP: u64 = 2 * INITIAL_WINDOW;
const BOUNDS: Bounds = Bounds { window: 0, keep: KEEP };

/// The flow, and what an observer knows about it.
pub(crate) struct Hostile {
    flow: Flow,
    opener: bool,
    /// The largest credit that the peer ever gave.
    granted: u64,
    /// The largest credit that was given to the peer.
    offered: u64,
    /// Where the next frame on this carrier may begin at the latest; `None` once FIN left.
    cursor: Option<u64>,
    /// RESUME was sent and waits for its answer.
    asked: bool,
    /// Where the peer's direction ended.
    fin: Option<u64>,
}

impl Hostile {
    pub(crate) fn new(opener: bool) -> Self {
        let open = Self::open(0, 0);
        let flow =
            if opener { Flow::opening(1, BOUNDS) } else { Flow::accepting(1, &open, BOUNDS) };
        let offered = flow.rx.limit();
        Self {
            flow,
            opener,
            granted: INITIAL_WINDOW,
            offered,
            cursor: Some(0),
            asked: false,
            fin: None,
        }
    }

    fn open(generation: u32, credit: u64) -> Open {
        Open { generation, credit, src: ([1; 4], 1).into(), dst: ([2; 4], 2).into() }
    }

    /// Steps from bytes, five each.
    pub(crate) fn run(steps: &[u8]) {
        let mut h = Self::new(steps.first().is_none_or(|b| b.is_multiple_of(2)));
        for s in steps.get(1..).unwrap_or_default().chunks_exact(5) {
            h.step(s[0], s[1], i16::from_le_bytes([s[2], s[3]]), s[4]);
        }
    }

    /// An offset near one that matters.
    fn near(&self, which: u8, delta: i16) -> u64 {
        let (tx, rx) = (&self.flow.tx, &self.flow.rx);
        let bases =
            [0, tx.acked(), tx.end(), self.granted, rx.total(), rx.taken(), rx.limit(), u64::MAX];
        let base = bases[usize::from(which) % bases.len()];
        base.wrapping_add_signed(delta.into())
    }

    /// One step of the peer or of the application.
    pub(crate) fn step(&mut self, op: u8, which: u8, delta: i16, n: u8) {
        let at = self.near(which, delta);
        let before = (self.flow.phase(), self.flow.rx.received(), self.flow.tx.acked());
        // A refusal resets the flow in the relay; here it must leave nothing broken behind either.
        let _refused = match op % 18 {
            0 => self.data(at, usize::from(n) * 257),
            1 => self.flow.rx.on_fin(at).map(|_| self.fin = Some(at)),
            2 => self.flow.tx.on_ack(at),
            3 => self.credit(at),
            4 => self.resume(u32::from(n), at, self.near(n, delta)),
            5 => self.resumed(u32::from(n), at, self.near(n, delta)),
            6 => self.reopen(u32::from(n), at),
            7 => self.end_as(Step::Accepted),
            8 if n == 0 => self.end_as(Step::Failed(Reason::Reset)),
            9 => self.write(at, usize::from(n) * 257),
            10 => self.poll(),
            11 => self.close(),
            12 => self.deliver(usize::from(n) * 257),
            13 => self.end_of_input(),
            14 => self.settle(n),
            15 if self.opener => self.change(),
            16 => self.widen(at),
            17 if self.flow.is_drained() => self.end_as(Step::Drained),
            _ => Ok(()),
        };
        self.check(before);
    }

    fn data(&mut self, offset: u64, len: usize) -> Result<(), FlowError> {
        let before = self.flow.rx.total();
        let new = self.flow.rx.on_data(offset, len)?;
        assert!(new.end == len && new.start <= len);
        assert_eq!(self.flow.rx.total() - before, new.len() as u64);
        // The new part begins where the old bytes ended.
        assert!(new.is_empty() || offset + new.start as u64 == before);
        Ok(())
    }

    fn credit(&mut self, limit: u64) -> Result<(), FlowError> {
        self.granted = self.granted.max(limit);
        self.flow.tx.on_credit(limit);
        Ok(())
    }

    fn end_as(&mut self, step: Step) -> Result<(), FlowError> {
        assert_eq!(self.flow.step(step), self.flow.phase());
        Ok(())
    }

    fn close(&mut self) -> Result<(), FlowError> {
        self.flow.tx.close();
        assert_eq!(self.flow.budget(), 0);
        Ok(())
    }

    fn deliver(&mut self, n: usize) -> Result<(), FlowError> {
        self.flow.rx.delivered(n);
        Ok(())
    }

    fn widen(&mut self, to: u64) -> Result<(), FlowError> {
        self.flow.rx.widen(to.min(1 << 40));
        assert_eq!(self.flow.rx.limit(), self.offered, "only CREDIT tells the peer");
        Ok(())
    }

    fn resume(&mut self, generation: u32, received: u64, limit: u64) -> Result<(), FlowError> {
        let acked = self.flow.tx.acked();
        let answer = self.flow.on_resume(generation, received, limit);
        assert!(!self.opener || answer.is_err(), "only the opener moves a flow");
        if let Some(Frame::Resumed { received: mine, generation: g, .. }) = answer? {
            assert_eq!((mine, g), (self.flow.rx.received(), generation));
            assert!(received >= acked, "what was acknowledged may be gone");
            self.granted = self.granted.max(limit);
            self.cursor = Some(received.min(self.flow.tx.end()));
        }
        Ok(())
    }

    fn reopen(&mut self, generation: u32, credit: u64) -> Result<(), FlowError> {
        if self.flow.on_reopen(&Self::open(generation, credit))?.is_some() {
            self.granted = self.granted.max(credit);
            self.cursor = Some(0);
        }
        Ok(())
    }

    fn resumed(&mut self, generation: u32, received: u64, limit: u64) -> Result<(), FlowError> {
        let acked = self.flow.tx.acked();
        let took = self.flow.on_resumed(generation, received, limit);
        assert!(self.opener || took.is_err());
        if took? {
            self.granted = self.granted.max(limit);
            // Without a question it is but an ACK.
            if std::mem::take(&mut self.asked) {
                assert!(received >= acked, "what was acknowledged may be gone");
                self.cursor = Some(received);
            }
        }
        Ok(())
    }

    /// The application writes; what is not allowed must be refused.
    fn write(&mut self, at: u64, len: usize) -> Result<(), FlowError> {
        let budget = self.flow.tx.budget();
        // Some writes use all that is allowed.
        let len = if at.is_multiple_of(4) { len.max(budget.min(60_000) as usize) } else { len };
        let mut b = BytesMut::from(&data_head(1, self.flow.tx.end(), len)[..]);
        b.resize(DATA_HEAD + len, 7);
        let pushed = self.flow.tx.push(b.freeze());
        let allowed = len as u64 <= budget && len <= MAX_DATA;
        assert_eq!(pushed.is_ok(), allowed, "{len} of {budget}");
        pushed
    }

    /// Frames leave in order, without a gap, and FIN behind the last byte.
    fn poll(&mut self) -> Result<(), FlowError> {
        assert!(!self.flow.wants_send() || self.flow.tx.has_unsent());
        let wants = self.flow.wants_send();
        let out = self.flow.poll_send();
        assert_eq!(out.is_some(), wants);
        match out {
            Some(Out::Data(frame)) => {
                let start = Bytes::clone(&frame).split_off(HEAD).get_u64();
                let cursor = self.cursor.unwrap_or(u64::MAX).max(self.flow.tx.acked());
                assert!(start <= cursor, "{start} is sent, but {cursor} is next");
                self.cursor = Some(start + (frame.len() - DATA_HEAD) as u64);
            }
            Some(Out::Fin(offset)) => {
                assert!(self.flow.tx.is_closing() && offset == self.flow.tx.end());
                assert!(self.cursor.is_some_and(|c| c.max(self.flow.tx.acked()) >= offset));
                self.cursor = None;
            }
            None => {}
        }
        Ok(())
    }

    fn end_of_input(&mut self) -> Result<(), FlowError> {
        if self.flow.rx.at_fin() {
            assert_eq!(self.flow.rx.waiting(), 0);
            self.flow.rx.fin_delivered();
        }
        Ok(())
    }

    fn settle(&mut self, n: u8) -> Result<(), FlowError> {
        if let Some(limit) = self.flow.rx.credit_due() {
            assert!(limit > self.offered, "credit never shrinks");
            self.offered = limit;
        }
        if let Some(offset) = self.flow.rx.ack_due(n.is_multiple_of(2)) {
            assert_eq!(offset, self.flow.rx.received());
            assert!(!self.flow.rx.owes_ack());
        }
        Ok(())
    }

    /// The opener goes to another carrier.
    fn change(&mut self) -> Result<(), FlowError> {
        let known = self.flow.phase() != Phase::Opening
            || self.flow.tx.acked() > 0
            || self.flow.rx.received() > 0;
        match self.flow.resume() {
            Some(Frame::Resume { received, limit, .. }) => {
                self.asked = true;
                assert!(known && !self.flow.wants_send() && self.flow.budget() == 0);
                assert_eq!((received, limit), (self.flow.rx.received(), self.offered));
            }
            Some(other) => panic!("{other:?}"),
            None => {
                assert!(!known, "the peer is known to have the flow");
                self.asked = false;
                self.cursor = Some(0);
            }
        }
        Ok(())
    }

    fn check(&self, (phase, received, acked): (Phase, u64, u64)) {
        let (tx, rx) = (&self.flow.tx, &self.flow.rx);
        assert!(!phase.is_ended() || phase == self.flow.phase(), "an ended flow stays as it ended");
        assert!(rx.received() >= received && tx.acked() >= acked);
        // Neither side holds more than it agreed to, whatever the peer says.
        assert!(tx.end() <= self.granted && tx.unacked() <= KEEP);
        assert!(tx.acked() <= tx.end() + u64::from(tx.is_closing()));
        assert!(rx.total() <= rx.limit() && rx.limit() == self.offered);
        assert!(rx.taken() <= rx.total() && rx.waiting() <= rx.window());
        assert_eq!(rx.has_fin(), self.fin.is_some());
        assert!(self.fin.is_none_or(|fin| fin == rx.total()), "bytes behind the end");
        assert!(!self.flow.is_drained() || (tx.is_done() && rx.is_done()));
    }
}
