//! Automatic buffer limits: how a connection's receive and send limits find their size.
//!
//! A limit starts at `initial` and grows while the connection shows that it is what holds it back. X is what
//! moves in one round trip of the link (see `meter`).
//!
//! *The receive limit W* (guest to host). A window is advanced with every acknowledgement, so a guest that is
//! held back by it is mostly seen not by where it stands but by how much it sends: a whole window per round
//! trip. *Hit* means X >= 7/8 W, or that one batch came within max(MSS, W/8) of the edge, while the host
//! socket took everything. Then W := max(W, 2X), up to `max`. If that would not grow it twice in a row, the
//! round trip is not what we think it is: a *probe* to 5/4 W, taken back unless it brought 5 % more than was
//! ever seen before it; each failure doubles the time to the next (32 ms to 8 s), so that a flow which
//! has what it needs is left alone. A burst of more than half a MiB after a silence is such a case too, with
//! a first step to 2X that has to bring a fifth more: a reader that sleeps for a fixed time gets twice as
//! much from a limit of twice the size, one that sleeps for as long as its bytes take at a rate of its own
//! (`curl --limit-rate`) takes in one go whatever the limit is, and gets no more. A host socket that was full
//! at any time since the last measurement forbids growth, and one that is full for 50 ms takes an eighth: no
//! second queue is built behind the kernel's. (Not once per interval: a socket that is written until it
//! refuses is full for some ten milliseconds out of every twenty on an ordinary path, and W would swing
//! between its floor and 2X in each of them.) The same holds for a queue that stands on the link while sparse
//! flows wait in it, with an eighth per 5 ms ([`standing_queue`]).
//!
//! *The send limit L* (host to guest). Hit means that L was in flight and the socket had more. Then L :=
//! max(L, 2X), with the same probes. A flow that does not reach its limit loses an eighth of it per 50
//! ms: 4 MiB are 64 KiB after 1.6 s. (Per round trip it would be 16 ms on a near link, and every burst of a
//! bursty flow would start from the floor.) It keeps 9/8 X. The 50 ms are two silences of the flow where that
//! is longer: a reader that wakes up every 200 ms reaches its limit as often. One that reaches it and has
//! more than 5/2 X loses an eighth too, but as a probe, taken back if it costs 5 % of the speed: where
//! the round trip is longer than we think, L := 2X would make the flow slower, thereby X smaller, and so on
//! down to the floor. A loss halves L; if the guest reports that it had got all that was sent again, that is
//! undone.
//!
//! *Both* fall by half when a second has passed without an eighth of them in use, and to `initial` after two
//! seconds without any. No timer is needed for that: it is done at the next use, and [`Limit::at`] says
//! before what it will be. Nothing grows while memory is short.
//!
//! The rules of the field are here for comparison ([`Tuning`]); they know `hit`, only grow, and do not
//! measure.

mod meter;

use super::rtt::LinkRtt;
use crate::config::{BufferBounds, Tuning};
use crate::snapshot::saved::{Invalid, Saved, is_small_count, saved_struct, valid};
use crate::snapshot::v1::{FallV1, LimitV1, ProbeV1, TuningV1};
use crate::standing_queue;
use crate::time::{Duration, Instant};
use core::num::NonZeroU32;
use meter::{Measure, Meter};

/// Direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Guest to host: the receive window W.
    Receive,
    /// Host to guest: the send limit L.
    Send,
}

/// Number of changes of a limit, up and down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Changes {
    pub(crate) grows: u32,
    pub(crate) shrinks: u32,
}

/// Cause of a changed limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The limit was the limiting factor.
    Hit,
    /// The limit was the limiting factor, but measured bytes do not explain it: a probe.
    Probe,
    /// A probe gained nothing.
    ProbeFailed,
    /// Larger than needed.
    Unused,
    /// The host socket takes bytes more slowly than they arrive.
    Blocked,
    /// Frames of sparse flows wait behind the flow's on the link.
    Queued,
    /// Unused for a second.
    Idle,
    /// A loss.
    Loss,
    /// A spurious loss: the segment had arrived.
    Undone,
}

