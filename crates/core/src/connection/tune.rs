//! Tuning of a connection's two limits, limiting factors and window updates: when each half evaluates them,
//! and the trace events of every change.
//!
//! A window that is closed only because memory is short is parked, to be evaluated when some was given back
//! ([`crate::memory::parked`]).

use super::Connection;
use super::receiver::WindowStep;
use crate::context::{Cx, Platform, Shared};
use crate::memory::budget::Need;
use crate::tcp::autosize::Change;
use crate::tcp::limiting_factor::FactorChange;
use crate::tcp::window::Advertised;
use crate::time::Instant;
use crate::trace::{Direction, Event, Observer};

impl Connection {
    /// Lets the receive limit follow the flow; called once per batch that brought data, before it is
    /// acknowledged.
    pub(super) fn tune_receiver<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if let Some(change) = self.rx.tune(cx.shared, cx.now) {
            self.trace_tuned(cx, Direction::Receive, change);
        }
        let silence = self.rx.note_silence(&cx.shared.tcp.rtt, cx.now);
        self.trace_limiting_factor(cx, Direction::Receive, silence);
        self.note_receiving_limit(cx);
        self.rx.data_arrived(cx.now);
        self.consider_promotion(cx);
    }

    /// Lets the receive limit follow a host socket that was full until now.
    pub(super) fn tune_blocked_receiver<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if let Some(change) = self.rx.tune_blocked(cx.now) {
            self.trace_tuned(cx, Direction::Receive, change);
        }
    }

    /// Lets the send limit follow the flow; called whenever this flow is served.
    pub(super) fn tune_sender<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if let Some(change) = self.tx.tune(cx.shared, cx.now) {
            self.trace_tuned(cx, Direction::Send, change);
        }
    }

    #[cold]
    fn trace_tuned<P: Platform>(&self, cx: &mut Cx<'_, P>, direction: Direction, change: Change) {
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

    /// Records the present limiting factor of the guest's sending.
    pub(super) fn note_receiving_limit<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let change = self.rx.note_limiting_factor(cx.shared, cx.now);
        self.trace_limiting_factor(cx, Direction::Receive, change);
    }

    /// Traces a change of the limiting factor, if it is one.
    pub(super) fn trace_limiting_factor<P: Platform>(
        &self,
        cx: &mut Cx<'_, P>,
        direction: Direction,
        change: Option<FactorChange>,
    ) {
        if let Some(FactorChange { from, to, after }) = change {
            let after_us = after.as_micros() as u64;
            cx.observer.trace(&Event::LimitingFactor { flow: self.id, direction, from, to, after_us });
        }
    }

    /// Lists the flow for a window update if one is due; if only memory stands against it, parks it for that.
    pub(super) fn update_window(&mut self, shared: &mut Shared, now: Instant) {
        // While our SYN is on its way there is no window to update yet; behind a failure of the host socket
        // nothing more has a taker.
        if self.tx.is_connecting() || self.tx.is_shaking_hands() || self.broken {
            return;
        }
        if self.rx.update_window(shared, now, self.id) {
            self.list_ack(shared);
        }
    }

    /// Wake-up of a flow that has waited for memory, which was given back.
    pub(crate) fn memory_freed(&mut self, shared: &mut Shared, now: Instant, need: Need) {
        if self.ended {
            return;
        }
        if self.is_away() {
            // It waits for nothing, and is no longer listed.
            match need {
                Need::Read => _ = self.tx.memory_freed(),
                Need::Window => _ = self.rx.memory_freed(shared),
            }
            return;
        }
        let goes_on = match need {
            Need::Read => {
                let waited = self.tx.memory_freed();
                if waited {
                    self.list_ready(shared);
                }
                waited
            }
            Need::Window => {
                let waited = self.rx.memory_freed(shared);
                self.update_window(shared, now);
                waited && self.rx.ack().is_listed()
            }
        };
        if goes_on && shared.memory.parked(need).was_forgotten() {
            shared.counters.lost_wakeups += 1;
        }
    }

    /// Transmission of a segment without payload, before which `last` was advertised: traces an update, and
    /// sees to the next one.
    pub(super) fn note_window_update<P: Platform>(&mut self, cx: &mut Cx<'_, P>, last: Advertised) {
        if self.rx.was_window_update(last, cx.now, &cx.shared.tcp.rtt) {
            let window = self.rx.window();
            cx.observer.trace(&Event::WindowUpdate { flow: self.id, window, repeated: false });
        }
        if self.rx.update_deadline().is_none() {
            self.update_window(cx.shared, cx.now);
        }
        if self.rx.update_deadline().is_some() {
            // Acknowledgements at the end of a turn are followed by nothing else.
            self.arm(cx.shared);
        }
    }

    /// Deadline of a repeated window update.
    pub(super) fn window_timer<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        match self.rx.update_expired(cx.shared) {
            WindowStep::None => {}
            WindowStep::Update => self.update_window(cx.shared, cx.now),
            WindowStep::Repeat(repeats) => {
                self.send_ack(cx);
                self.rx.update_repeated(repeats, cx.now, &cx.shared.tcp.rtt);
                let window = self.rx.window();
                cx.observer.trace(&Event::WindowUpdate { flow: self.id, window, repeated: true });
            }
        }
    }
}
