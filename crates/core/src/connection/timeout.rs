//! Timers of a connection: connect to a resolver, retransmission and window probes, TIME-WAIT, keep-alive.

use super::Connection;
use super::receiver::ReceiverState;
use super::sender::{SenderState, Timer};
use crate::context::{Cx, Platform, Shared};
use crate::flow::end::EndCause;
use crate::host::HostError;
use crate::snapshot::saved::{Invalid, Saved, valid};
use crate::snapshot::v1::KeepAliveV1;
use crate::time::{Duration, Instant};
use crate::trace::Resend;

/// Keep-alive probes without answer before the guest is taken to be gone, and their distance: Linux's
/// defaults.
const PROBES_MAX: u8 = 9;
const PROBE_INTERVAL: Duration = Duration::from_secs(75);
/// Silence after a reset of the guest's device before the first probe: its driver has its rings again by
/// then, and often its kernel an address. A probe before that is one without answer.
const DOUBT_AFTER: Duration = Duration::from_secs(5);
/// Bit of the saved number of probes: the guest is doubted.
const SAVED_DOUBT: u8 = 0x80;
/// Longest time for which a host socket may take nothing of a guest that is done with the connection: no
/// timer of the host's kernel ends one whose peer answers its window probes and never reads. Linux gives up a
/// socket without a program after some four minutes of that (`tcp_orphan_retries`).
const UNTAKEN_MAX: Duration = Duration::from_secs(600);
/// Time-outs in a row after which a guest that takes nothing more of a host socket that has failed gets the
/// reset with bytes unsent: some 25 s on a link of a known round trip, and minutes behind time-outs of before
/// the failure, which have doubled already. A guest that writes all before it
/// reads would otherwise learn of the reset from its own time-out alone.
pub(super) const REST_TIMEOUTS_MAX: u8 = 6;

/// Keep-alive of a connection (RFC 9293, 3.8.4).
///
/// *Doubt.* After a reset of its device the guest may be another kernel, which knows nothing of the
/// connection, or the same one: its driver was loaded again, or it has slept. A probe tells: the one resets,
/// the other acknowledges. So silence is then counted from the reset on, and need not be long.
#[derive(Debug)]
pub(super) struct KeepAlive {
    /// Last arrival, later by as much as probes were late.
    arrived_at: Instant,
    /// Probes since.
    probes: u8,
    /// Whether `arrived_at` was a reset of the guest's device.
    doubted: bool,
}

/// Outcome of [`KeepAlive::expire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// Shorter than the interval.
    Short,
    /// A probe is due.
    Probe,
    /// No probe was answered.
    Dead,
}

impl KeepAlive {
    /// Keep-alive of a guest whose last segment arrived at `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self { arrived_at: now, probes: 0, doubted: false }
    }

    /// The guest's device was reset.
    fn doubt(&mut self, now: Instant) {
        *self = Self { doubted: true, ..Self::new(now) };
    }

    /// Arrival of a segment.
    pub(super) fn record_arrival(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Arrival of the last segment.
    pub(super) fn last_arrival(&self) -> Instant {
        self.arrived_at
    }

    /// Time of the next probe, after a silence of `idle` before the first.
    fn deadline(&self, idle: Duration) -> Instant {
        let silence = if self.doubted { idle.min(DOUBT_AFTER) } else { idle };
        self.arrived_at + silence + PROBE_INTERVAL * u32::from(self.probes)
    }

    /// Expiry of its deadline, perhaps early. While nothing can be sent to the guest (`stalled`: its machine
    /// is paused, or its ring full), silence says nothing: the time of a probe passes without one.
    fn expire(&mut self, now: Instant, idle: Duration, stalled: bool) -> Silence {
        if now < self.deadline(idle) {
            Silence::Short
        } else if stalled {
            self.arrived_at = self.arrived_at + (now - self.deadline(idle)) + PROBE_INTERVAL;
            Silence::Short
        } else if self.probes >= PROBES_MAX {
            Silence::Dead
        } else {
            // A probe that comes late, after a pause of this process, takes nothing from the time that the
            // guest has for its answer.
            self.arrived_at = self.arrived_at + (now - self.deadline(idle));
            self.probes += 1;
            Silence::Probe
        }
    }
}

