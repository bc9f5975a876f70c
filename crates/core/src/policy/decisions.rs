//! Decisions of the policy, kept for explanations and for an audit log, and counted for metrics.
//!
//! *Refusals*: each distinct one once, with its number; the one that has not occurred for the longest time
//! makes room. *The tally* counts all by step, verdict and a word of a closed list. *The trail* has every
//! decision since it was taken last, equal ones as one, and counts those beyond its bound. A name in a
//! decision is text of the guest's, as long as a name may be.

use super::named::Named;
use super::port_table::Class;
use super::reason;
use crate::flow::Protocol;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;

/// Most distinct refusals that are kept.
const REFUSALS_MAX: usize = 1024;
/// Most distinct decisions between two readings of the trail.
const TRAIL_MAX: usize = 4096;
/// Most names listed of one destination.
pub(super) const PINNED_MAX: usize = 4;

/// Step at which a decision was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A question to DNS.
    Question,
    /// The opening of a flow.
    Open,
    /// The name that a flow has said.
    Gate,
    /// The end of an open flow that the policy does not allow any more.
    End,
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

/// A decision, without its time. Its order begins with that in which the decisions of a flood differ: tables
/// of thousands are searched for each of a hundred thousand refusals a second.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decision {
    /// Destination of the flow as the guest addresses it; an echo has port 0.
    pub remote: Option<SocketAddr>,
    /// The name that was asked for or said.
    pub name: Option<Box<str>>,
    /// Protocol of the flow.
    pub protocol: Option<Protocol>,
    /// Step at which it was made.
    pub stage: Stage,
    /// Its verdict.
    pub ruling: Ruling,
    /// The rule or reason; `default` if no rule was needed.
    pub reason: Arc<str>,
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

/// Way in which the guest has said a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameSource {
    /// A question to DNS.
    Dns,
    /// Server name in a ClientHello of TLS.
    Sni,
    /// Host of an HTTP request.
    Host,
    /// Server name in the Initials of QUIC.
    Quic,
}

/// Further properties of a decision, which distinguish lines of an audit log, but not refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Particulars {
    /// Way in which the name was said.
    pub name_from: Option<NameSource>,
    /// Type of the records asked for (RFC 1035, 3.2.2 and its successors).
    pub qtype: Option<u16>,
    /// An encrypted ClientHello (RFC 9849) was there, or bytes that look like one.
    pub encrypted: bool,
}

impl Particulars {
    /// Those of a question.
    pub(crate) fn of_question(qtype: u16) -> Self {
        Self { name_from: Some(NameSource::Dns), qtype: Some(qtype), encrypted: false }
    }

    /// Those of a decision for `reason` about the name that a flow has said, if it has.
    pub(crate) fn of_named(named: Option<&Named>, reason: &str) -> Self {
        let source = |named: &Named| match named.class {
            Class::Http => NameSource::Host,
            Class::Quic => NameSource::Quic,
            Class::Tls | Class::Tcp | Class::Udp | Class::Ping => NameSource::Sni,
        };
        let encrypted = reason == reason::ECH || named.is_some_and(|named| named.encrypted);
        Self { name_from: named.map(source), qtype: None, encrypted }
    }
}

/// Circumstances of a decision. Of equal decisions those of the first are kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Occasion {
    /// The guest's side of the flow, or of the question.
    pub guest: Option<SocketAddr>,
    /// Names for which DNS had given the guest this destination, the first four.
    pub pinned: Vec<Box<str>>,
}

/// A decision in the trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audited {
    /// Number of the policy that decided.
    pub generation: u64,
    /// The decision.
    pub decision: Decision,
    /// Its further properties.
    pub particulars: Particulars,
    /// Number of times.
    pub count: u64,
    /// Circumstances of the first.
    pub occasion: Occasion,
}

/// Decisions of the trail, and the number of those for which there was no room.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trailed {
    /// Different decisions.
    pub decisions: Vec<Audited>,
    /// Number of decisions that are missing.
    pub left_out: u64,
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

    /// The last refusals, the latest first, at most so many.
    pub(super) fn last(&self, most: usize) -> Vec<Counted> {
        self.order.values().rev().take(most).map(|refusal| self.counted(refusal)).collect()
    }

    fn counted(&self, refusal: &Decision) -> Counted {
        let count = self.counts.get(refusal).map_or(0, |(count, _)| *count);
        Counted { decision: refusal.clone(), count }
    }

    /// All refusals, the latest last; left out are those that made room.
    pub(super) fn all(&self) -> Kept {
        let decisions = self.order.values().map(|refusal| self.counted(refusal)).collect();
        Kept { decisions, left_out: self.forgotten }
    }
}

