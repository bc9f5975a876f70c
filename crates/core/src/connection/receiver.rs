//! The half of a connection that carries bytes from the guest to the host socket.
//!
//! In-order payload goes straight from the frame into the host socket, even from the guest's memory where the
//! link has left it there ([`Piece`]); bytes refused by the socket are kept in chunks and written when it has
//! room again. Nothing that arrives inside the advertised window is discarded because a write was partial.
//! Payload ahead of a gap waits in [`Reassembly`].
//!
//! The receive limit W (automatic, see [`crate::tcp::autosize`]) bounds how far the right edge of the window
//! ([`AdvertisedWindow`]) is advanced: `rcv_nxt + W - held`. A limit that falls takes effect by not
//! advancing. Two caps come on top: the memory cap, because window reservation commits memory before it is
//! used ([`crate::memory::chunk`]), and the TX queue budget, in frames, where the TX queue of the link drops
//! when full ([`crate::tx_queue`]).

mod gated;
mod messages;
mod promotion;
mod recovered;
mod snapshot;
mod tuning;

use crate::context::{Cx, Platform, Shared};
use crate::counters::DropReason;
use crate::flow::FlowId;
use crate::host::{Host, HostError, SEGMENTS_MAX, SocketId};
use crate::link::{Link, Piece, Unread};
use crate::memory::budget::Pressure;
use crate::memory::chunk::{ByteQueue, Cursor, Pool, SLICES_MAX};
use crate::memory::payload::{ByteStream, Origin};
use crate::policy::Named;
use crate::snapshot::saved::Saved;
use crate::tcp::autosize::{Changes, Limit};
use crate::tcp::delayed_ack::DelayedAck;
use crate::tcp::info::HalfInfo;
use crate::tcp::limiting_factor::LimitingClock;
use crate::tcp::prompt_peers::Promptness;
use crate::tcp::reassembly::{Full, Reassembly};
use crate::tcp::rtt::LinkRtt;
use crate::tcp::window::{Advertised, AdvertisedWindow, WindowUpdater};
use crate::time::Instant;
use crate::tx_queue::{TxQueueBudget, TxQueueShare};
use crate::wire::tcp::{SackBlock, SackBlocks, Seq, TcpHeader};
use gated::Gated;
use std::io::IoSlice;

/// Bytes that are read at a time of those that the link has left unread.
const READ_SIZE: usize = 16 << 10;

/// Origin of a byte of flow `id`.
const fn origin(flow: FlowId, seq: Seq) -> Origin {
    Origin { flow, stream: ByteStream::ToHost, seq }
}

/// State of the stream from the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReceiverState {
    /// FIN awaited: bytes may come.
    Open,
    /// FIN received; the host socket has not taken all bytes before it yet.
    Finishing,
    /// FIN passed on: all bytes are written and the host socket is shut down for writing, or it is gone.
    Finished,
}

/// Step that is due by [`Receiver::update_expired`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowStep {
    /// No update: the window is closed, or the update was repeated often enough.
    None,
    /// An update that says more, or a wait for memory.
    Update,
    /// Repetition of the last update, with its number.
    Repeat(u8),
}

