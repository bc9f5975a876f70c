//! The half of a connection that carries bytes from the host socket to the guest.
//!
//! Bytes are read from the host socket just in time, at most what the guest's window and the send limit L let
//! us send now, and kept in chunks until the guest has acknowledged them. Data that cannot be sent soon stays
//! in the host's kernel, which closes the peer's window: back pressure end to end.
//!
//! Ranges in flight are recorded on the [`Scoreboard`] until they are acknowledged; acknowledgements and loss
//! recovery are in [`recovery`]. A closed window is probed with the same timer.

mod gated;
mod promotion;
mod recovered;
mod recovery;
mod snapshot;

use crate::context::{Cx, Platform, Shared};
use crate::flow::FlowId;
use crate::host::{Host, HostError, Readiness, SocketId};
use crate::memory::budget::{Need, Pressure};
use crate::memory::chunk::{ByteQueue, Cursor, Filled, Pool, SLICES_MAX};
use crate::tcp::autosize::{Change, Changes, Limit};
use crate::tcp::host_stream::HostStream;
use crate::tcp::info::HalfInfo;
use crate::tcp::limiting_factor::{FactorChange, LimitingClock, LimitingFactor};
use crate::tcp::rack::Rack;
use crate::tcp::scoreboard::Scoreboard;
use crate::tcp::window::PeerScale;
use crate::time::Instant;
use crate::wire::tcp::{Seq, TcpFlags, TcpHeader};
use recovered::Doubt;
pub(super) use recovery::DUP_ACKS;
use recovery::{Recovery, Undo};
use std::io::IoSlice;

/// Time-outs in a row after which the guest is taken to be gone: as many as Linux (tcp_retries2), about 9
/// minutes.
const BACKOFF_MAX: u8 = 15;

/// Retransmissions of a SYN or SYN-ACK before we give up: Linux's tcp_synack_retries. With our time-outs that
/// takes 14 s on a link of a round trip that is known, and not Linux's 63 from a first one of a second. A
/// guest kernel that answers nothing for so long stands still and has lost nothing by it: its program still
/// waits in connect, and the SYN that it sends again when it goes on opens another connection. Meanwhile no
/// host socket is kept for one that never comes back.
const SYN_RETRIES: u8 = 5;

/// State of the stream to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SenderState {
    /// Host socket not connected yet: nothing has been sent.
    Connecting,
    /// SYN sent (active open), and the guest has not answered.
    SynSent,
    /// SYN-ACK sent, not acknowledged.
    SynAckSent,
    /// Synchronised: bytes may be sent.
    Open,
    /// FIN sent, not acknowledged.
    FinSent,
    /// FIN acknowledged, or the guest takes no more.
    Finished,
}

impl SenderState {
    /// Legal transitions.
    fn may_become(self, next: Self) -> bool {
        use SenderState as S;
        match self {
            S::Connecting => matches!(next, S::SynSent | S::SynAckSent),
            S::SynSent => next == S::SynAckSent,
            S::SynAckSent => next == S::Open,
            S::Open => matches!(next, S::FinSent | S::Finished),
            S::FinSent | S::Finished => next == S::Finished,
        }
    }
}

/// Purpose of the sender's timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timer {
    /// Retransmission time-out: without an acknowledgement the first segment is sent again (RFC 6298).
    Retransmit,
    /// Tail loss probe: without an acknowledgement the last segment is sent again (RFC 8985, section 7).
    TailProbe,
    /// Reordering window: a segment still missing at its end is lost (RFC 8985, 6.2).
    Reorder,
    /// Zero-window probe (RFC 9293, 3.8.6.1).
    Window,
}

/// Options of the guest's SYN.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerOptions {
    /// Largest payload it takes in a segment, bytes.
    pub(super) mss: u16,
    /// Its window scale, if it offered one.
    pub(super) scale: Option<u8>,
    /// SACK permitted.
    pub(super) sack: bool,
}

/// Payload of a segment that is about to be sent, as slices of chunk memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// First sequence number.
    pub(super) seq: Seq,
    /// Slices that were filled.
    pub(super) slices: usize,
    /// Payload, bytes.
    pub(super) bytes: u32,
    /// FIN behind the payload.
    pub(super) fin: bool,
    /// PSH: the last byte that was read from the host socket.
    pub(super) push: bool,
    /// Place behind the payload.
    after: Cursor,
}

