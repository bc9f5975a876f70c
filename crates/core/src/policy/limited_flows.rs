//! Flows of one worker whose rule has limits: what each was charged for, and when it goes on or ends.
//!
//! A flow is looked up once, as it begins or after the access in which it has passed its gate; most have no
//! limits and are noted as such, so that no later access asks the rules again. A flow that has outlived a
//! crash may stand under a rule whose names DNS has not given again ([`Allowing::Unknown`]): it is looked up
//! again as it goes on, and ends if no rule is found in time. After a change of the policy all are looked up
//! anew ([`LimitedFlows::reconsider`]), and charged from where they were; limits that a flow has no more
//! stay charged for its bytes, as for those of one that is over. After a hand-over all are counted at once
//! ([`LimitedFlows::count_past`]), so that no new flow takes the place of one that is open.

use super::limits::{ByUsage, Charged, DOWN, UP, Usage};
use super::reason;
use crate::flow::FlowId;
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Time for which a flow whose rule is not known goes on, and between two attempts to find it.
const UNRULED_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The rule that allows an open flow, as far as it concerns limits.
#[derive(Debug)]
pub(crate) enum Allowing {
    /// It has these limits.
    Limited(Arc<Usage>),
    /// It has none, or none was needed.
    Unlimited,
    /// No rule allows it, and one with limits may do.
    Unknown,
}

/// A flow with limits.
#[derive(Debug)]
struct LimitedFlow {
    usage: Arc<Usage>,
    /// Bytes from the guest and to it from which on it is charged, and up to which it was.
    from: [u64; 2],
    seen: [u64; 2],
    ends_at: Option<Instant>,
    held_until: [Option<Instant>; 2],
}

impl LimitedFlow {
    fn next_due(&self) -> Option<Instant> {
        self.held_until.into_iter().chain([self.ends_at]).flatten().min()
    }

    /// Bytes for which it was charged.
    fn charged(&self) -> [u64; 2] {
        difference(self.seen, self.from)
    }
}

/// Bytes that a flow has moved before it is looked up.
#[derive(Debug, Clone, Default)]
struct Before {
    /// Bytes from the guest and to it for which it is not charged any more.
    seen: [u64; 2],
    /// Limits that it had, which were charged for these of them.
    charged: Option<(Arc<Usage>, [u64; 2])>,
}

impl Before {
    /// Bytes from which on it is charged, if it has the same limits again.
    fn from(&self) -> [u64; 2] {
        self.charged.as_ref().map_or(self.seen, |(_, bytes)| difference(self.seen, *bytes))
    }

    /// The flow has other limits from now on, or has ended: its bytes are past.
    fn settle(self) {
        if let Some((usage, bytes)) = self.charged {
            usage.pass(bytes);
        }
    }
}

/// Bytes of both directions beyond `from`.
fn difference(bytes: [u64; 2], from: [u64; 2]) -> [u64; 2] {
    [UP, DOWN].map(|n| bytes[n].saturating_sub(from[n]))
}

/// Limits of a flow, as far as they are known.
#[derive(Debug)]
enum Record {
    Unlimited,
    Limited(LimitedFlow),
    /// The policy has changed: to be looked up, and charged from these bytes on.
    Unknown(Before),
    /// No rule was found: to be looked up again at a later time, and charged from these bytes on. It ends at
    /// the last time.
    Unruled {
        before: Before,
        look_at: Instant,
        ends_at: Instant,
    },
}

/// Directions in which a flow is held back: from the guest, to the guest.
pub(crate) type Held = [bool; 2];

/// Way in which a flow comes under limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It may be one too many.
    New,
    /// It was open before a hand-over, and is counted in any case.
    Restored,
}

/// Event of a flow whose time has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// It goes on, except in these directions.
    Held(Held),
    /// Its time is over.
    Over,
    /// No rule was found for it in time.
    Unruled,
}

/// Outcome of charging a flow.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It goes on, except in these directions; `None` if that is as before.
    GoesOn(Option<Held>),
    /// The quota of its rule is used up: these flows of this worker end.
    Exhausted(Vec<FlowId>),
}

/// The flows of one worker.
#[derive(Debug, Default)]
pub(crate) struct LimitedFlows {
    records: BTreeMap<FlowId, Record>,
    due: BTreeSet<(Instant, FlowId)>,
}

