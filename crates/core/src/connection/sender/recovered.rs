//! The sending half of a recovered connection ([`crate::journal`]).
//!
//! All bytes that were read from the host socket and not acknowledged are sent, as if for the first time: how
//! many of them the guest has already is not recorded. It drops those, and its acknowledgement may be ahead
//! of what was sent since: such a half has *resumed*, and takes acknowledgements of all that the process
//! before can have sent. Its segments are not timed, because an acknowledgement may be for an earlier one.
//!
//! *Probe and reset by the guest's own number.* A guest answers a segment below its RCV.NXT with an
//! acknowledgement, takes one within its window in silence, and a reset counts only exactly at RCV.NXT: below
//! it is dropped, within the window it is challenged, at most twice a second (Linux: `tcp_invalid_ratelimit`,
//! for challenges and answers to probes together). So probes lie below all that the guest has acknowledged,
//! the answers say where it is, and a reset has that number.
//!
//! *Lost* is a connection whose guest may not have received its reset ([`Sender::lose`]): bytes are known to
//! be gone since a crash, the number of the reset was in doubt, or the link had no credit for it. The guest
//! is probed in this way, to be reset by its answer, until it answers with a reset itself: one that only
//! waits for bytes has no segment that would meet a reset, and would wait for ever. After [`PROBES_MAX`]
//! probes without an answer it is given up.

use super::{Cursor, Sender, SenderState, Timer};
use crate::context::Shared;
use crate::flow::FlowId;
use crate::journal::{Progress, TcpState};
use crate::memory::payload::{ByteStream, Origin};
use crate::snapshot::saved::{Invalid, Saved, valid};
use crate::snapshot::v1::UnconfirmedV1;
use crate::time::{Duration, Instant};
use crate::wire::tcp::Seq;

/// Largest window that a guest can offer (RFC 7323, 2.2).
const WINDOW_MAX: u32 = 65_535 << 14;
/// Bytes of a stream up to which its sequence numbers can be compared with the first.
const COMPARABLE: u64 = 1 << 31;
/// Probes without an answer after which a lost connection is given up.
const PROBES_MAX: u8 = 4;
/// Wait for the answer to the first probe, doubled for each further one: longer than the interval in which a
/// Linux guest answers only once.
const ANSWER_WITHIN: Duration = Duration::from_millis(600);

/// Doubt about what the guest has.
#[derive(Debug, Clone, Copy)]
pub(super) enum Doubt {
    /// It may have everything before this number, wherever SND.NXT is.
    Resumed(Seq),
    /// It has acknowledged everything before this number, and nothing is sent any more. SND.NXT is the number
    /// of its next reset, and beyond this one if that is owed.
    Lost(Seq),
}

impl Sender {
    /// State of a half of flow `id` in `state`, of whose socket so much was read. Bytes that the guest has
    /// not acknowledged are taken from the pool.
    ///
    /// # Errors
    /// [`Invalid`] if it is not there, the guest has acknowledged what was never read, or the state cannot
    /// be; some of it may be held then.
    pub(in crate::connection) fn recover_from(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        id: FlowId,
        record: &TcpState,
        progress: Progress,
    ) -> Result<(), Invalid> {
        use SenderState as S;
        let end = record.tx_begin + progress.read as u32;
        valid(record.wnd <= WINDOW_MAX)?;
        // The guest's first bytes come with the acknowledgement of our SYN, or after it.
        let has_answered = progress.written > 0 || progress.shut || record.una.ge(record.tx_begin);
        self.state = match SenderState::restore(record.tx)? {
            S::SynAckSent if !has_answered => S::SynAckSent,
            S::FinSent | S::Finished if record.una == end + 1 => S::Finished,
            S::Connecting | S::SynSent | S::Finished => return Err(Invalid),
            // A FIN that was sent before is sent again, behind the bytes before it.
            S::SynAckSent | S::Open | S::FinSent => S::Open,
        };
        let read_all = record.read_all || self.state == S::Finished;
        valid(!read_all || progress.peer_closed)?;
        if read_all {
            self.stream.abandon();
        }
        (self.una, self.nxt) = match self.state {
            S::SynAckSent => (record.tx_begin - 1, record.tx_begin),
            S::Finished => (end + 1, end + 1),
            _ if progress.read < COMPARABLE && record.una.lt(record.tx_begin) => {
                (record.tx_begin, record.tx_begin)
            }
            _ => (record.una, record.una),
        };
        if self.state == S::SynAckSent {
            valid(progress.read == 0)?;
        } else if self.state == S::Open {
            valid(self.una.le(end))?;
            if self.una != end {
                let origin = self.origin(id, 0);
                shared.memory.pool.claim(&mut self.queue, origin, end)?;
            }
            let until = end + u32::from(read_all);
            self.doubt = Some(Doubt::Resumed(until)).filter(|_| until != self.una);
        }
        self.wnd = record.wnd;
        self.wnd_max = record.wnd.max(65_535);
        // Older than the guest's next segment, whose window counts.
        (self.wl1, self.wl2) = (record.advertised.ack - 1, self.una);
        self.bytes = progress.read - u64::from(self.queue.len());
        self.tx_limit.resume(now, self.bytes as u32);
        if self.state == S::SynAckSent {
            self.start_retransmission_timer(shared, now);
        }
        self.check();
        Ok(())
    }