/// Number of decisions, by step, verdict and word.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<(Stage, Ruling, &'static str), u64>);

impl Tally {
    /// Counts a decision by this rule or reason.
    pub(super) fn count(&mut self, stage: Stage, ruling: Ruling, by: &str) {
        *self.0.entry((stage, ruling, word(by))).or_default() += 1;
    }

    /// Counts a permission.
    pub(super) fn count_allowed(&mut self, stage: Stage) {
        *self.0.entry((stage, Ruling::Allowed, "allow")).or_default() += 1;
    }

    /// All that are not zero.
    pub(super) fn all(&self) -> Vec<Tallied> {
        self.0.iter().map(|(&(stage, ruling, by), &count)| Tallied { stage, ruling, by, count }).collect()
    }
}

/// Number of decisions of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tallied {
    /// Step at which they were made.
    pub stage: Stage,
    /// Their verdict.
    pub ruling: Ruling,
    /// A reason without its first word, or `allow`, `deny` or `floor` for all rules of this kind.
    pub by: &'static str,
    /// Their number.
    pub count: u64,
}

/// Word of a closed list for a rule or reason.
fn word(by: &str) -> &'static str {
    let reasons = reason::ALL.into_iter().chain(reason::AT_GATE);
    let known = reasons.filter(|reason| *reason == by).find_map(|reason| reason.strip_prefix(reason::PREFIX));
    match (known, by) {
        (Some(word), _) => word,
        (None, by) if by.starts_with("floor ") => "floor",
        (None, _) => "deny",
    }
}

/// Key of equal decisions in the trail: generation of the policy, decision, and particulars.
type Trailing = (u64, Decision, Particulars);

/// Decisions since the last reading.
#[derive(Debug, Default)]
pub(super) struct Trail {
    /// Number and circumstances of each, by the policy that decided.
    decisions: BTreeMap<Trailing, (u64, Occasion)>,
    lost: u64,
}

impl Trail {
    /// Notes a decision; `occasion` is asked for the first of equal ones.
    pub(super) fn note(&mut self, decision: Trailing, occasion: impl FnOnce() -> Occasion) {
        let is_full = self.decisions.len() >= TRAIL_MAX;
        match self.decisions.entry(decision) {
            Entry::Occupied(known) => known.into_mut().0 += 1,
            Entry::Vacant(_) if is_full => self.lost += 1,
            Entry::Vacant(new) => {
                new.insert((1, occasion()));
            }
        }
    }

    /// Takes the decisions; left out are those beyond the bound.
    pub(super) fn take(&mut self) -> Trailed {
        let Self { decisions, lost } = std::mem::take(self);
        let audited = |((generation, decision, particulars), (count, occasion))| Audited {
            generation,
            decision,
            particulars,
            count,
            occasion,
        };
        Trailed { decisions: decisions.into_iter().map(audited).collect(), left_out: lost }
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
        let occasion =
            |port| Occasion { guest: Some(SocketAddr::from(([10, 0, 2, 15], port))), pinned: vec![] };
        let ipv4 = Particulars::of_question(1);
        for n in 0..TRAIL_MAX + 3 {
            trail.note((1, refusal(&n.to_string()), ipv4), || occasion(1));
        }
        trail.note((1, refusal("0"), ipv4), || occasion(2));
        // Another policy makes another decision, and another type is another question.
        trail.note((2, refusal("0"), ipv4), || occasion(3));
        trail.note((1, refusal("0"), Particulars::of_question(28)), || occasion(3));
        let Trailed { decisions, left_out } = trail.take();
        assert_eq!((decisions.len(), left_out), (TRAIL_MAX, 5));
        let (decision, occasion) = (refusal("0"), occasion(1));
        let first = Audited { generation: 1, decision, particulars: ipv4, count: 2, occasion };
        assert!(decisions.contains(&first));
        assert_eq!(decisions.iter().map(|audited| audited.count).sum::<u64>(), TRAIL_MAX as u64 + 1);
        assert_eq!(trail.take(), Trailed::default());
    }

    #[test]
    fn decisions_are_counted_by_words_of_a_closed_list() {
        let mut tally = Tally::default();
        for by in ["policy question", "deny a.example", "deny b.example", "floor link-local"] {
            tally.count(Stage::Question, Ruling::Denied, by);
        }
        tally.count_allowed(Stage::Gate);
        let counted: Vec<_> = tally.all().into_iter().map(|of| (of.by, of.count)).collect();
        assert_eq!(counted, [("deny", 2), ("floor", 1), ("question", 1), ("allow", 1)]);
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
