//! The receiving direction: order, duplicates after a resume, and the credit given to the peer.

use std::ops::Range;

use super::{FlowError, INITIAL_WINDOW};

/// Bytes from the peer to the application. Holds offsets only; the bytes wait at the caller.
#[derive(Debug)]
pub struct RecvHalf {
    /// Offset behind the last byte that arrived in order.
    next: u64,
    /// Offset behind the last byte that the application's socket took.
    delivered: u64,
    window: u64,
    limit: u64,
    acked: u64,
    fin: Option<u64>,
    fin_delivered: bool,
}

impl RecvHalf {
    pub(super) fn new(window: u64) -> Self {
        let window = window.max(INITIAL_WINDOW);
        Self {
            next: 0,
            delivered: 0,
            window,
            limit: window,
            acked: 0,
            fin: None,
            fin_delivered: false,
        }
    }

    /// DATA arrived. Returns which part of it is new; empty for a repetition.
    ///
    /// # Errors
    /// A gap, more than the credit, or bytes behind the end.
    pub fn on_data(&mut self, offset: u64, len: usize) -> Result<Range<usize>, FlowError> {
        if offset > self.next {
            return Err(FlowError::Gap { have: self.next, got: offset });
        }
        let end = offset.saturating_add(len as u64);
        if let Some(fin) = self.fin.filter(|&fin| end > fin) {
            return Err(FlowError::AfterFin { end, fin });
        }
        if end > self.limit {
            return Err(FlowError::OverCredit { end, limit: self.limit });
        }
        let new = end.saturating_sub(self.next);
        self.next = self.next.max(end);
        // `new` is at most `len`, because `offset` is at most the old `next`.
        Ok(len.saturating_sub(usize::try_from(new).unwrap_or(len))..len)
    }

    /// FIN arrived. True the first time.
    ///
    /// # Errors
    /// It is not where the bytes end, or moved.
    pub fn on_fin(&mut self, offset: u64) -> Result<bool, FlowError> {
        match self.fin {
            Some(fin) if fin == offset => return Ok(false),
            Some(fin) => return Err(FlowError::AfterFin { end: offset, fin }),
            None if offset != self.next => {
                return Err(FlowError::Gap { have: self.next, got: offset });
            }
            None => self.fin = Some(offset),
        }
        Ok(true)
    }

    /// The application's socket took `n` more bytes.
    pub fn delivered(&mut self, n: usize) {
        self.delivered = self.delivered.saturating_add(n as u64).min(self.next);
    }

    /// The application's socket was told the end.
    pub fn fin_delivered(&mut self) {
        self.fin_delivered = true;
    }

    /// All bytes are delivered and only the end is left to tell the application.
    #[must_use]
    pub fn at_fin(&self) -> bool {
        self.fin == Some(self.delivered) && !self.fin_delivered
    }

    /// What a sender may drop: bytes and FIN that arrived.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.next.saturating_add(u64::from(self.fin.is_some()))
    }
    /// The credit given so far, as an offset.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }
    #[must_use]
    pub fn window(&self) -> u64 {
        self.window
    }
    /// Bytes that arrived in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.next
    }
    /// Bytes that wait for the application.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.next.saturating_sub(self.delivered)
    }

    /// Offset behind the last byte that the application's socket took.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.delivered
    }

    /// Widens the window; a smaller value changes nothing.
    pub fn widen(&mut self, window: u64) {
        self.window = self.window.max(window);
    }

    /// A new credit to send, once a quarter of the window became free. A reader that stalls frees
    /// nothing and so costs its own credit only.
    pub fn credit_due(&mut self) -> Option<u64> {
        let limit = self.delivered.saturating_add(self.window);
        if self.fin.is_some() || limit.saturating_sub(self.limit) < self.window / 4 {
            return None;
        }
        self.limit = limit;
        Some(limit)
    }

    /// An ACK to send: when FIN arrived, when a quarter of the window did, or (`any`) at all.
    pub fn ack_due(&mut self, any: bool) -> Option<u64> {
        let received = self.received();
        let new = received.saturating_sub(self.acked);
        let enough = any || self.fin.is_some() || new >= self.window / 4;
        if new == 0 || !enough {
            return None;
        }
        self.acked = received;
        Some(received)
    }
    /// Bytes arrived that no ACK told yet.
    #[must_use]
    pub fn owes_ack(&self) -> bool {
        self.received() > self.acked
    }

    #[must_use]
    pub fn has_fin(&self) -> bool {
        self.fin.is_some()
    }
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.fin_delivered
    }
}
