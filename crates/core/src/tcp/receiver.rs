//! The half of a connection that carries bytes from the guest to the host socket.
//!
//! In-order payload goes straight from the frame into the host socket; bytes refused by the socket are kept
//! in chunks and written when it has room again. Nothing that arrives inside the offered window is discarded
//! because a write was partial. Payload ahead of a gap waits in [`Reassembly`].
//!
//! The right edge of the window is a promise: it never moves left, and everything below it is accepted. The
//! limit W (automatic, see [`super::autosize`]) bounds how far it is advanced: `rcv_nxt + W - held`. A limit
//! that falls takes effect by not advancing. Rounding to the window scale is upward, so that the edge as the
//! guest computes it does not move left either; only a guest that fills the window with tiny segments against
//! a blocked host socket sees it rounded down, because the rounding would otherwise creep without bound.
//!
//! The advertised window is also bounded in frames, where the TX queue of the link drops when full
//! ([`crate::tx_queue`]).

use super::autosize::Limit;
use super::delayed_ack::DelayedAck;
use super::info::HalfInfo;
use super::limiting_factor::{LimitingClock, LimitingFactor};
use super::prompt_peers::Promptness;
use super::reassembly::{Full, Reassembly};
use crate::context::{Cx, Platform, Shared};
use crate::counters::DropReason;
use crate::egress::TxState;
use crate::host::{Host, HostError, SocketId};
use crate::memory::budget::Pressure;
use crate::memory::chunk::{ByteQueue, Pool, SLICES_MAX};
use crate::time::{Duration, Instant};
use crate::tx_queue::{TxQueueBudget, TxQueueShare};
use crate::wire::tcp::{SackBlocks, Seq, TcpFlags, TcpHeader};
use std::io::IoSlice;

/// Where the stream from the guest stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceiverState {
    /// Bytes may come.
    Open,
    /// The guest's FIN has arrived; the host socket has not taken all bytes yet.
    Finishing,
    /// Everything has been handed over and the host socket is shut down for writing, or it is gone.
    Finished,
}

#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) state: ReceiverState,
    /// Next sequence number expected (RCV.NXT).
    pub(crate) nxt: Seq,
    /// Right edge of the window as promised to the guest (RCV.NXT + RCV.WND).
    edge: Seq,
    /// Our window scale.
    pub(crate) scale: u8,
    pub(crate) rx_limit: Limit,
    /// RCV.NXT in the last segment that was sent.
    told: Seq,
    /// When the window is to be looked at or announced again although nothing has happened, and how often it
    /// was.
    pub(crate) update_at: Option<Instant>,
    pub(crate) updates: u8,
    /// When data last came.
    pub(crate) data_at: Instant,
    /// In-order bytes the host socket has not taken.
    queue: ByteQueue,
    gaps: Reassembly,
    /// Sequence number of a FIN that arrived, perhaps ahead of a gap.
    fin: Option<Seq>,
    /// The host socket takes bytes, as far as we know.
    pub(crate) writable: bool,
    /// Listed in `TcpShared::ack_due`.
    pub(crate) ack_listed: bool,
    /// Listed in `Memory::windows`.
    pub(crate) memory_listed: bool,
    /// Delayed ACK: the guest's request, and whether its acknowledgement waits for the answer.
    pub(crate) delayed_ack: DelayedAck,
    /// The guest understands selective acknowledgements.
    pub(crate) sack: bool,
    /// The latest duplicate, to be reported in one D-SACK (RFC 2883).
    duplicate: Option<(Seq, Seq)>,
    /// Share of the TX queue budget taken by the advertised window.
    claim: TxQueueShare,
    /// Limiting factor of the guest's sending.
    pub(crate) clock: LimitingClock,
    /// Bytes taken in order.
    pub(crate) bytes: u64,
    /// Reserved part of the window in the memory budget, bytes.
    reserved: u32,
}

impl Receiver {
    /// A receiver for a guest whose first sequence number is `irs` and whose segments carry up to `mss`
    /// bytes; `scale` is our window scale; `habit` is how its destination answers.
    pub(crate) fn new(irs: Seq, scale: u8, limit: Limit, mss: u16, habit: Promptness, now: Instant) -> Self {
        Self {
            state: ReceiverState::Open,
            nxt: irs + 1,
            edge: irs + 1,
            scale,
            rx_limit: limit,
            told: irs,
            update_at: None,
            updates: 0,
            data_at: now,
            queue: ByteQueue::new(),
            gaps: Reassembly::default(),
            fin: None,
            writable: false,
            ack_listed: false,
            memory_listed: false,
            delayed_ack: DelayedAck::new(habit),
            sack: false,
            duplicate: None,
            claim: TxQueueShare::new(mss),
            clock: LimitingClock::new(now),
            bytes: 0,
            reserved: 0,
        }
    }

