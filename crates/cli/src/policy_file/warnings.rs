//! Warnings about a policy that is valid, but less of a boundary than it looks.

use super::{PolicyFiles, PolicySource};
use brodo_core::policy::{AllowRule, Effect, PolicyRules, Rule, RuleTarget};
use brodo_suffixes::is_public_suffix;
use std::collections::HashMap;

/// A rule with its list, and where it stands.
type Written<'a> = (Effect, &'a Rule, Vec<(&'a PolicySource, usize)>);

/// Sentences about rules that allow more than their author may think.
pub(crate) fn warnings(rules: &PolicyRules) -> Vec<String> {
    let by_name = |target: &RuleTarget| target.is_named();
    let mut found = Vec::new();
    if rules.default == Effect::Allow && rules.deny.iter().any(|rule| by_name(&rule.target)) {
        found.push(
            "default = \"allow\": names that are denied are still reached at addresses that brodo's DNS server has not given for them"
                .to_owned(),
        );
    }
    for AllowRule { rule, private, .. } in &rules.allow {
        match &rule.target {
            RuleTarget::Below(name) if is_public_suffix(name.as_str()) => found.push(format!(
                "{rule}: everybody can have a name below {name}: write the names that are meant"
            )),
            RuleTarget::Below(name) => found.push(format!(
                "{rule}: the owner of the zone {name} chooses every address that it leads to; TXT and names below it carry data"
            )),
            RuleTarget::Network(network) if network.prefix_len() == 0 => {
                let which = if *private { "every address" } else { "every public address" };
                found.push(format!("{rule}: {which}, whatever DNS gave it for"));
            }
            _ => {}
        }
    }
    found
}

/// Sentences about rules that are written more than once, with all their places: a rule that is removed at
/// one of them goes on to hold by the others.
pub(crate) fn repeated(files: &PolicyFiles) -> Vec<String> {
    let mut rules: Vec<Written<'_>> = Vec::new();
    let mut known = HashMap::new();
    for (source, policy) in files.sources.iter().zip(&files.policies) {
        let allow = policy.allow.iter().map(|allow| (Effect::Allow, &allow.rule)).zip(&policy.allow_at);
        let deny = policy.deny.iter().map(|rule| (Effect::Deny, rule)).zip(&policy.deny_at);
        for ((effect, rule), at) in allow.chain(deny) {
            let key = (effect, rule.scheme, &rule.target, rule.ports);
            let index = *known.entry(key).or_insert_with(|| {
                rules.push((effect, rule, Vec::new()));
                rules.len() - 1
            });
            rules[index].2.push((source, *at));
        }
    }
    rules.retain(|(.., places)| places.len() > 1);
    let sentence = |(effect, rule, places): &Written<'_>| {
        let list = if *effect == Effect::Allow { "allow" } else { "deny" };
        let places: Vec<_> = places.iter().map(|(source, at)| source.place(*at)).collect();
        format!("{list} {rule}: written {} times, at {}", places.len(), places.join(" and "))
    };
    rules.iter().map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_that_many_owners_share_are_named() {
        for (rule, is_shared) in
            [("*.github.io", true), ("*.s3.amazonaws.com", true), ("*.co.uk", true), ("*.example.com", false)]
        {
            let rule = Rule::parse(rule, Effect::Allow).expect("a rule");
            let rules = PolicyRules { allow: vec![AllowRule::from(rule)], ..PolicyRules::default() };
            let [warning] = &warnings(&rules)[..] else { panic!("one warning") };
            assert_eq!(warning.contains("everybody can"), is_shared, "{warning}");
        }
    }
}