impl Piece {
    /// Sequence space: the payload, and FIN.
    pub(super) fn len(&self) -> u32 {
        self.bytes + u32::from(self.fin)
    }

    /// Flags of the segment.
    pub(super) fn flags(&self) -> TcpFlags {
        let mut flags = TcpFlags::ACK;
        if self.push {
            flags |= TcpFlags::PSH;
        }
        if self.fin {
            flags |= TcpFlags::FIN;
        }
        flags
    }
}

/// The sending half.
#[derive(Debug)]
pub(super) struct Sender {
    state: SenderState,
    /// Oldest unacknowledged sequence number (SND.UNA).
    una: Seq,
    /// Next sequence number to be sent (SND.NXT).
    nxt: Seq,
    /// Window of the guest, bytes (SND.WND), and the largest that it ever offered.
    wnd: u32,
    wnd_max: u32,
    /// Sequence and acknowledgement number of the last window update (SND.WL1, SND.WL2).
    wl1: Seq,
    wl2: Seq,
    peer_scale: PeerScale,
    /// Largest payload of a segment, bytes (SND.MSS, without options).
    mss: u16,
    tx_limit: Limit,
    /// Memory cap of this direction, bytes.
    memory_cap: u32,
    /// Bytes read from the host socket and not acknowledged: from `una` on.
    queue: ByteQueue,
    /// Place of `nxt` in the queue.
    cursor: Cursor,
    stream: HostStream,
    /// Nothing is read from the host socket for now.
    paused: bool,
    /// A rate holds the host's bytes back.
    held_by_rate: bool,
    /// Doubt about what the guest has, after a crash or a reset.
    doubt: Option<Doubt>,
    /// Parked: memory for a read was not available, and no wake-up has come since.
    short_of_memory: bool,
    /// Listed in `Memory::reads`.
    memory_listed: bool,
    /// Timed segment: its end, and when it was sent.
    timed: Option<(Seq, Instant)>,
    /// The running timer and its deadline.
    timer: Option<(Instant, Timer)>,
    /// Expiries of the retransmission or probe timer in a row.
    backoff: u8,
    /// Everything between `una` and `nxt`, but for a SYN.
    board: Scoreboard,
    rack: Rack,
    /// SACK permitted by the guest.
    sack: bool,
    /// Duplicate acknowledgements in a row of a guest without SACK.
    dup_acks: u8,
    /// Loss being repaired.
    recovery: Option<Recovery>,
    /// State to restore if the last recovery was spurious.
    undo: Option<Undo>,
    /// SND.NXT when a tail loss probe was sent; until it is acknowledged.
    tail_probe: Option<Seq>,
    /// Limiting factor of sending.
    clock: LimitingClock,
    /// Bytes acknowledged.
    bytes: u64,
    /// Retransmitted segments.
    retransmissions: u32,
}

impl Sender {
    /// A sender whose first sequence number is `iss`.
    pub(super) fn new(iss: Seq, peer: PeerOptions, tx_limit: Limit, now: Instant) -> Self {
        Self {
            state: SenderState::Connecting,
            una: iss,
            nxt: iss,
            wnd: 0,
            wnd_max: 0,
            wl1: Seq(0),
            wl2: Seq(0),
            peer_scale: PeerScale::new(peer.scale),
            mss: peer.mss,
            tx_limit,
            memory_cap: u32::MAX,
            queue: ByteQueue::new(),
            cursor: Cursor::FRONT,
            stream: HostStream::default(),
            paused: false,
            held_by_rate: false,
            doubt: None,
            short_of_memory: false,
            memory_listed: false,
            timed: None,
            timer: None,
            backoff: 0,
            board: Scoreboard::default(),
            rack: Rack::default(),
            sack: peer.sack,
            dup_acks: 0,
            recovery: None,
            undo: None,
            tail_probe: None,
            clock: LimitingClock::new(now),
            bytes: 0,
            retransmissions: 0,
        }
    }

    /// State of the stream.
    pub(super) fn state(&self) -> SenderState {
        self.state
    }