    /// The guest's first sequence number is known at last. The window advertised by our SYN stands.
    pub(crate) fn begin(&mut self, irs: Seq, scale: u8, limit: Limit) {
        let window = self.window();
        (self.nxt, self.edge, self.told) = (irs + 1, irs + 1 + window, irs);
        (self.scale, self.rx_limit) = (scale, limit);
    }

    /// Bytes that the list of what is ahead of gaps takes.
    pub(crate) fn allocated(&self) -> usize {
        self.gaps.allocated()
    }

    /// Bytes held: in order and ahead of gaps.
    pub(crate) fn held(&self) -> u32 {
        self.queue.len() + self.gaps.len()
    }

    /// Bytes the guest may still send (RCV.WND).
    pub(crate) fn window(&self) -> u32 {
        (self.edge - self.nxt).max(0) as u32
    }

    /// The window field for a SYN: never scaled (RFC 7323, 2.2), and never less than in the SYN before it.
    pub(crate) fn offer_unscaled(&self, cap: u32) -> u16 {
        self.rx_limit.get().min(cap).max(self.window()).min(65_535) as u16
    }

    /// The largest window that the link's ring has room for. If less than a segment is on offer it may be a
    /// segment more in any case: the rest of the window may be too small for the guest to send.
    pub(crate) fn window_max(&self, tx: &TxState, mss: u16) -> u32 {
        let window = self.window();
        let rest = if window < u32::from(mss) { window + u32::from(mss) } else { 0 };
        let most = tx.queue.window_max(self.claim, tx.caps.tso, mss);
        most.max(rest).checked_next_multiple_of(1 << self.scale).unwrap_or(u32::MAX)
    }

    /// Reserves memory for the bytes that the guest may still send. Called after every event that may have
    /// changed the window or the queue.
    pub(crate) fn reserve_window(&mut self, pool: &mut Pool) {
        // After the guest's FIN nothing comes into what is left of the window.
        let open = self.state == ReceiverState::Open;
        let window = if open { self.window().saturating_sub(self.gaps.len()) } else { 0 };
        let now = if self.is_blocked() {
            window.saturating_sub(pool.room(&self.queue))
        } else {
            pool.counted(window)
        };
        if now != self.reserved {
            pool.reserve_window(self.reserved, now);
            self.reserved = now;
        }
    }

    /// The window field of the next segment: as far as the limit, `cap` (what memory leaves) and silly
    /// window avoidance allow. It is a promise only when it has been sent ([`Receiver::announced`]).
    pub(crate) fn offer(&self, cap: u32, mss: u16) -> u16 {
        let free = self.free(cap);
        let field = if self.worth_advancing(free, cap, mss) {
            // Rounded down, so that the limit holds, but not to a window that nothing can be sent into, and
            // not so far that it would fall behind what was promised.
            let least = self.window().div_ceil(1 << self.scale);
            (free >> self.scale).max(least).max(1)
        } else {
            self.unmoved()
        };
        field.min(65_535) as u16
    }

    /// The window field that leaves the edge where it is. Rounding down would move the edge that the guest
    /// knows to the left, so it is rounded up, also after the limit has fallen. Only a guest that sends
    /// slivers to a host that does not read gets here with more than an eighth above what it could have been
    /// offered anyway; to bound it, the edge is then rounded down, though what lies below is still taken.
    /// Bytes beyond a gap lie inside the window and count there.
    fn unmoved(&self) -> u32 {
        let window = self.window();
        let up = window.div_ceil(1 << self.scale);
        let slack = self.rx_limit.max() + self.rx_limit.max() / 8;
        if self.queue.len() + (up << self.scale) <= slack { up } else { window >> self.scale }
    }

    /// A segment was sent: its window is binding from now on.
    pub(crate) fn announced(&mut self, header: &TcpHeader, slots: &mut TxQueueBudget) {
        let scale = if header.flags.contains(TcpFlags::SYN) { 0 } else { self.scale };
        let edge = header.ack + (u32::from(header.window) << scale);
        let moved = edge.gt(self.edge);
        if moved {
            self.edge = edge;
        }
        if moved || self.told != header.ack {
            let window = if self.state == ReceiverState::Open { self.window() } else { 0 };
            slots.claim(&mut self.claim, window, 1 << self.scale);
        }
        self.told = header.ack;
    }

