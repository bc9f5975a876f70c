//! Decisions of the policy, kept for explanations and for an audit log.
//!
//! *Refusals*: each distinct one once, with its number; the one that has not occurred for the longest time
//! makes room. *The trail* has every decision since it was taken last, equal ones as one, and counts those
//! beyond its bound. A name in a decision is text of the guest's, as long as a name may be.

use crate::flow::Protocol;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Most distinct refusals that are kept.
const REFUSALS_MAX: usize = 1024;
/// Most distinct decisions between two readings of the trail.
const TRAIL_MAX: usize = 4096;

/// Step at which a decision was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A question to DNS.
    Question,
    /// The opening of a flow.
    Open,
    /// The name that a flow has said.
    Gate,
}

/// Verdict of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ruling {
    /// It was allowed.
    Allowed,
    /// It was refused.
    Denied,
    /// It would have been refused, but the policy only observes.
    WouldDeny,
}

/// A decision, without its time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decision {
    /// Step at which it was made.
    pub stage: Stage,
    /// Its verdict.
    pub ruling: Ruling,
    /// The rule or reason; `default` if no rule was needed.
    pub reason: Arc<str>,
    /// Protocol of the flow.
    pub protocol: Option<Protocol>,
    /// Destination of the flow as the guest addresses it; an echo has port 0.
    pub remote: Option<SocketAddr>,
    /// The name that was asked for or said.
    pub name: Option<Box<str>>,
}

impl Decision {
    /// A decision on a question.
    pub(crate) fn on_question(name: Box<str>, reason: Arc<str>, ruling: Ruling) -> Self {
        let (protocol, remote) = (None, None);
        Self { stage: Stage::Question, ruling, reason, protocol, remote, name: Some(name) }
    }

    /// A decision on opening a flow.
    pub(crate) fn on_flow(protocol: Protocol, remote: SocketAddr, reason: Arc<str>, ruling: Ruling) -> Self {
        let port = if protocol == Protocol::Echo { 0 } else { remote.port() };
        let remote = Some(SocketAddr::new(remote.ip(), port));
        Self { stage: Stage::Open, ruling, reason, protocol: Some(protocol), remote, name: None }
    }
}

/// A decision, and how often it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The decision.
    pub decision: Decision,
    /// Number of times.
    pub count: u64,
}

/// Decisions that were kept, and those that were not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kept {
    /// Different decisions.
    pub decisions: Vec<Counted>,
    /// Number of decisions for which there was no room.
    pub left_out: u64,
}

/// Refusals with their numbers.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// Each with its number, and its place in the order of occurrence.
    counts: BTreeMap<Decision, (u64, u64)>,
    order: BTreeMap<u64, Decision>,
    next: u64,
    /// Refusals that made room for others.
    forgotten: u64,
}

impl Refusals {
    /// Notes a refusal.
    pub(super) fn note(&mut self, refusal: Decision) {
        let at = self.next;
        self.next += 1;
        if let Some((count, place)) = self.counts.get_mut(&refusal) {
            *count += 1;
            self.order.remove(place);
            *place = at;
        } else {
            if self.counts.len() == REFUSALS_MAX
                && let Some((_, oldest)) = self.order.pop_first()
                && let Some((count, _)) = self.counts.remove(&oldest)
            {
                self.forgotten += count;
            }
            self.counts.insert(refusal.clone(), (1, at));
        }
        self.order.insert(at, refusal);
        debug_assert_eq!(self.counts.len(), self.order.len(), "every refusal has one place");
    }

    /// All refusals, the latest last; left out are those that made room.
    pub(super) fn all(&self) -> Kept {
        let count = |refusal: &Decision| self.counts.get(refusal).map_or(0, |(count, _)| *count);
        let counted = |refusal: &Decision| Counted { decision: refusal.clone(), count: count(refusal) };
        Kept { decisions: self.order.values().map(counted).collect(), left_out: self.forgotten }
    }
}

/// Decisions since the last reading.
#[derive(Debug, Default)]
pub(super) struct Trail {
    counts: BTreeMap<Decision, u64>,
    lost: u64,
}

impl Trail {
    /// Notes a decision.
    pub(super) fn note(&mut self, decision: Decision) {
        if self.counts.len() < TRAIL_MAX || self.counts.contains_key(&decision) {
            *self.counts.entry(decision).or_default() += 1;
        } else {
            self.lost += 1;
        }
    }

    /// Takes the decisions; left out are those beyond the bound.
    pub(super) fn take(&mut self) -> Kept {
        let Self { counts, lost } = std::mem::take(self);
        let counted = |(decision, count)| Counted { decision, count };
        Kept { decisions: counts.into_iter().map(counted).collect(), left_out: lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str) -> Decision {
        Decision {
            stage: Stage::Question,
            ruling: Ruling::Denied,
            reason: "policy question".into(),
            protocol: None,
            remote: None,
            name: Some(name.into()),
        }
    }

    #[test]
    fn equal_refusals_are_one_and_the_latest_is_last() {
        let mut refusals = Refusals::default();
        for name in ["a", "b", "a"] {
            refusals.note(refusal(name));
        }
        let counted = |(name, count)| Counted { decision: refusal(name), count };
        let decisions = [("b", 1), ("a", 2)].map(counted).to_vec();
        assert_eq!(refusals.all(), Kept { decisions, left_out: 0 });
    }

    #[test]
    fn the_trail_is_taken_once_and_counts_its_losses() {
        let mut trail = Trail::default();
        for n in 0..TRAIL_MAX + 3 {
            trail.note(refusal(&n.to_string()));
        }
        trail.note(refusal("0"));
        let Kept { decisions, left_out } = trail.take();
        assert_eq!((decisions.len(), left_out), (TRAIL_MAX, 3));
        assert!(decisions.contains(&Counted { decision: refusal("0"), count: 2 }));
        assert_eq!(trail.take(), Kept::default());
    }

    #[test]
    fn the_oldest_makes_room_and_is_counted() {
        let mut refusals = Refusals::default();
        refusals.note(refusal("first"));
        refusals.note(refusal("first"));
        for n in 0..REFUSALS_MAX {
            refusals.note(refusal(&n.to_string()));
        }
        let Kept { decisions, left_out } = refusals.all();
        assert_eq!((decisions.len(), left_out), (REFUSALS_MAX, 2));
        let last = Counted { decision: refusal(&(REFUSALS_MAX - 1).to_string()), count: 1 };
        assert_eq!(decisions.last(), Some(&last));
    }
}
