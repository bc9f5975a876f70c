//! When an acknowledgement waits for an answer that can carry it.
//!
//! A request that fits one segment is usually answered by the host at once, and every segment of ours acknowledges. An
//! acknowledgement of its own before the answer is then a frame for nothing, and a write to a TAP runs the guest's TCP on
//! our time. So it may wait (RFC 9293, 3.8.6.3: for less than 500 ms, and never beyond a second full segment). Ours waits
//! for [`WAIT`] at most, and only where all of this holds:
//!
//! * One segment smaller than the MSS, or a FIN, has come since we last sent something. Whatever comes next ends the wait.
//!   Acknowledged at once is whatever is full, out of order, fills a gap, comes near the edge of the window, or waits for the host socket.
//! * An answer can come: the host has not ended its stream.
//! * *It is the habit of this host and its guest.* The last [`NEED_MIN`] requests were each one segment and were answered within
//!   [`WAIT`]. A guest that writes a request in two pieces holds the second one back until the first is acknowledged (Nagle),
//!   and so does one whose congestion window is small: there the acknowledgement is what everybody waits for. Such requests
//!   are more than one segment, so they never become a habit. An answer that is late ends the habit. If the guest then sends
//!   more before the answer it was waiting for us: that doubles what it takes to resume the habit, up to [`NEED_MAX`], so that a guest
//!   which changes its ways every few requests waits for one in a hundred.
//!
//! A habit belongs to a destination and begins anew with none of its connections ([`Habits`]): that is what makes the first
//! request of a short connection, and its FIN, cheap.
//!
//! The guest never notices but by its round-trip time, which then includes the host's: with one segment in flight
//! Linux waits for at least 200 ms before it sends anything again.

use super::Connection;
use super::receiver::ReceiverState;
use super::sender::SenderState;
use crate::env::Env;
use crate::flow::Endpoint;
use crate::time::{Duration, Instant};
use std::net::IpAddr;

/// How long an acknowledgement waits: longer than a program on the host takes to answer, even if it has to wait for a processor,
/// and a tenth of Linux's delay. The timer wheel may add a millisecond, the driver a few.
pub(crate) const WAIT: Duration = Duration::from_millis(4);
/// Prompt answers in a row that make a habit, at first and at most.
const NEED_MIN: u8 = 4;
const NEED_MAX: u8 = 128;
/// Destinations remembered, as a power of two; those whose hashes meet take turns.
const DESTINATIONS_BITS: u32 = 9;

/// How a destination's requests were answered of late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Habit {
    /// Requests in a row that were one segment and were answered promptly, up to 255.
    streak: u8,
    /// How many it takes.
    need: u8,
}

impl Habit {
    const NONE: Self = Self { streak: 0, need: NEED_MIN };

    fn is_prompt(self) -> bool {
        self.streak >= self.need
    }

    fn prompt(&mut self) {
        self.streak = self.streak.saturating_add(1);
        if self.streak == u8::MAX {
            self.need = NEED_MIN;
        }
    }

    fn broken(&mut self) {
        self.streak = 0;
    }

    /// The guest waited for an acknowledgement that waited.
    fn harmful(&mut self) {
        *self = Self { streak: 0, need: self.need.saturating_mul(2).min(NEED_MAX) };
    }
}

/// What is remembered of destinations, in a table of fixed size.
#[derive(Debug)]
pub(crate) struct Habits(Box<[(u32, Habit)]>);

impl Default for Habits {
    fn default() -> Self {
        Self(vec![(0, Habit::NONE); 1 << DESTINATIONS_BITS].into_boxed_slice())
    }
}

impl Habits {
    /// The habit of `remote`; none if it is not remembered.
    pub(crate) fn of(&self, remote: &Endpoint) -> Habit {
        let mark = mark(remote);
        let (known, habit) = self.0[place(mark)];
        if known == mark { habit } else { Habit::NONE }
    }