    /// Last advertised acknowledgement and right edge: RCV.NXT and the right edge.
    pub(crate) fn told(&self) -> (Seq, Seq) {
        (self.told, self.edge)
    }

    /// Whether an update on its own is due: the window could open by two segments or a quarter, or it was all
    /// but closed and need not be.
    pub(crate) fn update_due(&self, cap: u32, mss: u16) -> bool {
        let free = self.free(cap);
        let gain = i64::from(free) - i64::from(self.window());
        // After the guest's FIN there is nothing that a window would be for.
        self.state == ReceiverState::Open
            && self.worth_advancing(free, cap, mss)
            && (self.is_shut(mss) || gain >= i64::from((2 * u32::from(mss)).max(self.rx_limit.get() / 4)))
    }

    /// Whether the window is all but closed: a guest that avoids silly windows may send nothing.
    pub(crate) fn is_shut(&self, mss: u16) -> bool {
        self.window() < u32::from(mss).min(self.rx_limit.get() / 2)
    }

    /// Free bytes under the limit and the memory budget.
    fn free(&self, cap: u32) -> u32 {
        self.rx_limit.get().min(cap).saturating_sub(self.held())
    }

    /// Silly window avoidance (RFC 9293, 3.8.6.2.2): by at least a segment or half of what the connection may
    /// hold.
    fn worth_advancing(&self, free: u32, cap: u32, mss: u16) -> bool {
        let gain = i64::from(free) - i64::from(self.window());
        gain >= i64::from(u32::from(mss).min(self.rx_limit.get().min(cap) / 2).max(1))
    }

