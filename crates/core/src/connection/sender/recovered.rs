//! The sending half of a recovered connection ([`crate::journal`]).
//!
//! All bytes that were read from the host socket count as sent and acknowledged, because no copy of them is
//! left. Where the record does not show that the guest has acknowledged them all, the half is *unconfirmed*:
//! the guest's window counts as closed, so that it is probed at once, and only an acknowledgement of SND.NXT
//! opens it.
//!
//! *Probe and reset by the guest's own number.* A guest answers a segment below its RCV.NXT with an
//! acknowledgement, takes one within its window in silence, and a reset counts only exactly at RCV.NXT: below
//! it is dropped, within the window it is challenged, at most twice a second (Linux: `tcp_invalid_ratelimit`,
//! for challenges and answers to probes together). So probes lie below all that the guest has acknowledged,
//! the answers say where it is, and a reset has that number.
//!
//! *Given up* is a half whose guest has answered a probe with less, and with no more within [`SETTLED_AFTER`]
//! (an acknowledgement may have been under way before), or has not answered [`PROBES_MAX`] probes.
//!
//! *Lost* is a connection whose guest may not have received its reset ([`Sender::lose`]): bytes are known to
//! be gone since a crash, the number of the reset was in doubt, or the link had no credit for it. The guest
//! is probed in the same way, only to be reset by its answer, until it answers with a reset itself: one that
//! only waits for bytes has no segment that would meet a reset, and would wait for ever.

use super::{Sender, SenderState, Timer};
use crate::context::Shared;
use crate::journal::{Progress, TcpState};
use crate::snapshot::saved::{Invalid, Saved, valid};
use crate::snapshot::v1::UnconfirmedV1;
use crate::time::{Duration, Instant};
use crate::wire::tcp::Seq;

/// Largest window that a guest can offer (RFC 7323, 2.2).
const WINDOW_MAX: u32 = 65_535 << 14;
/// Expiries of the timer after which an unconfirmed half is given up.
const PROBES_MAX: u8 = 4;
/// Wait for the answer to the first probe, doubled for each further one: longer than the interval in which a
/// Linux guest answers only once.
const ANSWER_WITHIN: Duration = Duration::from_millis(600);
/// Wait for a second answer behind one that acknowledges too little: a guest answers in microseconds.
const SETTLED_AFTER: Duration = Duration::from_millis(50);

/// A half that was recovered, until the guest has acknowledged all that was sent before the crash.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unconfirmed {
    /// The most that the guest has acknowledged.
    acknowledged: Seq,
    /// It has acknowledged less in answer to a probe; then the timer runs for the wait for a second answer.
    behind: bool,
    /// Bytes of one of the streams are gone in any case.
    lost: bool,
}

impl Unconfirmed {
    const fn new(acknowledged: Seq, lost: bool) -> Self {
        Self { acknowledged, behind: false, lost }
    }
}

impl Sender {
    /// State of a half in `state`, of whose socket so much was read.
    ///
    /// # Errors
    /// [`Invalid`] if the guest has acknowledged what was never read, or the state cannot be.
    pub(in crate::connection) fn recover_from(
        &mut self,
        shared: &Shared,
        now: Instant,
        state: SenderState,
        record: &TcpState,
        progress: Progress,
    ) -> Result<(), Invalid> {
        use SenderState as S;
        let end = record.tx_begin + progress.read as u32;
        valid(record.wnd <= WINDOW_MAX && record.una.le(end + 1))?;
        // The guest's first bytes come with the acknowledgement of our SYN, or after it.
        let shook_hands = state == S::SynAckSent && (progress.written > 0 || progress.shut);
        let state = if shook_hands { S::Open } else { state };
        self.state = state;
        (self.una, self.nxt) = match state {
            S::Connecting | S::SynSent => return Err(Invalid),
            S::SynAckSent => {
                valid(progress.read == 0)?;
                (record.tx_begin - 1, end)
            }
            S::Open => (end, end),
            S::FinSent => (end, end + 1),
            S::Finished => (end + 1, end + 1),
        };
        if matches!(state, S::FinSent | S::Finished) {
            valid(progress.peer_closed)?;
            self.stream.abandon();
        }
        let is_behind = record.una.lt(self.una);
        valid(!(is_behind && state == S::Finished))?;
        self.unconfirmed = is_behind.then_some(Unconfirmed::new(record.una, false));
        self.wnd = if is_behind { 0 } else { record.wnd };
        // Read ahead of the guest's window, and acknowledged again at the first probe.
        let behind = (self.una - record.una).max(0) as u32;
        self.wnd_max = record.wnd.max(behind).max(65_535);
        (self.wl1, self.wl2) = (record.rx_begin - 1, self.una);
        self.bytes = progress.read;
        self.tx_limit.resume(now, self.bytes as u32);
        match state {
            _ if state == S::Open && is_behind => self.timer = Some((now, Timer::Window)),
            S::FinSent => {
                self.board.sent(self.una, 1, now);
                self.timer = Some((now, Timer::Retransmit));
            }
            S::SynAckSent => self.start_retransmission_timer(shared, now),
            _ => {}
        }
        self.check();
        Ok(())
    }

