//! The advertised window, and when an update of it is sent by itself.
//!
//! [`AdvertisedWindow`] is the receiver's part of the sequence space: RCV.NXT and the right edge. The right
//! edge never moves left (RFC 9293, 3.8.6: "shrinking the window" is discouraged), and everything below it is
//! accepted. Rounding to the window scale is upward, so that the edge as the guest computes it does not move
//! left either; only a guest that fills the window with tiny segments against a blocked host socket sees it
//! rounded down, because the rounding would otherwise creep without bound.
//!
//! [`WindowUpdater`] repeats the update that reopens a closed window. Nothing acknowledges it; were it lost,
//! both sides would wait. So it is repeated, after a round trip and then at growing distances, until the
//! guest sends or a bounded number of times: a guest that has nothing more to send never moves.

use super::rtt::LinkRtt;
use crate::snapshot::saved::saved_struct;
use crate::snapshot::v1::{UpdaterV1, WindowV1};
use crate::time::Instant;
use crate::wire::tcp::{Seq, TcpFlags, TcpHeader};

/// Acknowledgement and right edge of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Advertised {
    /// Its acknowledgement.
    pub(crate) ack: Seq,
    /// The right edge of its window.
    pub(crate) edge: Seq,
}

/// Repetitions of an update that reopens a window.
const REPEATS_MAX: u8 = 6;

/// Acknowledgement and window as the guest knows them.
#[derive(Debug)]
pub(crate) struct AdvertisedWindow {
    /// Next sequence number expected (RCV.NXT).
    nxt: Seq,
    /// Right edge as last advertised (RCV.NXT + RCV.WND).
    edge: Seq,
    /// Last.ACK.sent (RFC 7323): RCV.NXT in the last segment that was sent.
    last_ack: Seq,
    /// Largest payload of a segment of the guest's, bytes: the unit of silly window avoidance.
    mss: u16,
    /// Our window scale (Rcv.Wind.Shift).
    scale: u8,
}

impl AdvertisedWindow {
    /// A closed window of a guest whose first sequence number is `irs`; `scale` is our window scale, `mss`
    /// the largest payload of a segment, bytes.
    pub(crate) fn new(irs: Seq, scale: u8, mss: u16) -> Self {
        debug_assert!(scale <= 14, "RFC 7323, 2.3: a shift count of at most 14");
        Self { nxt: irs + 1, edge: irs + 1, last_ack: irs, mss, scale }
    }

    /// Initial sequence number of the guest, at last: the window advertised by our SYN counts from there.
    pub(crate) fn begin(&mut self, irs: Seq, scale: u8, mss: u16) {
        let size = self.size();
        *self = Self { edge: irs + 1 + size, ..Self::new(irs, scale, mss) };
    }

    /// Goes on where another receiver has left off: with `nxt` expected, `edge` advertised together with
    /// `last_ack`.
    pub(crate) fn resume(&mut self, nxt: Seq, edge: Seq, last_ack: Seq) {
        debug_assert!(last_ack.le(nxt) && nxt.le(edge), "a checked seed");
        (self.nxt, self.edge, self.last_ack) = (nxt, edge, last_ack);
    }

    /// The same with this scale, of a connection that was recovered from a crash.
    pub(crate) fn recover(&mut self, nxt: Seq, edge: Seq, last_ack: Seq, scale: u8) {
        self.resume(nxt, edge, last_ack);
        self.scale = scale;
    }

    /// Next sequence number expected (RCV.NXT).
    pub(crate) fn nxt(&self) -> Seq {
        self.nxt
    }

    /// Largest payload of a segment, bytes.
    pub(crate) fn mss(&self) -> u16 {
        self.mss
    }

    /// Our window scale.
    pub(crate) fn scale(&self) -> u8 {
        self.scale
    }

    /// Granularity of advertised windows, bytes.
    pub(crate) fn unit(&self) -> u32 {
        1 << self.scale
    }

    /// Bytes that the guest may still send (RCV.WND).
    pub(crate) fn size(&self) -> u32 {
        debug_assert!(self.nxt.le(self.edge), "RCV.NXT is never beyond the right edge");
        (self.edge - self.nxt).max(0) as u32
    }

    /// Acknowledgement and right edge as last advertised.
    pub(crate) fn last_advertised(&self) -> Advertised {
        Advertised { ack: self.last_ack, edge: self.edge }
    }

    /// Arrival of `len` bytes in order, within the window.
    pub(crate) fn received(&mut self, len: u32) {
        debug_assert!(len <= self.size(), "{len} bytes accepted, {} advertised", self.size());
        self.nxt += len;
    }

    /// Arrival of FIN in order. It may lie just beyond the edge; it needs no window.
    pub(crate) fn received_fin(&mut self) {
        self.nxt += 1;
        if self.edge.lt(self.nxt) {
            self.edge = self.nxt;
        }
    }

