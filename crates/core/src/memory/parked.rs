//! Flows of one worker parked for memory, in order of arrival.
//!
//! Parking: a flow that finds the budget used up is listed here, and its worker's flag is set (see
//! [`crate::memory::budget`]). Freed memory, of this worker or another, wakes the worker, which resumes
//! listed flows: oldest first, no more at a time than the free memory suffices for, and each once per
//! wake-up. A flow that still lacks memory, because others were faster or its need is larger, is listed again
//! at the end.
//!
//! A slow watchdog limits the damage of a lost wake-up, which cannot happen, to a second's delay and a
//! counter above zero instead of a connection that stands still for ever. It needs two observations: between
//! the two steps of another worker that frees memory, room and a parked worker can be seen together.

use crate::flow::FlowId;
use crate::memory::budget::{Budget, Need, READ_ROOM};
use crate::snapshot::saved::Saved;
use crate::snapshot::v1::ParkedFlowsV1;
use crate::time::{Duration, Instant};
use std::collections::VecDeque;
use std::sync::Arc;

/// Interval of the watchdog while a flow is parked.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Stale entries (flows that are gone) allowed beside half of the list.
const STALE_SLACK: usize = 64;

/// Most entries of a list of flows, of which so many are open: a longer one is looked through for stale
/// ones, so each entry is looked at once for each that was made.
pub(crate) const fn listed_max(flows: usize) -> usize {
    2 * flows + STALE_SLACK
}

/// The flows parked for one kind of need.
#[derive(Debug)]
pub(crate) struct ParkedFlows {
    budget: Arc<Budget>,
    need: Need,
    /// This worker's number, for the budget.
    worker: u32,
    flows: VecDeque<FlowId>,
    /// Number of flows at the front that have not resumed since the last wake-up.
    due: usize,
    watch_at: Option<Instant>,
    /// First observation of the watchdog: free memory, and a parked worker that was not woken.
    suspected: bool,
    /// Second observation: flows resumed now had a lost wake-up.
    convicted: bool,
}

impl ParkedFlows {
    pub(crate) fn new(budget: Arc<Budget>, need: Need, worker: u32) -> Self {
        let (flows, due, watch_at) = (VecDeque::new(), 0, None);
        Self { budget, need, worker, flows, due, watch_at, suspected: false, convicted: false }
    }

    /// Parks a flow: marks the worker and lists the flow unless it is listed. The flow must then check for
    /// its own room once more.
    pub(crate) fn stop(&mut self, now: Instant, flow: FlowId, listed: &mut bool) {
        self.watch_at.get_or_insert(now + WATCH_EVERY);
        if !self.budget.stopped(self.need).stop(self.worker) {
            self.due = self.flows.len();
        }
        if !std::mem::replace(listed, true) {
            self.flows.push_back(flow);
        }
    }

    /// Number of flows that may resume now: without a wake-up, none.
    pub(crate) fn wakeable(&mut self) -> usize {
        if self.flows.is_empty() {
            return 0;
        }
        if !self.budget.stopped(self.need).is_stopped(self.worker) {
            self.due = self.flows.len();
        }
        debug_assert!(self.due <= self.flows.len(), "due flows are listed");
        if self.due == 0 || !self.budget.has_room(self.need) {
            return 0;
        }
        self.due.min((self.budget.available() / READ_ROOM).max(1))
    }

    /// The next flow to resume.
    pub(crate) fn pop(&mut self) -> Option<FlowId> {
        self.due = self.due.checked_sub(1)?;
        self.suspected = false;
        self.flows.pop_front()
    }

    /// Ends a round of resumed flows: true if others may resume at once, else the worker is marked as parked
    /// again if any is left.
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

    /// Whether a flow that resumes now was found by the watchdog only.
    pub(crate) fn was_forgotten(&self) -> bool {
        self.convicted
    }

    /// Time at which [`ParkedFlows::watch`] is due.
    pub(crate) fn watch_at(&self) -> Option<Instant> {
        self.watch_at
    }

    /// An observation of the watchdog.
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

    /// Removes stale entries if they are many: `flows` is the number of open flows, `exists` tells them from
    /// stale ones.
    pub(crate) fn prune(&mut self, flows: usize, exists: impl Fn(FlowId) -> bool) {
        if self.flows.len() <= listed_max(flows) {
            return;
        }
        self.flows.retain(|&flow| exists(flow));
        // Perhaps too many: some may resume once more than needed.
        self.due = self.due.min(self.flows.len());
    }

    /// Bytes allocated by the list.
    pub(crate) fn allocated(&self) -> usize {
        self.flows.capacity() * size_of::<FlowId>()
    }
}

/// For a snapshot.
impl ParkedFlows {
    /// Saved form.
    pub(crate) fn save(&self) -> ParkedFlowsV1 {
        let Self { budget, need, worker, flows, due, watch_at, suspected, convicted } = self;
        ParkedFlowsV1 {
            flows: flows.iter().map(Saved::save).collect(),
            due: *due as u32,
            watch_at: watch_at.save(),
            suspected: *suspected,
            convicted: *convicted,
            stopped: budget.stopped(*need).is_stopped(*worker),
        }
    }

    /// Takes the flows of a saved form, as many as may be listed beside `open` ones.
    pub(crate) fn restore(&mut self, open: usize, saved: &ParkedFlowsV1) {
        let listed = saved.flows.iter().take(listed_max(open));
        self.flows = listed.map(|id| FlowId { index: id.index, generation: id.generation }).collect();
        self.due = (saved.due as usize).min(self.flows.len());
        self.watch_at = saved.watch_at.map(Instant::from_ns);
        (self.suspected, self.convicted) = (saved.suspected, saved.convicted);
        if saved.stopped {
            self.budget.stopped(self.need).stop(self.worker);
        }
    }

    /// The listed flows in order; some may be gone.
    pub(crate) fn flows(&self) -> impl Iterator<Item = FlowId> {
        self.flows.iter().copied()
    }
}

#[cfg(test)]
mod tests;
