//! Tuning of a connection's two limits: measurements, trace events of every change, the limiting factor of
//! the guest's sending, and window updates.
//!
//! A window update that opens a closed window is not acknowledged; were it lost, both sides would wait. So it
//! is repeated, after a round trip and then at growing distances, until the guest sends or a bounded number
//! of times: a guest that has nothing more to send never moves. A window that is closed only because memory
//! is short is listed, to be looked at when some was given back ([`crate::memory::parked`]).

use super::Connection;
use super::autosize::Change;
use super::limiting_factor::LimitingFactor;
use super::receiver::ReceiverState;
use super::sender::SenderState;
use crate::context::{Cx, Platform, Shared};
use crate::memory::budget::{Need, Pressure};
use crate::time::{Duration, Instant};
use crate::trace::{Direction, Event, Observer};
use crate::wire::tcp::Seq;

/// Repetitions of an update that opens a window.
const UPDATES_MAX: u8 = 6;
/// A guest that was at the edge and sends nothing for this many round trips has nothing to send.
const QUIET_ROUND_TRIPS: u32 = 4;
const QUIET_MIN: Duration = Duration::from_millis(1);

/// How long a guest may be silent that our limit holds back.
pub(super) fn quiet(shared: &Shared) -> Duration {
    (shared.tcp.rtt.round_trip() * QUIET_ROUND_TRIPS).max(QUIET_MIN)
}

impl Connection {
    /// Cap of the receiving direction by memory and the TX queue budget, bytes.
    pub(super) fn receive_cap(&self, shared: &Shared) -> u32 {
        self.memory_cap(shared).min(self.window_max(shared).saturating_add(self.rx.held()))
    }

    /// Memory cap of the receiving direction, bytes.
    fn memory_cap(&self, shared: &Shared) -> u32 {
        shared.memory.pool.receive_cap(self.rx.is_blocked())
    }

    /// Cap of the receiving direction by the TX queue budget, bytes not held yet.
    pub(super) fn window_max(&self, shared: &Shared) -> u32 {
        self.rx.window_max(&shared.tx, self.tx.mss)
    }