    /// Origin of the byte of `flow` that is `offset` bytes behind SND.UNA.
    pub(super) fn origin(&self, flow: FlowId, offset: u32) -> Origin {
        Origin { flow, stream: ByteStream::ToGuest, seq: self.una + offset }
    }

    /// Half of a connection that cannot go on: the guest, which has acknowledged all before `una`, is probed,
    /// and nothing else.
    pub(in crate::connection) fn lose(&mut self, shared: &mut Shared, now: Instant, una: Seq) {
        self.clear(shared);
        self.state = SenderState::Open;
        (self.una, self.nxt, self.wnd) = (una, una, 0);
        (self.timed, self.tail_probe) = (None, None);
        self.doubt = Some(Doubt::Lost(una));
        (self.backoff, self.timer) = (0, Some((now, Timer::Window)));
        self.check();
    }

    /// Highest sequence number that the guest may acknowledge: SND.NXT, or what was sent before a crash.
    pub(super) fn acknowledged_max(&self) -> Seq {
        match self.doubt {
            Some(Doubt::Resumed(until)) if until.gt(self.nxt) => until,
            _ => self.nxt,
        }
    }

    /// Takes an acknowledgement beyond SND.NXT of bytes that were sent before a crash: they are not to be
    /// sent any more. One of a FIN sent before stands for the bytes before it, until it is sent again.
    pub(super) fn skip_acknowledged(&mut self, shared: &mut Shared, now: Instant, ack: Seq) {
        debug_assert!(self.una == self.nxt, "all that was sent since is acknowledged");
        let bytes = ((ack - self.una).max(0) as u32).min(self.queue.len());
        shared.memory.pool.consume(&mut self.queue, bytes);
        self.bytes += u64::from(bytes);
        self.tx_limit.note(now, self.bytes as u32);
        self.una += bytes;
        (self.nxt, self.cursor) = (self.una, Cursor::FRONT);
    }

    /// Takes the acknowledgement `ack`, which was acceptable, of a half that may be in doubt.
    pub(super) fn confirm(&mut self, ack: Seq) {
        match &mut self.doubt {
            Some(Doubt::Resumed(until)) if self.una.ge(*until) => self.doubt = None,
            Some(Doubt::Lost(acknowledged)) if ack.gt(*acknowledged) => *acknowledged = ack,
            _ => {}
        }
    }

    /// Saved form of the doubt; `None` if there is none.
    pub(in crate::connection) fn save_doubt(&self) -> Option<UnconfirmedV1> {
        self.doubt.map(|doubt| match doubt {
            Doubt::Resumed(until) => UnconfirmedV1 { acknowledged: until.save(), behind: false, lost: false },
            Doubt::Lost(una) => UnconfirmedV1 { acknowledged: una.save(), behind: false, lost: true },
        })
    }

