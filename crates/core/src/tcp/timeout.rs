//! What time does to a connection: retransmission and window probes, TIME-WAIT, keep-alive, retried reads.

use super::Connection;
use super::sender::{BACKOFF_MAX, SenderState};
use crate::env::Env;
use crate::host::{Close, Host};
use crate::link::Link;
use crate::stack::Io;
use crate::time::{Duration, Instant};

/// SYN-ACKs sent again before we give up: Linux's tcp_synack_retries.
const SYN_ACK_RETRIES: u8 = 5;
/// Keep-alive probes without answer before the guest is taken to be gone, and their distance: Linux's defaults.
const PROBES_MAX: u8 = 9;
const PROBE_INTERVAL: Duration = Duration::from_secs(75);

impl Connection {
    /// The next time at which [`Connection::expire`] has something to do.
    fn deadline(&self, env: &Env) -> Instant {
        let idle = env.config.timeouts.keep_alive_idle + PROBE_INTERVAL * u32::from(self.probes);
        let keep_alive = self.heard_at + idle;
        [self.tx.rtx_at, self.time_wait_until, self.retry_at]
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
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= io.now);
        if due(self.time_wait_until) {
            self.ended = true;
            return;
        }
        if due(self.retry_at) {
            self.retry_at = None;
            self.list_ready(env);
        }
        if due(self.tx.rtx_at) {
            self.retransmission_timeout(env, io);
        }
        self.keep_alive(env, io);
    }

    fn retransmission_timeout<L: Link, H: Host>(&mut self, env: &mut Env, io: &mut Io<'_, L, H>) {
        if self.tx.state == SenderState::SynSent {
            if self.tx.backoff >= SYN_ACK_RETRIES {
                self.close_socket(io.host, Close::Reset);
                self.ended = true;
                return;
            }
            self.tx.backoff += 1;
            self.tx.forget_timing();
            self.tx.rtx_at = Some(io.now + env.rtt.rto(self.tx.backoff));
            env.counters.tcp_retransmissions += 1;
            return self.send_syn_ack(env, io);
        }
        let in_flight = self.tx.una != self.tx.max;
        if in_flight && self.tx.backoff >= BACKOFF_MAX {
            return self.reset_guest(env, io);
        }
        if in_flight {
            self.tx.go_back(env, io.now);
        } else {
            self.tx.backoff = self.tx.backoff.saturating_add(1);
            self.tx.rtx_at = Some(io.now + env.rtt.rto(self.tx.backoff));
        }
        if self.tx.usable() == 0 && !self.tx.fin_due() {
            self.send_probe(env, io);
        } else {
            self.list_ready(env);
        }
    }

    fn keep_alive<L: Link, H: Host>(&mut self, env: &mut Env, io: &mut Io<'_, L, H>) {
        let idle = env.config.timeouts.keep_alive_idle + PROBE_INTERVAL * u32::from(self.probes);
        if io.now - self.heard_at < idle || self.tx.state == SenderState::Connecting {
            return;
        }
        if self.probes >= PROBES_MAX {
            return self.reset_guest(env, io);
        }
        self.probes += 1;
        self.send_probe(env, io);
    }
}
