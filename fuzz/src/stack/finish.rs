//! The end of an input: guest and host behave correctly from now on, and all bytes must arrive and all state
//! be freed.

use super::Run;
use brodo_core::link::RxMeta;
use brodo_core::tcp::State;
use brodo_core::time::Duration;
use brodo_sim::host::UNLIMITED;
use brodo_sim::packet::{TcpSegment, flags};

/// Rounds of good behaviour.
const ROUNDS_MAX: usize = 3000;
/// Segments that the guest retransmits in one round.
const SEGMENTS: u32 = 40;
/// The longest that a stack with something to send may wait: its longest time-out, and a little.
const WAIT_MAX: Duration = Duration::from_secs(70);
/// The shortest wait: a stack with deadlines every few milliseconds, for want of memory, must not use up all
/// rounds before a time-out of a minute.
const WAIT_MIN: Duration = Duration::from_millis(50);

/// Memory in which one connection can keep the others from reading, bytes.
const STARVED: usize = 1 << 20;

impl Run {
    /// Lets all connections come to their end, then resets what is left.
    pub(super) fn finish(mut self) {
        self.say(|| "no faults from here on".to_owned());
        (self.lose, self.credit) = (0, true);
        self.driver.link.set_credit(None);
        // Retransmissions delayed for lack of credit come now.
        self.conns.iter_mut().for_each(|c| c.resent_at.clear());
        let host = &mut self.driver.host;
        host.set_send_at_most(usize::MAX);
        for socket in host.all().collect::<Vec<_>>() {
            if host.is_connecting(socket) {
                host.finish_connect(socket, Ok(()));
            }
            host.give_space(socket, UNLIMITED);
        }
        self.turn();
        for i in 0..self.conns.len() {
            if self.info(i).is_some_and(|info| info.state == State::SynSent) {
                self.accept(i);
            }
            let conn = &mut self.conns[i];
            conn.window = 1 << 20;
            // Bytes sent ahead belong to the guest's stream, which it sends without gaps from now on. Very
            // far ahead, that would take long and show nothing more.
            if conn.sent.end() <= conn.next + (1 << 18) {
                conn.next = conn.next.max(conn.sent.end());
            } else {
                conn.odd = true;
            }
            let host = &mut self.driver.host;
            if let Some(socket) = conn.socket.filter(|&s| host.peer_is_open(s)) {
                conn.down_fin = true;
                host.peer_fin(socket);
            }
        }
        self.turn();
        for _ in 0..ROUNDS_MAX {
            if (0..self.conns.len()).all(|i| self.is_done(i)) {
                break;
            }
            if !self.round() && !self.wait() {
                break;
            }
        }
        for i in 0..self.conns.len() {
            self.check_delivered(i);
        }
        self.reset_rest();
    }

    /// Whether all bytes of connection `i` have arrived, or never will.
    fn is_done(&self, i: usize) -> bool {
        let Some(info) = self.info(i) else { return true };
        let conn = &self.conns[i];
        let up = conn.odd || (info.rx.bytes >= conn.next.into() && !conn.fins.is_empty());
        let down = conn.lied || (conn.got.contiguous() == conn.down && conn.got_fin);
        conn.broken || (up && down)
    }

    /// Both sides do all pending work; false without progress.
    fn round(&mut self) -> bool {
        let state = |run: &Self| -> Vec<_> {
            run.conns.iter().map(|c| (c.iss, c.last_ack, c.received(), c.taken)).collect()
        };
        let before = state(self);
        for i in 0..self.conns.len() {
            self.conns[i].resent_at.clear();
            if self.info(i).is_none() || self.conns[i].iss.is_none() {
                continue;
            }
            if self.conns[i].fins.is_empty() {
                let place = self.conns[i].next;
                self.conns[i].note_fin(place);
            }
            self.again(i, SEGMENTS, 1400);
            let conn = &self.conns[i];
            let mut segment = conn.ack_with_sack();
            if !conn.odd && conn.last_ack == conn.seq(conn.next) {
                segment.flags |= flags::FIN;
            } else if conn.odd || conn.last_ack.wrapping_sub(conn.seq(conn.next)) == 1 {
                segment.seq = conn.last_ack;
            }
            self.send(&segment, RxMeta::default(), false);
            if self.conns[i].ahead > self.conns[i].next || self.conns[i].odd {
                // Windows count in the order of sequence numbers: one at the edge is newer than all received
                // ones.
                let mut segment = self.conns[i].ack_with_sack();
                segment.seq = self.conns[i].last_edge;
                self.send(&segment, RxMeta::default(), false);
            }
            self.conns[i].take(&mut self.driver.host, usize::MAX);
        }
        before != state(self)
    }

    /// Advances to the stack's next deadline; false without one.
    fn wait(&mut self) -> bool {
        match self.driver.next_deadline() {
            Some(at) if at.max(self.now) - self.now <= WAIT_MAX => {
                self.pass((at.max(self.now) - self.now).max(WAIT_MIN));
                true
            }
            _ => false,
        }
    }

    /// Invariants 5, 21 and 28: both streams have arrived in full, on every connection without a violation.
    fn check_delivered(&mut self, i: usize) {
        self.conns[i].take(&mut self.driver.host, usize::MAX);
        let conn = &self.conns[i];
        if conn.broken || conn.iss.is_none() || (self.info(i).is_none() && conn.excused) {
            return;
        }
        // Bytes that a guest acknowledged and does not have are sent to it until it is given up. Where memory
        // is a chunk or two, no other of its connections can read meanwhile.
        let starved = self.config.memory < STARVED && self.conns.iter().any(|c| c.lied);
        if !conn.lied && !starved {
            let got = (conn.got.contiguous(), conn.got_fin);
            assert_eq!(got, (conn.down, true), "to the guest on connection {i}");
        }
        if !conn.odd {
            assert_eq!(conn.taken, conn.next, "to the host on connection {i}");
        }
    }

    /// Ends every remaining connection by an in-window reset, after which all must be freed.
    fn reset_rest(&mut self) {
        for (i, info) in self.infos().into_iter().enumerate() {
            let Some(info) = info else { continue };
            let conn = &mut self.conns[i];
            conn.excused = true;
            let mut reset = TcpSegment { flags: flags::RST, ..TcpSegment::new(conn.guest, conn.remote) };
            reset.seq = self.expected(i, &info);
            self.send(&reset, RxMeta::default(), false);
        }
        for _ in 0..100 {
            if self.driver.stack.flows() == 0 || !self.wait() {
                break;
            }
        }
        let stack = &self.driver.stack;
        // Invariant 8: all resources are freed.
        let memory = stack.memory_used() + stack.memory_reserved();
        let left = (stack.flows(), memory, self.driver.host.open_sockets());
        assert_eq!(left, (0, 0, 0), "flows, bytes of memory and sockets left at the end");
    }
}
