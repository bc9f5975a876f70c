//! Wildcards of a learnt policy: many names below one as one rule.
//!
//! Below a *public suffix* (`com`, `co.uk`, `github.io`, `s3.amazonaws.com`) names are of different owners,
//! so they stay apart: a wildcard there would allow names that are yet to be registered.

use super::Seen;
use brodo_suffixes::has_one_owner;
use std::collections::BTreeMap;

/// Rules in which `least` names directly below one, of one scheme and port, are a wildcard.
pub(super) fn united(rules: &BTreeMap<String, Seen>, least: usize) -> BTreeMap<String, Seen> {
    let mut siblings: BTreeMap<String, usize> = BTreeMap::new();
    for wildcard in rules.keys().filter_map(|rule| wildcard(rule)) {
        *siblings.entry(wildcard).or_default() += 1;
    }
    let mut united: BTreeMap<String, Seen> = BTreeMap::new();
    for (rule, seen) in rules {
        let by = wildcard(rule).filter(|wildcard| siblings[wildcard] >= least.max(2));
        let entry = united.entry(by.unwrap_or_else(|| rule.clone()));
        entry.and_modify(|known| known.add(seen)).or_insert_with(|| seen.clone());
    }
    united
}

/// The rule for all names beside that of a rule; none if that would be a public suffix's, or there is no
/// name.
fn wildcard(rule: &str) -> Option<String> {
    let (scheme, rest) = rule.split_once("://").map_or(("", rule), |(scheme, rest)| (scheme, rest));
    let (name, port) = rest.split_once(':').map_or((rest, ""), |(name, port)| (name, port));
    let is_address = rest.starts_with('[') || name.parse::<std::net::IpAddr>().is_ok();
    let (_, parent) = name.split_once('.').filter(|_| !is_address)?;
    if !has_one_owner(parent) {
        return None;
    }
    let separator = if scheme.is_empty() { "" } else { "://" };
    let colon = if port.is_empty() { "" } else { ":" };
    Some(format!("{scheme}{separator}*.{parent}{colon}{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_owner_are_united() {
        let seen = |time: &str| Seen { flows: 2, sent: 10, first: time.to_owned(), last: time.to_owned() };
        let names = [
            "a.cdn.example.com",
            "b.cdn.example.com",
            "c.cdn.example.com",
            "tcp://a.cdn.example.com:22",
            "tcp://b.cdn.example.com:22",
            "www.example.com",
            "one.github.io",
            "two.github.io",
            "three.github.io",
            "one.co.uk",
            "two.co.uk",
            "three.co.uk",
            "tcp://192.0.2.1:22",
            "tcp://192.0.2.2:22",
            "tcp://192.0.2.3:22",
            "tcp://[2001:db8::1]:22",
        ];
        let rules = names.iter().zip('a'..).map(|(name, time)| ((*name).to_owned(), seen(&time.to_string())));
        let rules: BTreeMap<_, _> = rules.collect();
        let united = united(&rules, 3);
        let all = Seen { flows: 6, sent: 30, first: "a".to_owned(), last: "c".to_owned() };
        assert_eq!(united["*.cdn.example.com"], all);
        assert_eq!(united.len(), rules.len() - 2);
        assert!(united.contains_key("tcp://a.cdn.example.com:22"), "two are too few");
        assert_eq!(super::united(&rules, 2)["tcp://*.cdn.example.com:22"].flows, 4);
        assert!(super::united(&rules, 0).contains_key("one.github.io"), "a public suffix");
    }
}
