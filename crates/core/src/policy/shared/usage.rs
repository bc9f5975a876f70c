//! Limits of the rules in force: since when there are some, and what is used of them, also over a hand-over.

use super::super::limits::{ByUsage, DOWN, Limits, UP, Usage};
use super::SharedPolicy;
use crate::snapshot::v1::UsageV1;
use crate::time::Instant;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Limits of some allow rules, and what is used of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    /// Texts of the rules.
    pub rules: Vec<Arc<str>>,
    /// Their limits.
    pub limits: Limits,
    /// Bytes from the guest and to it.
    pub bytes: [u64; 2],
    /// Flows open now.
    pub flows: u32,
}

impl SharedPolicy {
    /// Whether a rule in force has limits.
    pub(crate) fn is_limiting(&self) -> bool {
        self.limiting.load(Relaxed)
    }

    /// Time of the change since which rules have limits: flows that are older have moved bytes for which
    /// there was none.
    pub(crate) fn limiting_since(&self) -> Instant {
        self.state().limiting_since
    }

    /// Limits of the rules in force, with their usage.
    pub fn used(&self) -> Vec<Used> {
        let used = |usage: &Arc<Usage>| Used {
            rules: usage.rules.to_vec(),
            limits: usage.limits,
            bytes: usage.bytes(),
            flows: usage.flows(),
        };
        self.state().usage.iter().map(used).collect()
    }

    /// Saved form of what flows have used of limits, if there is anything to tell: those that are over, if
    /// this is the `first` worker, and those of the worker's that `ending` counts.
    pub(crate) fn save_usage(&self, first: bool, ending: &ByUsage) -> Option<UsageV1> {
        let state = self.state();
        let texts = |usage: &Usage| usage.rules.iter().map(ToString::to_string).collect();
        let bytes = |usage: &Usage| {
            let past = if first { usage.past() } else { [0; 2] };
            let ending = ending.get(&usage.key()).copied().unwrap_or_default();
            [UP, DOWN].map(|n| past[n] + ending[n])
        };
        let used = state.usage.iter().map(|usage| (usage, bytes(usage)));
        let used = used.filter(|(_, bytes)| first || *bytes != [0; 2]);
        let used = used.map(|(usage, bytes)| (texts(usage), bytes)).collect();
        Some(UsageV1 { used }).filter(|usage| !usage.used.is_empty())
    }

    /// Adds what was saved, by one of the workers, to the usage of limits of the same rules.
    pub(crate) fn restore_usage(&self, saved: &UsageV1) {
        let state = self.state();
        for (rules, past) in &saved.used {
            let is_same = |usage: &&Arc<Usage>| usage.rules.iter().map(|rule| &**rule).eq(rules);
            if let Some(usage) = state.usage.iter().find(is_same) {
                usage.add_past(*past);
            }
        }
    }
}
