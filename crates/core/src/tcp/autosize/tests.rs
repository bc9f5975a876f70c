//! The limits against a path that is simulated in a few lines: a window, a rate, a round trip, a queue.

use super::*;
use std::collections::VecDeque;

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);
const INITIAL: u32 = 64 << 10;
const BOUNDS: BufferBounds = BufferBounds { initial: INITIAL, max: 64 << 20 };

/// A path of `rate` bytes per second and a round trip `rtt`, on which bytes travel in segments of `segment`,
/// each acknowledged on arrival.
struct Path {
    rate: u64,
    rtt: Duration,
    segment: u32,
    /// Bound of the bytes in flight besides the limit.
    window: u32,
    /// Bytes that the sender has, `None` for any number.
    supply: Option<u32>,
    now: Instant,
    limit: Limit,
    estimate: LinkRtt,
    /// Times at which each segment arrives and was sent.
    flight: VecDeque<(Instant, Instant)>,
    free_at: Instant,
    total: u32,
    changes: Vec<(Instant, Change)>,
}

impl Path {
    fn new(direction: Direction, tuning: Tuning, rate: u64, rtt: Duration) -> Self {
        let now = Instant::from_ms(1000);
        let mut estimate = LinkRtt::default();
        estimate.sample(now, rtt);
        Self {
            rate,
            rtt,
            segment: 1448,
            window: u32::MAX,
            supply: None,
            now,
            limit: Limit::new(direction, tuning, BOUNDS, u32::MAX, now),
            estimate,
            flight: VecDeque::new(),
            free_at: now,
            total: 0,
            changes: Vec::new(),
        }
    }

    fn bdp(&self) -> u32 {
        (u128::from(self.rate) * self.rtt.as_nanos() / 1_000_000_000) as u32
    }

    fn in_flight(&self) -> u32 {
        self.flight.len() as u32 * self.segment
    }