impl LimitedFlows {
    /// Whether the flow was looked up, and is not to be again.
    pub(crate) fn is_known(&self, now: Instant, id: FlowId) -> bool {
        match self.records.get(&id) {
            Some(Record::Unlimited | Record::Limited(_)) => true,
            Some(Record::Unruled { look_at, .. }) => now < *look_at,
            Some(Record::Unknown(_)) | None => false,
        }
    }

    /// Whether the flow has limits, as far as is known.
    pub(crate) fn is_limited(&self, id: FlowId) -> bool {
        matches!(self.records.get(&id), Some(Record::Limited(_)))
    }

    /// Whether no rule was found for the flow so far.
    pub(crate) fn is_unruled(&self, id: FlowId) -> bool {
        matches!(self.records.get(&id), Some(Record::Unruled { .. }))
    }

    /// Notes that no rule was found for a flow which one with limits may allow.
    pub(crate) fn note_unruled(&mut self, now: Instant, id: FlowId) {
        let ends_at = match self.records.get(&id) {
            Some(Record::Unruled { ends_at, .. }) => *ends_at,
            _ => now + UNRULED_MAX,
        };
        let (before, look_at) = (self.take_before(id), now + LOOK_EVERY);
        self.due.insert((ends_at, id));
        self.records.insert(id, Record::Unruled { before, look_at, ends_at });
    }

    /// Notes a flow that is older than all limits, unless it is noted already: it is charged from `bytes` on.
    pub(crate) fn note_past(&mut self, id: FlowId, bytes: [u64; 2]) {
        let before = || Record::Unknown(Before { seen: bytes, charged: None });
        self.records.entry(id).or_insert_with(before);
    }

    /// Removes the record of a flow that is to be looked up.
    fn take_before(&mut self, id: FlowId) -> Before {
        match self.records.remove(&id) {
            Some(Record::Unknown(before)) => before,
            Some(Record::Unruled { before, ends_at, .. }) => {
                self.due.remove(&(ends_at, id));
                before
            }
            Some(Record::Unlimited | Record::Limited(_)) | None => Before::default(),
        }
    }