/// Time without use after which a limit falls.
const IDLE: Duration = Duration::from_secs(1);
/// Interval at which a limit that is more than is needed falls by an eighth.
const FALL: Duration = Duration::from_millis(50);
/// Least wait after a probe that gained nothing (or twice as long as the step was on trial), doubled with
/// each failure up to [`PROBE_BACKOFF_MAX`] times.
const PROBE_WAIT_MIN: Duration = Duration::from_millis(32);
const PROBE_BACKOFF_MAX: u8 = 8;
/// Next decision about a fixed limit.
const NEVER: Instant = Instant::from_ns(u64::MAX);

/// Change of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    /// Limit before and now, bytes.
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) cause: Cause,
    /// Bytes per round trip as measured.
    pub(crate) per_rtt: u32,
}

/// Probe of a limit: a step that measurements do not explain, judged by how fast two whole windows move, and
/// not by round trips, because it is there for when the round trip is not what we think it is.
#[derive(Debug, Clone, Copy, Default)]
struct Probe {
    /// Measurements at the limit that did not explain growth, since the two windows began.
    misses: u8,
    /// Begin of the two windows, and the total then.
    since: (Instant, u32),
    /// Speed of the fastest two windows since measurements last explained growth, bytes per round trip.
    best: u32,
    /// Earliest time of the next step.
    not_before: Instant,
    /// Steps in a row that gained nothing.
    failures: u8,
    /// Limit before a step on trial.
    trial: Option<u32>,
    /// Direction of the next step: down.
    down: bool,
}

/// Falling of a send limit that is not reached; of a receive limit only the time of its last fall for the
/// sake of sparse flows.
#[derive(Debug, Clone, Copy)]
struct Fall {
    /// Time at which the last eighth went, or was found to be needed.
    since: Instant,
    /// Largest 2X since then.
    need: u32,
    /// Longest time without use of late, milliseconds; it counts half as much after each fall.
    silence_ms: u16,
    /// Limit reached since then.
    reached: bool,
}

impl Fall {
    fn new(now: Instant) -> Self {
        Self { since: now, need: 0, silence_ms: 0, reached: false }
    }

    /// Use of the flow after `silence`.
    fn used(&mut self, silence: Duration) {
        self.silence_ms = self.silence_ms.max(u16::try_from(silence.as_millis()).unwrap_or(u16::MAX));
    }

    /// Time at which the next eighth goes.
    fn at(&self, rtt: Duration) -> Instant {
        let silence = Duration::from_millis(self.silence_ms.into()).min(IDLE);
        self.since + FALL.max(meter::interval(rtt).max(silence) * 2)
    }
}

/// One direction's limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    direction: Direction,
    tuning: Tuning,
    bounds: BufferBounds,
    now: u32,
    meter: Meter,
    /// Time of the next decision.
    look_at: Instant,
    /// Limit reached since the last measurement, while nothing else held the flow back.
    hit: bool,
    /// Host socket full since the last measurement; and since when it has been.
    blocked: bool,
    blocked_since: Option<Instant>,
    /// Last use of an eighth.
    used_at: Instant,
    /// Bytes since the last silence.
    since_silence: u32,
    probe: Probe,
    fall: Fall,
    /// Limit before a loss (or a spurious one) changed it; not yet traced.
    lost_from: Option<NonZeroU32>,
    grows: u32,
    shrinks: u32,
}

impl Limit {
    /// A limit of `bounds`, capped at `cap` bytes (65535 without window scaling).
    pub(crate) fn new(
        direction: Direction,
        tuning: Tuning,
        bounds: BufferBounds,
        cap: u32,
        now: Instant,
    ) -> Self {
        let initial = bounds.initial.min(cap);
        let fixed = tuning == Tuning::Fixed || initial == bounds.max.min(cap);
        let bounds = BufferBounds { initial, max: if fixed { initial } else { bounds.max.min(cap) } };
        Self {
            direction,
            tuning: if fixed { Tuning::Fixed } else { tuning },
            bounds,
            now: initial,
            meter: Meter::new(now),
            look_at: if fixed { NEVER } else { now },
            hit: false,
            blocked: false,
            blocked_since: None,
            used_at: now,
            since_silence: 0,
            probe: Probe::default(),
            fall: Fall::new(now),
            lost_from: None,
            grows: 0,
            shrinks: 0,
        }
    }