/// The receiving half.
#[derive(Debug)]
pub(super) struct Receiver {
    state: ReceiverState,
    window: AdvertisedWindow,
    updater: WindowUpdater,
    rx_limit: Limit,
    /// Last arrival of data; behind the guest's FIN, the last time at which the host socket took some.
    data_at: Instant,
    /// In-order bytes that the host socket has not taken.
    queue: ByteQueue,
    gaps: Reassembly,
    /// Sequence number of a FIN that arrived, perhaps ahead of a gap.
    fin: Option<Seq>,
    /// Room in the host socket, as far as is known.
    writable: bool,
    /// The edge of the window stays where it is for now.
    frozen: bool,
    /// Listed in `Memory::windows`.
    memory_listed: bool,
    ack: DelayedAck,
    /// SACK permitted by the guest.
    sack: bool,
    /// Latest duplicate, to be reported in one D-SACK (RFC 2883); none if it is empty, which takes less room
    /// than an `Option`.
    duplicate: SackBlock,
    /// Share of the TX queue budget taken by the advertised window.
    tx_share: TxQueueShare,
    /// Limiting factor of the guest's sending.
    clock: LimitingClock,
    /// Bytes taken in order.
    bytes: u64,
    /// Window reserved in the memory budget, bytes.
    reserved: u32,
    /// Gate that reads the first bytes before they leave.
    gate: Option<Box<Gated>>,
    /// The server that the guest has named at a gate which is done.
    named: Option<Box<Named>>,
    /// A rate holds the guest back: the edge of the window stays where it is.
    held_by_rate: bool,
    /// Largest window under a rate, as an exponent of two.
    window_cap: u8,
    /// Nothing passes to the host socket: messages are taken by [`Receiver::next_message`].
    held_back: bool,
}

/// Exponent of a bound that no window reaches.
const NO_WINDOW_CAP: u8 = 31;

/// No duplicate to report.
const NO_DUPLICATE: SackBlock = SackBlock { left: Seq(0), right: Seq(0) };

/// Bounds of our windows, which depend on the guest's scaling.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receiving {
    /// Our window scale.
    pub(super) scale: u8,
    /// The receive limit.
    pub(super) limit: Limit,
}

impl Receiver {
    /// A receiver for a guest whose first sequence number is `irs` and whose link has room for segments of
    /// `mss_max` bytes; `promptness` is the record of its destination.
    pub(super) fn new(
        irs: Seq,
        receiving: Receiving,
        mss: u16,
        mss_max: u16,
        promptness: Promptness,
        now: Instant,
    ) -> Self {
        let Receiving { scale, limit: rx_limit } = receiving;
        Self {
            state: ReceiverState::Open,
            window: AdvertisedWindow::new(irs, scale, mss),
            updater: WindowUpdater::default(),
            rx_limit,
            data_at: now,
            queue: ByteQueue::new(),
            gaps: Reassembly::default(),
            fin: None,
            writable: false,
            frozen: false,
            memory_listed: false,
            ack: DelayedAck::new(promptness),
            sack: false,
            duplicate: NO_DUPLICATE,
            tx_share: TxQueueShare::new(mss_max),
            clock: LimitingClock::new(now),
            bytes: 0,
            reserved: 0,
            gate: None,
            named: None,
            held_back: false,
            held_by_rate: false,
            window_cap: NO_WINDOW_CAP,
        }
    }

    /// SYN-ACK of the guest to our active open: its sequence numbers, MSS and scaling are known at last. The
    /// window advertised by our SYN stands.
    pub(super) fn begin(&mut self, irs: Seq, receiving: Receiving, mss: u16, sack: bool) {
        debug_assert!(self.bytes == 0 && self.held() == 0, "nothing can arrive before the guest's SYN-ACK");
        let Receiving { scale, limit } = receiving;
        self.window.begin(irs, scale, mss);
        (self.rx_limit, self.sack) = (limit, sack);
    }

    /// SACK permitted by the guest's SYN (RFC 2018, section 2).
    pub(super) fn permit_sack(&mut self, sack: bool) {
        self.sack = sack;
    }

    /// State of the stream.
    pub(super) fn state(&self) -> ReceiverState {
        self.state
    }

    /// Whether bytes may come: no FIN was received.
    pub(super) fn is_open(&self) -> bool {
        self.state == ReceiverState::Open
    }

    /// Next sequence number expected (RCV.NXT).
    pub(super) fn nxt(&self) -> Seq {
        self.window.nxt()
    }

    /// Our window scale.
    pub(super) fn scale(&self) -> u8 {
        self.window.scale()
    }

    /// Bytes taken in order.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Acknowledgement owed to the guest.
    pub(super) fn ack(&self) -> &DelayedAck {
        &self.ack
    }

