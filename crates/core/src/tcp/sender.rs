//! The half of a connection that carries bytes from the host socket to the guest.
//!
//! Bytes are read from the host socket just in time, at most what the guest's window and our limit L let us send now,
//! and kept in chunks until the guest has acknowledged them. What cannot be sent soon stays in the host's kernel,
//! which closes the peer's window: back pressure end to end.
//!
//! Loss toward the guest is rare (a link that pushes back loses nothing), but handled: the retransmission timer goes
//! back to SND.UNA and sends again from there; three duplicate acknowledgements resend the first segment, and partial
//! acknowledgements the next hole (RFC 6582). Either halves L. A closed window is probed with the same timer.

use super::autosize::{Change, Limit};
use super::info::HalfInfo;
use super::limited::LimitClock;
use crate::chunk::{ByteQueue, Cursor};
use crate::env::Env;
use crate::time::Instant;
use crate::wire::tcp::{Seq, TcpHeader};

/// Duplicate acknowledgements that mean a loss (RFC 5681, 3.2).
const DUP_ACKS: u8 = 3;
/// Time-outs in a row after which the guest is taken to be gone: about 15 minutes, as Linux (tcp_retries2).
pub(crate) const BACKOFF_MAX: u8 = 15;

/// Where the stream to the guest stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SenderState {
    /// The host socket is not connected yet: nothing has been sent.
    Connecting,
    /// SYN-ACK sent, not acknowledged.
    SynSent,
    /// Bytes may be sent.
    Open,
    /// FIN sent, not acknowledged. `passive` if the guest's FIN came first.
    FinSent {
        /// The guest closed first, so it is the guest that waits in TIME-WAIT.
        passive: bool,
    },
    /// FIN acknowledged.
    Finished {
        /// As above.
        passive: bool,
    },
}

/// What the guest told in its SYN.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerOptions {
    /// Largest payload it takes in a segment, bytes.
    pub(crate) mss: u16,
    /// Its window scale, if it offered one.
    pub(crate) scale: Option<u8>,
}

#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) state: SenderState,
    /// Oldest unacknowledged (SND.UNA).
    pub(crate) una: Seq,
    /// Next to send (SND.NXT); goes back to `una` on a time-out.
    pub(crate) nxt: Seq,
    /// One beyond the highest ever sent.
    pub(crate) max: Seq,
    /// The guest's window in bytes (SND.WND) and the largest it ever offered.
    pub(crate) wnd: u32,
    wnd_max: u32,
    wl1: Seq,
    wl2: Seq,
    scale: u8,
    /// The guest offered window scaling.
    pub(crate) peer_scales: bool,
    pub(crate) mss: u16,
    limit: Limit,
    /// Bytes read from the host socket and not acknowledged: from `una` on.
    pub(crate) queue: ByteQueue,
    /// Where `nxt` is in the queue.
    pub(crate) cursor: Cursor,
    /// The host socket has bytes or an end, as far as we know.
    pub(crate) readable: bool,
    /// The host's peer has closed its direction; after the bytes comes the end.
    pub(crate) hangup: bool,
    /// The end of the host's stream has been read.
    pub(crate) eof: bool,
    timed: Option<(Seq, Instant)>,
    /// When the retransmission or probe timer expires.
    pub(crate) rtx_at: Option<Instant>,
    pub(crate) backoff: u8,
    dup_acks: u8,
    /// In fast recovery until this is acknowledged.
    recover: Option<Seq>,
    /// What holds the sending back.
    pub(crate) clock: LimitClock,
    /// Bytes acknowledged.
    bytes: u64,
    /// Segments sent again.
    pub(crate) retransmissions: u32,
}

/// What an acknowledgement asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AckAction {
    /// Nothing.
    None,
    /// Resend the first unacknowledged segment now.
    Retransmit,
}

impl Sender {
    pub(crate) fn new(iss: Seq, peer: PeerOptions, limit: Limit, now: Instant) -> Self {
        Self {
            state: SenderState::Connecting,
            una: iss,
            nxt: iss,
            max: iss,
            wnd: 0,
            wnd_max: 0,
            wl1: Seq(0),
            wl2: Seq(0),
            scale: peer.scale.unwrap_or(0),
            peer_scales: peer.scale.is_some(),
            mss: peer.mss,
            limit,
            queue: ByteQueue::new(),
            cursor: Cursor::FRONT,
            readable: false,
            hangup: false,
            eof: false,
            timed: None,
            rtx_at: None,
            backoff: 0,
            dup_acks: 0,
            recover: None,
            clock: LimitClock::new(now),
            bytes: 0,
            retransmissions: 0,
        }
    }

