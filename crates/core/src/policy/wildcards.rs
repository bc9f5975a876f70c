//! New names below a wildcard: a bound on what a guest can say by the names that it asks for.
//!
//! The owner of a zone behind `*.example.com` reads every name that is asked below it, so each new name is a
//! message out. A rule has so many of them in an hour; a name asked before in that hour, or one that has
//! pins, is not new. Names are kept as 64-bit hashes with a secret. Bounded in all; beyond it every name
//! counts as one too many.

use super::domain_name::DomainName;
use super::port_table::RuleNumber;
use super::secret_hash::SecretHash;
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// Length of a period.
const PERIOD: Duration = Duration::from_secs(3600);
/// Most names kept, of all rules.
const NAMES_MAX: usize = 65_536;

/// Names of one rule in the present period.
#[derive(Debug)]
struct Seen {
    since: Instant,
    names: BTreeSet<u64>,
}

/// New names by rule.
#[derive(Debug)]
pub(super) struct Wildcards {
    hash: SecretHash,
    rules: BTreeMap<RuleNumber, Seen>,
    names: usize,
}

impl Wildcards {
    pub(super) fn new(hash: SecretHash) -> Self {
        Self { hash, rules: BTreeMap::new(), names: 0 }
    }

    /// Counts a name below the wildcard of `rule`. False if it is one more than `most` in this period.
    pub(super) fn take(&mut self, now: Instant, rule: RuleNumber, name: &DomainName, most: u32) -> bool {
        let seen = self.rules.entry(rule).or_insert_with(|| Seen { since: now, names: BTreeSet::new() });
        if now - seen.since >= PERIOD {
            self.names -= seen.names.len();
            *seen = Seen { since: now, names: BTreeSet::new() };
        }
        let hash = self.hash.of(name);
        if seen.names.contains(&hash) {
            return true;
        }
        if seen.names.len() >= most as usize || self.names >= NAMES_MAX {
            return false;
        }
        seen.names.insert(hash);
        self.names += 1;
        true
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
        for n in 0..3 {
            assert!(wildcards.take(start, 0, &name(n), 3));
        }
        assert!(!wildcards.take(start, 0, &name(3), 3));
        assert!(wildcards.take(start, 0, &name(1), 3), "it was asked before");
        assert!(wildcards.take(start, 1, &name(3), 3), "another rule has its own");
        let later = start + PERIOD;
        assert!(wildcards.take(later, 0, &name(3), 3));
        assert_eq!(wildcards.names, 2);
    }

    #[test]
    fn the_names_of_all_rules_are_bounded() {
        let mut wildcards = Wildcards::new(SecretHash([7; 16]));
        let name = |n: usize| DomainName::parse(format!("n{n}.example.com").as_bytes()).expect("a name");
        for n in 0..NAMES_MAX {
            assert!(wildcards.take(Instant::ZERO, (n / 200) as u32, &name(n), 256));
        }
        assert!(!wildcards.take(Instant::ZERO, 9999, &name(NAMES_MAX), 256));
    }
}
