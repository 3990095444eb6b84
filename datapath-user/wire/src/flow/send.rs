//! The sending direction: credit, and the replay buffer.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{FlowError, INITIAL_WINDOW};
use crate::frame::{DATA_HEAD, MAX_DATA};

/// What [`SendHalf::poll_send`] wants on the carrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out {
    /// A whole DATA frame, head included.
    Data(Bytes),
    /// FIN at this offset.
    Fin(u64),
}

/// Frames are kept as they were encoded, because neither flow id nor offset changes when they are
/// repeated: a resume costs no copy.
#[derive(Debug)]
struct Kept {
    end: u64,
    frame: Bytes,
}

/// Bytes from the application to the peer.
#[derive(Debug)]
pub struct SendHalf {
    kept: VecDeque<Kept>,
    /// Index in `kept` of the first frame that is not on the current carrier.
    unsent: usize,
    end: u64,
    acked: u64,
    limit: u64,
    keep: u64,
    closing: bool,
    fin_sent: bool,
}

impl SendHalf {
    pub(super) fn new(keep: u64) -> Self {
        Self {
            kept: VecDeque::new(),
            unsent: 0,
            end: 0,
            acked: 0,
            limit: INITIAL_WINDOW,
            keep: keep.max(INITIAL_WINDOW),
            closing: false,
            fin_sent: false,
        }
    }

    /// Offset behind the last byte taken from the application: where the next frame starts.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }
    #[must_use]
    pub fn acked(&self) -> u64 {
        self.acked
    }
    /// Bytes (heads not counted) that are kept for a resume.
    #[must_use]
    pub fn unacked(&self) -> u64 {
        self.end.saturating_sub(self.acked)
    }

    /// How many more bytes may be taken from the application: the peer's credit, and never more
    /// than this side is willing to keep.
    #[must_use]
    pub fn budget(&self) -> u64 {
        if self.closing {
            return 0;
        }
        let most = self.limit.min(self.acked.saturating_add(self.keep));
        most.saturating_sub(self.end)
    }

    /// Takes over a DATA frame that starts at [`SendHalf::end`] and was encoded by the caller
    /// (see [`crate::frame::data_head`]).
    ///
    /// # Errors
    /// [`FlowError::OverCredit`] when it holds more than [`SendHalf::budget`] or [`MAX_DATA`].
    pub fn push(&mut self, frame: Bytes) -> Result<(), FlowError> {
        let len = frame.len().saturating_sub(DATA_HEAD);
        let end = self.end.saturating_add(len as u64);
        if len as u64 > self.budget() || len > MAX_DATA {
            return Err(FlowError::OverCredit { end, limit: self.limit });
        }
        if len > 0 {
            self.end = end;
            self.kept.push_back(Kept { end, frame });
        }
        Ok(())
    }

    /// The application will send no more: FIN follows the last byte.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Whether [`SendHalf::poll_send`] has something.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.unsent < self.kept.len() || (self.closing && !self.fin_sent)
    }

    /// The next frame for the current carrier.
    pub fn poll_send(&mut self) -> Option<Out> {
        if let Some(k) = self.kept.get(self.unsent) {
            self.unsent += 1;
            return Some(Out::Data(k.frame.clone()));
        }
        if self.closing && !self.fin_sent {
            self.fin_sent = true;
            return Some(Out::Fin(self.end));
        }
        None
    }

    /// The first frame's bytes without its head, when it is still to be sent: they may travel in
    /// OPEN, and then count as sent.
    pub fn take_first(&mut self, most: usize) -> Option<Bytes> {
        let first = self.kept.front().filter(|_| self.unsent == 0 && self.acked == 0)?;
        let bytes = first.frame.get(DATA_HEAD..).filter(|b| b.len() <= most)?;
        let bytes = first.frame.slice_ref(bytes);
        self.unsent = 1;
        Some(bytes)
    }

    /// ACK: everything before `offset` arrived.
    ///
    /// # Errors
    /// [`FlowError::AckBeyond`].
    pub fn on_ack(&mut self, offset: u64) -> Result<(), FlowError> {
        // A frame that is not sent on this carrier may still arrive from the one before.
        if offset > self.end.saturating_add(u64::from(self.closing)) {
            return Err(FlowError::AckBeyond { offset, end: self.end });
        }
        self.acked = self.acked.max(offset);
        while self.kept.pop_front_if(|k| k.end <= offset).is_some() {
            self.unsent = self.unsent.saturating_sub(1);
        }
        Ok(())
    }

    /// CREDIT: never shrinks.
    pub fn on_credit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Another carrier: the peer has everything before `received`, the rest is sent again.
    ///
    /// # Errors
    /// Offsets that cannot be.
    pub(super) fn rewind(&mut self, received: u64) -> Result<(), FlowError> {
        if received < self.acked {
            return Err(FlowError::Backwards { received, acked: self.acked });
        }
        self.on_ack(received)?;
        self.repeat();
        Ok(())
    }

    pub(super) fn repeat(&mut self) {
        self.unsent = 0;
        self.fin_sent = false;
    }

    /// FIN left at least once: the application ended this direction.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.closing
    }
    /// FIN is acknowledged.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.closing && self.acked > self.end
    }
}
