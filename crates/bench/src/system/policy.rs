//! Policies of the systems that have one. The server has a name, by a host entry, and the rule that opens its
//! flows is about that name: no rule is about its address.
//!
//! So each new flow is judged in full: the tables of addresses and networks, without a match, the pins of the
//! address, and the rules of the pinned name at the flow's port. The host entry is a pin without an end, and
//! no question to DNS is in a figure. [`System::BrodoGate`] has a rule whose name is also read in the guest's
//! first bytes: its flows wait at a gate until their request names the server, and stay under its eyes.

use super::System;
use crate::process::{Failure, Result};
use crate::world::{HOST_V4, World};

/// Name of the server.
pub const SERVER_NAME: &str = "server.example";

/// Rules of a system about the server, and the number of all of its rules.
const fn rules(system: System) -> Option<(&'static [&'static str], usize)> {
    const PINNED: &[&str] = &["tcp://server.example:1-65535", "udp://server.example:1-65535"];
    const CHECKED: &[&str] = &["http://server.example:1-65535"];
    match system {
        System::BrodoRules10 => Some((PINNED, 10)),
        System::BrodoRules16384 => Some((PINNED, 16_384)),
        System::BrodoGate => Some((CHECKED, 16_384)),
        _ => None,
    }
}

/// A policy of `count` rules, the last of which are `to`: about a private address by its name.
fn text(to: &[&str], count: usize) -> String {
    let others: Vec<_> = (1..=count - to.len()).map(|n| format!("\"n{n}.example.com\"")).collect();
    format!("version = 1\nallow = [{}]\n[[rule]]\nto = {to:?}\nprivate = true\n", others.join(", "))
}

/// brodo's options for the policy of a system that has one.
pub fn policy_options(world: &World, system: System) -> Result<Vec<String>> {
    let Some((to, count)) = rules(system) else { return Ok(Vec::new()) };
    let path = world.folder().join(format!("policy-{}.toml", system.name()));
    std::fs::write(&path, text(to, count)).map_err(|e| Failure(format!("{}: {e}", path.display())))?;
    let path = path.to_string_lossy().into_owned();
    Ok(["--policy".into(), path, "--host-name".into(), format!("{SERVER_NAME}={HOST_V4}")].to_vec())
}

#[cfg(test)]
mod tests {
    //! The rules as brodo judges by them.

    use super::*;
    use brodo_core::policy::{AllowRule, Effect, PolicyRules, Rule, Ruleset, Scheme};

    /// The rules of a system, as brodo reads them.
    fn compiled(system: System) -> Ruleset {
        let (to, count) = rules(system).expect("it has a policy");
        let text = text(to, count);
        assert_eq!(text.matches("\n[[rule]]\nto = [").count(), 1, "{text}");
        assert!(text.ends_with("\nprivate = true\n"), "{text}");
        // In quotes: names and URLs, which have no quotes of their own.
        let rules: Vec<_> = text.split('"').skip(1).step_by(2).collect();
        assert_eq!(rules.len(), count, "{}", system.name());
        let allow = |rule: &str| AllowRule::from(Rule::parse(rule, Effect::Allow).expect("a rule"));
        let allow = rules.into_iter().map(allow).collect();
        Ruleset::new(PolicyRules { allow, ..PolicyRules::default() }).expect("not too many")
    }

    #[test]
    fn the_servers_flows_are_opened_by_its_name_alone() {
        for system in [System::BrodoRules10, System::BrodoRules16384] {
            let rules = compiled(system);
            for (scheme, port) in [(Scheme::Tcp, 7000), (Scheme::Tcp, 10_063), (Scheme::Udp, 40_000)] {
                let by_name = rules.try_name(scheme, SERVER_NAME, port).expect("a name");
                assert_eq!(by_name.effect, Effect::Allow, "{by_name:?}");
                let server = HOST_V4.parse().expect("an address");
                assert_eq!(rules.try_address(scheme, server, port).effect, Effect::Deny);
            }
        }
    }

    #[test]
    fn a_gate_lets_only_requests_for_the_server_pass() {
        let rules = compiled(System::BrodoGate);
        let of = |scheme| rules.try_name(scheme, SERVER_NAME, 10_001).map(|tried| tried.effect);
        assert_eq!(of(Scheme::Http), Some(Effect::Allow));
        assert_eq!([Scheme::Tcp, Scheme::Tls].map(of), [Some(Effect::Deny); 2]);
    }
}