    /// Acknowledgement owed to the guest.
    pub(super) fn ack_mut(&mut self) -> &mut DelayedAck {
        &mut self.ack
    }

    /// Heap memory of the list of ranges ahead of gaps, bytes.
    pub(super) fn allocated(&self) -> usize {
        self.gaps.allocated()
    }

    /// Bytes held: in order and ahead of gaps.
    pub(super) fn held(&self) -> u32 {
        self.queue.len() + self.gaps.len()
    }

    /// Bytes the guest may still send (RCV.WND).
    pub(super) fn window(&self) -> u32 {
        self.window.size()
    }

    /// Memory cap of this direction, bytes.
    fn memory_cap(&self, shared: &Shared) -> u32 {
        shared.memory.pool.receive_cap(self.is_blocked())
    }

    /// Cap by the TX queue budget, bytes not held yet. If less than a segment is on offer it may be a segment
    /// more in any case: the rest of the window may be too small for the guest to send.
    ///
    /// A multiple of the unit of windows, rounded down: a whole number of frames rounded up would bring one
    /// more, of a few bytes. A single segment is rounded up, or it could not be sent.
    fn window_max(&self, shared: &Shared) -> u32 {
        let (window, mss, unit) = (self.window(), u32::from(self.window.mss()), self.window.unit());
        let least = if window < mss { window + mss } else { mss };
        let most = shared.tx.queue.window_max(self.tx_share, shared.tx.caps.tso, self.window.mss());
        (most - most % unit).max(least.next_multiple_of(unit))
    }

    /// Cap by memory and the TX queue budget, bytes.
    fn cap(&self, shared: &Shared) -> u32 {
        self.memory_cap(shared)
            .min(self.window_max(shared).min(1 << self.window_cap).saturating_add(self.held()))
    }

    /// Window field of a SYN: never scaled (RFC 7323, 2.2), and never less than in the SYN before it.
    pub(super) fn offer_unscaled(&self, shared: &Shared) -> u16 {
        self.rx_limit.get().min(self.cap(shared)).max(self.window()).min(65_535) as u16
    }

    /// Window field of the next segment: as far as the limit, memory, the TX queue and silly window avoidance
    /// allow. Binding only once it was sent ([`Receiver::announced`]).
    pub(super) fn offer(&self, shared: &Shared) -> u16 {
        let cap = self.cap(shared);
        let free = self.free(cap);
        if self.is_worth_advancing(free, cap) {
            self.window.advanced(free)
        } else {
            // Bytes beyond a gap lie inside the window and count there. An eighth more than could have been
            // offered anyway is the bound of upward rounding.
            self.window.unmoved(self.queue.len(), self.rx_limit.max() + self.rx_limit.max() / 8)
        }
    }

    /// Free bytes under the limit and `cap`.
    fn free(&self, cap: u32) -> u32 {
        self.rx_limit.get().min(cap).saturating_sub(self.held())
    }

    /// Whether the edge of the window stays where it is for now.
    fn is_edge_fixed(&self) -> bool {
        self.frozen || self.held_by_rate
    }

    /// Bounds the window, because a rate holds for what comes in it.
    pub(super) fn cap_window(&mut self, most: u32) {
        self.window_cap = most.max(1).ilog2() as u8;
    }

    /// Advances the window no further, or goes on.
    pub(super) fn hold_back(&mut self, on: bool) {
        self.held_by_rate = on;
    }

    /// Silly window avoidance (RFC 9293, 3.8.6.2.2): the window is advanced by at least a segment or half of
    /// what the connection may hold.
    fn is_worth_advancing(&self, free: u32, cap: u32) -> bool {
        let gain = i64::from(free) - i64::from(self.window());
        !self.is_edge_fixed()
            && gain >= i64::from(u32::from(self.window.mss()).min(self.rx_limit.get().min(cap) / 2).max(1))
    }