    /// The limit in bytes.
    pub(crate) const fn get(&self) -> u32 {
        self.now
    }

    /// The limit in bytes as it would be if it were used again at `now`.
    pub(crate) fn at(&self, now: Instant) -> u32 {
        let idle = now - self.meter.last().0;
        if self.tuning != Tuning::Rtt || idle < IDLE {
            self.now
        } else if idle < 2 * IDLE {
            (self.now / 2).max(self.bounds.initial)
        } else {
            self.bounds.initial
        }
    }

    /// Maximum of the limit, bytes.
    pub(crate) const fn max(&self) -> u32 {
        self.bounds.max
    }

    /// Number of its changes.
    pub(crate) const fn changes(&self) -> Changes {
        Changes { grows: self.grows, shrinks: self.shrinks }
    }

    /// Hit: the flow is at the limit while nothing else holds it back.
    pub(crate) fn hit(&mut self) {
        self.hit = true;
    }

    /// Blocked: whether the host socket leaves us holding bytes.
    pub(crate) fn blocked(&mut self, now: Instant, blocked: bool) {
        self.blocked |= blocked;
        self.blocked_since = if blocked { self.blocked_since.or(Some(now)) } else { None };
    }

    /// Whether the data that has just arrived, up to `total` bytes (wraps), is that of a sparse flow
    /// ([`standing_queue`]). To be called before [`Limit::update`].
    pub(crate) fn is_sparse(&mut self, now: Instant, total: u32) -> bool {
        let (at, before) = self.meter.last();
        let bytes = total.wrapping_sub(before);
        if now - at < standing_queue::SPARSE_SILENCE {
            self.since_silence = self.since_silence.saturating_add(bytes);
            return false;
        }
        std::mem::replace(&mut self.since_silence, bytes).max(bytes) <= standing_queue::SPARSE_BYTES
    }

    /// Loss: half the limit (sender only).
    pub(crate) fn halve(&mut self) {
        if self.tuning == Tuning::Rtt {
            let change = self.set((self.now / 2).max(self.bounds.initial), Cause::Loss, 0);
            self.lost_from = self.lost_from.or(change.and_then(|change| NonZeroU32::new(change.from)));
            self.look_at = Instant::ZERO;
        }
    }

    /// Spurious loss: the limit is `before` again, unless it has grown beyond that (sender only).
    pub(crate) fn restore(&mut self, before: u32) {
        if self.now < before {
            let change = self.set(before, Cause::Undone, 0);
            self.lost_from = self.lost_from.or(change.and_then(|change| NonZeroU32::new(change.from)));
            self.look_at = Instant::ZERO;
        }
    }

    /// Notes that `total` bytes have moved so far (wraps), where [`Limit::update`] is not called in every
    /// turn: a flow that waits for its flight to shrink to a limit that has fallen must not seem to move all
    /// of that in one turn. The end of a long silence is left to `update`, which lets the limit fall first.
    pub(crate) fn note(&mut self, now: Instant, total: u32) {
        let silence = now - self.meter.last().0;
        if silence < IDLE {
            self.fall.used(silence);
            self.meter.note(now, total);
        }
    }

    /// Goes on at `now` with `total` bytes moved, after a time in which another carrier has moved them: that
    /// says nothing of this limit.
    pub(crate) fn resume(&mut self, now: Instant, total: u32) {
        self.meter = Meter::from(now, total);
        self.probe = Probe { since: (now, total), trial: None, ..self.probe };
        self.fall = Fall::new(now);
        (self.hit, self.blocked, self.blocked_since, self.used_at) = (false, false, None, now);
    }