    /// Notes the limits of a flow, and when it is over by its age.
    ///
    /// # Errors
    /// The reason for which they have no room for one more.
    pub(crate) fn note(
        &mut self,
        id: FlowId,
        usage: Option<Arc<Usage>>,
        ends_at: Option<Instant>,
        admission: Admission,
    ) -> Result<(), &'static str> {
        let before = self.take_before(id);
        let Some(usage) = usage else {
            before.settle();
            self.records.insert(id, Record::Unlimited);
            return Ok(());
        };
        // One that was opened with the last bytes of a quota ends without a byte of its own.
        let no_room = match admission {
            Admission::New if usage.is_exhausted() => Some(reason::QUOTA),
            Admission::New => (!usage.open()).then_some(reason::FLOWS),
            Admission::Restored => {
                usage.reopen();
                None
            }
        };
        if let Some(reason) = no_room {
            before.settle();
            self.records.insert(id, Record::Unlimited);
            return Err(reason);
        }
        let seen = before.seen;
        let from = match &before.charged {
            Some((earlier, bytes)) if earlier.counts_with(&usage) => difference(seen, *bytes),
            _ => {
                before.settle();
                seen
            }
        };
        let flow = LimitedFlow { usage, from, seen, ends_at, held_until: [None; 2] };
        self.due.extend(flow.next_due().map(|at| (at, id)));
        self.records.insert(id, Record::Limited(flow));
        Ok(())
    }

    /// Counts what a flow had moved before it was restored: for a quota. Its rate has no debt of that, or it
    /// would hold the flow back for as long as it has lasted.
    pub(crate) fn count_past(&mut self, id: FlowId, bytes: [u64; 2]) {
        if let Some(Record::Limited(flow)) = self.records.get_mut(&id) {
            flow.usage.add(difference(bytes, flow.seen));
            flow.seen = bytes;
        }
    }

    /// Charges a flow that has moved `bytes` in all.
    pub(crate) fn charge(&mut self, now: Instant, id: FlowId, bytes: [u64; 2]) -> Outcome {
        let Some(Record::Limited(flow)) = self.records.get_mut(&id) else { return Outcome::GoesOn(None) };
        let more = difference(bytes, flow.seen);
        if more == [0; 2] {
            return Outcome::GoesOn(None);
        }
        flow.seen = bytes;
        let until = match flow.usage.charge(now, more) {
            Charged::Exhausted => {
                let usage = flow.usage.clone();
                return Outcome::Exhausted(self.release_all(&usage));
            }
            Charged::Until(until) => until,
        };
        if until == [None; 2] && flow.held_until == [None; 2] {
            return Outcome::GoesOn(None);
        }
        self.due.extend(until.into_iter().flatten().map(|at| (at, id)));
        flow.held_until = [UP, DOWN].map(|n| flow.held_until[n].max(until[n]));
        Outcome::GoesOn(Some(flow.held_until.map(|until| until.is_some())))
    }

    /// The flows of a usage, which are charged no more.
    fn release_all(&mut self, usage: &Arc<Usage>) -> Vec<FlowId> {
        let is_of =
            |record: &Record| matches!(record, Record::Limited(flow) if flow.usage.counts_with(usage));
        let ids: Vec<FlowId> =
            self.records.iter().filter(|(_, record)| is_of(record)).map(|(id, _)| *id).collect();
        for id in &ids {
            self.release(*id);
        }
        ids
    }

    /// Bytes for which these flows were charged.
    pub(crate) fn charged(&self, flows: impl Iterator<Item = FlowId>) -> ByUsage {
        let mut sums = ByUsage::new();
        for id in flows {
            if let Some(Record::Limited(flow)) = self.records.get(&id) {
                let (sum, charged) = (sums.entry(flow.usage.key()).or_default(), flow.charged());
                *sum = [UP, DOWN].map(|n| sum[n] + charged[n]);
            }
        }
        sums
    }

    /// Flows that are not charged from their first byte on, with the bytes from which on they are.
    pub(crate) fn charged_from(&self) -> impl Iterator<Item = (FlowId, [u64; 2])> {
        let from = self.records.iter().filter_map(|(&id, record)| match record {
            Record::Limited(flow) => Some((id, flow.from)),
            Record::Unknown(before) | Record::Unruled { before, .. } => Some((id, before.from())),
            Record::Unlimited => None,
        });
        from.filter(|(_, bytes)| *bytes != [0; 2])
    }

    /// A flow that ends for its limits is charged no more.
    pub(crate) fn release(&mut self, id: FlowId) {
        self.close(id);
        self.records.insert(id, Record::Unlimited);
    }

    /// The next flow for which something is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(FlowId, Due)> {
        while let Some(&(at, id)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, id));
            let flow = match self.records.get_mut(&id) {
                Some(Record::Limited(flow)) => flow,
                Some(Record::Unruled { .. }) => return Some((id, Due::Unruled)),
                _ => continue,
            };
            if flow.ends_at.is_some_and(|at| at <= now) {
                return Some((id, Due::Over));
            }
            flow.held_until = flow.held_until.map(|until| until.filter(|until| *until > now));
            return Some((id, Due::Held(flow.held_until.map(|until| until.is_some()))));
        }
        None
    }

    /// Time at which something is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The end of a flow, limited or not.
    pub(crate) fn close(&mut self, id: FlowId) {
        match self.records.remove(&id) {
            Some(Record::Limited(flow)) => {
                flow.usage.close(flow.charged());
                for at in flow.held_until.into_iter().chain([flow.ends_at]).flatten() {
                    self.due.remove(&(at, id));
                }
            }
            Some(Record::Unruled { before, ends_at, .. }) => {
                self.due.remove(&(ends_at, id));
                before.settle();
            }
            Some(Record::Unknown(before)) => before.settle(),
            Some(Record::Unlimited) | None => {}
        }
    }

    /// The policy has changed: a flow that is open and has moved `bytes` is looked up again if rules in force
    /// have limits (`limiting`). True if it had some.
    pub(crate) fn reconsider(&mut self, id: FlowId, bytes: [u64; 2], limiting: bool) -> bool {
        let was_limited = self.is_limited(id);
        let before = match self.records.get_mut(&id) {
            // Its bytes are not past yet: it goes on, and may have the same limits again.
            Some(Record::Limited(flow)) => {
                let charged = flow.charged();
                flow.from = flow.seen;
                Before { seen: flow.seen, charged: Some((flow.usage.clone(), charged)) }
            }
            Some(Record::Unknown(before) | Record::Unruled { before, .. }) => std::mem::take(before),
            Some(Record::Unlimited) | None => Before { seen: bytes, charged: None },
        };
        self.close(id);
        if limiting {
            self.records.insert(id, Record::Unknown(before));
        } else {
            before.settle();
        }
        was_limited
    }
}

/// Flows that end with their stack are counted no more.
impl Drop for LimitedFlows {
    fn drop(&mut self) {
        for record in self.records.values() {
            if let Record::Limited(flow) = record {
                flow.usage.close([0; 2]);
            }
        }
    }
}