    /// Right edge as advertised once this segment was sent.
    pub(super) fn edge_beside(&self, header: &TcpHeader) -> Seq {
        self.window.edge_beside(header)
    }

    /// Transmission of a segment: its acknowledgement and window are binding from now on.
    pub(super) fn announced(&mut self, header: &TcpHeader, queue: &mut TxQueueBudget) {
        if self.window.announced(header) {
            let window = if self.is_open() { self.window() } else { 0 };
            queue.renew(&mut self.tx_share, window);
        }
        // SACK blocks go in a segment of their own; others leave it owed.
        let has_sack = !header.options.sack.is_empty();
        if has_sack {
            self.duplicate = NO_DUPLICATE;
        }
        self.ack.sent(!has_sack && self.has_sack_blocks());
    }

    /// Reserves memory for the bytes that the guest may still send. Called after every event that may have
    /// changed the window or the queue.
    pub(super) fn reserve_window(&mut self, pool: &mut Pool) {
        // After the guest's FIN nothing comes into what is left of the window.
        let window = if self.is_open() { self.window().saturating_sub(self.gaps.len()) } else { 0 };
        let now = if self.is_blocked() {
            window.saturating_sub(pool.room(&self.queue))
        } else {
            pool.counted(window)
        };
        debug_assert!(now <= window, "no more is reserved than the advertised window not yet held");
        if now != self.reserved {
            pool.reserve_window(self.reserved, now);
            self.reserved = now;
        }
    }

    /// Whether a window update by itself is due: the window could open by two segments or a quarter, or it
    /// was all but closed and need not be.
    fn is_update_due(&self, shared: &Shared) -> bool {
        let cap = self.cap(shared);
        let free = self.free(cap);
        let gain = i64::from(free) - i64::from(self.window());
        // After the guest's FIN there is nothing that a window would be for.
        self.is_open()
            && self.is_worth_advancing(free, cap)
            && (self.is_shut()
                || gain >= i64::from((2 * u32::from(self.window.mss())).max(self.rx_limit.get() / 4)))
    }

    /// Whether the window is all but closed: a guest that avoids silly windows may send nothing.
    pub(super) fn is_shut(&self) -> bool {
        self.is_shut_at(self.window())
    }

    fn is_shut_at(&self, window: u32) -> bool {
        window < u32::from(self.window.mss()).min(self.rx_limit.get() / 2)
    }

    /// Whether the window is shut, although the host socket has taken everything, and has to stay so.
    fn is_short_of_memory(&self, shared: &Shared) -> bool {
        self.is_open()
            && !self.is_edge_fixed()
            && !self.is_blocked()
            && self.is_shut()
            && self.memory_cap(shared) == 0
    }

    /// Whether a window update is due; if only memory stands against it, parks flow `id` for that.
    pub(super) fn update_window(&mut self, shared: &mut Shared, now: Instant, id: FlowId) -> bool {
        if self.is_update_due(shared) {
            return true;
        }
        if !self.is_short_of_memory(shared) {
            return false;
        }
        shared.memory.windows.stop(now, id, &mut self.memory_listed);
        self.is_update_due(shared)
    }

    /// Wake-up for memory; true if it was needed.
    pub(super) fn memory_freed(&mut self, shared: &Shared) -> bool {
        self.memory_listed = false;
        self.is_short_of_memory(shared)
    }

    /// Acknowledgement and right edge as last advertised.
    pub(super) fn last_advertised(&self) -> Advertised {
        self.window.last_advertised()
    }

    /// Transmission of a segment without payload; before it, `last` was advertised. True if it has updated
    /// the window and nothing else. An update that reopens the window is repeated.
    pub(super) fn was_window_update(&mut self, last: Advertised, now: Instant, rtt: &LinkRtt) -> bool {
        let Advertised { ack, edge } = last;
        if ack != self.nxt() || self.last_advertised().edge == edge {
            return false;
        }
        if self.is_shut_at((edge - ack).max(0) as u32) && !self.is_shut() {
            self.updater.reopened(now, rtt);
        }
        true
    }

