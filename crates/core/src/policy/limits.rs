//! Limits of allow rules: bytes, rates, flows and age, each for all flows of a rule and all workers together.
//!
//! Rules with the same limits object, such as the destinations of one `[[rule]]`, share one [`Usage`]. A
//! flow is charged after each access for the bytes that it has moved ([`Usage::charge`]), those to the guest
//! when it has acknowledged them; so a quota is exceeded by the bytes of one access of each worker at most,
//! which are those of a window ([`QUOTA_WINDOW`]). A rate is a bucket that may run into debt: a flow that is
//! charged then is held back until the debt is paid, so the rate holds over any longer time.
//!
//! Usage outlives a change of the policy as long as the rules' texts stay ([`Usage::following`]), so that
//! nothing is gained by adding and removing other rules: flows that were open before and after it are counted
//! together.

use crate::time::{Duration, Instant};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Least rate, in bytes per second: less is no rate at which a protocol works.
pub const RATE_MIN: u64 = 1024;
/// Time whose bytes a rate lets pass at once.
const BURST: Duration = Duration::from_millis(100);
/// Bytes that a rate lets pass at once at least.
const BURST_MIN: u64 = 16 << 10;
/// Largest window that a flow under a rate is offered, as the time that its bytes take.
const WINDOW: Duration = Duration::from_millis(250);
/// Smallest such window, in bytes.
const WINDOW_MIN: u64 = 16 << 10;
/// Largest window that a flow under a quota is offered, in bytes. No more comes in order at a time, be it in
/// one batch or by a gap that is filled: the bytes by which each worker may exceed the quota.
const QUOTA_WINDOW: u32 = 64 << 10;

/// Direction of a limited flow's bytes, as an index: from the guest, to the guest.
pub(crate) const UP: usize = 0;
pub(crate) const DOWN: usize = 1;

/// Limits of an allow rule, for all its flows together. Without a value there is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Bytes from the guest, and to it.
    pub bytes: [Option<u64>; 2],
    /// Bytes per second from the guest, and to it, [`RATE_MIN`] at least.
    pub rates: [Option<u64>; 2],
    /// Flows at a time.
    pub flows: Option<u32>,
    /// Age at which a flow ends.
    pub max_age: Option<Duration>,
}

impl Limits {
    /// Whether it limits nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The largest window for bytes from the guest, in bytes.
    pub(crate) fn window_max(&self) -> u32 {
        let window = |rate: u64| (rate * WINDOW.as_millis() as u64 / 1000).max(WINDOW_MIN);
        let by_rate = self.rates[UP].map_or(u32::MAX, |rate| u32::try_from(window(rate)).unwrap_or(u32::MAX));
        self.bytes[UP].map_or(by_rate, |_| by_rate.min(QUOTA_WINDOW))
    }
}

/// A rate with its debt, as the time at which its bucket is full (see [`crate::rate`]).
#[derive(Debug)]
struct Meter {
    rate: u64,
    full_at: Instant,
}

impl Meter {
    fn time_of(&self, bytes: u64) -> Duration {
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.max(RATE_MIN));
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Takes `bytes`. The time at which no debt is left, if there is one.
    fn take(&mut self, now: Instant, bytes: u64) -> Option<Instant> {
        self.full_at = self.full_at.max(now) + self.time_of(bytes);
        let depth = BURST.max(self.time_of(BURST_MIN));
        let debt = (self.full_at - now).saturating_sub(depth);
        (!debt.is_zero()).then(|| now + debt)
    }
}

/// Outcome of a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charged {
    /// The quota is used up.
    Exhausted,
    /// The flow goes on; times until which a direction is held back.
    Until([Option<Instant>; 2]),
}

/// Counts of flows and their bytes.
#[derive(Debug, Default)]
struct Counts {
    bytes: [AtomicU64; 2],
    /// The part of `bytes` that flows have moved which are over, or stand under other limits: open flows are
    /// counted anew after a hand-over, unless they end with it.
    past: [AtomicU64; 2],
    flows: AtomicU32,
}

/// Bytes of some flows from the guest and to it, by [`Usage::key`].
pub(crate) type ByUsage = BTreeMap<usize, [u64; 2]>;

/// Usage of one limits object by all its flows.
#[derive(Debug)]
pub(crate) struct Usage {
    pub(crate) limits: Limits,
    /// Texts of its rules.
    pub(crate) rules: Box<[Arc<str>]>,
    counts: Arc<Counts>,
    meters: [Option<Arc<Mutex<Meter>>>; 2],
}

impl Usage {
    pub(crate) fn new(limits: Limits, rules: Box<[Arc<str>]>) -> Self {
        let meter = |rate: u64| Arc::new(Mutex::new(Meter { rate, full_at: Instant::ZERO }));
        let meters = limits.rates.map(|rate| rate.map(meter));
        Self { limits, rules, counts: Arc::default(), meters }
    }

    /// Other limits of the same rules as `earlier`, whose flows are counted on: a flow that is still charged
    /// there is charged here.
    pub(crate) fn following(limits: Limits, earlier: &Arc<Self>) -> Arc<Self> {
        if earlier.limits == limits {
            return earlier.clone();
        }
        let mut usage = Self::new(limits, earlier.rules.clone());
        usage.counts = earlier.counts.clone();
        for (n, meter) in usage.meters.iter_mut().enumerate() {
            if limits.rates[n] == earlier.limits.rates[n] {
                meter.clone_from(&earlier.meters[n]);
            }
        }
        Arc::new(usage)
    }

