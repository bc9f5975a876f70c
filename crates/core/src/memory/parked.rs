//! Flows of one worker that wait for memory, in the order in which they came.
//!
//! Parking: a flow that finds the budget used up is listed here, and its worker's flag is set (see
//! [`crate::memory::budget`]). Freed memory, of this worker or another, wakes the worker, which resumes
//! listed flows: oldest first, no more at a time than the free memory suffices for, and each once per
//! wake-up. A flow that still lacks memory, because others were faster or its need is larger, is listed again
//! at the end.
//!
//! A slow watchdog makes sure that a wake-up which got lost, which cannot happen, is a second's delay and a
//! counter above zero instead of a connection that stands still for ever. It takes two looks: between the two
//! steps of another worker that gives memory back, room and a stopped worker can be seen together.

use crate::flow::FlowId;
use crate::memory::budget::{Budget, Need, READ_ROOM};
use crate::time::{Duration, Instant};
use std::collections::VecDeque;
use std::sync::Arc;

/// How often the watchdog looks while a flow waits.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Flows that are gone may fill half of the list, and this many more.
const STALE_SLACK: usize = 64;

/// The flows that wait for one kind of room.
#[derive(Debug)]
pub(crate) struct ParkedFlows {
    budget: Arc<Budget>,
    need: Need,
    /// Which worker this is, for the self.budget.
    worker: u32,
    flows: VecDeque<FlowId>,
    /// How many of them, from the front, have not looked since the last wake.
    due: usize,
    watch_at: Option<Instant>,
    /// The watchdog has seen free memory and a parked worker that was not woken.
    suspected: bool,
    /// The watchdog has seen it twice: flows resumed now had a lost wake-up.
    convicted: bool,
}

impl ParkedFlows {
    pub(crate) fn new(budget: Arc<Budget>, need: Need, worker: u32) -> Self {
        let (flows, due, watch_at) = (VecDeque::new(), 0, None);
        Self { budget, need, worker, flows, due, watch_at, suspected: false, convicted: false }
    }

    /// Says that a flow waits, and lists it unless it is listed. It has to look for its own room once more.
    pub(crate) fn stop(&mut self, now: Instant, flow: FlowId, listed: &mut bool) {
        self.watch_at.get_or_insert(now + WATCH_EVERY);
        if !self.budget.stopped(self.need).stop(self.worker) {
            self.due = self.flows.len();
        }
        if !std::mem::replace(listed, true) {
            self.flows.push_back(flow);
        }
    }

    /// How many flows may resume now: without a wake-up, none.
    pub(crate) fn wakeable(&mut self) -> usize {
        if self.flows.is_empty() {
            return 0;
        }
        if !self.budget.stopped(self.need).is_stopped(self.worker) {
            self.due = self.flows.len();
        }
        if self.due == 0 || !self.budget.has_room(self.need) {
            return 0;
        }
        self.due.min((self.budget.available() / READ_ROOM).max(1))
    }

    /// The next flow that is to look.
    pub(crate) fn pop(&mut self) -> Option<FlowId> {
        self.due = self.due.checked_sub(1)?;
        self.suspected = false;
        self.flows.pop_front()
    }

    /// After flows have looked: true if others may look at once, else the worker is stopped again if any is
    /// left.
    pub(crate) fn rest(&mut self) -> bool {
        if self.flows.is_empty() {
            self.convicted = false;
            return false;
        }
        if !self.budget.stopped(self.need).stop(self.worker) {
            self.due = self.flows.len();
        }
        let more = self.due > 0 && self.budget.has_room(self.need);
        self.convicted &= more;
        more
    }

    /// Whether a flow that goes on now does so only because of the watchdog.
    pub(crate) fn was_forgotten(&self) -> bool {
        self.convicted
    }

    /// When [`ParkedFlows::watch`] is due.
    pub(crate) fn watch_at(&self) -> Option<Instant> {
        self.watch_at
    }

    /// The watchdog's look.
    pub(crate) fn watch(&mut self, now: Instant) {
        if self.watch_at.is_none_or(|at| at > now) {
            return;
        }
        if self.flows.is_empty() {
            (self.watch_at, self.suspected) = (None, false);
            return;
        }
        let stopped = self.due == 0 && self.budget.stopped(self.need).is_stopped(self.worker);
        let room = stopped && self.budget.has_room(self.need);
        if room && self.suspected {
            self.convicted = true;
            self.due = self.flows.len();
        }
        self.suspected = room;
        self.watch_at = Some(now + WATCH_EVERY);
    }

    /// Forgets flows that are gone if they are many: `flows` are open, and `exists` tells which.
    pub(crate) fn prune(&mut self, flows: usize, exists: impl Fn(FlowId) -> bool) {
        if self.flows.len() <= 2 * flows + STALE_SLACK {
            return;
        }
        self.flows.retain(|&flow| exists(flow));
        // Some may look once more than needed.
        self.due = self.due.min(self.flows.len());
    }

    /// Bytes that the list takes.
    pub(crate) fn allocated(&self) -> usize {
        self.flows.capacity() * size_of::<FlowId>()
    }
}

#[cfg(test)]
mod tests;