impl Saved<KeepAliveV1> for KeepAlive {
    fn save(&self) -> KeepAliveV1 {
        let Self { arrived_at, probes, doubted } = self;
        let doubt = if *doubted { SAVED_DOUBT } else { 0 };
        KeepAliveV1 { arrived_at: arrived_at.save(), probes: probes | doubt }
    }

    fn restore(saved: KeepAliveV1) -> Result<Self, Invalid> {
        let KeepAliveV1 { arrived_at, probes } = saved;
        let (doubted, probes) = (probes & SAVED_DOUBT != 0, probes & !SAVED_DOUBT);
        valid(probes <= PROBES_MAX)?;
        Ok(Self { arrived_at: Instant::restore(arrived_at)?, probes, doubted })
    }
}

impl Connection {
    /// The next time at which [`Connection::timers_fired`] has something to do.
    fn deadline(&self, shared: &Shared) -> Instant {
        let keep_alive = self.keep_alive.deadline(shared.config.timeouts.keep_alive_idle);
        let gate = self.rx.gate_deadline();
        let own = [self.tx.deadline(), self.closer.time_wait_until(), self.rx.update_deadline()];
        own.into_iter()
            .chain([self.ack_deadline(), gate, self.dns_deadline(), self.connect_deadline(shared)])
            .chain([self.untaken_deadline()])
            .flatten()
            .fold(keep_alive, Instant::min)
    }

    /// The same, of which a flow that is away may have none.
    fn next_deadline(&self, shared: &Shared) -> Option<Instant> {
        let promotion = self.promotion.deadline();
        if self.is_away() {
            return promotion;
        }
        let own = self.deadline(shared);
        Some(promotion.map_or(own, |at| own.min(at)))
    }

    /// End of the delay of an acknowledgement, if one is delayed. Nothing has come from the guest since the
    /// segment that it is for ([`Connection::segment`]).
    fn ack_deadline(&self) -> Option<Instant> {
        self.rx.ack().deadline(self.keep_alive.last_arrival())
    }

    /// End of the wait for a host socket to take the last bytes of a guest that needs nothing more.
    fn untaken_deadline(&self) -> Option<Instant> {
        let waits = self.tx.state() == SenderState::Finished && self.rx.state() == ReceiverState::Finishing;
        waits.then(|| self.rx.moved_at().max(self.keep_alive.last_arrival()) + UNTAKEN_MAX)
    }

    /// Arms the wheel for the next deadline. Called after every change that may have moved it.
    pub(super) fn arm(&mut self, shared: &mut Shared) {
        if !self.ended {
            self.tx.check();
        }
        match self.next_deadline(shared) {
            Some(at) => shared.timers.arm(self.id, at),
            None => shared.timers.cancel(self.id),
        }
    }

