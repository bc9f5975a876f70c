//! The receiving half of a connection that is promoted: its edge frozen, gone, and back.

use super::{NO_DUPLICATE, Receiver, ReceiverState, origin};
use crate::carried::MovedUntil;
use crate::context::Shared;
use crate::flow::FlowId;
use crate::promotion::SeedFields;
use crate::tcp::limiting_factor::{FactorChange, LimitingFactor};
use crate::tcp::rtt::LinkRtt;
use crate::tcp::window::{Advertised, WindowUpdater};
use crate::time::{Duration, Instant};
use crate::wire::tcp::Seq;

/// Silence after which a guest with an open window sends nothing soon. Its sender may have been off the
/// processor for a turn of the scheduler's, and what it sends while the kernel socket is made is lost.
const SILENCE: Duration = Duration::from_millis(2);

/// Least window with which a kernel socket begins, if limit and field allow it: what Linux begins with.
const WINDOW_MIN: u32 = 64 << 10;

impl Receiver {
    /// Advances the edge of the window no further.
    pub(in crate::connection) fn freeze(&mut self) {
        self.frozen = true;
    }

    /// Advances the edge again.
    pub(in crate::connection) fn thaw(&mut self) {
        self.frozen = false;
    }

    /// Time from which on no segment of the guest's is to be expected: it has been silent for a round trip
    /// if no full segment fits into the window that is left, and for [`SILENCE`] if one does.
    pub(in crate::connection) fn silent_at(&self, rtt: &LinkRtt) -> Instant {
        let used_up = self.window.size() < u32::from(self.window.mss());
        let round_trip = rtt.round_trip();
        self.data_at + if used_up { round_trip } else { round_trip.max(SILENCE) }
    }

    /// Acknowledgement and right edge with which a kernel socket begins: wide enough for a segment of the
    /// guest's and one more, as far as the limit and the field reach.
    pub(in crate::connection) fn window_to_leave_with(&self) -> Advertised {
        let window = &self.window;
        let (nxt, unit) = (window.nxt(), window.unit());
        let wanted = (2 * u32::from(window.mss())).max(WINDOW_MIN).min(self.rx_limit.get());
        let wanted = wanted.next_multiple_of(unit).min(u32::from(u16::MAX) * unit);
        if wanted > window.size() {
            Advertised { ack: nxt, edge: nxt + wanted }
        } else {
            window.last_advertised()
        }
    }

    /// A kernel socket takes over: its window is its own, so memory and the share of the TX queue are given
    /// back, and no update or acknowledgement is owed.
    pub(in crate::connection) fn leave(&mut self, shared: &mut Shared) {
        debug_assert!(self.held() == 0, "all that has come is written to the host");
        shared.tx.queue.renew(&mut self.tx_share, 0);
        shared.memory.pool.reserve_window(std::mem::take(&mut self.reserved), 0);
        self.updater = WindowUpdater::default();
        self.duplicate = NO_DUPLICATE;
        self.ack.sent(false);
    }

    /// Bytes that another carrier has moved.
    pub(in crate::connection) fn add_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.wrapping_add(bytes);
    }

    /// Bytes that a carrier has moved to the host, and why it has moved no more; gives the change of the
    /// limiting factor, if it is one.
    pub(in crate::connection) fn note_carried(
        &mut self,
        now: Instant,
        bytes: u64,
        until: MovedUntil,
    ) -> Option<FactorChange> {
        self.add_bytes(bytes);
        if bytes > 0 {
            self.data_at = now;
        }
        self.clock.set(now, until.factor(LimitingFactor::HostSocket))
    }

    /// Goes on as the seed says, with what the host's socket has not got yet. False if memory does not
    /// suffice for it.
    pub(in crate::connection) fn resume(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        id: FlowId,
        fields: &SeedFields,
        unread: &[u8],
    ) -> bool {
        let edge = Seq(fields.rcv_wup) + fields.rcv_wnd;
        self.window.resume(Seq(fields.rcv_nxt), edge, Seq(fields.rcv_wup));
        self.data_at = now;
        self.bytes = self.bytes.wrapping_add(unread.len() as u64);
        self.rx_limit.resume(now, self.bytes as u32);
        let origin = Some(origin(id, self.nxt() - unread.len() as u32));
        shared.memory.pool.push(&mut self.queue, origin, unread) == unread.len()
    }

    /// The guest's FIN came behind all that was received; `passed_on` if the host's socket is shut down.
    pub(in crate::connection) fn resume_end(&mut self, shared: &mut Shared, passed_on: bool) {
        self.finish_at(self.nxt());
        self.take_fin(shared);
        if passed_on {
            self.state = ReceiverState::Finished;
        }
    }
}
