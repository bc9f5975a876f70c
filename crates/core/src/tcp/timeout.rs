//! Timers of a connection: retransmission and window probes, TIME-WAIT, keep-alive.

use super::Connection;
use super::loss::Timer;
use super::sender::{BACKOFF_MAX, SenderState};
use crate::context::{Cx, Platform, Shared};
use crate::flow::end::EndCause;
use crate::host::Close;
use crate::time::{Duration, Instant};
use crate::trace::Resend;

/// SYNs and SYN-ACKs sent again before we give up: Linux's tcp_synack_retries. With our time-outs that takes
/// 14 s on a link of a round trip that is known, and not Linux's 63 from a first one of a second. A guest
/// kernel that answers nothing for so long stands still and has lost nothing by it: its program still waits
/// in connect, and the SYN that it sends again when it goes on opens another connection. Meanwhile no host
/// socket is kept for one that never comes back.
const SYN_RETRIES: u8 = 5;
/// Keep-alive probes without answer before the guest is taken to be gone, and their distance: Linux's
/// defaults.
const PROBES_MAX: u8 = 9;
const PROBE_INTERVAL: Duration = Duration::from_secs(75);

impl Connection {
    /// The next time at which [`Connection::timers_fired`] has something to do.
    fn deadline(&self, shared: &Shared) -> Instant {
        let idle = shared.config.timeouts.keep_alive_idle + PROBE_INTERVAL * u32::from(self.probes);
        let keep_alive = self.heard_at + idle;
        let (sender, ack) = (self.tx.timer.map(|(at, _)| at), self.answer_deadline());
        [sender, self.time_wait_until, self.rx.update_at, ack]
            .into_iter()
            .flatten()
            .fold(keep_alive, Instant::min)
    }

    /// Arms the wheel for the next deadline. Called after every change that may have moved it.
    pub(super) fn arm(&mut self, shared: &mut Shared) {
        let at = self.deadline(shared);
        shared.timers.arm(self.id, at);
    }

    /// The wheel fired for this flow, perhaps early.
    pub(super) fn timers_fired<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let now = cx.now;
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.time_wait_until) {
            self.ended = true;
            return;
        }
        if let Some((at, timer)) = self.tx.timer
            && at <= cx.now
        {
            self.tx.timer = None;
            self.sender_timer(cx, timer);
        }
        if due(self.answer_deadline()) {
            self.answer_is_late(cx.shared);
        }
        if due(self.rx.update_at) {
            self.window_timer(cx);
        }
        self.keep_alive(cx);
    }

    fn sender_timer<P: Platform>(&mut self, cx: &mut Cx<'_, P>, timer: Timer) {
        match timer {
            Timer::Retransmit if self.is_shaking_hands() => self.syn_timeout(cx),
            Timer::Retransmit
                if self.tx.backoff >= BACKOFF_MAX && !self.waits_for_window(cx.shared, cx.now) =>
            {
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
                self.tx.backoff = self.tx.backoff.saturating_add(1);
                self.tx.start_window_timer(cx.shared, cx.now);
                if self.tx.usable() == 0 {
                    self.send_probe(cx);
                } else {
                    self.list_ready(cx.shared);
                }
            }
        }
    }

    /// Whether the guest has closed its window on what was on its way to it, and still answers: then what is
    /// sent again only probes the window, and there is no end to that (RFC 9293, 3.8.6.1).
    fn waits_for_window(&self, shared: &Shared, now: Instant) -> bool {
        self.tx.wnd == 0 && now - self.heard_at < shared.tcp.rtt.rto(self.tx.backoff) * 2
    }

    fn syn_timeout<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.tx.backoff >= SYN_RETRIES {
            self.close_socket(cx.host, Close::Reset);
            self.ended = true;
            self.cause = EndCause::TimedOut;
            return;
        }
        self.tx.backoff += 1;
        self.tx.forget_timing();
        self.tx.start_retransmission_timer(cx.shared, cx.now);
        cx.shared.counters.tcp_retransmissions += 1;
        match self.tx.state {
            SenderState::SynSent => self.send_syn(cx),
            _ => self.send_syn_ack(cx),
        }
    }

    fn keep_alive<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let idle = cx.shared.config.timeouts.keep_alive_idle + PROBE_INTERVAL * u32::from(self.probes);
        if cx.now - self.heard_at < idle || self.tx.state == SenderState::Connecting {
            return;
        }
        if self.probes >= PROBES_MAX {
            self.cause = EndCause::TimedOut;
            return self.reset_guest(cx);
        }
        self.probes += 1;
        self.send_probe(cx);
    }
}