    /// Takes payload at or above RCV.NXT, already trimmed to the window. True if it was in order.
    pub(crate) fn accept<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        socket: Option<SocketId>,
        seq: Seq,
        payload: &[u8],
    ) -> Result<bool, HostError> {
        if let Some((start, end)) = self.gaps.held(seq, seq + payload.len() as u32) {
            self.note_duplicate(start, end);
        }
        if seq != self.nxt {
            self.claim.measure(payload.len());
            if cx.shared.memory.pool.pressure() == Pressure::Spent {
                cx.shared.counters.drop(DropReason::MemoryBudget);
            } else if self.gaps.insert(&mut cx.shared.memory.pool, seq, payload) == Err(Full) {
                cx.shared.counters.drop(DropReason::TooManyGaps);
            }
            return Ok(false);
        }
        let result = self.stream(cx, socket, &[IoSlice::new(payload)]);
        while let Some(bytes) = self.gaps.take(&mut cx.shared.memory.pool, self.nxt) {
            self.nxt += bytes.len();
            self.bytes += u64::from(bytes.len());
            cx.shared.memory.pool.append(&mut self.queue, bytes);
        }
        result.and_then(|()| self.flush(cx, socket)).map(|()| true)
    }

    /// Whether something waits behind a gap.
    pub(crate) fn has_gaps(&self) -> bool {
        !self.gaps.is_empty()
    }

    /// Notes that the guest has sent again what lies between `start` and `end`.
    pub(crate) fn note_duplicate(&mut self, start: Seq, end: Seq) {
        self.duplicate = Some((start, end));
    }

    /// Whether there is something to tell the guest in a SACK option.
    pub(crate) fn has_sack_blocks(&self) -> bool {
        self.sack && (self.duplicate.is_some() || !self.gaps.is_empty())
    }

    /// The SACK option of the next segment: a duplicate is reported once, ranges behind gaps until they are
    /// in order.
    pub(crate) fn take_sack_blocks(&mut self) -> SackBlocks {
        let mut blocks = SackBlocks::EMPTY;
        if !self.has_sack_blocks() {
            return blocks;
        }
        if let Some((start, end)) = self.duplicate.take() {
            blocks.push(start, end);
        }
        for (start, end) in self.gaps.blocks(SackBlocks::MAX) {
            blocks.push(start, end);
        }
        blocks
    }

    /// Whether payload in order would go straight to the host socket, as far as we know.
    pub(crate) fn is_streaming(&self) -> bool {
        self.state == ReceiverState::Open && self.writable && self.queue.is_empty() && self.gaps.is_empty()
    }

    /// Takes payload in order, a slice for each frame: the host socket gets it at once, and what it refuses
    /// is kept.
    pub(crate) fn stream<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        socket: Option<SocketId>,
        payload: &[IoSlice<'_>],
    ) -> Result<(), HostError> {
        for frame in payload {
            self.claim.measure(frame.len());
        }
        let mut taken = 0;
        let mut result = Ok(());
        if self.queue.is_empty()
            && self.writable
            && let Some(socket) = socket
        {
            match self.write(cx.host, socket, payload) {
                Ok(n) => taken = n,
                Err(error) => result = Err(error),
            }
        }
        let keep = cx.shared.memory.pool.pressure() < Pressure::Spent;
        for slice in payload {
            let direct = taken.min(slice.len());
            taken -= direct;
            let stored = if keep { cx.shared.memory.pool.push(&mut self.queue, &slice[direct..]) } else { 0 };
            self.nxt += (direct + stored) as u32;
            self.bytes += (direct + stored) as u64;
            if direct + stored < slice.len() {
                cx.shared.counters.drop(DropReason::MemoryBudget);
                break;
            }
        }
        result
    }

    /// Notes a FIN at `seq`; it takes effect when everything before it has arrived.
    pub(crate) fn finish_at(&mut self, seq: Seq) {
        self.fin = Some(seq);
    }

    /// Whether the FIN has just become due; moves RCV.NXT over it.
    pub(crate) fn take_fin(&mut self, shared: &mut Shared) -> bool {
        if self.state != ReceiverState::Open || self.fin != Some(self.nxt) {
            return false;
        }
        self.nxt += 1;
        // The FIN may lie just beyond the edge; it needs no window.
        if self.edge.lt(self.nxt) {
            self.edge = self.nxt;
        }
        self.state = ReceiverState::Finishing;
        // Nothing can follow, so what a guest has sent beyond its FIN is no part of the stream.
        self.gaps.clear(&mut shared.memory.pool);
        true
    }

    /// Writes what is queued as far as the host socket takes it, then hands over the FIN.
    pub(crate) fn flush<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        socket: Option<SocketId>,
    ) -> Result<(), HostError> {
        let Some(socket) = socket else { return Ok(()) };
        while !self.queue.is_empty() && self.writable {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let front = crate::memory::chunk::Cursor::FRONT;
            let (count, _, _) = cx.shared.memory.pool.slices(&self.queue, front, u32::MAX, &mut slices);
            let n = self.write(cx.host, socket, &slices[..count])?;
            cx.shared.memory.pool.consume(&mut self.queue, n as u32);
        }
        if self.state == ReceiverState::Finishing && self.queue.is_empty() {
            self.state = ReceiverState::Finished;
            cx.host.tcp_shutdown(socket)?;
        }
        Ok(())
    }

    /// One write; a socket that takes less than offered is full until the next event.
    fn write<H: Host>(
        &mut self,
        host: &mut H,
        socket: SocketId,
        data: &[IoSlice<'_>],
    ) -> Result<usize, HostError> {
        let offered: usize = data.iter().map(|s| s.len()).sum();
        match host.tcp_send(socket, data) {
            Ok(n) => {
                self.writable = n == offered;
                Ok(n.min(offered))
            }
            Err(HostError::WouldBlock) => {
                self.writable = false;
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the host socket has left us holding bytes in order.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether the guest has come so close to the edge of a window that may be `window_max` that it may hold
    /// it back.
    pub(crate) fn is_near_edge(&self, window_max: u32, mss: u16) -> bool {
        self.window() <= u32::from(mss).max(self.rx_limit.get().min(window_max) / 8)
    }

    /// A guest that our limit held back and that has sent nothing for `quiet` had nothing to send: since
    /// when.
    pub(crate) fn idle_since(&self, now: Instant, quiet: Duration) -> Option<Instant> {
        let (by, since) = self.clock.current();
        let idle = self.data_at.max(since) + quiet;
        (matches!(by, LimitingFactor::OurLimit | LimitingFactor::Link) && idle < now).then_some(idle)
    }

    /// Information on this direction at `now`; for `quiet` see [`Receiver::idle_since`].
    pub(crate) fn info(&self, now: Instant, quiet: Duration) -> HalfInfo {
        let (grows, shrinks) = self.rx_limit.changes();
        let mut clock = self.clock;
        if let Some(idle) = self.idle_since(now, quiet) {
            clock.set(idle, LimitingFactor::Application);
        }
        HalfInfo {
            limiting: clock.read(now),
            limit: self.rx_limit.at(now),
            grows,
            shrinks,
            window: self.window(),
            held: self.held(),
            bytes: self.bytes,
        }
    }

    /// Gives all memory back.
    pub(crate) fn clear(&mut self, shared: &mut Shared) {
        shared.tx.queue.claim(&mut self.claim, 0, 1);
        shared.memory.pool.clear(&mut self.queue);
        self.gaps.clear(&mut shared.memory.pool);
        shared.memory.pool.reserve_window(std::mem::take(&mut self.reserved), 0);
    }
}