    /// Lets the receive limit follow the flow; called once per batch that brought data, before it is
    /// acknowledged.
    pub(super) fn tune_receiver<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let blocked = self.rx.is_blocked();
        let limit = self.rx.rx_limit.get();
        let window_max = self.window_max(cx.shared);
        let ours = self.memory_cap(cx.shared) > limit && window_max >= limit;
        let full = self.rx.is_near_edge(window_max, self.tx.mss) && ours;
        if full && !blocked {
            self.rx.rx_limit.hit();
        }
        self.rx.rx_limit.blocked(cx.now, blocked);
        let memory_short = cx.shared.memory.pool.pressure() > Pressure::None;
        let change =
            self.rx.rx_limit.update(cx.now, self.rx.bytes as u32, &mut cx.shared.tcp.rtt, memory_short);
        if let Some(change) = change {
            self.tuned(cx, Direction::Receive, change);
        }
        if let Some(idle) = self.rx.idle_since(cx.now, quiet(cx.shared)) {
            self.receiving_limited_by(cx, idle, LimitingFactor::Application);
        }
        self.note_receiving_limit(cx);
        self.rx.data_at = cx.now;
        self.rx.update_at = None;
    }

    /// The host socket was full until now.
    pub(super) fn tune_blocked_receiver<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.rx.is_blocked()
            && let Some(change) = self.rx.rx_limit.shrink_blocked(cx.now)
        {
            self.tuned(cx, Direction::Receive, change);
        }
    }

    /// Lets the send limit follow the flow; called whenever this flow is served.
    pub(super) fn tune_sender<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.tx.memory_cap = cx.shared.memory.pool.send_cap(self.tx.mss);
        let memory_short = cx.shared.memory.pool.pressure() > Pressure::None;
        let change =
            self.tx.tx_limit.update(cx.now, self.tx.bytes as u32, &mut cx.shared.tcp.rtt, memory_short);
        if let Some(change) = change {
            self.tuned(cx, Direction::Send, change);
        }
    }

    #[cold]
    fn tuned<P: Platform>(&self, cx: &mut Cx<'_, P>, direction: Direction, change: Change) {
        let grew = change.to > change.from;
        let counters = &mut cx.shared.counters;
        *match (direction, grew) {
            (Direction::Receive, true) => &mut counters.rx_buffer_grows,
            (Direction::Receive, false) => &mut counters.rx_buffer_shrinks,
            (Direction::Send, true) => &mut counters.tx_buffer_grows,
            (Direction::Send, false) => &mut counters.tx_buffer_shrinks,
        } += 1;
        cx.observer.trace(&Event::Tuned {
            flow: self.id,
            direction,
            from: change.from,
            to: change.to,
            cause: change.cause,
            per_rtt: change.per_rtt,
            rtt_us: u32::try_from(cx.shared.tcp.rtt.round_trip().as_micros()).unwrap_or(u32::MAX),
        });
    }

    /// Notes what holds the guest's sending back now.
    pub(super) fn note_receiving_limit<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let blocked = self.rx.is_blocked();
        self.rx.rx_limit.blocked(cx.now, blocked);
        let window_max = self.window_max(cx.shared);
        let by = if blocked && !self.rx.writable {
            LimitingFactor::HostSocket
        } else if self.rx.state != ReceiverState::Open || !self.rx.is_near_edge(window_max, self.tx.mss) {
            LimitingFactor::Application
        } else if self.memory_cap(cx.shared) < self.rx.rx_limit.get() {
            LimitingFactor::Memory
        } else if window_max < self.rx.rx_limit.get() {
            LimitingFactor::Link
        } else {
            LimitingFactor::OurLimit
        };
        self.receiving_limited_by(cx, cx.now, by);
    }

    fn receiving_limited_by<P: Platform>(&mut self, cx: &mut Cx<'_, P>, now: Instant, by: LimitingFactor) {
        if let Some((from, time)) = self.rx.clock.set(now, by) {
            let after_us = time.as_micros() as u64;
            let direction = Direction::Receive;
            cx.observer.trace(&Event::LimitingFactor { flow: self.id, direction, from, to: by, after_us });
        }
    }

    /// Lists the flow for a window update if one is due; if only memory stands against it, lists it to wait
    /// for that.
    pub(super) fn update_window(&mut self, shared: &mut Shared, now: Instant) {
        // While our SYN is on its way there is no window to update yet.
        if self.tx.state == SenderState::Connecting || self.is_shaking_hands() {
            return;
        }
        if self.rx.update_due(self.receive_cap(shared), self.tx.mss) {
            return self.list_ack(shared);
        }
        if self.waits_for_memory(shared) {
            shared.memory.windows.stop(now, self.id, &mut self.rx.memory_listed);
            if self.rx.update_due(self.receive_cap(shared), self.tx.mss) {
                self.list_ack(shared);
            }
        }
    }

    /// Memory was given back for which this flow may have waited.
    pub(crate) fn memory_freed(&mut self, shared: &mut Shared, now: Instant, need: Need) {
        if self.ended {
            return;
        }
        let goes_on = match need {
            Need::Read => {
                self.tx.memory_listed = false;
                let waited = std::mem::take(&mut self.tx.short_of_memory);
                // The memory cap is read again when the flow is served.
                if waited {
                    self.list_ready(shared);
                }
                waited
            }
            Need::Window => {
                self.rx.memory_listed = false;
                let waited = self.waits_for_memory(shared);
                self.update_window(shared, now);
                waited && self.rx.ack_listed
            }
        };
        if goes_on && shared.memory.parked(need).was_forgotten() {
            shared.counters.lost_wakeups += 1;
        }
    }

    /// Whether the window is shut, although the host socket has taken everything, and has to stay so.
    fn waits_for_memory(&self, shared: &Shared) -> bool {
        self.rx.state == ReceiverState::Open
            && !self.rx.is_blocked()
            && self.rx.is_shut(self.tx.mss)
            && self.memory_cap(shared) == 0
    }

    /// A segment without payload was sent; before it RCV.NXT and the right edge were `nxt` and `edge`.
    pub(super) fn note_window_update<P: Platform>(&mut self, cx: &mut Cx<'_, P>, (nxt, edge): (Seq, Seq)) {
        let window = self.rx.window();
        if nxt == self.rx.nxt && self.rx.told().1 != edge {
            cx.observer.trace(&Event::WindowUpdate { flow: self.id, window, repeated: false });
            let was_shut =
                ((edge - nxt).max(0) as u32) < u32::from(self.tx.mss).min(self.rx.rx_limit.get() / 2);
            if was_shut && !self.rx.is_shut(self.tx.mss) {
                self.rx.updates = 0;
                self.rx.update_at = Some(cx.now + cx.shared.tcp.rtt.repeat_after(0));
            }
        }
        if self.rx.update_at.is_none() {
            self.update_window(cx.shared, cx.now);
        }
        if self.rx.update_at.is_some() {
            // Acknowledgements at the end of a turn are followed by nothing else.
            self.arm(cx.shared);
        }
    }

    /// The time for another look at the window has come.
    pub(super) fn window_timer<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.rx.update_at = None;
        self.rx.updates = self.rx.updates.saturating_add(1);
        if self.rx.update_due(self.receive_cap(cx.shared), self.tx.mss) || self.waits_for_memory(cx.shared) {
            return self.update_window(cx.shared, cx.now);
        }
        if self.rx.state != ReceiverState::Open
            || self.rx.is_shut(self.tx.mss)
            || self.rx.updates > UPDATES_MAX
        {
            return;
        }
        let updates = self.rx.updates;
        self.send_ack(cx);
        self.rx.updates = updates;
        self.rx.update_at = Some(cx.now + cx.shared.tcp.rtt.repeat_after(updates));
        cx.observer.trace(&Event::WindowUpdate { flow: self.id, window: self.rx.window(), repeated: true });
    }
}
