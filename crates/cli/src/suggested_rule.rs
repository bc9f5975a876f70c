//! Suggested rules: the rule of a policy that would allow what it has refused.
//!
//! None for what a rule denies on purpose, and for a name that was said at a gate: it may be said at an
//! address of another's. Names are the guest's own words, and some are more than a name in a rule.

use crate::option_values::bracketed;
use brodo_control::policy::Stage;
use brodo_core::policy::DomainName;
use std::net::SocketAddr;

/// Reasons that a rule by destination can lift.
const LIFTED: [&str; 3] = ["policy default", "policy not-given-by-dns", "policy private"];

/// The rule for a decision of this stage and reason.
pub(crate) fn for_decision(
    stage: Stage,
    reason: &str,
    protocol: Option<&str>,
    remote: Option<SocketAddr>,
    name: Option<&str>,
) -> Option<String> {
    match stage {
        Stage::Question if reason == "policy question" => target(name?).map(|name| name.to_string()),
        Stage::Open | Stage::End => for_flow(reason, protocol?, remote?, None),
        Stage::Question | Stage::Gate | Stage::Inbound => None,
    }
}

/// A name of the guest's as the target of a rule; none if a rule would read something else: `*` is a byte of
/// labels like any other, and `host` may be asked for.
pub(crate) fn target(name: &str) -> Option<DomainName> {
    DomainName::parse(name.as_bytes()).filter(|name| name.as_str() != "host")
}

/// The rule for a refused flow, by its name if it has one.
pub(crate) fn for_flow(
    reason: &str,
    protocol: &str,
    remote: SocketAddr,
    name: Option<&str>,
) -> Option<String> {
    if !LIFTED.contains(&reason) {
        return None;
    }
    let name = name.and_then(target);
    let target = name.as_ref().map_or_else(|| bracketed(remote.ip()), DomainName::to_string);
    Some(match protocol {
        "echo" | "ping" => format!("ping://{target}"),
        "tcp" if remote.port() == 443 && name.is_some() => target,
        protocol => format!("{protocol}://{target}:{}", remote.port()),
    })
}

#[cfg(test)]
mod tests {
    //! Each suggestion is a rule that a policy takes.

    use super::*;
    use brodo_core::policy::{Effect, Rule};

    #[test]
    fn suggested_rules_are_rules() {
        use Stage::{Gate, Open, Question};
        let asked = |reason, name| for_decision(Question, reason, None, None, Some(name));
        let opened = |stage, reason, remote: &str, name| {
            for_decision(stage, reason, Some("tcp"), Some(remote.parse().expect("an address")), name)
        };
        let to = "192.0.2.1:443".parse().expect("an address");
        let named = |name| for_flow("policy default", "tcp", to, Some(name));
        for (found, rule) in [
            (asked("policy question", "Static.example.org."), Some("static.example.org")),
            (asked("policy question", "a\u{7}b"), None),
            (asked("policy question", "*.github.io"), None),
            (asked("policy question", "Host."), None),
            (named("*.github.io"), Some("tcp://192.0.2.1:443")),
            (named("HOST"), Some("tcp://192.0.2.1:443")),
            (named("Pkg.example.com."), Some("pkg.example.com")),
            (asked("deny evil.example", "evil.example"), None),
            (opened(Open, "policy default", "192.0.2.1:22", None), Some("tcp://192.0.2.1:22")),
            (
                opened(Open, "policy not-given-by-dns", "[2001:db8::1]:443", None),
                Some("tcp://[2001:db8::1]:443"),
            ),
            (opened(Gate, "policy name", "192.0.2.1:443", Some("evil.example")), None),
        ] {
            assert_eq!(found.as_deref(), rule);
            assert!(rule.is_none_or(|rule| Rule::parse(rule, Effect::Allow).is_ok()));
        }
    }
}