    fn enter(&mut self, next: SenderState) {
        debug_assert!(self.state.may_become(next), "from {:?} to {next:?}", self.state);
        self.state = next;
    }

    /// Oldest unacknowledged sequence number (SND.UNA).
    pub(super) fn una(&self) -> Seq {
        self.una
    }

    /// Next sequence number to be sent (SND.NXT).
    pub(super) fn nxt(&self) -> Seq {
        self.nxt
    }

    /// Largest payload of a segment, bytes.
    pub(super) fn mss(&self) -> u16 {
        self.mss
    }

    /// Whether the guest offered window scaling.
    pub(super) fn peer_scales(&self) -> bool {
        self.peer_scale.offered().is_some()
    }

    /// Whether the guest permitted SACK.
    pub(super) fn peer_permits_sack(&self) -> bool {
        self.sack
    }

    /// Bytes acknowledged.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Retransmitted segments.
    pub(super) fn add_retransmissions(&mut self, more: u32) {
        self.retransmissions = self.retransmissions.saturating_add(more);
    }

    pub(super) fn retransmissions(&self) -> u32 {
        self.retransmissions
    }

    /// Heap memory of the scoreboard, bytes.
    pub(super) fn allocated(&self) -> usize {
        self.board.allocated()
    }

    /// Whether the host socket is not connected yet.
    pub(super) fn is_connecting(&self) -> bool {
        self.state == SenderState::Connecting
    }

    /// Whether a SYN of ours, with or without an acknowledgement of its own, awaits that of the guest.
    pub(super) fn is_shaking_hands(&self) -> bool {
        matches!(self.state, SenderState::SynAckSent | SenderState::SynSent)
    }

    /// Whether bytes may be sent: the guest has acknowledged our SYN, and our FIN was not sent.
    pub(super) fn is_open(&self) -> bool {
        self.state == SenderState::Open
    }

    /// Whether a SYN of ours is due: the link had no credit for the first.
    pub(super) fn is_syn_due(&self) -> bool {
        self.is_shaking_hands() && self.nxt == self.una
    }

    /// Whether `ack` acknowledges our SYN.
    pub(super) fn is_syn_acked_by(&self, ack: Seq) -> bool {
        debug_assert!(self.is_shaking_hands(), "only a SYN is in flight");
        ack == self.nxt && self.nxt != self.una
    }

    /// Sequence space in flight: bytes, and SYN or FIN.
    pub(super) fn in_flight(&self) -> u32 {
        debug_assert!(self.una.le(self.nxt), "SND.UNA is never beyond SND.NXT");
        (self.nxt - self.una) as u32
    }

    /// Bytes read from the host and not sent.
    pub(super) fn unsent(&self) -> u32 {
        self.queue.len().saturating_sub(self.in_flight())
    }

    /// Most bytes in flight and to be read: the limit, or what memory leaves of it.
    fn flight_max(&self) -> u32 {
        self.tx_limit.get().min(self.memory_cap)
    }

    /// Bytes that the guest's window and our limit still allow in flight.
    pub(super) fn usable(&self) -> u32 {
        self.wnd.min(self.tx_limit.get()).saturating_sub(self.in_flight())
    }

    /// Start of an active open, with SYN as the first segment.
    pub(super) fn begin_active_open(&mut self) {
        self.enter(SenderState::SynSent);
    }

    /// Host socket connected: SYN-ACK is the first segment.
    pub(super) fn connected(&mut self) {
        self.enter(SenderState::SynAckSent);
    }

    /// SYN-ACK of the guest to our active open.
    pub(super) fn syn_acked(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        syn_ack: &TcpHeader,
        peer: PeerOptions,
    ) {
        self.peer_scale = PeerScale::new(peer.scale);
        (self.mss, self.sack) = (peer.mss, peer.sack);
        self.open_window(syn_ack);
        self.enter(SenderState::SynAckSent);
        self.acknowledge(shared, now, syn_ack, false);
        // RFC 7323, 2.2: the window field of a SYN is never scaled.
        self.open_window(syn_ack);
    }

    /// Window with which the guest opened (in its SYN: unscaled).
    pub(super) fn open_window(&mut self, segment: &TcpHeader) {
        self.wnd = u32::from(segment.window);
        self.wnd_max = self.wnd;
        self.wl1 = segment.seq;
        self.wl2 = segment.ack;
    }