    /// Sends within limit and window; then advances to the next arrival and records it in the limit.
    fn step(&mut self) {
        let receiving = self.limit.direction == Direction::Receive;
        while self.in_flight() + self.segment <= self.limit.get().min(self.window)
            && self.supply.is_none_or(|left| left >= self.segment)
        {
            self.supply = self.supply.map(|left| left - self.segment);
            self.free_at = self.free_at.max(self.now)
                + Duration::from_nanos(u64::from(self.segment) * 1_000_000_000 / self.rate);
            self.flight.push_back((self.free_at + self.rtt, self.now));
        }
        let more = self.supply.is_none_or(|left| left >= self.segment);
        if !receiving && more && self.limit.get() <= self.window {
            self.limit.hit();
        }
        let Some((at, sent)) = self.flight.pop_front() else { return };
        self.now = self.now.max(at);
        self.total = self.total.wrapping_add(self.segment);
        if !receiving {
            self.estimate.sample(self.now, self.now - sent);
        }
        if let Some(change) = self.limit.update(self.now, self.total, &mut self.estimate, false) {
            self.changes.push((self.now, change));
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end && !self.flight.is_empty() || self.total == 0 {
            self.step();
        }
        self.now = self.now.max(end);
    }

    /// Runs, and gives the least and the largest limit seen.
    fn range(&mut self, time: Duration) -> (u32, u32) {
        let (end, mut least, mut most) = (self.now + time, u32::MAX, 0);
        while self.now < end {
            self.step();
            (least, most) = (least.min(self.limit.get()), most.max(self.limit.get()));
        }
        (least, most)
    }
}

const BOTH: [Direction; 2] = [Direction::Receive, Direction::Send];

/// Invariants 10, 11 and 12, over paths from 1 MB/s to 4 GB/s and 20 us to 300 ms.
#[test]
fn a_flow_held_back_reaches_the_path_in_a_few_round_trips_and_stays() {
    for direction in BOTH {
        for rate in [1_000_000, 12_500_000, 125_000_000, 1_250_000_000, 4_000_000_000] {
            for rtt in [20 * US, 388 * US, 2 * MS, 17 * MS, 100 * MS, 300 * MS] {
                let mut path = Path::new(direction, Tuning::Rtt, rate, rtt);
                let bdp = path.bdp();
                if bdp > 30 << 20 {
                    continue;
                }
                let what = format!("{direction:?}, {rate} B/s, {rtt:?}, BDP {bdp}");
                let doublings = (f64::from(bdp) / f64::from(INITIAL)).log2().max(0.0).ceil() as u32;
                // A sender beyond the path's capacity lengthens the round trip by its own queue.
                let intervals = doublings + 3;
                path.run(meter::interval(rtt) * intervals + rtt);
                assert!(
                    path.limit.get() >= bdp.min(BOUNDS.max),
                    "{what}: {} at first, {:?}",
                    path.limit.get(),
                    path.changes
                );
                path.run(MS * 500 + rtt * 20);
                let (least, most) = path.range(MS * 500 + rtt * 20);
                let ceiling = (u64::from(bdp) * 5 / 2).max((INITIAL + INITIAL / 4).into()) as u32;
                assert!(
                    most <= ceiling + ceiling / 500 + 4 * path.segment,
                    "{what}: {most}, {:?}",
                    path.changes
                );
                assert!(u64::from(most - least) * 4 <= u64::from(most), "{what}: {least} to {most}");
            }
        }
    }
}

/// A flow that keeps the path full has a queue of its own making on it and sees twice the round trip. Taken
/// for the path's, that would double the limit every ten seconds.
#[test]
fn a_queue_of_our_own_does_not_feed_itself() {
    let mut path = Path::new(Direction::Send, Tuning::Rtt, 12_500_000, 20 * MS);
    path.run(MS * 2000);
    let bdp = path.bdp();
    for second in 0..60 {
        path.run(MS * 1000);
        assert!(path.limit.get() <= bdp * 5 / 2 + 4 * path.segment, "{} after {second} s", path.limit.get());
    }
    assert!(path.estimate.srtt().expect("measured") > 30 * MS, "there is a queue");
}

#[test]
fn a_flow_that_its_sender_holds_back_grows_nothing() {
    for direction in BOTH {
        let mut path = Path::new(direction, Tuning::Rtt, 1_250_000_000, 10 * MS);
        path.window = INITIAL / 2;
        path.run(MS * 3000);
        assert_eq!((path.limit.get(), path.limit.changes()), (INITIAL, Changes::default()), "{direction:?}");
    }
}

#[test]
fn a_window_of_another_size_does_not_grow_with_the_rate_alone() {
    // Four fifths of the window: close to it and yet not held back by it.
    let mut path = Path::new(Direction::Receive, Tuning::Rtt, 1_250_000_000, 10 * MS);
    path.window = INITIAL / 5 * 4;
    path.run(MS * 3000);
    assert_eq!(path.limit.changes(), Changes::default());
}

#[test]
fn memory_that_is_short_forbids_growth() {
    let mut limit = Limit::new(Direction::Send, Tuning::Rtt, BOUNDS, u32::MAX, Instant::ZERO);
    let mut estimate = LinkRtt::default();
    for ms in 1..1000_u32 {
        limit.hit();
        let change = limit.update(Instant::from_ms(ms.into()), ms * INITIAL, &mut estimate, true);
        assert_eq!(change, None);
    }
    limit.hit();
    let change = limit.update(Instant::from_ms(1000), 1000 * INITIAL, &mut estimate, false);
    assert_eq!(change.map(|c| c.cause), Some(Cause::Hit));
}

#[test]
fn a_blocked_host_socket_forbids_growth_and_takes_an_eighth_at_a_time() {
    let mut path = Path::new(Direction::Receive, Tuning::Rtt, 125_000_000, 17 * MS);
    path.run(MS * 1000);
    let grown = path.limit.get();
    assert!(grown > 2_000_000);
    let (end, mut steps) = (path.now + MS * 1000, 0);
    while path.now < end {
        path.limit.blocked(path.now, true);
        let before = path.limit.get();
        path.step();
        let after = path.limit.get();
        assert!(after <= before && after >= before / 8 * 7);
        steps += u32::from(after < before);
    }
    assert!((15..=20).contains(&steps), "{steps} in a second");
    // Without further arrivals: all due reductions at once.
    let now = path.now + MS * 4000;
    let change = path.limit.shrink_blocked(now).expect("long blocked");
    assert_eq!((change.to, change.cause), (INITIAL, Cause::Blocked));
}

/// A socket written until it refuses is full and empty in turn, every few milliseconds.
#[test]
fn a_host_socket_that_is_full_at_times_does_not_make_the_window_swing() {
    let mut path = Path::new(Direction::Receive, Tuning::Rtt, 1_250_000_000, 100 * US);
    let blocked = |path: &Path| (path.now.as_ns() / 1_000_000) % 20 >= 10;
    let mut seen = (u32::MAX, 0);
    let end = path.now + MS * 2000;
    while path.now < end {
        let full = blocked(&path);
        path.limit.blocked(path.now, full);
        path.step();
        if path.now > Instant::from_ms(1500) {
            seen = (seen.0.min(path.limit.get()), seen.1.max(path.limit.get()));
        }
    }
    assert!((seen.1 - seen.0) * 4 <= seen.1, "{seen:?}");
}

#[test]
fn a_limit_not_used_falls_to_its_floor_within_two_seconds() {
    for direction in BOTH {
        let mut path = Path::new(direction, Tuning::Rtt, 125_000_000, 17 * MS);
        path.run(MS * 1000);
        let (last, grown) = (path.limit.meter.last().0, path.limit.get());
        assert_eq!(path.limit.at(last + MS * 999), grown);
        assert_eq!(path.limit.at(last + MS * 1000), grown / 2);
        assert_eq!(path.limit.at(last + MS * 2000), INITIAL);
        let change = path.limit.update(last + MS * 2500, path.total, &mut path.estimate, false);
        assert_eq!(change.map(|c| (c.to, c.cause)), Some((INITIAL, Cause::Idle)));
    }
}

/// A little now and then is not the use of a large limit.
#[test]
fn a_limit_used_by_less_than_an_eighth_halves_every_second() {
    let mut path = Path::new(Direction::Receive, Tuning::Rtt, 125_000_000, 17 * MS);
    path.run(MS * 1000);
    let grown = path.limit.get();
    path.supply = Some(0);
    path.run(MS * 500);
    for _ in 0..21 {
        path.supply = Some(path.segment);
        path.step();
        path.now = path.now + MS * 100;
    }
    assert!(path.limit.get() <= grown / 2, "{} of {grown}", path.limit.get());
    assert!(path.limit.get() >= grown / 8);
}

#[test]
fn a_send_limit_that_is_not_reached_is_at_its_floor_after_two_seconds() {
    let mut path = Path::new(Direction::Send, Tuning::Rtt, 125_000_000, 17 * MS);
    path.run(MS * 1000);
    assert!(path.limit.get() > 2_000_000);
    path.window = INITIAL / 2;
    path.changes.clear();
    path.run(MS * 2000);
    assert_eq!(path.limit.get(), INITIAL);
    let causes: Vec<_> = path.changes.iter().filter(|(_, c)| c.to < c.from).map(|(_, c)| c.cause).collect();
    // A probe may have been on trial.
    assert!(causes[1..].iter().all(|&cause| cause == Cause::Unused), "{causes:?}");
}

#[test]
fn a_loss_halves_the_send_limit_and_is_reported() {
    let mut path = Path::new(Direction::Send, Tuning::Rtt, 125_000_000, 17 * MS);
    path.run(MS * 1000);
    let (grown, reported) = (path.limit.get(), path.changes.len());
    path.limit.halve();
    assert_eq!(path.limit.get(), grown / 2);
    path.step();
    let change = path.changes[reported].1;
    assert_eq!((change.from, change.to, change.cause), (grown, grown / 2, Cause::Loss));
}

/// The estimate says 1 ms where a round trip takes 20.
#[test]
fn a_wrong_round_trip_is_overcome_by_probes() {
    for direction in BOTH {
        let mut path = Path::new(direction, Tuning::Rtt, 12_500_000, 20 * MS);
        path.estimate = LinkRtt::default();
        path.estimate.sample(path.now, MS);
        let end = path.now + MS * 20_000;
        while path.now < end {
            // One batch reaches the edge: the guest waits for us.
            path.limit.hit();
            path.estimate = LinkRtt::default();
            path.estimate.sample(path.now, MS);
            path.step();
        }
        let bdp = path.bdp();
        assert!(
            (bdp * 9 / 10..bdp * 5 / 2).contains(&path.limit.get()),
            "{direction:?}: {}, {:?}, {:?}",
            path.limit.get(),
            path.changes,
            path.limit
        );
        // The probes become rarer.
        let changes = path.changes.len();
        path.range(MS * 5_000);
        assert!(path.changes.len() - changes <= 6, "{direction:?}: {:?}", &path.changes[changes..]);
    }
}

#[test]
fn equal_bounds_and_no_tuning_mean_fixed() {
    let fixed = BufferBounds { initial: 32 << 10, max: 32 << 10 };
    for (tuning, bounds) in [(Tuning::Rtt, fixed), (Tuning::Step(16 << 10), fixed), (Tuning::Fixed, BOUNDS)] {
        let mut path = Path::new(Direction::Send, tuning, 125_000_000, 17 * MS);
        path.limit = Limit::new(Direction::Send, tuning, bounds, u32::MAX, path.now);
        path.run(MS * 2000);
        path.limit.halve();
        assert_eq!((path.limit.get(), path.limit.at(path.now + IDLE * 10)), (bounds.initial, bounds.initial));
        assert_eq!(path.limit.max(), bounds.initial);
    }
}

#[test]
fn without_scaling_the_cap_holds() {
    let mut path = Path::new(Direction::Receive, Tuning::Rtt, 125_000_000, 17 * MS);
    let bounds = BufferBounds { initial: 16 << 10, max: 4 << 20 };
    path.limit = Limit::new(Direction::Receive, Tuning::Rtt, bounds, 65_535, path.now);
    path.run(MS * 2000);
    assert_eq!(path.limit.get(), 65_535);
}

/// FreeBSD: a step per round trip, on every path.
#[test]
fn steps_grow_by_the_step_per_round_trip() {
    for direction in BOTH {
        let mut path = Path::new(direction, Tuning::Step(16 << 10), 125_000_000, 17 * MS);
        path.run(MS * 1000);
        let steps = (path.limit.get() - INITIAL) / (16 << 10);
        assert!((50..=59).contains(&steps), "{direction:?}: {steps} in 58 round trips");
        path.limit.halve();
        assert_eq!(path.limit.changes().shrinks, 0, "never less");
    }
}

/// Consomme: twice as much whenever it is full, up to the bound, and never less.
#[test]
fn pressure_doubles_to_the_bound() {
    let mut path = Path::new(Direction::Send, Tuning::Pressure, 125_000_000, 17 * MS);
    path.run(MS * 1000);
    assert_eq!((path.limit.get(), path.limit.changes()), (BOUNDS.max, Changes { grows: 10, shrinks: 0 }));
}

/// The acknowledgement that ends a silence is recorded before the limit is read.
#[test]
fn the_end_of_a_silence_does_not_keep_the_limit() {
    let mut path = Path::new(Direction::Send, Tuning::Rtt, 125_000_000, 17 * MS);
    path.run(MS * 1000);
    assert!(path.limit.get() > BOUNDS.initial);
    let (last, total) = path.limit.meter.last();
    let now = last + Duration::from_millis(2500);
    path.limit.note(now, total + 1000);
    path.limit.update(now, total + 1000, &mut LinkRtt::default(), false);
    assert_eq!(path.limit.get(), BOUNDS.initial);
}

/// A reader on a link of 50 us that reads all there is, up to `supply`, and then sleeps in proportion
/// `sleeps` to it; returns the final limit and the number of its changes in the second half of ten seconds.
fn limit_of_a_sleeping_reader(supply: u32, sleeps: impl Fn(u32) -> Duration) -> (u32, u32) {
    let bounds = BufferBounds { initial: INITIAL, max: 16 << 20 };
    let mut rtt = LinkRtt::default();
    let mut limit = Limit::new(Direction::Send, Tuning::Rtt, bounds, u32::MAX, Instant::ZERO);
    let (mut now, mut total) = (Instant::from_ms(1), 0_u32);
    rtt.sample(now, 50 * US);
    let (end, mut settled) = (now + MS * 10_000, None);
    while now < end {
        let taken = limit.get().min(supply);
        now = now + sleeps(taken);
        total = total.wrapping_add(taken);
        limit.note(now, total);
        for _ in 0..3 {
            limit.update(now, total, &mut rtt, false);
            now = now + 300 * US;
        }
        if taken == limit.get() {
            limit.hit();
        }
        if now - Instant::ZERO > MS * 5000 {
            settled = settled.or(Some(limit.changes()));
        }
    }
    let all = |changes: Changes| changes.grows + changes.shrinks;
    (limit.get(), all(limit.changes()) - all(settled.unwrap_or_default()))
}

/// A guest that holds its acknowledgement back for 40 ms: the limit must last that long.
#[test]
fn a_reader_that_sleeps_for_a_fixed_time_gets_what_it_can_take() {
    let (limit, changes) = limit_of_a_sleeping_reader(3 << 20, |_| MS * 40);
    assert!((3 << 20..=4 << 20).contains(&limit), "{limit}");
    assert_eq!(changes, 0, "in five seconds");
}

/// `curl --limit-rate`: the whole limit is read at once, however large, and the sleep follows from the rate.
#[test]
fn a_reader_that_limits_itself_to_a_rate_leaves_the_limit_where_it_is() {
    for rate in [2_000_000, 20_000_000, 100_000_000_u64] {
        let sleeps = |taken: u32| Duration::from_nanos(u64::from(taken) * 1_000_000_000 / rate);
        let (limit, changes) = limit_of_a_sleeping_reader(u32::MAX, sleeps);
        assert!(limit <= 2 << 20, "{rate} B/s: {limit}");
        assert!(changes <= 4, "{rate} B/s: {changes} changes in five seconds");
    }
}

/// Besides its place in the flow table and the timer wheel, which are some 100 bytes.
#[test]
fn a_connection_costs_less_than_a_kibibyte() {
    let (limit, connection) = (size_of::<Limit>(), size_of::<crate::connection::Connection>());
    assert!(connection <= 1000, "{connection} bytes, {limit} in each of two limits");
}
