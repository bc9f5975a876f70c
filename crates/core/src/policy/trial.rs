//! Destinations tried against rules, without traffic: for checks of a policy before it is used.
//!
//! A name is tried as if DNS gave it alone a public address that no other rule is about; the host's own
//! addresses are unknown.

use super::domain_name::DomainName;
use super::floor;
use super::port_table::{Class, RuleNumber};
use super::rule::{Effect, Scheme};
use super::ruleset::{Answer, Checks, Ground, NewFlow, Opening, Ruleset};
use super::shared::ELSEWHERE;
use crate::flow::Protocol;
use crate::wire::dns::message::A;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::slice;

/// A documentation address (RFC 5737), about which a policy has no rules.
const PUBLIC: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));

/// Verdict on a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// Whether it may be reached.
    pub effect: Effect,
    /// The rule or reason.
    pub by: String,
}

impl Tried {
    fn denied(by: impl Into<String>) -> Self {
        Self { effect: Effect::Deny, by: by.into() }
    }
}

impl Ruleset {
    /// Verdict on a flow to `name` that speaks as `scheme` says; `None` for a text that no rule can name.
    pub fn try_name(&self, scheme: Scheme, name: &str, port: u16) -> Option<Tried> {
        let name = DomainName::parse(name.as_bytes())?;
        let matches = self.matches(&name);
        if let Answer::NxDomain(ground) = self.question(Some(&matches), A, None, false) {
            return Some(match ground {
                Ground::Deny(rule) => Tried::denied(&*self.deny_text(rule).unwrap_or_default()),
                _ => Tried::denied(format!("question: no rule names {name}")),
            });
        }
        if ELSEWHERE.contains(&name.as_str()) {
            let why = "it sends programs to other resolvers, and does not exist under any policy";
            return Some(Tried::denied(format!("question: {name}: {why}")));
        }
        let flow = flow(scheme, PUBLIC, port);
        Some(match self.opening(&flow, &slice::from_ref(&matches).iter()) {
            Opening::Gate(checks) if !is_checked(checks, scheme) => {
                Tried::denied(if self.opens_by_default(checks.private) {
                    format!("a rule names {name} at port {port}: only flows that name their server pass")
                } else {
                    format!("{name} is allowed at port {port} only to flows that name it in another way")
                })
            }
            Opening::Gate(checks) => {
                let class = Class::of_scheme(scheme);
                match self.denying(&matches, class, port) {
                    Some(rule) => Tried::denied(&*self.deny_text(rule).unwrap_or_default()),
                    None => self.allowed_by(self.allowing(&matches, class, port, checks.private)),
                }
            }
            Opening::Open(rule) => self.allowed_by(rule),
            Opening::Refuse(Ground::Deny(rule)) => Tried::denied(&*self.deny_text(rule).unwrap_or_default()),
            Opening::Refuse(_) => {
                let transport = protocol(scheme).rule_word();
                let what = match scheme {
                    Scheme::Ping => transport.to_owned(),
                    _ => format!("{transport} port {port}"),
                };
                Tried::denied(format!("{name} is named, but no rule allows {what}"))
            }
        })
    }

    /// Verdict on a flow to an address that DNS gave for no name.
    pub fn try_address(&self, scheme: Scheme, address: IpAddr, port: u16) -> Tried {
        if let Some(rule) = floor::forbids(address, false) {
            return Tried::denied(floor::NAMES[rule]);
        }
        match self.opening(&flow(scheme, address, port), &[].iter()) {
            Opening::Open(rule) => self.allowed_by(rule),
            Opening::Gate(_) => Tried::denied("the name would have to be read in the first bytes"),
            Opening::Refuse(Ground::Deny(rule)) => Tried::denied(&*self.deny_text(rule).unwrap_or_default()),
            Opening::Refuse(Ground::Private) => Tried::denied("private"),
            Opening::Refuse(Ground::NotGivenByDns) => Tried::denied("not-given-by-dns"),
            Opening::Refuse(Ground::Default) => Tried::denied("default"),
        }
    }

    /// Allowed by this rule, or by default.
    fn allowed_by(&self, rule: Option<RuleNumber>) -> Tried {
        let text = rule.and_then(|rule| self.allow_text(rule));
        let by = text.map_or_else(|| "default".to_owned(), |rule| format!("allow {rule}"));
        Tried { effect: Effect::Allow, by }
    }
}

/// Whether a gate reads the name of a flow that speaks so.
fn is_checked(checks: Checks, scheme: Scheme) -> bool {
    match scheme {
        Scheme::Tls => checks.tls,
        Scheme::Http => checks.http,
        Scheme::Quic => checks.quic,
        Scheme::Tcp | Scheme::Udp | Scheme::Ping => false,
    }
}

fn protocol(scheme: Scheme) -> Protocol {
    match scheme {
        Scheme::Tls | Scheme::Http | Scheme::Tcp => Protocol::Tcp,
        Scheme::Quic | Scheme::Udp => Protocol::Udp,
        Scheme::Ping => Protocol::Echo,
    }
}

fn flow(scheme: Scheme, address: IpAddr, port: u16) -> NewFlow<'static> {
    let to = SocketAddr::new(address, port);
    // No rule asks for the guest's side.
    let guest = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    NewFlow { protocol: protocol(scheme), guest, remote: to, to, host: &[], dns_tls: false, alias: None }
}

#[cfg(test)]
mod tests {
    use super::super::rule::Rule;
    use super::super::ruleset::PolicyRules;
    use super::*;

    #[test]
    fn the_rule_that_allows_a_name_is_named() {
        let rules = |default, allow: &[&str], deny: &[&str]| {
            let allow = allow.iter().map(|text| Rule::parse(text, Effect::Allow).expect(text).into());
            let deny = deny.iter().map(|text| Rule::parse(text, Effect::Deny).expect(text));
            let (allow, deny) = (allow.collect(), deny.collect());
            Ruleset::new(PolicyRules { default, allow, deny, ..PolicyRules::default() }).expect("few rules")
        };
        let both = rules(Effect::Deny, &["http://a.example", "tcp://a.example:22"], &[]);
        let web = rules(Effect::Allow, &["http://a.example"], &[]);
        let denying = rules(Effect::Allow, &[], &["https://a.example", "tcp://a.example:25"]);
        for (rules, scheme, port, effect, by) in [
            (&both, Scheme::Tcp, 22, Effect::Allow, "allow tcp://a.example:22"),
            (&both, Scheme::Http, 80, Effect::Allow, "allow http://a.example"),
            (&web, Scheme::Tcp, 22, Effect::Allow, "default"),
            (&web, Scheme::Tls, 443, Effect::Allow, "default"),
            (&web, Scheme::Http, 80, Effect::Allow, "allow http://a.example"),
            (&denying, Scheme::Tls, 443, Effect::Deny, "deny https://a.example"),
            (&denying, Scheme::Tcp, 25, Effect::Deny, "deny tcp://a.example:25"),
            (&denying, Scheme::Http, 80, Effect::Allow, "default"),
            (
                &denying,
                Scheme::Tcp,
                443,
                Effect::Deny,
                "a rule names a.example at port 443: only flows that name their server pass",
            ),
        ] {
            let tried = rules.try_name(scheme, "a.example", port).expect("a name");
            assert_eq!(tried, Tried { effect, by: by.to_owned() }, "{scheme:?} {port}");
        }
        let tried = denying.try_name(Scheme::Tls, "use-application-dns.net", 443).expect("a name");
        assert_eq!(tried.effect, Effect::Deny, "{}", tried.by);
    }
}
