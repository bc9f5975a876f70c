//! The half of a connection that carries bytes from the host socket to the guest.
//!
//! Bytes are read from the host socket just in time, at most what the guest's window and our limit L let us
//! send now, and kept in chunks until the guest has acknowledged them. Data that cannot be sent soon stays in
//! the host's kernel, which closes the peer's window: back pressure end to end.
//!
//! Ranges in flight are recorded on the [`Scoreboard`] until they are acknowledged; loss recovery is in
//! `recovery`. A closed window is probed with the same timer.

use super::autosize::Limit;
use super::info::HalfInfo;
use super::limiting_factor::LimitingClock;
use super::loss::{Recovery, Timer, Undo};
use super::rack::Rack;
use super::scoreboard::Scoreboard;
use crate::context::Shared;
use crate::memory::chunk::{ByteQueue, Cursor};
use crate::time::Instant;
use crate::wire::tcp::{Seq, TcpHeader};

/// Time-outs in a row after which the guest is taken to be gone: as many as Linux (tcp_retries2), about 9
/// minutes.
pub(crate) const BACKOFF_MAX: u8 = 15;

/// Where the stream to the guest stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SenderState {
    /// The host socket is not connected yet: nothing has been sent.
    Connecting,
    /// SYN sent on behalf of a peer of the host's, and the guest has not answered.
    SynSent,
    /// SYN-ACK sent, not acknowledged.
    SynAckSent,
    /// Bytes may be sent.
    Open,
    /// FIN sent, not acknowledged. `passive` if the guest's FIN came first.
    FinSent {
        /// The guest closed first, so it is the guest that waits in TIME-WAIT.
        passive: bool,
    },
    /// FIN acknowledged.
    Finished {
        /// The guest closed first.
        passive: bool,
    },
}

/// Options of the guest's SYN.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerOptions {
    /// Largest payload it takes in a segment, bytes.
    pub(crate) mss: u16,
    /// Its window scale, if it offered one.
    pub(crate) scale: Option<u8>,
    /// It understands selective acknowledgements.
    pub(crate) sack: bool,
}

#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) state: SenderState,
    /// Oldest unacknowledged (SND.UNA).
    pub(crate) una: Seq,
    /// Next to send (SND.NXT).
    pub(crate) nxt: Seq,
    /// The guest's window in bytes (SND.WND) and the largest it ever offered.
    pub(crate) wnd: u32,
    pub(super) wnd_max: u32,
    wl1: Seq,
    wl2: Seq,
    scale: u8,
    /// The guest offered window scaling.
    pub(crate) peer_scales: bool,
    pub(crate) mss: u16,
    pub(super) tx_limit: Limit,
    /// Memory cap of this direction, bytes.
    pub(super) memory_cap: u32,
    /// Bytes read from the host socket and not acknowledged: from `una` on.
    pub(crate) queue: ByteQueue,
    /// Where `nxt` is in the queue.
    pub(crate) cursor: Cursor,
    /// The host socket has bytes or an end, as far as we know.
    pub(crate) readable: bool,
    /// The host's peer has closed its direction; after the bytes comes the end.
    pub(crate) hangup: bool,
    /// An urgent mark lies ahead in what the socket has: a short read may have ended there.
    pub(crate) urgent: bool,
    /// An event has said that an error is pending on the host socket.
    pub(crate) error: bool,
    /// The end of the host's stream has been read.
    pub(crate) eof: bool,
    /// Parked: memory for a read was not available, and no wake-up has come since.
    pub(crate) short_of_memory: bool,
    /// Listed in `Memory::reads`.
    pub(crate) memory_listed: bool,
    /// The segment whose round trip is being measured: its end, and when it was sent.
    pub(super) timed: Option<(Seq, Instant)>,
    /// The running timer and its deadline.
    pub(super) timer: Option<(Instant, Timer)>,
    /// Expiries of the retransmission or probe timer in a row.
    pub(crate) backoff: u8,
    /// Everything between `una` and `nxt`.
    pub(super) board: Scoreboard,
    pub(super) rack: Rack,
    /// The guest understands selective acknowledgements.
    pub(crate) sack: bool,
    /// Duplicate acknowledgements in a row of a guest that does not.
    pub(super) dup_acks: u8,
    /// Loss being repaired.
    pub(super) recovery: Option<Recovery>,
    /// State to restore if the last recovery was spurious.
    pub(super) undo: Option<Undo>,
    /// SND.NXT when a tail loss probe was sent; until it is acknowledged.
    pub(super) tail_probe: Option<Seq>,
    /// Limiting factor of sending.
    pub(crate) clock: LimitingClock,
    /// Bytes acknowledged.
    pub(super) bytes: u64,
    /// Segments sent again.
    pub(crate) retransmissions: u32,
}