    /// Restores the doubt of an otherwise restored half.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts the rest.
    pub(in crate::connection) fn restore_doubt(&mut self, saved: UnconfirmedV1) -> Result<(), Invalid> {
        let UnconfirmedV1 { acknowledged, behind: _, lost } = saved;
        let at = Seq::restore(acknowledged)?;
        if lost {
            let is_silent = self.state == SenderState::Open && self.una == self.nxt && self.wnd == 0;
            valid(is_silent && at.le(self.una))?;
        } else {
            valid(self.una.lt(at))?;
        }
        self.doubt = Some(if lost { Doubt::Lost(at) } else { Doubt::Resumed(at) });
        Ok(())
    }

    /// SND.UNA as the guest itself has confirmed it.
    pub(in crate::connection) fn confirmed(&self) -> Seq {
        match self.doubt {
            Some(Doubt::Lost(acknowledged)) => acknowledged,
            _ => self.una,
        }
    }

    /// Sequence number of a reset: SND.NXT, or what the guest expects as far as it has said.
    pub(in crate::connection) fn reset_at(&self) -> Seq {
        if self.is_in_doubt() && !self.is_lost() { self.una } else { self.nxt }
    }

    /// The guest of a lost connection expects this number, and there was no credit for the reset that it is
    /// to get there.
    pub(in crate::connection) fn owe_reset(&mut self, at: Seq) {
        if at.ge(self.confirmed()) {
            self.doubt = Some(Doubt::Lost(at - 1));
            (self.una, self.nxt, self.timer) = (at, at, None);
        }
    }

    /// Whether the guest's number is known, and the reset found no credit before.
    pub(in crate::connection) fn is_reset_due(&self) -> bool {
        self.is_probe_due() && self.confirmed() != self.nxt
    }

    /// The reset that was owed is sent. Whether the guest has taken it is for the next probe to find out.
    pub(in crate::connection) fn reset_sent(&mut self, shared: &Shared, now: Instant) {
        self.doubt = Some(Doubt::Lost(self.nxt));
        self.start_window_timer(shared, now);
    }

    /// Whether it is not known what the guest expects next.
    pub(in crate::connection) fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// Whether the connection cannot go on ([`Sender::lose`]).
    pub(in crate::connection) fn is_lost(&self) -> bool {
        matches!(self.doubt, Some(Doubt::Lost(_)))
    }

    /// Wait after a probe; `None` if the connection is not lost.
    pub(super) fn confirmation_wait(&self) -> Option<Duration> {
        self.is_lost().then(|| ANSWER_WITHIN * (1 << self.backoff.saturating_sub(1).min(PROBES_MAX)))
    }

    /// A probe found no credit, so no answer is to come: it does not count, and is due again as soon as the
    /// link takes frames. A link may be down for a while after a crash, until its guest's monitor connects
    /// again.
    pub(in crate::connection) fn probe_refused(&mut self) {
        (self.backoff, self.timer) = (self.backoff.saturating_sub(1), None);
    }

    /// Whether a probe is due that found no credit before.
    pub(in crate::connection) fn is_probe_due(&self) -> bool {
        self.is_lost() && self.state == SenderState::Open && self.timer.is_none()
    }

    /// Whether the guest has answered no probe.
    pub(in crate::connection) fn is_unanswered(&self) -> bool {
        self.is_lost() && self.backoff >= PROBES_MAX
    }

    /// Behind the last byte that was read from the host socket.
    pub(in crate::connection) fn end_of_stream(&self) -> Seq {
        self.begin() + self.bytes as u32 + self.queue.len()
    }

    /// First sequence number of the stream.
    pub(in crate::connection) fn begin(&self) -> Seq {
        match self.state {
            SenderState::Connecting | SenderState::SynSent | SenderState::SynAckSent => self.una + 1,
            SenderState::Open | SenderState::FinSent => self.una - self.bytes as u32,
            SenderState::Finished => self.una - self.bytes as u32 - 1,
        }
    }

    /// Window of the guest, bytes.
    pub(in crate::connection) fn wnd(&self) -> u32 {
        self.wnd
    }

    /// Window scale of the guest, if it has offered one.
    pub(in crate::connection) fn peer_scale(&self) -> Option<u8> {
        self.peer_scale.offered()
    }
}
