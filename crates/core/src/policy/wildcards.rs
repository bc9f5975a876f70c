//! New names below a wildcard: a bound on what a guest can say by the names that it asks for.
//!
//! The owner of a zone behind `*.example.com` reads every name that is asked below it, so each new name is a
//! message out. A rule has so many of them in an hour; a name asked before in that hour, or one that has
//! pins, is not new. Rules are known by their texts, so a change of other rules begins no new hour. Names are
//! kept as 64-bit hashes with a secret. Bounded in all; beyond it every name counts as one too many. After a
//! hand-over their number is known, and a name that is asked again, and has no pins, counts once more.

use super::domain_name::DomainName;
use super::secret_hash::SecretHash;
use crate::snapshot::saved::Saved;
use crate::snapshot::v1::WildcardsV1;
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Length of a period.
const PERIOD: Duration = Duration::from_secs(3600);
/// Most names kept, of all rules.
const NAMES_MAX: usize = 65_536;

/// Names of one rule in the present period.
#[derive(Debug)]
struct Seen {
    since: Instant,
    names: BTreeSet<u64>,
    /// Names before a hand-over, of which the number is known.
    earlier: u32,
}

impl Seen {
    /// Names of the period.
    fn count(&self) -> u32 {
        self.earlier.saturating_add(self.names.len() as u32)
    }
}

/// New names by rule.
#[derive(Debug)]
pub(super) struct Wildcards {
    hash: SecretHash,
    rules: BTreeMap<Arc<str>, Seen>,
    names: usize,
}

impl Wildcards {
    pub(super) fn new(hash: SecretHash) -> Self {
        Self { hash, rules: BTreeMap::new(), names: 0 }
    }

    /// The rules have changed: those that may be gone are forgotten with their period, and not before, lest
    /// one that is removed and added again have new names.
    pub(super) fn rules_changed(&mut self, now: Instant) {
        self.rules.retain(|_, seen| now - seen.since < PERIOD);
        self.names = self.rules.values().map(|seen| seen.names.len()).sum();
    }

    /// Counts a name below the wildcard of `rule`. False if it is one more than `most` in this period.
    pub(super) fn take(&mut self, now: Instant, rule: &Arc<str>, name: &DomainName, most: u32) -> bool {
        let fresh = || Seen { since: now, names: BTreeSet::new(), earlier: 0 };
        let seen = self.rules.entry(rule.clone()).or_insert_with(fresh);
        if now - seen.since >= PERIOD {
            self.names -= seen.names.len();
            *seen = fresh();
        }
        let hash = self.hash.of(name);
        if seen.names.contains(&hash) {
            return true;
        }
        if seen.count() >= most || self.names >= NAMES_MAX {
            return false;
        }
        seen.names.insert(hash);
        self.names += 1;
        true
    }
}

/// For a snapshot.
impl Wildcards {
    /// Saved form of the periods that last. The hashes are of no use to another process.
    pub(super) fn save(&self, now: Instant) -> WildcardsV1 {
        let lasting = self.rules.iter().filter(|(_, seen)| now - seen.since < PERIOD);
        let rules = lasting.map(|(rule, seen)| (rule.to_string(), seen.since.save(), seen.count()));
        WildcardsV1 { rules: rules.collect() }
    }

    /// Goes on with the periods of a snapshot, for rules that `is_known` finds.
    pub(super) fn restore(&mut self, now: Instant, saved: WildcardsV1, is_known: impl Fn(&str) -> bool) {
        for (rule, since, earlier) in saved.rules.into_iter().filter(|(rule, ..)| is_known(rule)) {
            let since = Instant::from_ns(since).min(now);
            self.rules.insert(rule.into(), Seen { since, names: BTreeSet::new(), earlier });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_so_many_names_in_an_hour() {
        let mut wildcards = Wildcards::new(SecretHash([7; 16]));
        let name = |n: u32| DomainName::parse(format!("n{n}.example.com").as_bytes()).expect("a name");
        let start = Instant::from_ns(1);
        let [rule, other] = ["*.example.com", "*.com"].map(Arc::from);
        for n in 0..3 {
            assert!(wildcards.take(start, &rule, &name(n), 3));
        }
        assert!(!wildcards.take(start, &rule, &name(3), 3));
        assert!(wildcards.take(start, &rule, &name(1), 3), "it was asked before");
        assert!(wildcards.take(start, &other, &name(3), 3), "another rule has its own");
        wildcards.rules_changed(start);
        assert!(!wildcards.take(start, &rule, &name(3), 3), "other rules have changed");
        let later = start + PERIOD;
        assert!(wildcards.take(later, &rule, &name(3), 3));
        assert_eq!(wildcards.names, 2);
        wildcards.rules_changed(later);
        assert_eq!((wildcards.names, wildcards.rules.len()), (1, 1), "the other rule's period is over");
    }

    #[test]
    fn a_hand_over_begins_no_new_hour() {
        let name = |n: u32| DomainName::parse(format!("n{n}.example.com").as_bytes()).expect("a name");
        let start = Instant::from_ns(1);
        let [rule, other] = ["*.example.com", "*.com"].map(Arc::from);
        let mut before = Wildcards::new(SecretHash([7; 16]));
        assert!(before.take(start, &rule, &name(0), 3) && before.take(start, &other, &name(0), 3));
        let half = start + PERIOD / 2;
        for _ in 0..2 {
            let saved = before.save(half);
            before = Wildcards::new(SecretHash([8; 16]));
            before.restore(half, saved, |text| text == &*rule);
        }
        assert!(before.take(half, &rule, &name(1), 3) && before.take(half, &rule, &name(2), 3));
        assert!(!before.take(half, &rule, &name(3), 3));
        assert_eq!(before.save(half).rules, [(rule.to_string(), start.save(), 3)]);
        assert!(before.take(start + PERIOD, &rule, &name(3), 3), "as the hour ends");
        assert_eq!(before.save(start + PERIOD * 3).rules, []);
    }

    #[test]
    fn the_names_of_all_rules_are_bounded() {
        let mut wildcards = Wildcards::new(SecretHash([7; 16]));
        let name = |n: usize| DomainName::parse(format!("n{n}.example.com").as_bytes()).expect("a name");
        for n in 0..NAMES_MAX {
            let rule = (n / 200).to_string().into();
            assert!(wildcards.take(Instant::ZERO, &rule, &name(n), 256));
        }
        assert!(!wildcards.take(Instant::ZERO, &"9999".into(), &name(NAMES_MAX), 256));
    }
}
