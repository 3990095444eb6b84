//! One end of a flow, run by the rules of `datapath-relay`, with an application that writes and reads a pattern.

use std::{fmt, sync::LazyLock};

use bytes::{Bytes, BytesMut};
use datapath_wire::{
    Frame, Open, Phase, Reason,
    flow::{Bounds, Flow, Out, Role, Step},
    frame::{MAX_DATA, MAX_FIRST, data_head},
};

use super::line::Line;

pub(crate) const ID: u32 = 9;
const BOUNDS: Bounds = Bounds { window: 0, keep: 0 };

/// How often the pattern repeats: a prime, so that frames do not.
const PERIOD: usize = 65_521;

/// The `len` bytes at an offset of what `role` writes: a lost or doubled one changes all that follow.
fn pattern(role: Role, at: u64, len: usize) -> &'static [u8] {
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
        (0..2 * PERIOD as u64).map(|at| byte(at % PERIOD as u64)).collect()
    });
    let salt = if role == Role::Opener { 0 } else { 777 };
    let from = ((at + salt) % PERIOD as u64) as usize;
    &BYTES[from..from + len]
}

fn other(role: Role) -> Role {
    if role == Role::Opener { Role::Acceptor } else { Role::Opener }
}

/// Whether something but the protocol decided how the flow ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Regular,
    /// No carrier came in time; what arrived whole is still delivered.
    Late,
    /// The application, its failed connect or a deadline gave up what was under way.
    Broke,
}

/// See the module.
pub(crate) struct End {
    pub(crate) role: Role,
    /// `None` before OPEN arrived and after the end.
    pub(crate) flow: Option<Flow>,
    /// How the relay's flow ended.
    pub(crate) outcome: Option<Phase>,
    /// The carrier in use.
    pub(crate) via: Option<usize>,
    /// How many carriers it was given.
    attached: u32,
    /// What the application wrote, and whether it ended.
    pub(crate) wrote: u64,
    pub(crate) closed: bool,
    pub(crate) fate: Fate,
    /// The application reset its connection: the end goes when all is sent.
    pub(crate) leaves: bool,
    /// Where its bytes ended, once the flow is forgotten.
    said: u64,
    /// What arrived and waits for the application, what it read, and whether it was told the end.
    pub(crate) queue: u64,
    pub(crate) read: u64,
    pub(crate) eof: bool,
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (outcome, via, waits) = (&self.outcome, &self.via, self.queue);
        write!(f, "{:?} {outcome:?} via {via:?}: wrote {}", self.role, self.wrote)?;
        write!(f, " ({}), read {} ({}), {waits} wait", self.closed, self.read, self.eof)?;
        let Some(flow) = &self.flow else { return Ok(()) };
        let (tx, rx) = (&flow.tx, &flow.rx);
        write!(f, "; {:?} sent {} of {}, ", flow.phase(), tx.acked(), tx.end())?;
        write!(f, "received {} of {}", rx.received(), rx.limit())
    }
}

impl End {
    pub(crate) fn new(role: Role) -> Self {
        let flow = (role == Role::Opener).then(|| Flow::opening(ID, BOUNDS));
        Self {
            role,
            flow,
            outcome: None,
            via: None,
            attached: 0,
            wrote: 0,
            closed: false,
            fate: Fate::Regular,
            leaves: false,
            said: 0,
            queue: 0,
            read: 0,
            eof: false,
        }
    }

    pub(crate) fn side(&self) -> usize {
        usize::from(self.role == Role::Acceptor)
    }

    /// The application's connection stands: the acceptor's does once its target answered.
    fn has_app(&self) -> bool {
        let opener = self.role == Role::Opener;
        !self.leaves && self.flow.as_ref().is_some_and(|f| opener || f.phase() == Phase::Open)
    }

    pub(crate) fn write(&mut self, n: u64) {
        if !self.has_app() || self.closed {
            return;
        }
        let Some(flow) = &mut self.flow else { return };
        // The first bytes must not overtake OPEN: the relay reads little at first.
        let first = self.role == Role::Opener && self.wrote == 0;
        let most = if first { 4096 } else { MAX_DATA as u64 };
        let n = n.min(flow.budget()).min(most);
        if n == 0 {
            return;
        }
        let mut b = BytesMut::from(&data_head(ID, self.wrote, n as usize)[..]);
        b.extend_from_slice(pattern(self.role, self.wrote, n as usize));
        flow.tx.push(b.freeze()).unwrap();
        self.wrote += n;
    }

    pub(crate) fn close(&mut self) {
        if self.has_app()
            && let Some(flow) = &mut self.flow
        {
            self.closed = true;
            flow.tx.close();
        }
    }