    /// Decision as data flows: `total` bytes have moved so far (wraps).
    pub(crate) fn update(
        &mut self,
        now: Instant,
        total: u32,
        rtt: &mut LinkRtt,
        memory_short: bool,
    ) -> Option<Change> {
        let idle = now - self.meter.last().0;
        self.fall.used(idle);
        if now < self.look_at {
            self.meter.note(now, total);
            return None;
        }
        let round_trip = rtt.round_trip();
        if let Some(from) = self.lost_from.take_if(|_| idle < IDLE) {
            let cause = if from.get() > self.now { Cause::Loss } else { Cause::Undone };
            return Some(Change { from: from.get(), to: self.now, cause, per_rtt: 0 });
        }
        let measure = self.meter.measure(now, total, round_trip);
        let change = if self.tuning == Tuning::Rtt && idle >= IDLE {
            self.idle(now, idle)
        } else {
            measure.and_then(|measure| self.decide(now, measure, rtt, memory_short))
        };
        if let Some(Change { from, to, .. }) = change
            && to > from
        {
            self.meter.begin_round(from, to);
        }
        self.look_at = self.meter.next(round_trip);
        change
    }

    fn idle(&mut self, now: Instant, idle: Duration) -> Option<Change> {
        let floor = self.bounds.initial;
        self.used_at = now;
        self.probe = Probe { since: self.meter.last(), ..Probe::default() };
        self.blocked_since = None;
        self.set(if idle < 2 * IDLE { (self.now / 2).max(floor) } else { floor }, Cause::Idle, 0)
    }

    fn decide(
        &mut self,
        now: Instant,
        measure: Measure,
        rtt: &mut LinkRtt,
        memory_short: bool,
    ) -> Option<Change> {
        let blocked = std::mem::take(&mut self.blocked);
        let fills = self.is_filled_by(measure);
        let sent_all = fills && self.direction == Direction::Receive;
        let hit = (std::mem::take(&mut self.hit) || sent_all) && !blocked;
        // A guest that keeps the path full is not held back by a window of 2X, and yet half of it stands in a
        // queue.
        if hit || (self.direction == Direction::Receive && measure.per_rtt() >= self.now / 4) {
            rtt.loaded(now);
        }
        let simple = match self.tuning {
            Tuning::Step(bytes) => Some(bytes),
            Tuning::Pressure => Some(self.now),
            Tuning::Rtt | Tuning::Fixed => None,
        };
        if let Some(more) = simple {
            let to = self.now.saturating_add(more);
            return if hit && !memory_short { self.grow(to, Cause::Hit, measure.per_rtt()) } else { None };
        }
        if hit || measure.per_rtt() >= self.now / 8 {
            self.used_at = now;
        }
        let doubled = if fills && measure.doubled { self.now } else { 0 };
        let need = measure.per_rtt().max(doubled).saturating_mul(2);
        // Growth that is sure: without the part of a burst that a silence may account for.
        let sure = measure.per_rtt_at_once().max(doubled).saturating_mul(2);
        self.fall.need = self.fall.need.max(need);
        self.fall.reached |= hit;
        if hit && !memory_short && sure > self.now && self.now < self.bounds.max {
            // Growth by a segment or two, as the rate is measured a little larger, is no reason to try
            // everything again.
            let patience = if sure - self.now < self.now / 8 { self.probe } else { Probe::default() };
            self.probe = Probe { misses: 0, since: self.meter.last(), trial: None, ..patience };
            return self.grow(sure, Cause::Hit, measure.per_rtt());
        }
        let doubles = need > self.now && self.probe.failures == 0;
        let up = if doubles { need } else { self.now.saturating_add(self.now / 4) };
        self.probe(now, hit && !memory_short, up, rtt).or_else(|| match self.direction {
            Direction::Receive => self.shrink_receiver(now, measure),
            Direction::Send => self.shrink_sender(now, measure, rtt),
        })
    }

    /// Whether a window of this size has moved within a round trip. In the first round after doubling that
    /// includes the time it takes to serialise the half that is new, a third of one at two thirds of what the
    /// path holds.
    fn is_filled_by(&self, measure: Measure) -> bool {
        let sixteenths = if measure.doubled { 11 } else { 14 };
        u64::from(measure.rate) * 16 >= u64::from(self.now) * sixteenths
    }