    /// Sequence space in flight: bytes, and SYN or FIN.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.nxt - self.una) as u32
    }

    /// Bytes read from the host and not sent (since the last time-out).
    pub(crate) fn unsent(&self) -> u32 {
        self.queue.len().saturating_sub(self.in_flight())
    }

    /// The limit in bytes.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.get()
    }

    /// Bytes that the guest's window and our limit still allow in flight.
    pub(crate) fn usable(&self) -> u32 {
        self.wnd.min(self.limit.get()).saturating_sub(self.in_flight())
    }

    /// Whether the FIN is what comes next.
    pub(crate) fn fin_due(&self) -> bool {
        self.eof && self.unsent() == 0 && self.nxt_is_data_end()
    }

    /// Whether `nxt` stands at the end of the data, before any FIN.
    fn nxt_is_data_end(&self) -> bool {
        match self.state {
            SenderState::Open => true,
            // Gone back by a time-out: the FIN is sent again after the data.
            SenderState::FinSent { .. } => self.nxt != self.max && self.in_flight() == self.queue.len(),
            _ => false,
        }
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
        ack.le(self.max) && (self.una - ack) <= self.wnd_max.min(i32::MAX as u32) as i32
    }

    /// Takes an acceptable acknowledgement and the window beside it.
    pub(crate) fn acknowledge(
        &mut self,
        env: &mut Env,
        now: Instant,
        segment: &TcpHeader,
        has_payload: bool,
    ) -> AckAction {
        let ack = segment.ack;
        let wnd_before = self.wnd;
        self.take_window(segment);
        if ack.gt(self.una) {
            return self.advance(env, now, ack);
        }
        let duplicate = ack == self.una && !has_payload && self.wnd == wnd_before && self.max != self.una;
        if !duplicate {
            return AckAction::None;
        }
        self.dup_acks = self.dup_acks.saturating_add(1);
        if self.dup_acks == DUP_ACKS && self.recover.is_none() {
            self.recover = Some(self.max);
            self.shrink(env);
            return AckAction::Retransmit;
        }
        AckAction::None
    }

    fn advance(&mut self, env: &mut Env, now: Instant, ack: Seq) -> AckAction {
        let mut bytes = (ack - self.una) as u32;
        if self.state == SenderState::SynSent {
            bytes -= 1;
            self.state = SenderState::Open;
        }
        if let SenderState::FinSent { passive } = self.state
            && ack == self.max
        {
            bytes -= 1;
            self.state = SenderState::Finished { passive };
        }
        env.pool.consume(&mut self.queue, bytes);
        self.bytes += u64::from(bytes);
        self.una = ack;
        if self.nxt.le(ack) {
            self.nxt = ack;
            self.cursor = Cursor::FRONT;
        }
        if let Some((seq, at)) = self.timed
            && ack.ge(seq)
        {
            env.rtt.sample(now - at);
            self.timed = None;
        }
        self.dup_acks = 0;
        self.backoff = 0;
        self.rtx_at = (self.una != self.max).then(|| now + env.rtt.rto(0));
        match self.recover {
            Some(recover) if ack.lt(recover) => AckAction::Retransmit,
            _ => {
                self.recover = None;
                AckAction::None
            }
        }
    }

    /// RFC 9293, 3.10.7.4: the newest segment's window counts. One that acknowledges something new is newer than any
    /// before it, even as a repetition with an old sequence number: SND.UNA moves, so the old window would reach
    /// further than the guest has offered. One with an old acknowledgement offers less than it says.
    fn take_window(&mut self, segment: &TcpHeader) {
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
    pub(crate) fn sent(&mut self, env: &Env, now: Instant, len: u32) {
        let first_time = self.nxt == self.max;
        self.nxt += len;
        if self.nxt.gt(self.max) {
            self.max = self.nxt;
        }
        if first_time && self.timed.is_none() {
            self.timed = Some((self.nxt, now));
        }
        if self.rtx_at.is_none() {
            self.rtx_at = Some(now + env.rtt.rto(self.backoff));
        }
    }

    /// The bytes in flight reached our limit while there is more: the limit may grow.
    pub(crate) fn limit_hit(&mut self) {
        self.limit.hit();
    }

    /// Lets the limit follow the flow.
    pub(crate) fn tune(&mut self, env: &mut Env, now: Instant) {
        match self.limit.update(now, self.in_flight(), env.rtt.srtt()) {
            Change::Grew => env.counters.tx_buffer_grows += 1,
            Change::Shrank => env.counters.tx_buffer_shrinks += 1,
            Change::None => {}
        }
    }

    fn shrink(&mut self, env: &mut Env) {
        if self.limit.halve() == Change::Shrank {
            env.counters.tx_buffer_shrinks += 1;
        }
    }

    /// The retransmission timer has expired: everything from `una` on counts as not sent.
    pub(crate) fn go_back(&mut self, env: &mut Env, now: Instant) {
        self.backoff = self.backoff.saturating_add(1);
        self.timed = None;
        self.recover = None;
        self.dup_acks = 0;
        self.nxt = self.una;
        self.cursor = Cursor::FRONT;
        self.shrink(env);
        self.rtx_at = Some(now + env.rtt.rto(self.backoff));
    }

    /// A segment is about to be sent a second time: its round trip must not be measured (Karn).
    pub(crate) fn forget_timing(&mut self) {
        self.timed = None;
    }

    /// The guest takes nothing any more: as if all had been sent and acknowledged.
    pub(crate) fn abandon(&mut self, env: &mut Env) {
        self.clear(env);
        self.state = SenderState::Finished { passive: true };
        self.una = self.max;
        self.nxt = self.max;
        self.eof = true;
        self.readable = false;
        self.rtx_at = None;
        self.forget_timing();
    }

    /// What is known of this direction at `now`.
    pub(crate) fn info(&self, now: Instant) -> HalfInfo {
        let (grows, shrinks) = self.limit.changes();
        HalfInfo {
            limited: self.clock.read(now),
            limit: self.limit.get(),
            grows,
            shrinks,
            window: self.wnd,
            held: self.queue.len(),
            bytes: self.bytes,
        }
    }

    /// Gives all memory back.
    pub(crate) fn clear(&mut self, env: &mut Env) {
        env.pool.clear(&mut self.queue);
        self.cursor = Cursor::FRONT;
    }
}
