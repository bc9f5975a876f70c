//! The receiving half of the guest: acknowledgements, their timing, and the advertised window.
//!
//! As Linux does: an acknowledgement for every second full segment, at once for anything out of order and
//! during the first segments of a connection (quick acknowledgements), else after 40 ms. While the program
//! does not read, full segments are acknowledged at once only where the window would not fall behind the one
//! offered before (`__tcp_ack_snd_check`); a read acknowledges all bytes that have arrived
//! (`tcp_cleanup_rbuf`). SACK blocks name the newest stretch first; a segment that was there already is
//! reported first of all (RFC 2883). Payload is compared with the expected one on arrival and then discarded,
//! so that a receiver holds only numbers.
//!
//! Stream offsets are 64 bits and count from the first byte of payload.

use brodo_core::time::{Duration, Instant};

/// Maximum delay of an acknowledgement (TCP_DELACK_MIN).
const DELAYED_ACK: Duration = Duration::from_millis(40);
/// Segments acknowledged at once after the handshake (TCP_MAX_QUICKACKS).
const QUICK_ACKS: u32 = 16;
/// The window of a receiver whose buffer has no bound: as much as RFC 7323 can express, less a rounding.
const UNBOUNDED: u64 = 65_535 << 14;

/// The receiving half.
#[derive(Debug)]
pub(super) struct Receiver {
    /// Next offset expected.
    nxt: u64,
    /// Offset up to which the application has read.
    read: u64,
    /// Stretches beyond a gap, the one that arrived last first.
    ahead: Vec<(u64, u64)>,
    /// The duplicate to be reported in the next D-SACK.
    duplicate: Option<(u64, u64)>,
    buffer: Option<u64>,
    scale: u8,
    mss: u64,
    /// Right edge offered, and the window at the time of the offer.
    edge: u64,
    offered: u64,
    /// Bytes since the last acknowledgement.
    unacknowledged: u64,
    quick: u32,
    /// An acknowledgement is due now.
    now: bool,
    /// Deadline of a delayed acknowledgement, if one waits.
    delayed: Option<Instant>,
}

impl Receiver {
    /// A receiver with a buffer of so many bytes, or without bound.
    pub(super) fn new(buffer: Option<u64>, mss: u16) -> Self {
        let most = buffer.unwrap_or(UNBOUNDED);
        let scale = (0..14).find(|s| 65_535u64 << s >= most).unwrap_or(14);
        Self {
            nxt: 0,
            read: 0,
            ahead: Vec::new(),
            duplicate: None,
            buffer,
            scale,
            mss: mss.into(),
            edge: 0,
            offered: 0,
            unacknowledged: 0,
            quick: QUICK_ACKS,
            now: false,
            delayed: None,
        }
    }

    /// The window scale it asks for.
    pub(super) const fn scale(&self) -> u8 {
        self.scale
    }

    /// Next offset expected: all bytes before it have arrived.
    pub(super) const fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Bytes that have arrived in order and wait for the application.
    pub(super) const fn waiting(&self) -> u64 {
        self.nxt - self.read
    }

    /// The application reads up to `bytes`; returns the number read.
    pub(super) fn take(&mut self, bytes: u64) -> u64 {
        let n = bytes.min(self.waiting());
        self.read += n;
        // Window update as in tcp_cleanup_rbuf: when __tcp_select_window has at least doubled the window.
        let offered = self.edge.saturating_sub(self.nxt);
        let open = self.room();
        let opens = open >= 2 * offered && open >= offered + self.mss.min(self.whole() / 2);
        let owes = n > 0 && self.unacknowledged > self.mss;
        if self.buffer.is_some() && (opens || owes) {
            self.now = true;
        }
        n
    }

    /// A window probe or keep-alive of the peer.
    pub(super) fn acknowledge_now(&mut self) {
        self.now = true;
    }

    /// Takes the payload from `start` to `end`.
    pub(super) fn segment(&mut self, now: Instant, start: u64, end: u64) {
        if end <= self.nxt {
            self.duplicate = Some((start, end));
            self.now = true;
            return;
        }
        if start > self.nxt {
            self.set_ahead(start, end);
            self.now = true;
            return;
        }
        let before = self.nxt;
        self.nxt = end;
        if !self.ahead.is_empty() {
            self.join();
            self.now = true;
        }
        self.unacknowledged += self.nxt - before;
        let full = self.unacknowledged >= 2 * self.mss && self.room() >= self.offered.min(self.whole());
        if full || self.quick > 0 {
            (self.now, self.quick) = (true, self.quick.saturating_sub(1));
        } else if self.delayed.is_none() {
            self.delayed = Some(now + DELAYED_ACK);
        }
    }

    fn set_ahead(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if self.ahead.iter().any(|&(s, e)| s <= start && end <= e) {
            self.duplicate = Some((start, end));
        }
        self.ahead.retain(|&(s, e)| {
            let apart = e < start || end < s;
            if !apart {
                (start, end) = (start.min(s), end.max(e));
            }
            apart
        });
        self.ahead.insert(0, (start, end));
    }

    /// Moves the next expected offset over ranges joined by the bytes of a filled gap.
    fn join(&mut self) {
        while let Some(i) = self.ahead.iter().position(|&(s, _)| s <= self.nxt) {
            let (_, end) = self.ahead.remove(i);
            self.nxt = self.nxt.max(end);
        }
    }

    /// Deadline of a delayed acknowledgement.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.delayed
    }

    /// Whether to acknowledge now.
    pub(super) fn ack_due(&self, now: Instant) -> bool {
        self.now || self.delayed.is_some_and(|at| at <= now)
    }

    /// Window field and SACK blocks, newest first, of a departing acknowledgement.
    pub(super) fn acknowledge(&mut self) -> (u16, Vec<(u64, u64)>) {
        (self.now, self.delayed, self.unacknowledged) = (false, None, 0);
        self.edge = self.edge.max(self.nxt + self.room());
        let window = ((self.edge - self.nxt) >> self.scale).min(65_535) as u16;
        self.edge = self.nxt + (u64::from(window) << self.scale);
        self.offered = self.edge - self.nxt;
        let blocks = self.duplicate.take().into_iter().chain(self.ahead.iter().copied());
        (window, blocks.take(4).collect())
    }

    /// The window field of the SYN, which is not scaled (RFC 7323, 2.2).
    pub(super) fn syn_window(&self) -> u16 {
        self.whole().min(65_535) as u16
    }

    fn whole(&self) -> u64 {
        self.buffer.unwrap_or(UNBOUNDED)
    }

    fn room(&self) -> u64 {
        match self.buffer {
            None => UNBOUNDED,
            Some(buffer) => buffer.saturating_sub(self.waiting()),
        }
    }
}