    /// Makes, judges and takes back probes; `up` is the limit to which one leads that goes up, bytes.
    fn probe(&mut self, now: Instant, hit: bool, up: u32, rtt: &LinkRtt) -> Option<Change> {
        let ((_, total), round_trip) = (self.meter.last(), rtt.round_trip());
        self.probe.misses = self.probe.misses.saturating_add(u8::from(hit));
        let (began, from) = self.probe.since;
        let moved = total.wrapping_sub(from);
        if moved / 2 < self.now && now - began < IDLE {
            return None;
        }
        let x = meter::per_round_trip(moved, now - began, round_trip);
        let at_limit = self.probe.misses >= 2;
        (self.probe.since, self.probe.misses) = ((now, total), 0);
        if let Some(before) = self.probe.trial.take() {
            let good = self.has_paid(before, x);
            self.probe.best = self.probe.best.max(x);
            if good {
                self.probe.failures = 0;
                return None;
            }
            self.probe.not_before = now + PROBE_WAIT_MIN.max((now - began) * 2) * (1 << self.probe.failures);
            self.probe.failures = (self.probe.failures + 1).min(PROBE_BACKOFF_MAX);
            self.probe.down = !self.probe.down && self.direction == Direction::Send;
            return self.set(before, Cause::ProbeFailed, x);
        }
        self.probe.best = self.probe.best.max(x);
        if !at_limit || now < self.probe.not_before {
            return None;
        }
        // Two and a half times what a round trip takes is what any flow may keep.
        self.probe.down &= self.now > self.bounds.initial && self.fall.need < self.now / 5 * 4;
        let step = if self.probe.down { self.now - self.now / 8 } else { up };
        let change = self.set(step.clamp(self.bounds.initial, self.bounds.max), Cause::Probe, x)?;
        self.probe.trial = Some(change.from);
        Some(change)
    }

    /// Whether a probe from `before` was worth it, at `x` bytes per round trip: one that went up by
    /// making the flow faster by a fifth of the step (5 % for a quarter), one that went down by costing no
    /// more than 5 %.
    fn has_paid(&self, before: u32, x: u32) -> bool {
        let [x, best] = [x, self.probe.best].map(u128::from);
        match self.now.checked_sub(before) {
            Some(step) => x * u128::from(before) * 5 >= best * (u128::from(before) * 5 + u128::from(step)),
            None => x * 20 >= best * 19,
        }
    }

    fn shrink_receiver(&mut self, now: Instant, measure: Measure) -> Option<Change> {
        if self.blocked_since.is_some() {
            self.shrink_blocked(now)
        } else if now - self.used_at >= IDLE {
            self.used_at = now;
            self.set((self.now / 2).max(self.bounds.initial), Cause::Unused, measure.per_rtt())
        } else {
            None
        }
    }

    /// An eighth less for every 50 ms in which the host socket did not take all.
    pub(crate) fn shrink_blocked(&mut self, now: Instant) -> Option<Change> {
        let since = self.blocked_since.filter(|_| self.tuning == Tuning::Rtt)?;
        let steps = ((now - since).as_nanos() / FALL.as_nanos()).min(64);
        if steps == 0 {
            return None;
        }
        self.blocked_since = Some(now);
        let limit = (0..steps).fold(self.now, |limit, _| limit - limit / 8);
        self.set(limit.max(self.bounds.initial), Cause::Blocked, 0)
    }

    /// An eighth less while the link's queue stands and delays sparse flows.
    pub(crate) fn shrink_queued(&mut self, now: Instant) -> Option<Change> {
        if self.tuning != Tuning::Rtt || now - self.fall.since < standing_queue::FALL {
            return None;
        }
        self.fall.since = now;
        // A step on trial is over: the limit before it is not to come back.
        (self.probe.trial, self.probe.misses) = (None, 0);
        self.set((self.now - self.now / 8).max(self.bounds.initial), Cause::Queued, 0)
    }

