//! Flows and bytes by allow rule, for metrics: of flows that have ended, under the rule that allowed them at
//! their end.
//!
//! The first rules that allow a flow have a total each; the others share one, so that a long policy, or one
//! that is changed often, makes no more of them. Totals never decrease, except that they begin anew after a
//! crash, which no text of a rule outlives.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Most rules with totals of their own.
const RULES_MAX: usize = 256;
/// Text under which all other rules are counted.
const OTHERS: &str = "other rules";
/// Text under which flows are counted that need no rule.
const DEFAULT: &str = "default";

/// Totals of one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuleTotal {
    /// Flows that have ended.
    pub flows: u64,
    /// Their bytes from the guest, and to it.
    pub bytes: [u64; 2],
}

/// Totals of all rules.
#[derive(Debug, Default)]
pub(super) struct RuleTotals(BTreeMap<Arc<str>, RuleTotal>);

impl RuleTotals {
    /// Counts the end of a flow that this rule allowed; without one, the default.
    pub(super) fn add(&mut self, rule: Option<&str>, bytes: [u64; 2]) {
        let rule = rule.unwrap_or(DEFAULT);
        let has_room = self.0.len() < RULES_MAX || self.0.contains_key(rule);
        let Some(total) = self.total_of(if has_room { rule } else { OTHERS }) else { return };
        total.flows += 1;
        for (sum, more) in total.bytes.iter_mut().zip(bytes) {
            *sum = sum.saturating_add(more);
        }
    }

    /// Raises the total of a rule to that of a snapshot, which has as many as there may be here.
    pub(super) fn raise(&mut self, rule: &str, RuleTotal { flows, bytes }: RuleTotal) {
        let Some(total) = self.total_of(rule) else { return };
        total.flows = total.flows.max(flows);
        for (sum, saved) in total.bytes.iter_mut().zip(bytes) {
            *sum = saved.max(*sum);
        }
    }

    /// The total under this text; none beyond the bound and the one for all others.
    fn total_of(&mut self, rule: &str) -> Option<&mut RuleTotal> {
        if !self.0.contains_key(rule) && self.0.len() <= RULES_MAX {
            self.0.insert(rule.into(), RuleTotal::default());
        }
        self.0.get_mut(rule)
    }

    /// Each rule with its total.
    pub(super) fn all(&self) -> Vec<(Arc<str>, RuleTotal)> {
        self.0.iter().map(|(rule, total)| (rule.clone(), *total)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_beyond_the_bound_share_a_total() {
        let mut totals = RuleTotals::default();
        totals.add(None, [1, 2]);
        for n in 0..2 * RULES_MAX {
            totals.add(Some(&n.to_string()), [3, 4]);
            totals.add(Some("0"), [0, 1]);
        }
        let all: BTreeMap<_, _> = totals.all().into_iter().collect();
        assert_eq!(all.len(), RULES_MAX + 1);
        assert_eq!(all[DEFAULT], RuleTotal { flows: 1, bytes: [1, 2] });
        assert_eq!(all["0"], RuleTotal { flows: 513, bytes: [3, 516] });
        assert_eq!(all[OTHERS].flows, 257);
        assert_eq!(all.values().map(|total| total.flows).sum::<u64>(), 1 + 4 * RULES_MAX as u64);
        // From a snapshot all of them, and no more.
        let mut again = RuleTotals::default();
        for (rule, total) in &all {
            again.raise(rule, *total);
        }
        again.raise("one more", RuleTotal::default());
        assert_eq!(again.0, totals.0);
    }
}
