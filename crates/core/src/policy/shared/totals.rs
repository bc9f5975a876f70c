//! Totals for metrics, which go on in another process: from a snapshot all of them; after a crash those that
//! need no text to be known again, by the digests of their names.

use super::super::decisions::{Ruling, Stage, Tallied, Tally};
use super::super::digest;
use super::super::rule_totals::RuleTotal;
use super::SharedPolicy;
use crate::snapshot::saved::{Saved, is_count};
use crate::snapshot::v1::{DecisionsV1, PolicyTotalsV1, RuleTotalV1};
use crate::time::Duration;
use std::collections::BTreeMap;

const GATE_TIME: &str = "total: nanoseconds of gates";
const PINS_EVICTED: &str = "total: evicted pins";

/// Name of a number of the tally, which no rule has as its text.
fn name_of(stage: Stage, ruling: Ruling, by: &str) -> String {
    format!("total: {stage:?} {ruling:?} {by}")
}

impl SharedPolicy {
    /// Saved form of the totals, if any is above zero.
    pub(crate) fn save_totals(&self) -> Option<PolicyTotalsV1> {
        let state = self.state();
        let decisions = state.tally.all().into_iter().map(|Tallied { stage, ruling, by, count }| {
            let (stage, ruling, by) = (stage.save(), ruling.save(), by.to_owned());
            DecisionsV1 { stage, ruling, by, count }
        });
        let rules = state.totals.all().into_iter().map(|(rule, RuleTotal { flows, bytes })| {
            let rule = rule.to_string();
            RuleTotalV1 { rule, flows, bytes }
        });
        let saved = PolicyTotalsV1 {
            decisions: decisions.collect(),
            rules: rules.collect(),
            gate_time: state.gate_time.save(),
            pins_evicted: state.pins.evicted,
        };
        let counts_pins_or_gates = saved.gate_time > 0 || saved.pins_evicted > 0;
        let is_worth = counts_pins_or_gates || !saved.decisions.is_empty() || !saved.rules.is_empty();
        is_worth.then_some(saved)
    }

    /// Goes on with the totals of a snapshot, as far as they are possible. None falls: in the simulator this
    /// policy may be the one that was saved.
    pub(crate) fn restore_totals(&self, saved: &PolicyTotalsV1) {
        let mut state = self.state();
        for DecisionsV1 { stage, ruling, by, count } in &saved.decisions {
            if let (Ok(stage), Ok(ruling)) = (Stage::restore(*stage), Ruling::restore(*ruling))
                && is_count(*count)
            {
                state.tally.raise(stage, ruling, by, *count);
            }
        }
        for RuleTotalV1 { rule, flows, bytes } in &saved.rules {
            if is_count(*flows) && bytes.iter().all(|bytes| is_count(*bytes)) {
                state.totals.raise(rule, RuleTotal { flows: *flows, bytes: *bytes });
            }
        }
        if is_count(saved.gate_time) {
            state.gate_time = state.gate_time.max(Duration::from_nanos(saved.gate_time));
        }
        if is_count(saved.pins_evicted) {
            state.pins.evicted = state.pins.evicted.max(saved.pins_evicted);
        }
    }

    /// Totals above zero, with the digests of their names. Those of rules are not among them: there may be
    /// more of them than memory for a process that crashes.
    pub(crate) fn totals(&self) -> Vec<(u64, u64)> {
        let state = self.state();
        let decisions = state.tally.all().into_iter();
        let decisions = decisions.map(|of| (digest(&name_of(of.stage, of.ruling, of.by)), of.count));
        let others = [(GATE_TIME, state.gate_time.save()), (PINS_EVICTED, state.pins.evicted)];
        let others = others.map(|(name, count)| (digest(name), count));
        decisions.chain(others).filter(|(_, count)| *count > 0).collect()
    }

    /// Adds those of [`SharedPolicy::totals`] that a process before had.
    pub(crate) fn add_totals(&self, before: &BTreeMap<u64, u64>) {
        let found = |name: &str| before.get(&digest(name)).copied().unwrap_or_default();
        let mut state = self.state();
        for (stage, ruling, by) in Tally::all_kinds() {
            let count = found(&name_of(stage, ruling, by));
            if count > 0 {
                state.tally.add(stage, ruling, by, count);
            }
        }
        state.gate_time = state.gate_time.saturating_add(Duration::from_nanos(found(GATE_TIME)));
        state.pins.evicted = state.pins.evicted.saturating_add(found(PINS_EVICTED));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{PolicyRules, Rule, Ruleset};
    use super::*;

    fn policy() -> SharedPolicy {
        SharedPolicy::new(Ruleset::new(PolicyRules::default()).unwrap(), &[], [7; 16])
    }

    /// A policy with a total of each kind.
    fn counted() -> SharedPolicy {
        let policy = policy();
        let mut state = policy.state();
        state.tally.count(Stage::Question, Ruling::Denied, "policy question");
        state.tally.count_allowed(Stage::Gate);
        let rule = Rule::parse("a.example", super::super::super::Effect::Allow).unwrap();
        state.totals.add(Some(&format!("allow {rule}")), [3, 4]);
        state.totals.add(None, [5, 6]);
        state.gate_time = Duration::from_millis(7);
        state.pins.evicted = 8;
        drop(state);
        policy
    }

    #[test]
    fn all_totals_go_on_from_a_snapshot() {
        let (first, second) = (counted(), policy());
        second.restore_totals(&first.save_totals().expect("totals"));
        assert_eq!((second.tally(), second.rule_totals()), (first.tally(), first.rule_totals()));
        assert_eq!((second.gate_time(), second.pins_evicted()), (Duration::from_millis(7), 8));
        // Once more, by itself.
        second.restore_totals(&second.save_totals().expect("totals"));
        assert_eq!(second.save_totals(), first.save_totals());
        assert_eq!(policy().save_totals(), None);
        // Of another program, or of one that was taken over.
        let mut odd = first.save_totals().expect("totals");
        odd.decisions[0].by = "unheard of".to_owned();
        odd.decisions[1].stage = 77;
        odd.rules[0].flows = u64::MAX;
        (odd.gate_time, odd.pins_evicted) = (u64::MAX, u64::MAX);
        let third = policy();
        third.restore_totals(&odd);
        assert_eq!((third.tally(), third.rule_totals().len()), (Vec::new(), 1));
        assert_eq!((third.gate_time(), third.pins_evicted()), (Duration::ZERO, 0));
    }

    #[test]
    fn totals_without_a_text_go_on_after_a_crash() {
        let (first, second) = (counted(), policy());
        second.add_totals(&first.totals().into_iter().collect());
        assert_eq!((second.tally(), second.rule_totals()), (first.tally(), Vec::new()));
        assert_eq!((second.gate_time(), second.pins_evicted()), (Duration::from_millis(7), 8));
    }
}