    /// Half of a connection that cannot go on: the guest, which has acknowledged all before `una`, is probed,
    /// and nothing else.
    pub(in crate::connection) fn lose(&mut self, shared: &mut Shared, now: Instant, una: Seq) {
        self.clear(shared);
        self.state = SenderState::Open;
        (self.una, self.nxt, self.wnd) = (una, una, 0);
        (self.timed, self.tail_probe) = (None, None);
        self.unconfirmed = Some(Unconfirmed::new(una, true));
        (self.backoff, self.timer) = (0, Some((now, Timer::Window)));
        self.check();
    }

    /// Takes the acknowledgement `ack`, which was acceptable, of a half that may be unconfirmed.
    pub(super) fn confirm(&mut self, now: Instant, ack: Seq) {
        let Some(unconfirmed) = &mut self.unconfirmed else { return };
        if ack.ge(self.una) {
            self.unconfirmed = None;
        } else if ack.ge(unconfirmed.acknowledged) {
            unconfirmed.acknowledged = ack;
            if self.backoff > 0 && !unconfirmed.behind {
                unconfirmed.behind = true;
                self.timer = self.timer.map(|(at, timer)| (at.min(now + SETTLED_AFTER), timer));
            }
        }
    }

    /// Saved form of the wait for the guest; `None` if there is none.
    pub(in crate::connection) fn save_unconfirmed(&self) -> Option<UnconfirmedV1> {
        let Unconfirmed { acknowledged, behind, lost } = self.unconfirmed?;
        Some(UnconfirmedV1 { acknowledged: acknowledged.save(), behind, lost })
    }

    /// Restores the wait for the guest of an otherwise restored half.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts the rest.
    pub(in crate::connection) fn restore_unconfirmed(&mut self, saved: UnconfirmedV1) -> Result<(), Invalid> {
        let UnconfirmedV1 { acknowledged, behind, lost } = saved;
        let acknowledged = Seq::restore(acknowledged)?;
        valid(acknowledged.le(self.una))?;
        valid(!lost || (self.state == SenderState::Open && self.una == self.nxt && self.wnd == 0))?;
        self.unconfirmed = Some(Unconfirmed { acknowledged, behind, lost });
        Ok(())
    }

    /// SND.UNA as the guest itself has confirmed it.
    pub(in crate::connection) fn confirmed(&self) -> Seq {
        self.unconfirmed.map_or(self.una, |unconfirmed| unconfirmed.acknowledged)
    }

    /// Sequence number of a reset: SND.NXT, or what the guest expects as far as it has said.
    pub(in crate::connection) fn reset_at(&self) -> Seq {
        self.unconfirmed.map_or(self.nxt, |unconfirmed| unconfirmed.acknowledged)
    }

    /// Whether the guest has not acknowledged yet all that was sent before the crash.
    pub(in crate::connection) fn is_unconfirmed(&self) -> bool {
        self.unconfirmed.is_some()
    }

    /// Whether the connection cannot go on ([`Sender::lose`]).
    pub(in crate::connection) fn is_lost(&self) -> bool {
        self.unconfirmed.is_some_and(|unconfirmed| unconfirmed.lost)
    }

    /// Wait after a probe; `None` if the half is not unconfirmed.
    pub(super) fn confirmation_wait(&self) -> Option<Duration> {
        self.unconfirmed.map(|_| ANSWER_WITHIN * (1 << self.backoff.saturating_sub(1).min(PROBES_MAX)))
    }

    /// A probe found no credit, so no answer is to come: it does not count, and is due again as soon as the
    /// link takes frames. A link may be down for a while after a crash, until its guest's monitor connects
    /// again.
    pub(in crate::connection) fn confirmation_refused(&mut self) {
        (self.backoff, self.timer) = (self.backoff.saturating_sub(1), None);
    }

    /// Whether a probe is due that found no credit before.
    pub(in crate::connection) fn is_probe_due(&self) -> bool {
        self.unconfirmed.is_some() && self.state == SenderState::Open && self.timer.is_none()
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
        self.peer_scales.then_some(self.scale)
    }

    /// Whether bytes that were sent before a crash have not arrived, and are gone.
    pub(in crate::connection) fn has_lost_bytes(&self) -> bool {
        self.unconfirmed.is_some_and(|unconfirmed| unconfirmed.behind) || self.is_unanswered()
    }

    /// Whether the guest has answered no probe.
    pub(in crate::connection) fn is_unanswered(&self) -> bool {
        self.unconfirmed.is_some() && self.backoff >= PROBES_MAX
    }
}