    /// Time at which a window update is repeated, if it is.
    pub(super) fn update_deadline(&self) -> Option<Instant> {
        self.updater.deadline()
    }

    /// Deadline of the updater reached.
    pub(super) fn update_expired(&mut self, shared: &Shared) -> WindowStep {
        let repeat = self.updater.expired().filter(|_| self.is_open() && !self.is_shut());
        if self.is_update_due(shared) || self.is_short_of_memory(shared) {
            return WindowStep::Update;
        }
        repeat.map_or(WindowStep::None, WindowStep::Repeat)
    }

    /// Window update sent for the `repeats`th time.
    pub(super) fn update_repeated(&mut self, repeats: u8, now: Instant, rtt: &LinkRtt) {
        self.updater.repeated(repeats, now, rtt);
    }

    /// Takes payload at or above RCV.NXT, already trimmed to the window. True if it was in order.
    pub(super) fn accept<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        id: FlowId,
        socket: Option<SocketId>,
        seq: Seq,
        payload: &[u8],
    ) -> Result<bool, HostError> {
        debug_assert!(self.is_open() && seq.ge(self.nxt()), "payload is trimmed at RCV.NXT");
        if let Some(held) = self.gaps.held(seq, seq + payload.len() as u32) {
            self.note_duplicate(held);
        }
        if seq != self.nxt() {
            self.tx_share.measure(payload.len());
            if cx.shared.memory.pool.pressure() == Pressure::Spent {
                cx.shared.counters.drop(DropReason::MemoryBudget);
            } else if self.gaps.insert(&mut cx.shared.memory.pool, origin(id, seq), payload) == Err(Full) {
                cx.shared.counters.drop(DropReason::TooManyGaps);
            }
            return Ok(false);
        }
        let result = self.stream(cx, id, socket, &[Piece::read(payload)]);
        while let Some(bytes) = self.gaps.take(&mut cx.shared.memory.pool, self.nxt()) {
            self.window.received(bytes.len());
            self.bytes += u64::from(bytes.len());
            cx.shared.memory.pool.append(&mut self.queue, bytes);
        }
        if self.gate.is_some() {
            self.inspect(cx.shared, cx.now);
        }
        result.and_then(|()| self.flush(cx, id, socket)).map(|()| true)
    }

    /// Whether payload waits ahead of a gap.
    pub(super) fn has_gaps(&self) -> bool {
        !self.gaps.is_empty()
    }

    /// Bytes that the guest has sent again, not reported yet.
    fn duplicate(&self) -> Option<SackBlock> {
        Some(self.duplicate).filter(|block| block.left != block.right)
    }

    /// Duplicate: these bytes, which the guest has sent again.
    pub(super) fn note_duplicate(&mut self, duplicate: SackBlock) {
        debug_assert!(duplicate.left.lt(duplicate.right), "a duplicate of at least one byte");
        self.duplicate = duplicate;
    }

    /// Whether a SACK option is owed to the guest.
    pub(super) fn has_sack_blocks(&self) -> bool {
        self.sack && (self.duplicate().is_some() || !self.gaps.is_empty())
    }

    /// SACK option of the next segment: a duplicate is reported until a segment with it was sent
    /// ([`Receiver::announced`]), ranges ahead of gaps until they are in order.
    pub(super) fn sack_blocks(&self) -> SackBlocks {
        let mut blocks = SackBlocks::EMPTY;
        if !self.has_sack_blocks() {
            return blocks;
        }
        for block in self.duplicate().into_iter().chain(self.gaps.blocks(SackBlocks::MAX)) {
            blocks.push(block);
        }
        blocks
    }

    /// Whether payload in order would go straight to the host socket, as far as is known.
    pub(super) fn is_streaming(&self) -> bool {
        self.is_open()
            && self.writable
            && self.queue.is_empty()
            && self.gaps.is_empty()
            && self.fin.is_none()
            && self.gate.is_none()
            && !self.held_back
    }

    /// Takes payload in order, a piece for each frame: the host socket gets it at once, and the bytes that it
    /// refuses are kept.
    pub(super) fn stream<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        id: FlowId,
        socket: Option<SocketId>,
        payload: &[Piece<'_>],
    ) -> Result<(), HostError> {
        for frame in payload {
            self.tx_share.measure(frame.len());
        }
        let mut taken = 0;
        let mut result = Ok(());
        if self.queue.is_empty()
            && self.writable
            && self.gate.is_none()
            && !self.held_back
            && let Some(socket) = socket
        {
            match self.write_pieces(cx.host, socket, payload) {
                Ok(n) => taken = n,
                Err(error) => result = Err(error),
            }
        }
        let keep = cx.shared.memory.pool.pressure() < Pressure::Spent;
        for piece in payload {
            let direct = taken.min(piece.len());
            taken -= direct;
            cx.shared.counters.tcp_zero_copy_bytes += direct.saturating_sub(piece.bytes.len()) as u64;
            let rest = if keep { piece.skip(direct) } else { Piece::default() };
            let stored = self.keep(cx, origin(id, self.nxt() + direct as u32), rest);
            self.window.received((direct + stored) as u32);
            self.bytes += (direct + stored) as u64;
            if direct + stored < piece.len() {
                cx.shared.counters.drop(DropReason::MemoryBudget);
                break;
            }
        }
        result
    }

    /// Keeps the bytes of a piece at the end of the queue; the number kept, fewer only if memory is used up.
    fn keep<P: Platform>(&mut self, cx: &mut Cx<'_, P>, origin: Origin, piece: Piece<'_>) -> usize {
        let pool = &mut cx.shared.memory.pool;
        let kept = pool.push(&mut self.queue, Some(origin), piece.bytes);
        if kept < piece.bytes.len() || piece.unread.len == 0 {
            return kept;
        }
        kept + self.keep_unread(cx, origin.behind(kept), piece.unread)
    }

    /// [`Receiver::keep`] of unread bytes.
    fn keep_unread<P: Platform>(&mut self, cx: &mut Cx<'_, P>, origin: Origin, unread: Unread) -> usize {
        let mut buffer = [0; READ_SIZE];
        let mut kept = 0;
        loop {
            let read = cx.link.read(unread.skip(kept), &mut buffer);
            let pool = &mut cx.shared.memory.pool;
            let stored = pool.push(&mut self.queue, Some(origin.behind(kept)), &buffer[..read]);
            kept += stored;
            if stored < READ_SIZE {
                return kept;
            }
        }
    }

    /// FIN at `seq`; it takes effect when everything before it has arrived.
    pub(super) fn finish_at(&mut self, seq: Seq) {
        self.fin = Some(seq);
    }

    /// Whether the FIN has just become due; moves RCV.NXT over it.
    pub(super) fn take_fin(&mut self, shared: &mut Shared) -> bool {
        if !self.is_open() || self.fin != Some(self.nxt()) {
            return false;
        }
        self.window.received_fin();
        self.state = ReceiverState::Finishing;
        // Bytes beyond the guest's own FIN are no part of the stream.
        self.gaps.clear(&mut shared.memory.pool);
        true
    }

    /// Host socket connected, or writable again.
    pub(super) fn socket_writable(&mut self) {
        self.writable = true;
    }

    /// Writes queued bytes as far as the host socket takes them, then passes the FIN on.
    pub(super) fn flush<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        id: FlowId,
        socket: Option<SocketId>,
    ) -> Result<(), HostError> {
        let Some(socket) = socket.filter(|_| !self.held_back) else { return Ok(()) };
        while !self.queue.is_empty() && self.writable {
            let most = self.gate.as_ref().map_or(u32::MAX, |gate| gate.released());
            if most == 0 {
                return Ok(());
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let pool = &cx.shared.memory.pool;
            let (count, _, _) = pool.slices(&self.queue, Cursor::FRONT, most, &mut slices);
            let n = self.write(cx.host, socket, &slices[..count])?;
            if let Some(gate) = &mut self.gate {
                gate.written(n as u32);
            }
            cx.shared.memory.pool.consume(&mut self.queue, n as u32);
            if n > 0 && self.state == ReceiverState::Finishing {
                self.data_at = cx.now;
            }
        }
        if self.state == ReceiverState::Finishing && self.queue.is_empty() {
            debug_assert!(self.gaps.is_empty(), "all bytes before the FIN are passed on before it");
            self.state = ReceiverState::Finished;
            // Once both ends are shut down the kernel has no counters any more.
            cx.shared.journal.finished(id, self.state.save(), self.nxt());
            cx.host.tcp_shutdown(socket)?;
        }
        Ok(())
    }

    /// One write of payload as it came.
    fn write_pieces<H: Host>(
        &mut self,
        host: &mut H,
        socket: SocketId,
        payload: &[Piece<'_>],
    ) -> Result<usize, HostError> {
        if payload.iter().any(|piece| piece.unread.len > 0) {
            let offered = payload.iter().map(Piece::len).sum();
            return self.written(offered, host.tcp_send_pieces(socket, payload));
        }
        if let [piece] = payload {
            return self.write(host, socket, &[IoSlice::new(piece.bytes)]);
        }
        let mut slices = [IoSlice::new(&[]); SEGMENTS_MAX];
        let count = payload.len().min(SEGMENTS_MAX);
        for (slice, piece) in slices.iter_mut().zip(payload) {
            *slice = IoSlice::new(piece.bytes);
        }
        self.write(host, socket, &slices[..count])
    }

    /// One write.
    fn write<H: Host>(
        &mut self,
        host: &mut H,
        socket: SocketId,
        data: &[IoSlice<'_>],
    ) -> Result<usize, HostError> {
        let offered = data.iter().map(|s| s.len()).sum();
        self.written(offered, host.tcp_send(socket, data))
    }

    /// Result of a write; a socket that takes less than offered is full until the next event.
    fn written(&mut self, offered: usize, result: Result<usize, HostError>) -> Result<usize, HostError> {
        match result {
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
    pub(super) fn is_blocked(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether the guest has come so close to the edge of a window of at most `window_max` that it may hold
    /// the guest back.
    fn is_near_edge(&self, window_max: u32) -> bool {
        self.window() <= u32::from(self.window.mss()).max(self.rx_limit.get().min(window_max) / 8)
    }

    /// Whether the acknowledgement of a short segment in order may be delayed, so far as this half goes: a
    /// guest near the edge needs the window beside it, and one with gaps the SACK blocks.
    pub(super) fn may_delay_ack(&self, shared: &Shared) -> bool {
        self.ack.may_wait()
            && !self.has_gaps()
            && !self.has_sack_blocks()
            && !self.is_blocked()
            && (!self.is_open() || !self.is_near_edge(self.window_max(shared)))
    }

    /// Information on this direction at `now`.
    pub(super) fn info(&self, rtt: &LinkRtt, now: Instant) -> HalfInfo {
        let Changes { grows, shrinks } = self.rx_limit.changes();
        HalfInfo {
            limiting: self.limiting_times(rtt, now),
            limit: self.rx_limit.at(now),
            grows,
            shrinks,
            window: self.window(),
            held: self.held(),
            bytes: self.bytes,
        }
    }

    /// Gives all memory back.
    pub(super) fn clear(&mut self, shared: &mut Shared) {
        shared.tx.queue.renew(&mut self.tx_share, 0);
        shared.memory.pool.clear(&mut self.queue);
        self.gaps.clear(&mut shared.memory.pool);
        shared.memory.pool.reserve_window(std::mem::take(&mut self.reserved), 0);
        self.drop_gate(shared);
    }
}