    /// The wheel fired for this flow, perhaps early.
    pub(super) fn timers_fired<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let now = cx.now;
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.closer.time_wait_until()) {
            self.ended = true;
            return;
        }
        if due(self.untaken_deadline()) {
            self.end_if_untaken(cx);
            if self.ended {
                return;
            }
        }
        if let Some(timer) = self.tx.take_expired(now) {
            self.sender_timer(cx, timer);
        }
        if self.ended {
            return;
        }
        if due(self.rx.gate_deadline()) {
            self.rx.end_gate(cx.shared, true);
            self.look_at_gate(cx);
            if self.ended {
                return;
            }
        }
        if due(self.connect_deadline(cx.shared)) {
            self.connect_failed(cx, HostError::TimedOut);
            if self.ended {
                return;
            }
        }
        if due(self.dns_deadline()) {
            self.dns_timed_out(cx);
            if self.ended {
                return;
            }
        }
        if due(self.ack_deadline()) {
            self.delayed_ack_expired(cx.shared);
        }
        if due(self.rx.update_deadline()) {
            self.window_timer(cx);
        }
        self.keep_alive(cx);
    }

    /// End of a connection whose host socket still takes nothing. Pauses of this process: the timer then
    /// comes before the event of a socket that has room again.
    fn end_if_untaken<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.rx.socket_writable();
        self.flush_to_host(cx);
        if !self.ended && self.untaken_deadline().is_some_and(|at| at <= cx.now) {
            self.end(cx, EndCause::TimedOut);
        }
    }

    pub(super) fn sender_timer<P: Platform>(&mut self, cx: &mut Cx<'_, P>, timer: Timer) {
        match timer {
            _ if self.tx.is_unanswered() => self.reset_guest(cx),
            // Nothing can be sent again, so nothing is known to be without answer.
            Timer::Retransmit if cx.shared.tx.stalled => self.tx.wait_for_link(cx.shared, cx.now),
            Timer::Retransmit if self.tx.is_shaking_hands() => self.syn_timeout(cx),
            Timer::Retransmit | Timer::Window if self.leaves_rest(cx.shared) => self.reset_guest(cx),
            Timer::Retransmit if self.tx.has_given_up() && !self.waits_for_window(cx.shared, cx.now) => {
                self.cause = EndCause::TimedOut;
                self.reset_guest(cx);
            }
            Timer::Retransmit => {
                self.tx.timed_out(cx.shared, cx.now);
                self.list_ready(cx.shared);
            }
            Timer::Reorder => {
                self.tx.reorder_wait_over(cx.shared, cx.now);
                self.list_ready(cx.shared);
            }
            Timer::TailProbe => {
                // Without credit the retransmission timer does it.
                if let Some(tail) = self.tx.probe_tail(cx.shared, cx.now)
                    && self.resend(cx, tail, Resend::TailProbe).is_ok()
                {
                    self.tx.tail_probed(cx.shared);
                }
            }
            Timer::Window => {
                if self.tx.window_timed_out(cx.shared, cx.now) {
                    if self.send_probe(cx).is_err() && self.tx.is_lost() {
                        self.tx.probe_refused();
                        self.list_ready(cx.shared);
                    }
                } else {
                    self.list_ready(cx.shared);
                }
            }
        }
    }

    /// Whether the host socket has failed, and the guest does not take what came before.
    fn leaves_rest(&mut self, shared: &Shared) -> bool {
        // Those before the failure are over with the first acknowledgement.
        self.timeouts_before = self.timeouts_before.min(self.tx.backoff());
        let is_at_end = self.tx.backoff() - self.timeouts_before >= REST_TIMEOUTS_MAX && !shared.tx.stalled;
        self.broken && is_at_end && !self.tx.is_lost()
    }

    /// Whether the guest has closed its window on what was on its way to it, and still answers: then what is
    /// sent again only probes the window, and there is no end to that (RFC 9293, 3.8.6.1).
    fn waits_for_window(&self, shared: &Shared, now: Instant) -> bool {
        self.tx.is_window_closed()
            && now - self.keep_alive.last_arrival() < shared.tcp.rtt.rto(self.tx.backoff()) * 2
    }

    /// The guest's device was reset. Handshakes and what is over have times of their own.
    pub(super) fn doubt_guest(&mut self, cx: &mut Cx<'_, impl Platform>) {
        let is_brief = self.tx.is_connecting() || self.tx.is_shaking_hands();
        if !is_brief && !self.is_away() && self.closer.time_wait_until().is_none() {
            self.keep_alive.doubt(cx.now);
            cx.shared.counters.tcp_doubted += 1;
        }
    }

    fn syn_timeout<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.tx.syn_timed_out(cx.shared, cx.now) {
            self.repeat_syn(cx);
        } else {
            self.end(cx, EndCause::TimedOut);
        }
    }

    fn keep_alive<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.tx.is_connecting() {
            return;
        }
        let idle = cx.shared.config.timeouts.keep_alive_idle;
        match self.keep_alive.expire(cx.now, idle, cx.shared.tx.stalled) {
            Silence::Short => {}
            Silence::Probe => {
                // Without credit the next probe does it.
                let _ = self.send_probe(cx);
            }
            Silence::Dead => {
                self.cause = EndCause::TimedOut;
                self.reset_guest(cx);
            }
        }
    }
}