    /// The application takes up to `n` bytes, and is told the end behind the last.
    pub(crate) fn read(&mut self, lines: &mut [Line], n: u64) {
        if !self.has_app() {
            return;
        }
        let Some(flow) = &mut self.flow else { return };
        let n = n.min(self.queue);
        self.queue -= n;
        self.read += n;
        flow.rx.delivered(n as usize);
        if flow.rx.at_fin() {
            assert!(!self.eof && self.queue == 0, "the end is told once, behind the last byte");
            flow.rx.fin_delivered();
            self.eof = true;
        }
        self.conclude(lines);
    }

    /// One frame of the flow into its carrier's queue, where it may have one at a time. False: there is none.
    pub(crate) fn pump(&mut self, lines: &mut [Line]) -> bool {
        let side = self.side();
        if lines.iter().any(|l| l.ways[side].holds_turn()) {
            return false;
        }
        let (Some(flow), Some(via)) = (&mut self.flow, self.via) else { return false };
        let frame = match flow.poll_send() {
            Some(Out::Data(b)) => b,
            Some(Out::Fin(offset)) => Frame::Fin { flow: ID, offset }.to_bytes(),
            None => {
                self.leave(lines);
                return false;
            }
        };
        lines[via].ways[side].post(frame, true);
        true
    }

    /// Tells the peer what is due.
    pub(crate) fn settle(&mut self, lines: &mut [Line], any: bool) {
        let side = self.side();
        let (Some(flow), Some(via)) = (&mut self.flow, self.via) else { return };
        if let Some(limit) = flow.rx.credit_due() {
            lines[via].ways[side].post(Frame::Credit { flow: ID, limit }.to_bytes(), false);
        }
        if let Some(offset) = flow.rx.ack_due(any) {
            lines[via].ways[side].post(Frame::Ack { flow: ID, offset }.to_bytes(), false);
        }
    }

    pub(crate) fn widen(&mut self, by: u64) {
        if let Some(flow) = &mut self.flow {
            let window = flow.rx.window();
            flow.rx.widen(window.saturating_add(by).min(4 << 20));
        }
    }

