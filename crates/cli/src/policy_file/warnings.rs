//! Warnings about a policy that is valid, but less of a boundary than it looks.

use brodo_core::policy::{AllowRule, Effect, PolicyRules, RuleTarget};

/// Sentences about rules that allow more than their author may think.
pub(crate) fn warnings(rules: &PolicyRules) -> Vec<String> {
    let by_name = |target: &RuleTarget| target.is_named();
    let mut found = Vec::new();
    if rules.default == Effect::Allow && rules.deny.iter().any(|rule| by_name(&rule.target)) {
        found.push(
            "default = \"allow\": names that are denied are still reached by a fixed address or a resolver of the guest's"
                .to_owned(),
        );
    }
    for AllowRule { rule, .. } in &rules.allow {
        match &rule.target {
            RuleTarget::Below(name) => found.push(format!(
                "{rule}: the owner of the zone {name} chooses every address that it leads to; TXT and names below it carry data"
            )),
            RuleTarget::Network(network) if network.prefix_len() == 0 => {
                found.push(format!("{rule}: every address, whatever DNS gave it for"));
            }
            _ => {}
        }
    }
    found
}
