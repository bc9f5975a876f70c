//! Numbers of all decisions for metrics, by step, verdict and a word of a closed list.

use super::{Ruling, Stage};
use crate::policy::reason;
use std::collections::BTreeMap;

/// Number of decisions, by step, verdict and word.
#[derive(Debug, Default)]
pub(in crate::policy) struct Tally(BTreeMap<(Stage, Ruling, &'static str), u64>);

impl Tally {
    /// Counts a decision by this rule or reason.
    pub(in crate::policy) fn count(&mut self, stage: Stage, ruling: Ruling, by: &str) {
        *self.0.entry((stage, ruling, word(by))).or_default() += 1;
    }

    /// Counts a permission.
    pub(in crate::policy) fn count_allowed(&mut self, stage: Stage) {
        *self.0.entry((stage, Ruling::Allowed, "allow")).or_default() += 1;
    }

    /// Adds a number of decisions by a word of the list.
    pub(in crate::policy) fn add(&mut self, stage: Stage, ruling: Ruling, by: &str, count: u64) {
        if let Some(by) = words().find(|word| *word == by) {
            let sum = self.0.entry((stage, ruling, by)).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// Raises a number to that of a snapshot.
    pub(in crate::policy) fn raise(&mut self, stage: Stage, ruling: Ruling, by: &str, count: u64) {
        if let Some(by) = words().find(|word| *word == by) {
            let sum = self.0.entry((stage, ruling, by)).or_default();
            *sum = count.max(*sum);
        }
    }

    /// Every kind of decision that there may be.
    pub(in crate::policy) fn all_kinds() -> impl Iterator<Item = (Stage, Ruling, &'static str)> {
        let stages = [Stage::Question, Stage::Open, Stage::Gate, Stage::End, Stage::Inbound];
        let rulings = [Ruling::Allowed, Ruling::Denied, Ruling::WouldDeny];
        let pairs = stages.into_iter().flat_map(move |stage| rulings.map(|ruling| (stage, ruling)));
        pairs.flat_map(|(stage, ruling)| words().map(move |by| (stage, ruling, by)))
    }

    /// All that are not zero.
    pub(in crate::policy) fn all(&self) -> Vec<Tallied> {
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
    /// A reason without its first word, or `allow`, `deny`, `floor` or `limit` for all rules of this kind.
    pub by: &'static str,
    /// Their number.
    pub count: u64,
}

/// The closed list.
fn words() -> impl Iterator<Item = &'static str> {
    let reasons = reason::ALL.into_iter().chain(reason::AT_GATE);
    reasons
        .filter_map(|reason| reason.strip_prefix(reason::PREFIX))
        .chain(["allow", "deny", "floor", "limit"])
}

/// Word of a closed list for a rule or reason.
fn word(by: &str) -> &'static str {
    let reasons = reason::ALL.into_iter().chain(reason::AT_GATE);
    let known = reasons.filter(|reason| *reason == by).find_map(|reason| reason.strip_prefix(reason::PREFIX));
    match (known, by) {
        (Some(word), _) => word,
        (None, by) if by.starts_with("floor ") => "floor",
        (None, by) if by.starts_with("max-") => "limit",
        (None, _) => "deny",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_counted_by_words_of_a_closed_list() {
        let mut tally = Tally::default();
        for by in ["policy question", "deny a.example", "deny b.example", "floor link-local"] {
            tally.count(Stage::Question, Ruling::Denied, by);
        }
        for by in ["max-flows", "max-new-flows 10/s:3"] {
            tally.count(Stage::Open, Ruling::Denied, by);
        }
        tally.count_allowed(Stage::Gate);
        let counted: Vec<_> = tally.all().into_iter().map(|of| (of.by, of.count)).collect();
        assert_eq!(counted, [("deny", 2), ("floor", 1), ("question", 1), ("limit", 2), ("allow", 1)]);
    }
}
