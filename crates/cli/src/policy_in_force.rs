//! The policy in force and its changes at run time, as the warden keeps them: every engine starts with them.
//!
//! A change is made on a copy, which takes the place of the original only if it compiles, so that a malformed
//! one leaves everything as it was.

use crate::conversation::policy::{InForce, RulesData};
use crate::policy_file::{self, OnLine, Policy as PolicyFile, PolicySource};
use brodo_control::policy::{AddRule, AddedRule, FOR_S_MAX, Policy, RemoveRule, SetPolicy, Verdict};
use brodo_control::rpc::{Error, code};
use brodo_core::policy::{Effect, Rule, SharedPolicy};
use brodo_core::time::{Duration, Instant};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Most rules added at run time.
const ADDED_MAX: usize = 256;

/// The policy of an instance that was started with one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PolicyInForce {
    generation: u64,
    /// Rules of files and options, or of the last replacement.
    rules: RulesData,
    added: Vec<Added>,
    last_id: u64,
    sealed: bool,
    lockdown: bool,
    /// Refusals are only noted: everything passes.
    #[serde(default)]
    observes: bool,
    /// The audit log that is required has ended: the lockdown stays.
    #[serde(default)]
    unaudited: bool,
}

/// A rule added at run time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Added {
    id: u64,
    deny: bool,
    rule: String,
    /// Time of its removal, of the instance's clock.
    until_ns: Option<u64>,
}

impl Added {
    fn effect(&self) -> Effect {
        if self.deny { Effect::Deny } else { Effect::Allow }
    }
}

/// A change that was made: whether open flows may have become forbidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Everything that was allowed still is.
    Wider,
    /// Open flows are to be judged again.
    Other,
}

impl PolicyInForce {
    /// The first generation.
    pub(crate) fn new(policy: &SharedPolicy) -> Self {
        let rules = RulesData::from(policy.rules().source());
        let observes = policy.is_observing();
        let (added, last_id, sealed, lockdown, unaudited) = Default::default();
        Self { generation: 1, rules, added, last_id, sealed, lockdown, observes, unaudited }
    }

    /// Number of the last change.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// SHA-256 over what is in force, in hexadecimal digits.
    pub(crate) fn hash(&self) -> String {
        let in_force = InForce { generation: 0, ..self.in_force() };
        // Infallible: string keys only.
        let text = serde_json::to_vec(&in_force).unwrap_or_default();
        let digits: Vec<_> = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        digits.concat()
    }

    /// The description for clients, at `now`.
    pub(crate) fn describe(&self, now: Instant) -> Policy {
        let verdict = |allow: bool| if allow { Verdict::Allow } else { Verdict::Deny };
        let left = |until_ns: u64| Instant::from_ns(until_ns).since(now).as_secs();
        let added = self.added.iter().map(|added| AddedRule {
            id: added.id,
            verdict: verdict(!added.deny),
            rule: added.rule.clone(),
            left_s: added.until_ns.map(left),
        });
        Policy {
            generation: self.generation,
            hash: self.hash(),
            sealed: self.sealed,
            lockdown: self.lockdown,
            observes: self.observes,
            default: verdict(self.rules.default_allow),
            private: verdict(self.rules.private_allow),
            allow: self.rules.allow.iter().map(|allow| allow.rule.clone()).collect(),
            properties: self.rules.properties(),
            deny: self.rules.deny.clone(),
            added: added.collect(),
            asks: self.rules.asks,
            limits: Vec::new(),
        }
    }

    /// The rules for an engine.
    pub(crate) fn in_force(&self) -> InForce {
        let mut rules = self.rules.clone();
        for added in &self.added {
            if let Ok(rule) = Rule::parse(&added.rule, added.effect()) {
                rules.add(&rule, added.effect());
            }
        }
        InForce { rules, lockdown: self.lockdown, generation: self.generation }
    }

    /// Replaces all rules.
    pub(crate) fn set(&mut self, wanted: &SetPolicy) -> Result<Change, Error> {
        self.check_open()?;
        if let Some(expected) = wanted.expect.filter(|&expected| expected != self.generation) {
            let now = self.generation;
            let why = format!("the policy is of generation {now}, not {expected}: read it and try again");
            return Err(Error::new(code::FAILED, why));
        }
        let source = |file: &brodo_control::policy::PolicyText| PolicySource {
            path: file.path.clone().into(),
            text: file.text.clone(),
        };
        let sources: Vec<_> = wanted.files.iter().map(source).collect();
        let files = policy_file::parse_whole(&sources).map_err(|failure| invalid(failure.to_string()))?;
        let rules = PolicyFile::unite(&files, &OnLine::default())
            .ok_or_else(|| invalid("a policy has a file at least".to_owned()))?;
        self.rules = RulesData::from(&rules);
        self.added = Vec::new();
        self.changed(Change::Other)
    }

