//! The audit log of scripts under a policy: whatever the stack has refused by a rule or reason is a decision
//! in the policy's trail as well. It is checked at the end of every script, so every script about a policy is
//! a test of it.
//!
//! Scripts of one test may share a policy, whose decisions one of them reads for all, so both sides are
//! counted for the test: for its thread. The log may have more than the stacks: echo requests beyond a bound
//! are dropped without a count of the rule's, and a hand-over leaves out counts of rules that are gone. The
//! end of an open flow refuses nothing.

use super::Script;
use brodo_core::config::Config;
use brodo_core::policy::{Audited, Ruling, SharedPolicy, Stage, Trailed};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

thread_local! {
    static REFUSALS: RefCell<RefusalLedger> = RefCell::default();
}

/// Refusals of the scripts of one test, by rule or reason.
#[derive(Debug, Default)]
struct RefusalLedger {
    /// Counted by stacks.
    refused: BTreeMap<String, u64>,
    /// Found in trails.
    audited: BTreeMap<String, u64>,
    /// Decisions for which a trail had no room.
    left_out: u64,
}

impl RefusalLedger {
    /// Takes the decisions of a policy since the last time.
    fn read(&mut self, policy: &SharedPolicy) -> Trailed {
        let trailed = policy.take_trail().unwrap_or_default();
        for Audited { decision, count, .. } in &trailed.decisions {
            if decision.ruling == Ruling::Denied && decision.stage != Stage::End {
                *self.audited.entry(decision.reason.to_string()).or_default() += count;
            }
        }
        self.left_out += trailed.left_out;
        trailed
    }

    /// Refusals that no trail has, by rule or reason, unless they may be among those that it left out.
    fn missing(&self) -> Vec<(&str, u64)> {
        let audited = |text: &String| self.audited.get(text).copied().unwrap_or_default();
        let beyond = self.refused.iter().map(|(text, count)| (&**text, count.saturating_sub(audited(text))));
        let missing: Vec<_> = beyond.filter(|(_, count)| *count > 0).collect();
        let all: u64 = missing.iter().map(|(_, count)| count).sum();
        if all > self.left_out { missing } else { Vec::new() }
    }
}

/// The audit log of one script.
#[derive(Debug, Default)]
pub(super) struct ScriptAudit {
    policy: Option<Arc<SharedPolicy>>,
    /// Refusals that the stack has counted in a process before.
    before: BTreeMap<String, u64>,
}

impl ScriptAudit {
    /// That of a script with this configuration, from now on.
    pub(super) fn of(config: &Config) -> Self {
        let mut audit = Self::default();
        audit.follow(config.rules.shared.clone());
        audit
    }

    fn follow(&mut self, policy: Option<Arc<SharedPolicy>>) {
        self.policy = policy;
        // Another script may have begun it.
        if let Some(policy) = self.policy.as_ref().filter(|policy| !policy.has_trail()) {
            policy.keep_trail();
        }
    }
}

impl Script {
    /// Decisions of the policy since the last call, or since the script has begun.
    pub fn take_decisions(&mut self) -> Trailed {
        let policy = self.audit.policy.as_ref().expect("a policy");
        REFUSALS.with_borrow_mut(|refusals| refusals.read(policy))
    }

    /// The stack goes on under another policy.
    pub fn goes_on_under(&mut self, policy: &Arc<SharedPolicy>) {
        self.take_decisions();
        self.audit.follow(Some(policy.clone()));
    }

    /// Counts so far are of a process before, and in that one's log.
    pub fn goes_on_counting(&mut self) {
        self.audit.before = self.refusals();
    }

    fn refusals(&self) -> BTreeMap<String, u64> {
        let rules = self.driver.stack.rules();
        rules.filter(|(_, count)| *count > 0).map(|(text, count)| (text.to_owned(), count)).collect()
    }

    /// Every refusal so far is in the audit log.
    pub(super) fn check_audit(&mut self) {
        if self.audit.policy.is_none() {
            return;
        }
        self.take_decisions();
        let before = std::mem::take(&mut self.audit.before);
        REFUSALS.with_borrow_mut(|refusals| {
            for (text, count) in self.refusals() {
                let earlier = before.get(&text).copied().unwrap_or_default();
                *refusals.refused.entry(text).or_default() += count.saturating_sub(earlier);
            }
            assert_eq!(refusals.missing(), [], "refused, and not in the audit log");
        });
    }
}
