//! Acknowledgements of a connection: at the end of the batch, or delayed until an answer carries them.

use super::Connection;
use super::delayed_ack::WAIT;
use super::receiver::ReceiverState;
use super::sender::SenderState;
use crate::context::Shared;
use crate::time::Instant;

impl Connection {
    /// When an acknowledgement that waits must go out. Nothing has come from the guest since the segment that
    /// it is for ([`Connection::segment`]).
    pub(super) fn answer_deadline(&self) -> Option<Instant> {
        self.rx.delayed_ack.waiting.then(|| self.heard_at + WAIT)
    }

    /// Sees to the acknowledgement of what has come in order: `segments` of them, `len` bytes together.
    pub(super) fn owe_ack(&mut self, shared: &mut Shared, segments: u8, len: usize) {
        self.rx.delayed_ack.segments_arrived(segments);
        if self.may_wait_for_answer(shared, len) {
            self.rx.delayed_ack.waiting = true;
        } else {
            self.list_ack(shared);
        }
    }

    fn may_wait_for_answer(&self, shared: &Shared, len: usize) -> bool {
        let rx = &self.rx;
        rx.delayed_ack.segments == 1
            && rx.delayed_ack.promptness.is_prompt()
            && len < usize::from(self.tx.mss)
            && !rx.ack_listed
            && !rx.has_gaps()
            && !rx.has_sack_blocks()
            && !rx.is_blocked()
            && (rx.state != ReceiverState::Open || !rx.is_near_edge(self.window_max(shared), self.tx.mss))
            && self.tx.state == SenderState::Open
            && !self.tx.eof
            && !self.broken
            && self.socket.is_some()
    }

    /// Data or the end of the stream went out to the guest: an answer, if it had asked.
    pub(super) fn answered(&mut self, shared: &mut Shared, now: Instant, waited: bool) {
        let delayed = &mut self.rx.delayed_ack;
        if delayed.segments == 0 {
            return;
        }
        if delayed.segments == 1 && !delayed.late && now - self.heard_at <= WAIT {
            delayed.promptness.record_prompt();
            shared.counters.tcp_acks_carried += u64::from(waited);
        } else {
            delayed.promptness.record_late();
        }
        (delayed.segments, delayed.late) = (0, false);
        shared.tcp.prompt_peers.keep(&self.key.remote, delayed.promptness);
    }

    /// The acknowledgement has waited long enough.
    pub(super) fn answer_is_late(&mut self, shared: &mut Shared) {
        let delayed = &mut self.rx.delayed_ack;
        (delayed.waiting, delayed.late) = (false, true);
        delayed.promptness.record_late();
        shared.tcp.prompt_peers.keep(&self.key.remote, delayed.promptness);
        shared.counters.tcp_acks_late += 1;
        self.list_ack(shared);
    }
}