    /// Window field that advances the edge to `free` bytes. Rounded down, so that the limit holds, but not to
    /// a window that nothing can be sent into, and not so far that it would fall behind the edge.
    pub(crate) fn advanced(&self, free: u32) -> u16 {
        let least = self.size().div_ceil(self.unit());
        self.field((free >> self.scale).max(least).max(1))
    }

    /// Window field that leaves the edge where it is. Rounding down would move the edge that the guest knows
    /// to the left, so it is rounded up, also after the limit has fallen, as long as the window and `held`
    /// bytes before it are no more than `slack` bytes. Beyond that it is rounded down, though bytes below the
    /// edge are still taken: only a guest that sends slivers to a host that does not read gets there.
    pub(crate) fn unmoved(&self, held: u32, slack: u32) -> u16 {
        let up = self.size().div_ceil(self.unit());
        self.field(if held + (up << self.scale) <= slack { up } else { self.size() >> self.scale })
    }

    fn field(&self, units: u32) -> u16 {
        let field = units.min(65_535);
        debug_assert!(
            (field << self.scale) + self.unit() > self.size(),
            "the right edge never moves left, but for rounding (RFC 9293, 3.8.6)"
        );
        field as u16
    }

    /// Transmission of a segment: its acknowledgement and window are binding from now on. True if they differ
    /// from the last ones.
    pub(crate) fn announced(&mut self, header: &TcpHeader) -> bool {
        debug_assert!(header.ack == self.nxt, "every segment acknowledges all that has arrived in order");
        debug_assert!(self.last_ack.le(header.ack), "acknowledgements never go back");
        let edge = self.edge_beside(header);
        let changed = edge != self.edge || self.last_ack != header.ack;
        (self.edge, self.last_ack) = (edge, header.ack);
        changed
    }

    /// Right edge as advertised once this segment was sent.
    pub(crate) fn edge_beside(&self, header: &TcpHeader) -> Seq {
        // RFC 7323, 2.2: the window field of a SYN is never scaled.
        let scale = if header.flags.contains(TcpFlags::SYN) { 0 } else { self.scale };
        let edge = header.ack + (u32::from(header.window) << scale);
        if edge.gt(self.edge) { edge } else { self.edge }
    }
}

/// Window scale of the guest (Snd.Wind.Shift), or that it offered none: one byte of each connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerScale(u8);

impl PeerScale {
    /// In place of a shift, which is 14 at most (RFC 7323, 2.3).
    const NOT_OFFERED: u8 = u8::MAX;

    /// The scale in the guest's SYN, if there was one.
    pub(crate) fn new(offered: Option<u8>) -> Self {
        Self(offered.unwrap_or(Self::NOT_OFFERED))
    }

    /// The scale, if the guest offered one.
    pub(crate) fn offered(self) -> Option<u8> {
        Some(self.0).filter(|&scale| scale != Self::NOT_OFFERED)
    }

    /// Shift of its windows.
    pub(crate) fn shift(self) -> u8 {
        self.offered().unwrap_or(0)
    }
}

/// Repetition of the update that reopens a closed window.
#[derive(Debug, Default)]
pub(crate) struct WindowUpdater {
    /// Time of the next repetition; `None` while there is nothing to repeat.
    at: Option<Instant>,
    /// Repetitions so far.
    repeats: u8,
}

impl WindowUpdater {
    /// Time at which [`WindowUpdater::expired`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.at
    }

    /// Update that reopens a closed window, just sent.
    pub(crate) fn reopened(&mut self, now: Instant, rtt: &LinkRtt) {
        self.repeated(0, now, rtt);
    }

    /// Update sent for the `repeats`th time.
    pub(crate) fn repeated(&mut self, repeats: u8, now: Instant, rtt: &LinkRtt) {
        debug_assert!(repeats <= REPEATS_MAX, "repetitions are bounded");
        *self = Self { at: Some(now + rtt.repeat_after(repeats)), repeats };
    }

    /// Data of the guest's: the update has arrived.
    pub(crate) fn data_arrived(&mut self) {
        self.at = None;
    }

    /// Deadline reached. Gives the number of the repetition that is due, unless it would be one too many.
    pub(crate) fn expired(&mut self) -> Option<u8> {
        debug_assert!(self.at.is_some(), "only an armed deadline expires");
        *self = Self { at: None, repeats: self.repeats.saturating_add(1) };
        (self.repeats <= REPEATS_MAX).then_some(self.repeats)
    }
}
saved_struct!(AdvertisedWindow as WindowV1 { nxt, edge, last_ack, mss, scale } if |window| {
    let size = window.edge - window.nxt;
    // No window is larger than its field can say with its scale (RFC 7323, 2.2).
    window.scale <= 14 && (0..=65_535 << window.scale).contains(&size) && window.last_ack.le(window.nxt)
});
saved_struct!(WindowUpdater as UpdaterV1 { at, repeats });