    /// Adds a rule at `now`.
    pub(crate) fn add(&mut self, wanted: &AddRule, now: Instant) -> Result<Change, Error> {
        self.check_open()?;
        if self.added.len() == ADDED_MAX {
            return Err(Error::new(code::FAILED, format!("{ADDED_MAX} rules were added: remove one first")));
        }
        let (effect, change) = match wanted.verdict {
            Verdict::Allow => (Effect::Allow, Change::Wider),
            Verdict::Deny => (Effect::Deny, Change::Other),
        };
        if wanted.for_s.is_some_and(|for_s| !(1..=FOR_S_MAX).contains(&for_s)) {
            return Err(invalid(format!("for_s is 1 to {FOR_S_MAX} seconds")));
        }
        let rule = policy_file::rule(&wanted.rule, effect).map_err(invalid)?;
        self.last_id += 1;
        let until_ns = wanted.for_s.map(|for_s| (now + Duration::from_secs(for_s)).as_ns());
        let deny = effect == Effect::Deny;
        self.added.push(Added { id: self.last_id, deny, rule: rule.to_string(), until_ns });
        self.changed(change)
    }

    /// Removes a rule that was added.
    pub(crate) fn remove(&mut self, RemoveRule { id }: &RemoveRule) -> Result<Change, Error> {
        self.check_open()?;
        let place = self.added.iter().position(|added| added.id == *id);
        let place = place
            .ok_or_else(|| Error::new(code::NOT_FOUND, format!("no rule with the number {id} was added")))?;
        self.added.remove(place);
        self.changed(Change::Other)
    }

    /// Removes the rules whose time is over at `now`; true if there are any. Under a seal as well: their time
    /// was part of them.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let count = self.added.len();
        self.added.retain(|added| added.until_ns.is_none_or(|until| until > now.as_ns()));
        let expired = self.added.len() < count;
        self.generation += u64::from(expired);
        expired
    }

    /// Time at which the next rule expires.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.added.iter().filter_map(|added| added.until_ns).min().map(Instant::from_ns)
    }

    /// Takes no change any more.
    pub(crate) fn seal(&mut self) -> Result<Change, Error> {
        self.sealed = true;
        self.changed(Change::Wider)
    }

    /// Refuses everything, or goes back to the rules.
    pub(crate) fn lock(&mut self, on: bool) -> Result<Change, Error> {
        if !on {
            self.check_open()?;
            if self.unaudited {
                let why = "the audit log is required and cannot be written any more: start brodo again";
                return Err(Error::new(code::FAILED, why));
            }
        }
        self.lockdown = on;
        self.changed(if on { Change::Other } else { Change::Wider })
    }

    /// Refuses everything until the end: the audit log that is required has ended.
    pub(crate) fn lock_unaudited(&mut self) -> Result<Change, Error> {
        self.unaudited = true;
        self.lock(true)
    }

    fn check_open(&self) -> Result<(), Error> {
        let sealed = || Error::new(code::SEALED, "the policy is sealed: it stays until the end of brodo");
        if self.sealed { Err(sealed()) } else { Ok(()) }
    }

    /// Ends a change: it has to compile.
    fn changed(&mut self, change: Change) -> Result<Change, Error> {
        self.in_force().rules.compile().map_err(invalid)?;
        self.generation += 1;
        Ok(change)
    }
}