    /// The same for all that count the same flows, as long as one of them is there.
    pub(crate) fn key(&self) -> usize {
        Arc::as_ptr(&self.counts).addr()
    }

    /// Whether both count the same flows.
    pub(crate) fn counts_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.counts, &other.counts)
    }

    /// Bytes used, from the guest and to it.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        [&self.counts.bytes[UP], &self.counts.bytes[DOWN]].map(|bytes| bytes.load(Relaxed))
    }

    /// The part of it that flows have moved which are over.
    pub(crate) fn past(&self) -> [u64; 2] {
        [&self.counts.past[UP], &self.counts.past[DOWN]].map(|bytes| bytes.load(Relaxed))
    }

    /// Adds what was used before a hand-over by flows that are over.
    pub(crate) fn add_past(&self, bytes: [u64; 2]) {
        for (n, bytes) in bytes.into_iter().enumerate() {
            self.counts.bytes[n].fetch_add(bytes, Relaxed);
            self.counts.past[n].fetch_add(bytes, Relaxed);
        }
    }

    /// Flows open now.
    pub(crate) fn flows(&self) -> u32 {
        self.counts.flows.load(Relaxed)
    }

    /// Whether a quota is used up.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.bytes().iter().zip(self.limits.bytes).any(|(used, most)| most.is_some_and(|most| *used >= most))
    }

    /// Whether there are as many flows as there may be.
    pub(crate) fn is_full(&self) -> bool {
        self.limits.flows.is_some_and(|most| self.flows() >= most)
    }

    /// Counts a flow; false if it is one too many.
    pub(crate) fn open(&self) -> bool {
        let most = self.limits.flows.unwrap_or(u32::MAX);
        let more = |flows: u32| (flows < most).then_some(flows + 1);
        self.counts.flows.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Counts a flow that was open before a hand-over, be it one too many.
    pub(crate) fn reopen(&self) {
        self.counts.flows.fetch_add(1, Relaxed);
    }

    /// Adds bytes that no rate holds back any more.
    pub(crate) fn add(&self, bytes: [u64; 2]) {
        for (own, bytes) in self.counts.bytes.iter().zip(bytes) {
            own.fetch_add(bytes, Relaxed);
        }
    }

    /// Counts the end of a flow that was charged for `bytes`.
    pub(crate) fn close(&self, bytes: [u64; 2]) {
        self.counts.flows.fetch_sub(1, Relaxed);
        self.pass(bytes);
    }

    /// A flow that was charged for `bytes` is not to be charged for them again.
    pub(crate) fn pass(&self, bytes: [u64; 2]) {
        for (past, bytes) in self.counts.past.iter().zip(bytes) {
            past.fetch_add(bytes, Relaxed);
        }
    }

    /// Charges a flow for `bytes` more from the guest and to it.
    pub(crate) fn charge(&self, now: Instant, bytes: [u64; 2]) -> Charged {
        let mut until = [None; 2];
        for (n, bytes) in bytes.into_iter().enumerate() {
            self.counts.bytes[n].fetch_add(bytes, Relaxed);
            if let Some(meter) = &self.meters[n] {
                until[n] = meter.lock().unwrap_or_else(PoisonError::into_inner).take(now, bytes);
            }
        }
        if self.is_exhausted() { Charged::Exhausted } else { Charged::Until(until) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(limits: Limits) -> Usage {
        Usage::new(limits, Box::default())
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_quota_ends_with_its_last_byte() {
        let usage = usage(Limits { bytes: [Some(1000), None], ..Limits::default() });
        assert_eq!(usage.charge(at(0), [999, 1 << 40]), Charged::Until([None; 2]));
        assert!(!usage.is_exhausted());
        assert_eq!(usage.charge(at(0), [1, 0]), Charged::Exhausted);
        assert_eq!(usage.bytes(), [1000, 1 << 40]);
    }

    #[test]
    fn a_rate_holds_over_time_whatever_the_pieces_are() {
        let usage = usage(Limits { rates: [None, Some(1_000_000)], ..Limits::default() });
        let (mut now, mut moved) = (at(0), 0);
        while now < at(10_000) {
            moved += 256 << 10;
            match usage.charge(now, [0, 256 << 10]) {
                Charged::Until([None, Some(until)]) => now = until,
                Charged::Until(_) => {}
                Charged::Exhausted => panic!("there is no quota"),
            }
        }
        assert!((10_000_000..10_600_000).contains(&moved), "{moved} bytes in ten seconds");
    }

    #[test]
    fn flows_are_counted_and_their_bytes_kept() {
        let usage = usage(Limits { flows: Some(2), ..Limits::default() });
        assert!(usage.open() && usage.open() && !usage.open() && usage.is_full());
        usage.close([7, 9]);
        assert!(usage.open());
        assert_eq!((usage.past(), usage.flows()), ([7, 9], 2));
    }

    #[test]
    fn the_window_under_a_rate_or_a_quota_is_small() {
        let slow = Limits { rates: [Some(2_000_000), None], ..Limits::default() };
        assert_eq!((slow.window_max(), Limits::default().window_max()), (500_000, u32::MAX));
        let quota = Limits { bytes: [Some(1), None], ..slow };
        assert_eq!(quota.window_max(), QUOTA_WINDOW);
        assert_eq!(Limits { bytes: [None, Some(1)], ..slow }.window_max(), 500_000);
    }
}