    fn shrink_sender(&mut self, now: Instant, measure: Measure, rtt: &LinkRtt) -> Option<Change> {
        if now < self.fall.at(rtt.round_trip()) {
            return None;
        }
        let Fall { need, silence_ms, reached, .. } = self.fall;
        self.fall = Fall { silence_ms: silence_ms / 2, ..Fall::new(now) };
        // An eighth above what is used stays: below, the flow would reach its limit, grow to 2X and fall
        // again, for ever.
        let used = need / 2 + need / 16;
        if reached || self.now <= used {
            return None;
        }
        (self.probe.trial, self.probe.misses) = (None, 0);
        let to = (self.now - self.now / 8).max(self.bounds.initial).max(used);
        self.set(to, Cause::Unused, measure.per_rtt())
    }

    fn grow(&mut self, to: u32, cause: Cause, per_rtt: u32) -> Option<Change> {
        self.set(to.min(self.bounds.max).max(self.now), cause, per_rtt)
    }

    fn set(&mut self, to: u32, cause: Cause, per_rtt: u32) -> Option<Change> {
        debug_assert!(self.bounds.initial <= to && to <= self.bounds.max, "{to} within {:?}", self.bounds);
        let from = std::mem::replace(&mut self.now, to);
        self.grows += u32::from(to > from);
        self.shrinks += u32::from(to < from);
        (from != to).then_some(Change { from, to, cause, per_rtt })
    }
}

saved_struct!(Probe as ProbeV1 { misses, since, best, not_before, failures, trial, down } if |probe| {
    probe.failures <= PROBE_BACKOFF_MAX
});
saved_struct!(Fall as FallV1 { since, need, silence_ms, reached });

/// The direction is known by the half to which the limit belongs.
impl Limit {
    /// Saved form.
    pub(crate) fn saved(&self) -> LimitV1 {
        let Self { direction: _, tuning, bounds, now, meter, look_at, hit, blocked, .. } = self;
        let Self { blocked_since, used_at, probe, fall, lost_from, grows, shrinks, .. } = self;
        LimitV1 {
            tuning: match *tuning {
                Tuning::Rtt => TuningV1::Rtt,
                Tuning::Step(bytes) => TuningV1::Step(bytes),
                Tuning::Pressure => TuningV1::Pressure,
                Tuning::Fixed => TuningV1::Fixed,
            },
            initial: bounds.initial,
            max: bounds.max,
            now: *now,
            meter: meter.save(),
            look_at: look_at.save(),
            hit: *hit,
            blocked: *blocked,
            blocked_since: blocked_since.save(),
            used_at: used_at.save(),
            probe: probe.save(),
            fall: fall.save(),
            lost_from: lost_from.save(),
            grows: *grows,
            shrinks: *shrinks,
        }
    }

    /// Limit from its saved form, with a maximum of at most `max_max` bytes.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts itself.
    pub(crate) fn from_saved(direction: Direction, max_max: u32, saved: LimitV1) -> Result<Self, Invalid> {
        let LimitV1 { initial, max, now, .. } = saved;
        let bounds = BufferBounds { initial, max };
        valid(max <= max_max)?;
        let is_within = |limit: u32| initial <= limit && limit <= max;
        valid(is_within(now) && saved.probe.trial.is_none_or(is_within))?;
        valid(is_small_count(saved.grows) && is_small_count(saved.shrinks))?;
        Ok(Self {
            direction,
            tuning: match saved.tuning {
                TuningV1::Rtt => Tuning::Rtt,
                TuningV1::Step(bytes) => Tuning::Step(bytes),
                TuningV1::Pressure => Tuning::Pressure,
                TuningV1::Fixed => Tuning::Fixed,
            },
            bounds,
            now,
            meter: Meter::restore(saved.meter)?,
            look_at: Instant::restore(saved.look_at)?,
            hit: saved.hit,
            blocked: saved.blocked,
            blocked_since: Saved::restore(saved.blocked_since)?,
            used_at: Instant::restore(saved.used_at)?,
            since_silence: 0,
            probe: Probe::restore(saved.probe)?,
            fall: Fall::restore(saved.fall)?,
            lost_from: Saved::restore(saved.lost_from)?,
            grows: saved.grows,
            shrinks: saved.shrinks,
        })
    }
}

#[cfg(test)]
mod tests;
