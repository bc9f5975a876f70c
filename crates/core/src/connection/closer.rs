//! Closer: the order of both halves' FINs, TIME-WAIT, and the state of RFC 9293 (sections 3.3.2 and 3.6).
//!
//! Each half keeps its own FIN, as its state: [`ReceiverState`] that of the guest (awaited, received, passed
//! on to the host as a shutdown), [`SenderState`] ours (unsent, sent, acknowledged). The closer knows which
//! of both came first. Sent first, ours makes the close an active one, and TIME-WAIT is brodo's; otherwise it
//! is the guest's, and the connection ends with the acknowledgement of our FIN.

use super::receiver::ReceiverState;
use super::sender::SenderState;
use crate::flow::state::State;
use crate::snapshot::saved::{Invalid, Saved, valid};
use crate::snapshot::v1::CloserV1;
use crate::time::Instant;

/// FIN bookkeeping of one connection.
#[derive(Debug, Default)]
pub(super) struct Closer {
    /// End of TIME-WAIT; `None` before it. [`PASSIVE`] in its place: a passive close has none, and one word
    /// for both saves eight bytes of each connection.
    time_wait_until: Option<Instant>,
}

/// Passive close: the guest's FIN had arrived when ours was sent, or the guest took no more.
const PASSIVE: Instant = Instant::ZERO;

/// Outcome of [`Closer::settle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    /// A FIN of one half is outstanding, or TIME-WAIT runs already.
    Pending,
    /// TIME-WAIT begins.
    TimeWait,
    /// Passive close: nothing is outstanding, and nothing has to be waited for.
    Done,
}

impl Closer {
    /// FIN sent for the first time, while the receiver is in state `rx`.
    pub(super) fn fin_sent(&mut self, rx: ReceiverState) {
        debug_assert!(self.time_wait_until.is_none(), "FIN is sent for the first time once");
        self.time_wait_until = (rx != ReceiverState::Open).then_some(PASSIVE);
    }

    /// Reset by a guest whose FIN was received: a passive close, whatever became of our FIN.
    pub(super) fn abandoned(&mut self) {
        self.time_wait_until = Some(PASSIVE);
    }

    /// State of RFC 9293, derived from both halves.
    pub(super) fn state(&self, rx: ReceiverState, tx: SenderState) -> State {
        use ReceiverState as R;
        use SenderState as S;
        match (tx, rx) {
            (S::SynSent, _) => State::SynSent,
            (S::Connecting | S::SynAckSent, _) => State::SynReceived,
            (S::Open, R::Open) => State::Established,
            (S::Open, R::Finishing | R::Finished) => State::CloseWait,
            (S::FinSent, R::Open) => State::FinWait1,
            (S::FinSent, _) if self.is_passive() => State::LastAck,
            (S::FinSent, R::Finishing | R::Finished) => State::Closing,
            (S::Finished, R::Open) => State::FinWait2,
            // The guest needs nothing more; bytes may still be on their way to the host socket.
            (S::Finished, _) if self.is_passive() => State::Closed,
            (S::Finished, R::Finishing | R::Finished) => State::TimeWait,
        }
    }

    /// Consequence of both halves' states at `now`, with TIME-WAIT until `until` if it begins.
    pub(super) fn settle(&mut self, rx: ReceiverState, tx: SenderState, until: Instant) -> Settled {
        if tx != SenderState::Finished || rx != ReceiverState::Finished || self.time_wait_until().is_some() {
            return Settled::Pending;
        }
        if self.is_passive() {
            return Settled::Done;
        }
        debug_assert_eq!(self.state(rx, tx), State::TimeWait, "TIME-WAIT only after an active close");
        self.time_wait_until = Some(until);
        Settled::TimeWait
    }

    /// Retransmitted FIN of the guest's: our last ACK was lost, and TIME-WAIT begins again (RFC 9293,
    /// 3.10.7.4: "restart the 2 MSL time-wait timeout").
    pub(super) fn restart_time_wait(&mut self, until: Instant) {
        if let Some(at) = self.time_wait_until() {
            debug_assert!(at <= until, "TIME-WAIT is never shortened");
            self.time_wait_until = Some(until);
        }
    }

    /// Passive close.
    pub(super) fn is_passive(&self) -> bool {
        self.time_wait_until == Some(PASSIVE)
    }

    /// Restored TIME-WAIT: it ends at `until` at the latest.
    pub(super) fn bound_time_wait(&mut self, until: Instant) {
        self.time_wait_until = self.time_wait_until.map(|at| at.min(until));
    }

    /// End of TIME-WAIT, if it runs.
    pub(super) fn time_wait_until(&self) -> Option<Instant> {
        self.time_wait_until.filter(|&at| at != PASSIVE)
    }
}

impl Saved<CloserV1> for Closer {
    fn save(&self) -> CloserV1 {
        CloserV1 { passive: self.is_passive(), time_wait_until: self.time_wait_until().save() }
    }

    fn restore(CloserV1 { passive, time_wait_until }: CloserV1) -> Result<Self, Invalid> {
        let time_wait_until: Option<Instant> = Saved::restore(time_wait_until)?;
        valid(!passive || time_wait_until.is_none())?;
        Ok(Self { time_wait_until: if passive { Some(PASSIVE) } else { time_wait_until } })
    }
}
