//! Tuning of the receiving half: its limit follows the flow, and the time goes to the factor that limits the
//! guest's sending.

use super::Receiver;
use crate::context::Shared;
use crate::memory::budget::Pressure;
use crate::tcp::autosize::Change;
use crate::tcp::limiting_factor::{FactorChange, LimitingFactor, LimitingFactors};
use crate::tcp::rtt::LinkRtt;
use crate::time::{Duration, Instant};

/// Silence after which a guest that was at the edge of the window has nothing to send, in round trips, and at
/// least.
const QUIET_ROUND_TRIPS: u32 = 4;
const QUIET_MIN: Duration = Duration::from_millis(1);

impl Receiver {
    /// Lets the limit follow the flow; called once per batch that brought data, before it is acknowledged.
    pub(in crate::connection) fn tune(&mut self, shared: &mut Shared, now: Instant) -> Option<Change> {
        let blocked = self.is_blocked();
        let limit = self.rx_limit.get();
        let window_max = self.window_max(shared);
        let ours = self.memory_cap(shared) > limit && window_max >= limit;
        if self.is_near_edge(window_max) && ours && !blocked {
            self.rx_limit.hit();
        }
        self.rx_limit.blocked(now, blocked);
        if self.rx_limit.is_sparse(now, self.bytes as u32) {
            shared.standing_queue.sparse(now);
        }
        let delays = shared.standing_queue.delays(now);
        let short = delays || shared.memory.pool.pressure() > Pressure::None;
        let change = self.rx_limit.update(now, self.bytes as u32, &mut shared.tcp.rtt, short);
        change.or_else(|| if delays { self.rx_limit.shrink_queued(now) } else { None })
    }

    /// Arrival of data, after [`Receiver::tune`]: nothing is to be repeated.
    pub(in crate::connection) fn data_arrived(&mut self, now: Instant) {
        self.data_at = now;
        self.updater.data_arrived();
    }

    /// Last arrival of data; behind the guest's FIN, the last time at which the host socket took some.
    pub(in crate::connection) fn moved_at(&self) -> Instant {
        self.data_at
    }

    /// Lets the limit fall whose bytes a full host socket did not take, until now.
    pub(in crate::connection) fn tune_blocked(&mut self, now: Instant) -> Option<Change> {
        if self.is_blocked() { self.rx_limit.shrink_blocked(now) } else { None }
    }

    /// Records the present limiting factor of the guest's sending; gives the change, if it is one.
    pub(in crate::connection) fn note_limiting_factor(
        &mut self,
        shared: &Shared,
        now: Instant,
    ) -> Option<FactorChange> {
        let blocked = self.is_blocked();
        self.rx_limit.blocked(now, blocked);
        let window_max = self.window_max(shared);
        let factor = if blocked && !self.writable {
            LimitingFactor::HostSocket
        } else if !self.is_open() || !self.is_near_edge(window_max) {
            LimitingFactor::Application
        } else if self.memory_cap(shared) < self.rx_limit.get() {
            LimitingFactor::Memory
        } else if window_max < self.rx_limit.get() {
            LimitingFactor::Link
        } else {
            LimitingFactor::OurLimit
        };
        self.clock.set(now, factor)
    }

    /// Records a silence of the guest's that has just ended; gives the change, if it is one.
    pub(in crate::connection) fn note_silence(
        &mut self,
        rtt: &LinkRtt,
        now: Instant,
    ) -> Option<FactorChange> {
        let idle = self.idle_since(rtt, now)?;
        self.clock.set(idle, LimitingFactor::Application)
    }

    /// Limiting factors up to `now`, a silence that has not ended included.
    pub(super) fn limiting_times(&self, rtt: &LinkRtt, now: Instant) -> LimitingFactors {
        let mut clock = self.clock;
        if let Some(idle) = self.idle_since(rtt, now) {
            clock.set(idle, LimitingFactor::Application);
        }
        clock.read(now)
    }

    /// Begin of a silence: a guest that our limit held back, and that has sent nothing for some round trips,
    /// had nothing to send.
    fn idle_since(&self, rtt: &LinkRtt, now: Instant) -> Option<Instant> {
        let quiet = (rtt.round_trip() * QUIET_ROUND_TRIPS).max(QUIET_MIN);
        let (factor, since) = self.clock.current();
        let idle = self.data_at.max(since) + quiet;
        (matches!(factor, LimitingFactor::OurLimit | LimitingFactor::Link) && idle < now).then_some(idle)
    }
}
