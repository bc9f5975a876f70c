//! Suggested rules: the rule of a policy that would allow what it has refused.
//!
//! None for what a rule denies on purpose, and for a name that was said at a gate: it may be said at an
//! address of another's. Names are the guest's own words, and some are more than a name in a rule.
//!
//! An address for which DNS has given the guest one name is suggested by that; with several it is unknown
//! which of them the guest meant.

use crate::option_values::bracketed;
use brodo_control::policy::Stage;
use brodo_core::policy::DomainName;
use std::net::SocketAddr;

/// Reasons that a rule by destination can lift.
const LIFTED: [&str; 3] = ["policy default", "policy not-given-by-dns", PRIVATE];
const PRIVATE: &str = "policy private";

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

/// The same, knowing the names for which DNS has given the guest the destination.
pub(crate) fn for_given<S: AsRef<str>>(
    stage: Stage,
    reason: &str,
    protocol: Option<&str>,
    remote: Option<SocketAddr>,
    name: Option<&str>,
    given: &[S],
) -> Option<String> {
    match (stage, given) {
        (Stage::Open | Stage::End, [given]) => for_flow(reason, protocol?, remote?, Some(given.as_ref())),
        _ => for_decision(stage, reason, protocol, remote, name),
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
    // A rule by name does not lift what is private.
    let name = name.filter(|_| reason != PRIVATE).and_then(target);
    Some(narrowest(protocol, remote, name.as_ref()))
}

/// The narrowest rule for a flow: by name, with the check that the port's usual protocol allows.
pub(crate) fn narrowest(protocol: &str, remote: SocketAddr, name: Option<&DomainName>) -> String {
    let target = name.map_or_else(|| bracketed(remote.ip()), DomainName::to_string);
    match (protocol, remote.port(), name.is_some()) {
        ("echo" | "ping", ..) => format!("ping://{target}"),
        ("tcp", 443, true) => target,
        ("tcp", 80, true) => format!("http://{target}"),
        ("udp", 443, true) => format!("quic://{target}"),
        (protocol, port, _) => format!("{protocol}://{target}:{port}"),
    }
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
        let given = |reason, remote: &str, names: &[&str]| {
            let remote = Some(remote.parse().expect("an address"));
            for_given(Open, reason, Some("tcp"), remote, None, names)
        };
        let one = ["www.example"];
        for (found, rule) in [
            (given("policy default", "192.0.2.1:80", &one), Some("http://www.example")),
            (given("policy default", "192.0.2.1:22", &one), Some("tcp://www.example:22")),
            (given("policy private", "10.0.0.1:80", &one), Some("tcp://10.0.0.1:80")),
            (
                given("policy default", "192.0.2.1:80", &["a.example", "b.example"]),
                Some("tcp://192.0.2.1:80"),
            ),
            (given("policy default", "192.0.2.1:80", &[]), Some("tcp://192.0.2.1:80")),
            (given("deny 192.0.2.0/24", "192.0.2.1:80", &one), None),
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