    fn keep(&mut self, remote: &Endpoint, habit: Habit) {
        let mark = mark(remote);
        self.0[place(mark)] = (mark, habit);
    }
}

/// A hash of a destination. A guest that makes two meet spoils only its own acknowledgements.
fn mark(remote: &Endpoint) -> u32 {
    let address = match remote.ip() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() ^ (ip.to_bits() >> 64)) as u64,
    };
    let mixed = (address ^ (u64::from(remote.port()) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}

/// A multiplication carries what differs upward: the highest bits depend on all others.
const fn place(mark: u32) -> usize {
    (mark >> (u32::BITS - DESTINATIONS_BITS)) as usize
}

/// What has come from the guest since the last answer, and whether its acknowledgement waits.
#[derive(Debug)]
pub(crate) struct Answer {
    habit: Habit,
    /// Segments since the last answer, up to 255.
    segments: u8,
    /// The first of them is not acknowledged yet.
    waiting: bool,
    /// It was acknowledged by itself after a wait.
    late: bool,
}

impl Answer {
    pub(crate) fn new(habit: Habit) -> Self {
        Self { habit, segments: 0, waiting: false, late: false }
    }

    fn heard(&mut self, segments: u8) {
        self.segments = self.segments.saturating_add(segments);
        if std::mem::take(&mut self.late) {
            self.habit.harmful();
        }
    }

    /// Whether an acknowledgement waits.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Something was sent, and acknowledges.
    pub(super) fn acknowledged(&mut self) {
        self.waiting = false;
    }
}

impl Connection {
    /// When an acknowledgement that waits must go out. Nothing has come from the guest since the segment that it is for
    /// ([`Connection::segment`]).
    pub(super) fn answer_deadline(&self) -> Option<Instant> {
        self.rx.answer.waiting.then(|| self.heard_at + WAIT)
    }

    /// Sees to the acknowledgement of what has come in order: `segments` of them, `len` bytes together.
    pub(super) fn owe_ack(&mut self, env: &mut Env, segments: u8, len: usize) {
        self.rx.answer.heard(segments);
        if self.may_wait_for_answer(env, len) {
            self.rx.answer.waiting = true;
        } else {
            self.list_ack(env);
        }
    }

    fn may_wait_for_answer(&self, env: &Env, len: usize) -> bool {
        let rx = &self.rx;
        rx.answer.segments == 1
            && rx.answer.habit.is_prompt()
            && len < usize::from(self.tx.mss)
            && !rx.ack_listed
            && !rx.has_gaps()
            && !rx.has_sack_blocks()
            && !rx.is_blocked()
            && (rx.state != ReceiverState::Open || !rx.is_near_edge(self.window_max(env), self.tx.mss))
            && self.tx.state == SenderState::Open
            && !self.tx.eof
            && !self.broken
            && self.socket.is_some()
    }

    /// Data or the end of the stream went out to the guest: an answer, if it had asked.
    pub(super) fn answered(&mut self, env: &mut Env, now: Instant, waited: bool) {
        let answer = &mut self.rx.answer;
        if answer.segments == 0 {
            return;
        }
        if answer.segments == 1 && !answer.late && now - self.heard_at <= WAIT {
            answer.habit.prompt();
            env.counters.tcp_acks_carried += u64::from(waited);
        } else {
            answer.habit.broken();
        }
        (answer.segments, answer.late) = (0, false);
        env.habits.keep(&self.key.remote, answer.habit);
    }

    /// The acknowledgement has waited long enough.
    pub(super) fn answer_is_late(&mut self, env: &mut Env) {
        let answer = &mut self.rx.answer;
        (answer.waiting, answer.late) = (false, true);
        answer.habit.broken();
        env.habits.keep(&self.key.remote, answer.habit);
        env.counters.tcp_acks_late += 1;
        self.list_ack(env);
    }
}

#[cfg(test)]
mod tests;
