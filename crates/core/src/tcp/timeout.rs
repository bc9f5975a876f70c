//! What time does to a connection: retransmission and window probes, TIME-WAIT, keep-alive.

use super::Connection;
use super::recovery::Timer;
use super::sender::{BACKOFF_MAX, SenderState};
use crate::env::Env;
use crate::flow::end::EndCause;
use crate::host::{Close, Host};
use crate::link::Link;
use crate::stack::Io;
use crate::time::{Duration, Instant};
use crate::trace::Resend;

/// SYNs and SYN-ACKs sent again before we give up: Linux's tcp_synack_retries. With our time-outs that takes 14 s on a link of a
/// round trip that is known, and not Linux's 63 from a first one of a second. A guest kernel that answers nothing for so
/// long stands still and has lost nothing by it: its program still waits in connect, and the SYN that it sends again when
/// it goes on opens another connection. Meanwhile no host socket is kept for one that never comes back.
const SYN_RETRIES: u8 = 5;
/// Keep-alive probes without answer before the guest is taken to be gone, and their distance: Linux's defaults.
const PROBES_MAX: u8 = 9;
const PROBE_INTERVAL: Duration = Duration::from_secs(75);

impl Connection {
    /// The next time at which [`Connection::expire`] has something to do.
    fn deadline(&self, env: &Env) -> Instant {
        let idle = env.config.timeouts.keep_alive_idle + PROBE_INTERVAL * u32::from(self.probes);
        let keep_alive = self.heard_at + idle;
        let (sender, ack) = (self.tx.timer.map(|(at, _)| at), self.answer_deadline());
        [sender, self.time_wait_until, self.rx.update_at, ack]
            .into_iter()
            .flatten()
            .fold(keep_alive, Instant::min)
    }

    /// Makes sure that the wheel fires by the next deadline. Called after whatever may have moved it.
    pub(crate) fn arm(&mut self, env: &mut Env) {
        let at = self.deadline(env);
        env.wheel.arm(self.id, at);
    }

    /// The wheel fired for this flow, perhaps early.
    pub(crate) fn expire<L: Link, H: Host>(&mut self, env: &mut Env, io: &mut Io<'_, L, H>) {
        let now = io.now;
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.time_wait_until) {
            self.ended = true;
            return;
        }
        if let Some((at, timer)) = self.tx.timer
            && at <= io.now
        {
            self.tx.timer = None;
            self.sender_timer(env, io, timer);
        }
        if due(self.answer_deadline()) {
            self.answer_is_late(env);
        }
        if due(self.rx.update_at) {
            self.window_timer(env, io);
        }
        self.keep_alive(env, io);
    }

    fn sender_timer<L: Link, H: Host>(&mut self, env: &mut Env, io: &mut Io<'_, L, H>, timer: Timer) {
        match timer {
            Timer::Retransmit if self.is_shaking_hands() => self.syn_timeout(env, io),
            Timer::Retransmit if self.tx.backoff >= BACKOFF_MAX && !self.waits_for_window(env, io.now) => {
                self.cause = EndCause::TimedOut;
                self.reset_guest(env, io);
            }
            Timer::Retransmit => {
                self.tx.timed_out(env, io.now);
                self.list_ready(env);
            }
            Timer::Reorder => {
                self.tx.reorder_wait_over(env, io.now);
                self.list_ready(env);
            }
            Timer::TailProbe => {
                // Without credit the retransmission timer does it.
                if let Some(tail) = self.tx.probe_tail(env, io.now)
                    && self.resend(env, io, tail, Resend::TailProbe).is_ok()
                {
                    self.tx.tail_probed(env);
                }
            }
            Timer::Window => {
                self.tx.backoff = self.tx.backoff.saturating_add(1);
                self.tx.start_window_timer(env, io.now);
                if self.tx.usable() == 0 {
                    self.send_probe(env, io);
                } else {
                    self.list_ready(env);
                }
            }
        }
    }

    /// Whether the guest has closed its window on what was on its way to it, and still answers: then what is sent again
    /// only probes the window, and there is no end to that (RFC 9293, 3.8.6.1).
    fn waits_for_window(&self, env: &Env, now: Instant) -> bool {
        self.tx.wnd == 0 && now - self.heard_at < env.rtt.rto(self.tx.backoff) * 2
    }

    fn syn_timeout<L: Link, H: Host>(&mut self, env: &mut Env, io: &mut Io<'_, L, H>) {
        if self.tx.backoff >= SYN_RETRIES {
            self.close_socket(io.host, Close::Reset);
            self.ended = true;
            self.cause = EndCause::TimedOut;
            return;
        }
        self.tx.backoff += 1;
        self.tx.forget_timing();
        self.tx.start_retransmission_timer(env, io.now);
        env.counters.tcp_retransmissions += 1;
        match self.tx.state {
            SenderState::Calling => self.send_syn(env, io),
            _ => self.send_syn_ack(env, io),
        }
    }

    fn keep_alive<L: Link, H: Host>(&mut self, env: &mut Env, io: &mut Io<'_, L, H>) {
        let idle = env.config.timeouts.keep_alive_idle + PROBE_INTERVAL * u32::from(self.probes);
        if io.now - self.heard_at < idle || self.tx.state == SenderState::Connecting {
            return;
        }
        if self.probes >= PROBES_MAX {
            self.cause = EndCause::TimedOut;
            return self.reset_guest(env, io);
        }
        self.probes += 1;
        self.send_probe(env, io);
    }
}