    /// Opener: another carrier, after a break or by choice. Gives OPEN or RESUME, which may be repeated.
    pub(crate) fn attach(&mut self, lines: &mut [Line], to: usize) -> Option<Bytes> {
        let flow = self.flow.as_mut().filter(|f| f.needs_peer())?;
        self.via = Some(to);
        let mut first = Bytes::new();
        let again = self.attached > 0;
        self.attached += 1;
        let frame = match if again { flow.resume() } else { None } {
            Some(resume) => resume.to_bytes(),
            None => {
                let open = flow.open_frame(([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into());
                if !again {
                    first = flow.tx.take_first(MAX_FIRST).unwrap_or_default();
                }
                Frame::Open { flow: ID, open, first: &first }.to_bytes()
            }
        };
        lines[to].ways[0].post(frame.clone(), !first.is_empty());
        Some(frame)
    }

    /// Acceptor: the target answered, or not.
    pub(crate) fn answer(&mut self, lines: &mut [Line], refusal: Option<Reason>) {
        let Some(flow) = self.flow.as_mut().filter(|f| f.phase() == Phase::Opening) else { return };
        if self.role == Role::Opener {
            return;
        }
        if let Some(reason) = refusal {
            return self.reset(lines, reason);
        }
        flow.step(Step::Accepted);
        let accept = Frame::Accept { flow: ID, credit: flow.rx.limit() }.to_bytes();
        if let Some(via) = self.via {
            lines[via].ways[1].post(accept, false);
        }
    }

    /// The application resets its connection, or could not be connected to.
    pub(crate) fn reset(&mut self, lines: &mut [Line], reason: Reason) {
        let side = self.side();
        let Some(flow) = &self.flow else { return };
        self.fate = Fate::Broke;
        if flow.phase() == Phase::Opening && self.role == Role::Acceptor {
            if let Some(via) = self.via {
                let reject = Frame::Reject { flow: ID, reason };
                lines[via].ways[side].post(reject.to_bytes(), false);
            }
            return self.end(Phase::Failed(reason));
        }
        self.leaves = true;
        self.leave(lines);
    }

    /// Resets the flow of an application that is gone, once the peer was sent all that it had said.
    fn leave(&mut self, lines: &mut [Line]) {
        let side = self.side();
        let turn = lines.iter().any(|l| l.ways[side].holds_turn());
        let Some(flow) = self.flow.as_ref().filter(|_| self.leaves) else { return };
        if !flow.needs_peer() {
            return self.end(Phase::Failed(Reason::Reset));
        }
        let Some(via) = self.via else { return };
        if !turn && !flow.is_paused() && !flow.wants_send() {
            let rst = Frame::Rst { flow: ID, reason: Reason::Reset, after: flow.said() };
            lines[via].ways[side].post(rst.to_bytes(), false);
            self.end(Phase::Failed(Reason::Reset));
        }
    }

    /// What a reset waits for was lost.
    pub(crate) fn give_up_waiting(&mut self, lines: &mut [Line]) {
        if let Some(flow) = &mut self.flow {
            flow.reset_waits_no_more();
        }
        self.conclude(lines);
    }

    /// No carrier came in time. What arrived to its end was acknowledged and is delivered all the same.
    pub(crate) fn expire(&mut self) {
        let Some(flow) = &self.flow else { return };
        if self.via.is_some() || !flow.needs_peer() {
            return;
        }
        if flow.rx.has_fin() {
            self.fate = Fate::Late;
        } else {
            self.fate = Fate::Broke;
            self.end(Phase::Failed(Reason::CarrierLost));
        }
    }

    /// One frame from the peer, over carrier `from`.
    pub(crate) fn frame(&mut self, lines: &mut [Line], from: usize, f: &Frame<'_>) {
        if let Frame::Open { open, first, .. } = f {
            return self.open(lines, from, open, first);
        }
        let Some(flow) = &mut self.flow else {
            if matches!(f, Frame::Data { .. } | Frame::Fin { .. } | Frame::Resume { .. }) {
                self.gone(lines, from);
            }
            return;
        };
        match f {
            Frame::Hello(_) => {}
            Frame::Data { offset, bytes, .. } => self.data(*offset, bytes),
            Frame::Ack { offset, .. } => flow.tx.on_ack(*offset).unwrap(),
            Frame::Credit { limit, .. } => flow.tx.on_credit(*limit),
            Frame::Accept { credit, .. } => {
                assert_eq!(self.role, Role::Opener);
                flow.step(Step::Accepted);
                flow.tx.on_credit(*credit);
            }
            Frame::Fin { offset, .. } => drop(flow.rx.on_fin(*offset).unwrap()),
            Frame::Rst { reason: Reason::PeerGone, .. }
                if flow.rx.has_fin() && flow.tx.is_closing() =>
            {
                // The peer ended in order, only its last ACK was lost.
                flow.tx.on_ack(flow.tx.end() + 1).unwrap();
            }
            Frame::Rst { reason, after, .. } => flow.on_rst(*reason, *after),
            Frame::Reject { reason, .. } => self.end(Phase::Failed(*reason)),
            Frame::Resume { generation, received, limit, .. } => {
                let answer = flow.on_resume(*generation, *received, *limit).unwrap();
                self.continues(lines, from, answer);
            }
            Frame::Resumed { generation, received, limit, .. } => {
                flow.on_resumed(*generation, *received, *limit).unwrap();
            }
            _ => panic!("unexpected {f:?}"),
        }
        self.conclude(lines);
    }

    fn open(&mut self, lines: &mut [Line], from: usize, open: &Open, first: &[u8]) {
        assert_eq!(self.role, Role::Acceptor);
        if self.outcome.is_some() {
            return self.gone(lines, from);
        }
        if let Some(flow) = &mut self.flow {
            let answer = flow.on_reopen(open).unwrap();
            self.continues(lines, from, answer);
        } else {
            self.flow = Some(Flow::accepting(ID, open, BOUNDS));
            self.via = Some(from);
        }
        // Also of an OPEN that comes late: frames that follow it here begin behind its first bytes.
        if !first.is_empty() {
            self.data(0, first);
        }
        self.conclude(lines);
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) {
        let Some(flow) = &mut self.flow else { return };
        let at = flow.rx.total();
        let new = &bytes[flow.rx.on_data(offset, bytes.len()).unwrap()];
        let from = other(self.role);
        assert!(new == pattern(from, at, new.len()), "other bytes behind {at}");
        self.queue += new.len() as u64;
    }

    /// Acceptor: the flow goes on over `from`.
    fn continues(&mut self, lines: &mut [Line], from: usize, answer: Option<Frame<'_>>) {
        let (Some(answer), Some(flow)) = (answer, &self.flow) else { return };
        self.via = Some(from);
        if flow.phase() == Phase::Open {
            let accept = Frame::Accept { flow: ID, credit: flow.rx.limit() };
            lines[from].ways[1].post(accept.to_bytes(), false);
        }
        lines[from].ways[1].post(answer.to_bytes(), false);
    }

    fn gone(&self, lines: &mut [Line], from: usize) {
        let rst = Frame::Rst { flow: ID, reason: Reason::PeerGone, after: self.said };
        lines[from].ways[self.side()].post(rst.to_bytes(), false);
    }

    /// What is due is told before the flow may be forgotten.
    fn conclude(&mut self, lines: &mut [Line]) {
        self.settle(lines, false);
        let Some(flow) = &self.flow else { return };
        if let Some(reason) = flow.reset_due() {
            self.end(Phase::Failed(reason));
        } else if self.leaves && !flow.needs_peer() {
            self.leave(lines);
        } else if flow.is_drained() {
            self.end(Phase::Closed);
        } else if self.fate == Fate::Late && self.eof {
            self.end(Phase::Failed(Reason::CarrierLost));
        }
    }

    fn end(&mut self, how: Phase) {
        if let Some(flow) = self.flow.take() {
            self.said = flow.said();
            self.outcome = Some(how);
            self.via = None;
        }
    }
}
