//! Totals of a worker in the journal's memory, so that none of them begins anew after a crash.
//!
//! Every counter has its word, by its place in the sets: one program has written them and reads them, because
//! an upgrade begins with memory of its own. Behind them stand those totals of the shared policy that are
//! known by a closed list of names, and refusals, each with the digest of its rule, as far as there is room.
//! They are written before a report leaves the worker, so that no observer sees a total fall, and every
//! [`INTERVAL`] beside: what was counted since is lost.
//!
//! A process that was taken over may have written anything: a count that none can have reached is left out.

use super::Worker;
use crate::handover::records::is_count;
use brodo_core::counters::DropReason;
use brodo_core::journal::Slot;
use brodo_core::time::{Duration, Instant};
use brodo_link::GuestLink;
use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};

/// Interval in which they are written while the worker has turns.
const INTERVAL: Duration = Duration::from_millis(100);

/// Memory for the totals of one worker.
#[derive(Debug, Default)]
pub(super) struct Totals {
    slots: &'static [Slot],
    written_at: Instant,
}

impl Totals {
    fn words(&self) -> impl Iterator<Item = &'static AtomicU64> + use<> {
        self.slots.iter().flatten()
    }

    /// Whether it is time to write them.
    pub(super) fn are_due(&self, now: Instant) -> bool {
        !self.slots.is_empty() && now - self.written_at >= INTERVAL
    }
}

/// One of the counters.
#[derive(Debug, Clone, Copy)]
enum Total {
    Drops(DropReason),
    Counter(&'static str),
}

impl<L: GuestLink> Worker<L> {
    /// Goes on with the totals in this memory, and keeps them there.
    pub(crate) fn resume_totals(&mut self, slots: &'static [Slot]) {
        self.totals = Totals { slots, ..Totals::default() };
        // Counted while the flows were recovered.
        let broken = self.stack.counters().promotions_broken;
        self.stack.set_counter("promotions_broken", 0);
        let mut words = self.totals.words().map(|word| word.load(Ordering::Acquire));
        let totals: Vec<Total> = self.counted().map(|(total, _)| total).collect();
        for (total, value) in totals.into_iter().zip(&mut words) {
            if value > 0 && is_count(value) {
                self.set_total(total, value);
            }
        }
        let before = self.stack.counters().promotions_broken;
        self.stack.set_counter("promotions_broken", before.saturating_add(broken));
        let refusals = iter::from_fn(|| Some((words.next().filter(|&digest| digest != 0)?, words.next()?)));
        self.stack.set_refusals(refusals.filter(|(_, count)| is_count(*count)));
    }

    /// Writes all totals, as far as there is memory for them.
    pub(super) fn write_totals(&mut self) {
        self.totals.written_at = self.waiter.now;
        let refusals = self.stack.refusals().filter(|(_, count)| *count > 0);
        let refusals = refusals.flat_map(|(digest, count)| [digest, count]);
        let values = self.counted().map(|(_, value)| value).chain(refusals);
        // The list may be shorter than one of a process before.
        for (word, value) in self.totals.words().zip(values.chain([0])) {
            word.store(value, Ordering::Release);
        }
    }

    /// Every counter, in an order that depends on the program alone.
    fn counted(&self) -> impl Iterator<Item = (Total, u64)> {
        let counters = self.stack.counters();
        let drops = DropReason::ALL.iter().map(|&reason| (Total::Drops(reason), counters.dropped(reason)));
        let forwards = self.sources.forwards.as_ref().map(|forwards| forwards.counters()).unwrap_or_default();
        let named = counters.named().chain(self.waiter.activity.named()).chain(self.losses().named());
        let named = named.chain(self.handle.resteered().named()).chain(forwards.named());
        drops.chain(named.map(|(name, value)| (Total::Counter(name), value)))
    }

    fn set_total(&mut self, total: Total, value: u64) {
        match total {
            Total::Drops(reason) => self.stack.set_dropped(reason, value),
            Total::Counter(name) => {
                self.stack.set_counter(name, value);
                self.waiter.activity.set(name, value);
                self.losses_before.set(name, value);
                self.handle.set_resteered(name, value);
                if let Some(forwards) = &mut self.sources.forwards {
                    forwards.set_counter(name, value);
                }
            }
        }
    }
}