impl Sender {
    pub(crate) fn new(iss: Seq, peer: PeerOptions, limit: Limit, now: Instant) -> Self {
        Self {
            state: SenderState::Connecting,
            una: iss,
            nxt: iss,
            wnd: 0,
            wnd_max: 0,
            wl1: Seq(0),
            wl2: Seq(0),
            scale: peer.scale.unwrap_or(0),
            peer_scales: peer.scale.is_some(),
            mss: peer.mss,
            tx_limit: limit,
            memory_cap: u32::MAX,
            queue: ByteQueue::new(),
            cursor: Cursor::FRONT,
            readable: false,
            hangup: false,
            urgent: false,
            error: false,
            eof: false,
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

    /// Sequence space in flight: bytes, and SYN or FIN.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.nxt - self.una) as u32
    }

    /// Bytes read from the host and not sent.
    pub(crate) fn unsent(&self) -> u32 {
        self.queue.len().saturating_sub(self.in_flight())
    }

    /// The limit in bytes, or what memory leaves of it.
    pub(crate) fn tx_limit(&self) -> u32 {
        self.tx_limit.get().min(self.memory_cap)
    }

    /// Bytes that the guest's window and our limit still allow in flight.
    pub(crate) fn usable(&self) -> u32 {
        self.wnd.min(self.tx_limit.get()).saturating_sub(self.in_flight())
    }

    /// Whether the FIN is what comes next.
    pub(crate) fn fin_due(&self) -> bool {
        self.state == SenderState::Open && self.eof && self.unsent() == 0
    }

    /// Options of the guest's SYN.
    pub(crate) fn take_options(&mut self, peer: PeerOptions) {
        self.scale = peer.scale.unwrap_or(0);
        self.peer_scales = peer.scale.is_some();
        (self.mss, self.sack) = (peer.mss, peer.sack);
    }

    /// The window with which the guest opened (in its SYN: unscaled).
    pub(crate) fn open_window(&mut self, segment: &TcpHeader) {
        self.wnd = u32::from(segment.window);
        self.wnd_max = self.wnd;
        self.wl1 = segment.seq;
        self.wl2 = segment.ack;
    }

    /// Whether an acknowledgement number is one RFC 5961 section 5.2 accepts.
    pub(crate) fn ack_acceptable(&self, ack: Seq) -> bool {
        ack.le(self.nxt) && (self.una - ack) <= self.wnd_max.min(i32::MAX as u32) as i32
    }

    /// RFC 9293, 3.10.7.4: the newest segment's window counts. One that acknowledges something new is newer
    /// than any before it, even as a repetition with an old sequence number: SND.UNA moves, so the old window
    /// would reach further than the guest has offered. One with an old acknowledgement offers less than it
    /// says.
    pub(super) fn take_window(&mut self, segment: &TcpHeader) {
        let newer = segment.ack.gt(self.una)
            || (segment.ack == self.una && self.wl1.lt(segment.seq))
            || (segment.ack == self.una && self.wl1 == segment.seq && self.wl2.le(segment.ack));
        if newer {
            self.wnd = u32::from(segment.window) << self.scale;
            self.wnd_max = self.wnd_max.max(self.wnd);
            self.wl1 = segment.seq;
            self.wl2 = segment.ack;
        }
    }

    /// Notes that `len` of sequence space was sent at `nxt`.
    pub(crate) fn sent(&mut self, shared: &mut Shared, now: Instant, len: u32) {
        if !matches!(self.state, SenderState::SynAckSent | SenderState::SynSent) {
            self.board.take_list(&mut shared.tcp.lists);
            self.board.sent(self.nxt, len, now);
        }
        self.nxt += len;
        if self.timed.is_none() {
            self.timed = Some((self.nxt, now));
        }
        self.wait_after_sending(shared, now);
    }

    /// The bytes in flight reached our limit while there is more: the limit may grow.
    pub(crate) fn limit_hit(&mut self) {
        self.tx_limit.hit();
    }

    /// A segment is about to be sent a second time: its round trip must not be measured (Karn).
    pub(crate) fn forget_timing(&mut self) {
        self.timed = None;
    }

    /// The guest takes nothing any more: as if all had been sent and acknowledged.
    pub(crate) fn abandon(&mut self, shared: &mut Shared) {
        self.clear(shared);
        self.state = SenderState::Finished { passive: true };
        self.una = self.nxt;
        self.eof = true;
        self.readable = false;
        self.timer = None;
        self.forget_timing();
    }

    /// Information on this direction at `now`.
    pub(crate) fn info(&self, now: Instant) -> HalfInfo {
        let (grows, shrinks) = self.tx_limit.changes();
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
    pub(crate) fn clear(&mut self, shared: &mut Shared) {
        shared.memory.pool.clear(&mut self.queue);
        self.cursor = Cursor::FRONT;
        self.board.clear();
        self.board.give_list(&mut shared.tcp.lists);
        self.recovery = None;
        self.undo = None;
    }
}