fn invalid(why: String) -> Error {
    Error::new(code::INVALID_PARAMS, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use brodo_control::policy::PolicyText;
    use brodo_core::policy::{PolicyRules, Ruleset};

    const START: Instant = Instant::ZERO;

    fn policy() -> PolicyInForce {
        let rules = Ruleset::new(PolicyRules::default()).expect("no rules");
        PolicyInForce::new(&SharedPolicy::new(rules, &[], [7; 16]))
    }

    fn allow(rule: &str, for_s: Option<u64>) -> AddRule {
        AddRule { verdict: Verdict::Allow, rule: rule.to_owned(), for_s }
    }

    fn text(text: &str, expect: Option<u64>) -> SetPolicy {
        SetPolicy { files: vec![PolicyText { path: "p.toml".to_owned(), text: text.to_owned() }], expect }
    }

    #[test]
    fn rules_come_and_go() {
        let mut policy = policy();
        assert_eq!(policy.add(&allow("a.example", None), START), Ok(Change::Wider));
        assert_eq!(policy.add(&allow("tcp://b.example:22", Some(600)), START), Ok(Change::Wider));
        let deny = AddRule { verdict: Verdict::Deny, ..allow("c.example", None) };
        assert_eq!(policy.add(&deny, START), Ok(Change::Other));
        assert_eq!(policy.generation(), 4);
        let shown = policy.describe(START + Duration::from_secs(1));
        let lines: Vec<_> = shown.added.iter().map(|it| (it.id, it.rule.as_str(), it.left_s)).collect();
        assert_eq!(
            lines,
            [(1, "a.example", None), (2, "tcp://b.example:22", Some(599)), (3, "c.example", None)]
        );
        assert_eq!(policy.next_expiry(), Some(START + Duration::from_secs(600)));
        assert!(!policy.expire(START + Duration::from_secs(599)));
        assert!(policy.expire(START + Duration::from_secs(600)));
        assert_eq!((policy.generation(), policy.next_expiry()), (5, None));
        assert_eq!(policy.remove(&RemoveRule { id: 1 }), Ok(Change::Other));
        assert_eq!(policy.remove(&RemoveRule { id: 1 }).expect_err("gone").code, code::NOT_FOUND);
        let source = policy.in_force().rules.compile().expect("rules");
        assert_eq!((source.source().allow.len(), source.source().deny.len()), (0, 1));
    }

    #[test]
    fn attempt_51_a_change_that_is_refused_leaves_the_old_policy() {
        let mut policy = policy();
        policy.add(&allow("a.example", None), START).expect("a rule");
        let before = policy.clone();
        let refused = |change: &dyn Fn(&mut PolicyInForce) -> Result<Change, Error>, code| {
            let mut copy = before.clone();
            assert_eq!(change(&mut copy).expect_err("a refusal").code, code);
        };
        refused(&|p| p.set(&text("version = 1\nalow = []", None)), code::INVALID_PARAMS);
        refused(&|p| p.set(&text("version = 1", Some(1))), code::FAILED);
        refused(&|p| p.set(&SetPolicy { files: Vec::new(), expect: None }), code::INVALID_PARAMS);
        refused(&|p| p.set(&text("version = 1\nuse = [\"deny.toml\"]", None)), code::INVALID_PARAMS);
        refused(&|p| p.set(&text("version = 1\nuse = [\"@github\"]", None)), code::INVALID_PARAMS);
        refused(&|p| p.add(&allow("*.com", None), START), code::INVALID_PARAMS);
        refused(&|p| p.add(&allow("b.example", Some(0)), START), code::INVALID_PARAMS);
        assert_eq!(policy.set(&text("version = 1\ndeny = [\"b.example\"]", Some(2))), Ok(Change::Other));
        let shown = policy.describe(START);
        assert_eq!((shown.generation, shown.added.len(), shown.deny.len()), (3, 0, 1));
    }

    #[test]
    fn a_policy_comes_with_the_files_that_it_uses() {
        let file = |path: &str, text: &str| PolicyText { path: path.to_owned(), text: text.to_owned() };
        let main = file("/etc/p.toml", "version = 1\nuse = [\"d/deny.toml\"]");
        let used = file("/etc/d/deny.toml", "version = 1\ndeny = [\"b.example\"]");
        let mut policy = policy();
        let without = SetPolicy { files: vec![main.clone()], expect: None };
        let error = policy.set(&without).expect_err("deny rules are missing");
        assert!(error.message.contains("line 2 uses /etc/d/deny.toml, which is not"), "{}", error.message);
        policy.set(&SetPolicy { files: vec![main, used], expect: None }).expect("a policy");
        assert_eq!(policy.describe(START).deny, ["b.example"]);
    }

    #[test]
    fn a_policy_without_its_audit_log_stays_locked() {
        let mut policy = policy();
        assert_eq!(policy.lock_unaudited(), Ok(Change::Other));
        assert_eq!(policy.lock(false).expect_err("no log").code, code::FAILED);
        policy.set(&text("version = 1\ndefault = \"allow\"", None)).expect("rules");
        assert!(policy.in_force().lockdown);
    }

    #[test]
    fn a_sealed_policy_can_only_be_locked() {
        let mut policy = policy();
        policy.add(&allow("a.example", Some(5)), START).expect("a rule");
        policy.seal().expect("a seal");
        for refused in [
            policy.add(&allow("b.example", None), START),
            policy.remove(&RemoveRule { id: 1 }),
            policy.set(&text("version = 1", None)),
            policy.lock(false),
        ] {
            assert_eq!(refused.expect_err("sealed").code, code::SEALED);
        }
        assert_eq!(policy.lock(true), Ok(Change::Other));
        assert!(policy.in_force().lockdown);
        assert_eq!(policy.lock(false).expect_err("sealed").code, code::SEALED);
        assert!(policy.expire(START + Duration::from_secs(5)));
    }
}