    /// Whether the guest's window is closed.
    pub(super) fn is_window_closed(&self) -> bool {
        self.wnd == 0
    }

    /// Whether an acknowledgement number is acceptable (RFC 5961, 5.2: "((SND.UNA - MAX.SND.WND) <= SEG.ACK
    /// <= SND.NXT)"), also that of bytes sent before a crash.
    pub(super) fn is_ack_acceptable(&self, ack: Seq) -> bool {
        ack.le(self.acknowledged_max()) && (self.una - ack) <= self.wnd_max.min(i32::MAX as u32) as i32
    }

    /// Window of the newest segment (RFC 9293, 3.10.7.4). One that acknowledges something new is newer than
    /// any before it, even as a repetition with an old sequence number: SND.UNA moves, so the old window
    /// would reach further than the guest has offered. One with an old acknowledgement offers less than it
    /// says.
    fn take_window(&mut self, segment: &TcpHeader) {
        let newer = segment.ack.gt(self.una)
            || (segment.ack == self.una && self.wl1.lt(segment.seq))
            || (segment.ack == self.una && self.wl1 == segment.seq && self.wl2.le(segment.ack));
        if newer {
            self.wnd = u32::from(segment.window) << self.peer_scale.shift();
            self.wnd_max = self.wnd_max.max(self.wnd);
            self.wl1 = segment.seq;
            self.wl2 = segment.ack;
        }
    }

    /// Readiness event of the host socket.
    pub(super) fn socket_event(&mut self, ready: Readiness) {
        self.stream.event(ready);
    }

    /// Failure of the host socket on a write: what can still be read of it goes to the guest, which has time
    /// for that from now on.
    pub(super) fn read_rest(&mut self) {
        self.stream.read_rest();
        self.forget_probes();
    }

    /// Failure of the host socket on a read: no more can be read of it.
    pub(super) fn stop_reading(&mut self) {
        self.stream.was_empty();
        self.forget_probes();
    }

    /// Forgets probes of a closed window, which a guest that reads nothing for a while has caused. Time-outs
    /// of what is in flight still double (RFC 6298, 5.5), and those of a connection that is lost count.
    fn forget_probes(&mut self) {
        if matches!(self.timer, Some((_, Timer::Window))) && !self.is_lost() {
            self.backoff = 0;
        }
    }

    /// Error behind the end of the host's stream ([`HostStream::take_error_behind_end`]).
    pub(super) fn take_error_behind_end(&mut self) -> bool {
        self.stream.take_error_behind_end()
    }

    /// Whether the end of the host's stream was read.
    pub(super) fn has_read_all(&self) -> bool {
        self.stream.has_ended()
    }

    /// Whether a read of the host socket may give something, and is wanted.
    fn can_read(&self) -> bool {
        self.stream.can_read() && !self.paused && !self.held_by_rate
    }

    /// Whether there is more to send: bytes read, or perhaps in the host socket.
    fn has_more(&self) -> bool {
        self.unsent() > 0 || self.can_read()
    }

    /// Whether all that goes to the guest from a host socket that has failed was sent: what the kernel had
    /// received before. Our limit and the guest's window only delay it, as they delay any other byte.
    pub(super) fn has_passed_on_all(&self) -> bool {
        !self.stream.can_read() && self.unsent() == 0
    }

    /// Whether a turn of this half would do something, credit provided; `broken` if the host socket failed.
    pub(super) fn wants_service(&self, broken: bool) -> bool {
        (broken && self.has_passed_on_all())
            || self.sendable() > 0
            || self.next_resend(u32::MAX).is_some()
            || self.is_fin_due()
            || self.wants_to_read()
            || self.is_syn_due()
            || self.is_probe_due()
    }

    /// Whether a read is worth a turn. While what is lost waits for an acknowledgement nothing new could be
    /// sent, and a turn that has read all it may would be followed by another that does nothing. A memory cap
    /// that leaves no room is that of an earlier turn: the next one reads it again, and parks the flow if
    /// need be.
    fn wants_to_read(&self) -> bool {
        let is_stale = self.queue.is_empty() && self.is_held_back_by_memory();
        let has_room = self.read_room() > 0 || is_stale;
        self.can_read() && !self.short_of_memory && self.board.lost() == 0 && has_room
    }

