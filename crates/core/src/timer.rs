//! One coarse, hierarchical timer wheel for all flows.
//!
//! Four levels of 64 slots: 1 ms, 64 ms, 4.1 s and 262 s per slot, 4.6 hours in all; later deadlines are clamped and
//! armed again when they fire. A flow keeps its own exact deadlines and holds at most one *current* entry here: when
//! a deadline moves later nothing is done, and when the entry fires early the flow is simply armed again. That makes
//! "restart the retransmission timer" on every acknowledgement free. Firing is never early by the flow's own clock,
//! because the flow compares, and late by at most one tick plus the driver's sleep.

use crate::flow::FlowId;
use crate::time::{Duration, Instant};

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 4;
const TICK_NS: u64 = 1_000_000;

/// Length of a tick: deadlines are rounded up to it.
pub const TICK: Duration = Duration::from_nanos(TICK_NS);

/// The tick at which a wheel entry fires; a flow remembers it to tell its current entry from stale ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(u64);

#[derive(Debug, Clone, Copy)]
struct Entry {
    tick: Tick,
    flow: FlowId,
}

/// The wheel.
#[derive(Debug)]
pub struct Wheel {
    /// Every entry at a tick up to and including this one has been handed out.
    now: u64,
    slots: [Vec<Entry>; LEVELS * SLOTS],
    occupied: [u64; LEVELS],
    due: Vec<Entry>,
}

impl Default for Wheel {
    fn default() -> Self {
        Self { now: 0, slots: [const { Vec::new() }; LEVELS * SLOTS], occupied: [0; LEVELS], due: Vec::new() }
    }
}

impl Wheel {
    /// Arms an entry for `flow` at the first tick not before `at`, but always in the future.
    pub fn arm(&mut self, flow: FlowId, at: Instant) -> Tick {
        let span = (1u64 << (SLOT_BITS * LEVELS as u32)) - SLOTS as u64;
        let tick = at.as_ns().div_ceil(TICK_NS).clamp(self.now + 1, self.now + span);
        self.insert(Entry { tick: Tick(tick), flow });
        Tick(tick)
    }

    /// Moves the wheel to `now`; what has become due is then taken with [`Wheel::pop`].
    pub fn advance(&mut self, now: Instant) {
        let target = now.as_ns() / TICK_NS;
        while self.now < target {
            // Jump over empty stretches: nothing can fire before the next occupied slot of some level.
            let next = self.next_tick().unwrap_or(target);
            self.now = next.clamp(self.now + 1, target);
            for level in (1..LEVELS).rev() {
                if self.now.trailing_zeros() >= SLOT_BITS * level as u32 {
                    self.cascade(level);
                }
            }
            let slot = self.now as usize % SLOTS;
            self.occupied[0] &= !(1 << slot);
            self.due.append(&mut self.slots[slot]);
        }
    }

    /// One entry that is due, if any: the flow and the tick it was armed for.
    pub fn pop(&mut self) -> Option<(FlowId, Tick)> {
        self.due.pop().map(|e| (e.flow, e.tick))
    }

    /// When [`Wheel::advance`] has something to do next. May be early (an upper level must be redistributed), is
    /// never late.
    pub fn next(&self) -> Option<Instant> {
        if !self.due.is_empty() {
            return Some(Instant::from_ns(self.now * TICK_NS));
        }
        self.next_tick().map(|t| Instant::from_ns(t * TICK_NS))
    }

    fn next_tick(&self) -> Option<u64> {
        (0..LEVELS)
            .filter_map(|level| {
                let shift = SLOT_BITS * level as u32;
                let position = self.now >> shift;
                let current = (position % SLOTS as u64) as u32;
                // Slots ahead of the current one, nearest first; the current slot itself means a full turn.
                let ahead = self.occupied[level].rotate_right(current + 1);
                (ahead != 0).then(|| (position + 1 + u64::from(ahead.trailing_zeros())) << shift)
            })
            .min()
    }

    fn insert(&mut self, entry: Entry) {
        let ahead = entry.tick.0 ^ self.now;
        let level = (63 - ahead.leading_zeros().min(63)) / SLOT_BITS;
        let level = (level as usize).min(LEVELS - 1);
        let slot = (entry.tick.0 >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        self.occupied[level] |= 1 << slot;
        self.slots[level * SLOTS + slot].push(entry);
    }

    fn cascade(&mut self, level: usize) {
        let slot = (self.now >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        if self.occupied[level] & (1 << slot) == 0 {
            return;
        }
        self.occupied[level] &= !(1 << slot);
        let mut entries = std::mem::take(&mut self.slots[level * SLOTS + slot]);
        for entry in entries.drain(..) {
            if entry.tick.0 <= self.now {
                self.due.push(entry);
            } else {
                self.insert(entry);
            }
        }
        self.slots[level * SLOTS + slot] = entries;
    }
}

#[cfg(test)]
mod tests;