    /// Bytes worth reading from the host socket now: those that can be sent at once, but no sliver while more
    /// room is on its way (silly window avoidance of the sender, RFC 9293, 3.8.6.2.1).
    fn read_room(&self) -> u32 {
        if !self.is_open() {
            return 0;
        }
        let room = self.wnd.min(self.flight_max()).saturating_sub(self.queue.len());
        if room < u32::from(self.mss) && !self.queue.is_empty() { 0 } else { room }
    }

    /// Bytes read that may be sent now. Lost ranges go first, also when they have to wait.
    fn sendable(&self) -> u32 {
        if self.board.lost() > 0 {
            return 0;
        }
        let (unsent, usable) = (self.unsent(), self.usable());
        let sliver = usable < unsent && usable < u32::from(self.mss) && self.in_flight() > 0;
        if sliver || self.is_shaking_hands() { 0 } else { unsent.min(usable) }
    }

    /// Reads from the host socket of flow `id`, straight into chunks, until `ahead` bytes wait to be sent.
    /// True if that has met the end of the stream; `broken` if a write has met an error, and the end is none.
    /// An error means that the connection is over.
    pub(super) fn read<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        id: FlowId,
        socket: Option<SocketId>,
        ahead: u32,
        broken: bool,
    ) -> Result<bool, HostError> {
        self.short_of_memory = false;
        let Some(socket) = socket else { return Ok(false) };
        while self.can_read() {
            let room = self.read_room();
            if room == 0 && self.flight_max() < self.wnd && self.memory_cap > self.flight_max() {
                // These bytes stay in the kernel because of our limit, not of the guest's window or memory.
                self.tx_limit.hit();
            }
            let mut max = room.min(ahead.saturating_sub(self.unsent()));
            if max > u32::from(self.mss) {
                // Whole segments: the sliver behind them stays in the kernel until it has become one.
                max -= max % u32::from(self.mss);
            }
            if max == 0 {
                // With bytes in flight an acknowledgement makes room, however little there is for each.
                if self.is_held_back_by_memory()
                    && (self.queue.is_empty() || !cx.shared.memory.pool.budget().has_room(Need::Read))
                    && !self.wait_for_memory(cx.shared, cx.now, id)
                {
                    continue;
                }
                break;
            }
            let pool = &mut cx.shared.memory.pool;
            let origin = Some(self.origin(id, self.queue.len()));
            match pool.fill(&mut self.queue, origin, max as usize, |into| cx.host.tcp_recv(socket, into)) {
                Ok(Some(Filled { bytes: 0, .. })) => {
                    self.stream.was_at_end(broken);
                    return Ok(!broken);
                }
                Ok(Some(filled)) => self.stream.was_read(filled.whole),
                Ok(None) => {
                    if self.wait_for_memory(cx.shared, cx.now, id) {
                        break;
                    }
                }
                Err(HostError::WouldBlock) => self.stream.was_empty(),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Whether our limit is what memory leaves, and the guest would take more. Before the guest has
    /// acknowledged our SYN, and after our FIN, it is not memory that is waited for.
    fn is_held_back_by_memory(&self) -> bool {
        self.is_open() && self.flight_max() == self.memory_cap && self.memory_cap < self.wnd
    }

    /// Parks flow `id` until memory is freed; false if there is some after all.
    fn wait_for_memory(&mut self, shared: &mut Shared, now: Instant, id: FlowId) -> bool {
        shared.memory.reads.stop(now, id, &mut self.memory_listed);
        self.memory_cap = shared.memory.pool.send_cap(self.mss);
        self.short_of_memory = !shared.memory.pool.budget().has_room(Need::Read);
        self.short_of_memory
    }

    /// Wake-up for memory; true if it was needed. The memory cap is read again when the flow is served.
    pub(super) fn memory_freed(&mut self) -> bool {
        self.memory_listed = false;
        std::mem::take(&mut self.short_of_memory)
    }

    /// Payload of the next new segment, of at most `frame_max` bytes, if one may be sent.
    pub(super) fn next_new<'p>(
        &self,
        pool: &'p Pool,
        frame_max: u32,
        slices: &mut [IoSlice<'p>; SLICES_MAX],
    ) -> Option<Piece> {
        let (mss, unsent) = (u32::from(self.mss), self.unsent());
        let mut len = self.sendable().min(frame_max);
        if len == 0 {
            return None;
        }
        if len > mss && len < unsent {
            len -= len % mss;
        }
        let (count, bytes, after) = pool.slices(&self.queue, self.cursor, len, slices);
        let push = bytes == unsent;
        let fin = push && self.stream.has_ended() && self.is_open();
        Some(Piece { seq: self.nxt, slices: count, bytes, fin, push, after })
    }

    /// Whether FIN is the next to send.
    pub(super) fn is_fin_due(&self) -> bool {
        self.is_open() && self.stream.has_ended() && self.unsent() == 0 && !self.is_lost()
    }

    /// FIN without payload.
    pub(super) fn fin(&self) -> Piece {
        debug_assert!(self.is_fin_due(), "FIN follows all data");
        Piece { seq: self.nxt, slices: 0, bytes: 0, fin: true, push: false, after: self.cursor }
    }

    /// Transmission of new payload or FIN.
    pub(super) fn sent_new(&mut self, shared: &mut Shared, now: Instant, piece: &Piece) {
        debug_assert!(piece.seq == self.nxt, "the sequence space is sent without gaps");
        debug_assert!(piece.bytes <= self.usable(), "no byte beyond the guest's window and our limit");
        self.cursor = piece.after;
        self.sent(shared, now, piece.len());
        if piece.fin {
            self.enter(SenderState::FinSent);
        }
    }

    /// Transmission of our SYN. A repetition moves nothing.
    pub(super) fn sent_syn(&mut self, shared: &mut Shared, now: Instant) {
        if self.is_syn_due() {
            self.sent(shared, now, 1);
        }
    }

    /// Transmission of `len` of sequence space at SND.NXT.
    fn sent(&mut self, shared: &mut Shared, now: Instant, len: u32) {
        if !self.is_shaking_hands() {
            self.board.take_list(&mut shared.tcp.lists);
            self.board.sent(self.nxt, len, now);
        }
        self.nxt += len;
        if self.timed.is_none() && !self.is_in_doubt() {
            self.timed = Some((self.nxt, now));
        }
        self.wait_after_sending(shared, now);
        self.check();
    }

    /// Repetition of our SYN at the guest's: either may be acknowledged then, so the round trip is not
    /// measured (Karn).
    pub(super) fn forget_timing(&mut self) {
        self.timed = None;
    }

    /// Reads no more from the host socket, or goes on.
    pub(super) fn hold_back(&mut self, on: bool) {
        self.held_by_rate = on;
    }

    /// Bytes for the guest that it has not acknowledged, sent or not.
    pub(super) fn queued(&self) -> u32 {
        self.queue.len()
    }

    /// Appends bytes of brodo's own to the stream, which no crash survives. False if memory does not suffice.
    pub(super) fn say(&mut self, shared: &mut Shared, bytes: &[u8]) -> bool {
        shared.memory.pool.push(&mut self.queue, None, bytes) == bytes.len()
    }

    /// Ends the stream behind what is queued.
    pub(super) fn finish(&mut self) {
        self.stream.abandon();
        self.paused = false;
    }

    /// Reset by a guest whose FIN was received, which takes nothing any more: as if all had been sent and
    /// acknowledged.
    pub(super) fn abandon(&mut self, shared: &mut Shared) {
        self.clear(shared);
        self.enter(SenderState::Finished);
        self.una = self.nxt;
        self.stream.abandon();
        self.timer = None;
        self.timed = None;
    }

    /// Expired timer, if it has.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<Timer> {
        let (_, timer) = self.timer.take_if(|(at, _)| *at <= now)?;
        Some(timer)
    }

    /// Deadline of the timer.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.timer.map(|(at, _)| at)
    }

    /// Whether so many time-outs have passed in a row that the guest is taken to be gone.
    pub(super) fn has_given_up(&self) -> bool {
        self.backoff >= BACKOFF_MAX
    }

    /// Expiries of the timer in a row.
    pub(super) fn backoff(&self) -> u8 {
        self.backoff
    }

    /// Expiry of the timer of our SYN; false if it is not sent again.
    pub(super) fn syn_timed_out(&mut self, shared: &mut Shared, now: Instant) -> bool {
        debug_assert!(self.is_shaking_hands(), "only a SYN is in flight");
        if self.backoff >= SYN_RETRIES {
            return false;
        }
        self.backoff += 1;
        self.timed = None;
        self.start_retransmission_timer(shared, now);
        shared.counters.tcp_retransmissions += 1;
        true
    }

    /// Starts the timer of zero-window probes where bytes wait for a window that is closed, and nothing is in
    /// flight: only a probe can find out that the guest's update was lost (RFC 9293, 3.8.6.1).
    pub(super) fn watch_closed_window(&mut self, shared: &Shared, now: Instant) {
        if self.has_more()
            && self.is_open()
            && self.una == self.nxt
            && self.usable() == 0
            && self.timer.is_none()
        {
            self.start_window_timer(shared, now);
        }
    }

    /// Expiry of that timer; true if the window is still closed.
    pub(super) fn window_timed_out(&mut self, shared: &Shared, now: Instant) -> bool {
        self.backoff = self.backoff.saturating_add(1);
        self.start_window_timer(shared, now);
        self.usable() == 0
    }

    fn start_window_timer(&mut self, shared: &Shared, now: Instant) {
        let wait = self.confirmation_wait().unwrap_or_else(|| shared.tcp.rtt.rto(self.backoff));
        self.timer = Some((now + wait, Timer::Window));
    }

    /// Lets the limit follow the flow, and reads the memory cap; called whenever this flow is served.
    pub(super) fn tune(&mut self, shared: &mut Shared, now: Instant) -> Option<Change> {
        self.memory_cap = shared.memory.pool.send_cap(self.mss);
        let memory_short = shared.memory.pool.pressure() > Pressure::None;
        self.tx_limit.update(now, self.bytes as u32, &mut shared.tcp.rtt, memory_short)
    }

    /// Records the present limiting factor; gives the change, if it is one.
    pub(super) fn note_limiting_factor(&mut self, now: Instant, no_credit: bool) -> Option<FactorChange> {
        let factor = if no_credit {
            LimitingFactor::Link
        } else if self.recovery.is_some() {
            LimitingFactor::Loss
        } else if self.short_of_memory || (self.can_read() && self.is_held_back_by_memory()) {
            LimitingFactor::Memory
        } else if !self.has_more() || !self.is_open() {
            LimitingFactor::Application
        } else if self.wnd <= self.flight_max() {
            LimitingFactor::GuestWindow
        } else {
            LimitingFactor::OurLimit
        };
        self.clock.set(now, factor)
    }

    /// Information on this direction at `now`.
    pub(super) fn info(&self, now: Instant) -> HalfInfo {
        let Changes { grows, shrinks } = self.tx_limit.changes();
        HalfInfo {
            limiting: self.clock.read(now),
            limit: self.tx_limit.at(now),
            grows,
            shrinks,
            window: self.wnd,
            held: self.queue.len(),
            bytes: self.bytes,
        }
    }

    /// Gives all memory back.
    pub(super) fn clear(&mut self, shared: &mut Shared) {
        shared.memory.pool.clear(&mut self.queue);
        self.cursor = Cursor::FRONT;
        self.board.clear();
        self.board.give_list(&mut shared.tcp.lists);
        self.recovery = None;
        self.undo = None;
    }

    /// Invariants between two events.
    pub(super) fn check(&self) {
        let in_flight = self.in_flight();
        debug_assert!(in_flight <= self.queue.len() + 1, "bytes are kept until they are acknowledged");
        debug_assert!(
            self.is_shaking_hands() || self.board.len() == in_flight,
            "the scoreboard has {} bytes, {in_flight} are in flight",
            self.board.len()
        );
        let outstanding = match self.timer {
            None | Some((_, Timer::Window)) => in_flight == 0,
            Some((_, Timer::Retransmit | Timer::TailProbe | Timer::Reorder)) => in_flight > 0,
        };
        debug_assert!(
            outstanding,
            "the timer runs if and only if something is outstanding: {:?}",
            self.timer
        );
    }
}
