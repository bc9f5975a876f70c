//! Learnt policies: from flows that have ended, a rule for each destination that was reached.
//!
//! A guest that was watched has written it: a hostile one gets what it wanted to reach. The policy says so at
//! its top, and names that look as if they carried data are left out and listed.

pub(crate) mod learner;
mod wildcards;

use crate::escape::printable;
use crate::guest_network::copied;
use crate::policy_file;
use crate::suggested_rule;
use crate::units::bytes;
use brodo_control::flow::{FlowDirection, FlowEnd, Protocol};
use brodo_core::config::Config;
use brodo_core::policy::{Effect, is_private};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

/// Cause of the end of a flow that the policy has refused.
const DENIED: &str = "denied";
/// Ports of DNS, and of DNS over TLS and QUIC.
const DNS_PORT: u16 = 53;
const DNS_TLS_PORT: u16 = 853;
/// Most rules that are learnt, and most that are listed as left out.
const RULES_MAX: usize = 8192;
/// Most bytes of either, as they are written. With the rest of their lines (some 150 bytes each), and twice
/// as long where JSON escapes them, all of it fits into a reply of the control socket
/// ([`brodo_control::rpc::MESSAGE_MAX`]).
const RULES_BYTES_MAX: usize = 512 << 10;
/// Longest name, in bytes, with its escapes (RFC 1035, 5.1), and longest time (RFC 3339).
const NAME_MAX: usize = 1012;
const TIME_MAX: usize = 64;
/// Longest label that is a word of people's, and longest one with many digits, in letters.
const WORD_MAX: usize = 32;
const CODE_MAX: usize = 16;

/// Flows that a rule allows, in sum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    flows: u64,
    /// Bytes from the guest.
    sent: u64,
    /// Ends of the first and the last flow.
    first: String,
    last: String,
}

impl Seen {
    fn add(&mut self, more: &Self) {
        self.flows += more.flows;
        self.sent = self.sent.saturating_add(more.sent);
        if more.first < self.first {
            self.first.clone_from(&more.first);
        }
        if more.last > self.last {
            self.last.clone_from(&more.last);
        }
    }
}

/// Bytes of texts of rules.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    rules: usize,
    left_out: usize,
}

impl Sizes {
    /// Whether there is room for a text; if so, it has it from then on.
    fn take(size: &mut usize, text: &str) -> bool {
        let after = *size + printable(text).len();
        let fits = after <= RULES_BYTES_MAX;
        if fits {
            *size = after;
        }
        fits
    }
}

/// Rules in the making.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Learnt {
    rules: BTreeMap<String, Seen>,
    /// Rules by name whose names have led to private addresses.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    private: BTreeMap<String, Seen>,
    left_out: BTreeMap<String, u64>,
    /// Bytes of rules and of those left out, as they are written; none until they are counted.
    #[serde(skip)]
    sizes: Option<Sizes>,
    /// Flows beyond the bounds.
    more: u64,
    /// Flows to brodo's own DNS server.
    #[serde(default)]
    questions: u64,
    /// Addresses of that server, where they are known: a log does not have them.
    #[serde(default)]
    dns: Option<Vec<IpAddr>>,
}

impl Learnt {
    /// None yet, of a guest that is served under this configuration.
    pub(crate) fn under(config: &Config) -> Self {
        Self { dns: Some(config.dns_addresses()), ..Self::default() }
    }

    /// Adds the destination of a flow.
    pub(crate) fn add(&mut self, flow: &FlowEnd) {
        // Refused flows, those that a gate has refused among them, and those of peers have reached nothing.
        let is_denied = flow.id.is_none() || flow.cause == DENIED;
        if is_denied || flow.direction == FlowDirection::Inbound {
            return;
        }
        let to_dns = self.is_to_own_dns(flow);
        if to_dns && flow.remote.port() == DNS_PORT {
            self.questions += 1;
            return;
        }
        let name = flow.name.as_deref().unwrap_or_default();
        if name.len() > NAME_MAX || flow.time.len() > TIME_MAX {
            // No record of an engine in order.
            self.more += 1;
            return;
        }
        let target = suggested_rule::target(name);
        let rule = suggested_rule::narrowest(&flow.protocol.to_string(), flow.remote, target.as_ref());
        let is_unnamed = target.is_none() && !name.is_empty();
        // Rules judge such a flow by the resolver to which it leads.
        let is_dns_tls = to_dns && flow.remote.port() == DNS_TLS_PORT;
        let left_out = is_dns_tls || is_unnamed || name.split('.').any(looks_like_data);
        if left_out || policy_file::rule(&rule, Effect::Allow).is_err() {
            let rule = if is_unnamed { format!("{rule} for {name:?}") } else { rule };
            let is_full = self.left_out.len() == RULES_MAX;
            let is_known = self.left_out.contains_key(&rule);
            if is_known || (!is_full && Sizes::take(&mut self.sizes().left_out, &rule)) {
                *self.left_out.entry(rule).or_default() += 1;
            } else {
                self.more += 1;
            }
            return;
        }
        let is_full = self.rules.len() + self.private.len() == RULES_MAX;
        let lifts = target.is_some() && is_private(flow.remote.ip());
        let rules = if lifts { &self.private } else { &self.rules };
        let is_known = rules.contains_key(&rule);
        if !is_known && (is_full || !Sizes::take(&mut self.sizes().rules, &rule)) {
            self.more += 1;
            return;
        }
        let rules = if lifts { &mut self.private } else { &mut self.rules };
        let (flows, sent) = (0, 0);
        let seen = rules.entry(rule).or_insert_with(|| Seen {
            flows,
            sent,
            first: flow.time.clone(),
            last: flow.time.clone(),
        });
        let (first, last) = (flow.time.clone(), flow.time.clone());
        seen.add(&Seen { flows: 1, sent: flow.from_guest.bytes, first, last });
    }

    fn sizes(&mut self) -> &mut Sizes {
        let size = |text: &String| printable(text).len();
        let rules = self.rules.keys().chain(self.private.keys());
        self.sizes.get_or_insert_with(|| Sizes {
            rules: rules.map(size).sum(),
            left_out: self.left_out.keys().map(size).sum(),
        })
    }

    /// Whether a flow is one to the address of brodo's own DNS server, which in a log is one that it has by
    /// default.
    fn is_to_own_dns(&self, flow: &FlowEnd) -> bool {
        let (own, protocol) = (flow.remote.ip(), flow.protocol);
        let is_default = || {
            Config::default().dns_addresses().contains(&own)
                || [copied::DNS_V4, copied::DNS_V6].contains(&own)
        };
        protocol != Protocol::Echo && self.dns.as_ref().map_or_else(is_default, |dns| dns.contains(&own))
    }

    /// Whether there is nothing to write but brodo's own.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.private.is_empty() && self.left_out.is_empty()
    }

    /// The policy; `by` has made it. With `wildcards` so many names below one, which no public registry's
    /// customers share, are one rule.
    pub(crate) fn text(&self, by: &str, wildcards: Option<usize>) -> String {
        let mut text = format!(
            "# Made by `{by}`. A guest that was watched has written this: a hostile one gets what it\n\
             # wanted to reach. Read every line, and `brodo policy check` this file.\n\
             version = 1\n\
             allow = [\n",
        );
        // A rule that holds for private addresses holds for public ones too.
        let (mut rules, mut private) = (self.rules.clone(), self.private.clone());
        for (rule, seen) in &mut private {
            if let Some(more) = rules.remove(rule) {
                seen.add(&more);
            }
        }
        if let Some(least) = wildcards {
            rules = wildcards::united(&rules, least);
        }
        write_rules(&mut text, &rules);
        if !self.left_out.is_empty() {
            text += "\n# Left out, because it looks like data in a name, or no rule can have it:\n";
        }
        for (rule, flows) in &self.left_out {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# {} ({})", printable(rule), counted(*flows, "flow"));
        }
        if self.more > 0 {
            let more = counted(self.more, "flow");
            let _ = writeln!(text, "\n# Left out: {more} to further destinations.");
        }
        if self.questions > 0 {
            let flows = counted(self.questions, "flow");
            let _ = writeln!(
                text,
                "\n# Left out: {flows} to brodo's own DNS server, which answers under every policy."
            );
        }
        if !private.is_empty() {
            text += "\n# Names that have led to private addresses.\n[[rule]]\nprivate = true\nto = [\n";
            write_rules(&mut text, &private);
        }
        text
    }
}

/// Writes the entries of a list of rules, and its end.
fn write_rules(text: &mut String, rules: &BTreeMap<String, Seen>) {
    for (rule, Seen { flows, sent, first, last }) in rules {
        let (sent, first, last) = (bytes(*sent), printable(first), printable(last));
        let flows = counted(*flows, "flow");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {rule:?}, # {flows}, {sent} sent, {first} to {last}");
    }
    *text += "]\n";
}

/// A number of things.
fn counted(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// Whether a label is longer than words are, or long and a third of it digits.
fn looks_like_data(label: &str) -> bool {
    let digits = label.bytes().filter(u8::is_ascii_digit).count();
    label.len() > WORD_MAX || (label.len() > CODE_MAX && digits * 3 >= label.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy_file::{OnLine, Policy, PolicySource};
    use brodo_control::rpc::MESSAGE_MAX;
    use brodo_core::policy::AllowRule;

    fn learnt(lines: &[(&str, &str, &str)]) -> String {
        learnt_by(Learnt::default(), lines)
    }

    fn learnt_by(mut learnt: Learnt, lines: &[(&str, &str, &str)]) -> String {
        for line in lines {
            learnt.add(&flow(*line, "finished"));
        }
        learnt.text("brodo policy learn", None)
    }

    /// A flow by its name, remote end and protocol, which ended for this cause.
    fn flow((name, remote, protocol): (&str, &str, &str), cause: &str) -> FlowEnd {
        let name = if name.is_empty() { String::new() } else { format!("\"name\":{name:?},") };
        let line = format!(
            "{{\"time\":\"2026-11-21T18:42:30Z\",\"id\":\"0:1.1\",{name}\"protocol\":\"{protocol}\",\
             \"direction\":\"outbound\",\"guest\":\"10.0.2.15:4\",\"remote\":\"{remote}\",\"duration_us\":1,\
             \"from_guest\":{{\"bytes\":500,\"packets\":2}},\"to_guest\":{{\"bytes\":0,\"packets\":0}},\
             \"cause\":\"{cause}\"}}"
        );
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// The allow rules of a text, which is a policy file.
    fn allowed(text: &str) -> Vec<AllowRule> {
        let source = PolicySource { path: "learnt.toml".into(), text: text.to_owned() };
        let policy = Policy::parse(&source).unwrap_or_else(|failure| panic!("{failure}\n{text}"));
        Policy::unite(&[policy], &OnLine::default()).expect("a policy").allow
    }

    fn rules(text: &str) -> Vec<String> {
        allowed(text).iter().map(|allow| allow.rule.to_string()).collect()
    }

    #[test]
    fn rules_by_name_hold_for_the_private_addresses_that_were_reached() {
        let text = learnt(&[
            ("registry.corp", "10.0.0.5:80", "tcp"),
            ("split.example", "192.168.1.1:443", "tcp"),
            ("split.example", "192.0.2.1:443", "tcp"),
            ("www.example", "192.0.2.2:443", "tcp"),
            ("", "10.0.0.6:22", "tcp"),
        ]);
        let found: Vec<_> = allowed(&text).iter().map(|it| (it.rule.to_string(), it.private)).collect();
        let expected = [
            ("tcp://10.0.0.6:22", true),
            ("www.example", false),
            ("http://registry.corp", true),
            ("split.example", true),
        ];
        assert_eq!(found, expected.map(|(rule, private)| (rule.to_owned(), private)), "{text}");
        assert!(text.contains("\"split.example\", # 2 flows"), "{text}");
    }

    #[test]
    fn flows_that_a_gate_has_refused_are_no_rules() {
        let mut learnt = Learnt::default();
        learnt.add(&flow(("evil.example", "192.0.2.1:443", "tcp"), "denied"));
        assert!(learnt.is_empty());
        learnt.add(&flow(("good.example", "192.0.2.1:443", "tcp"), "finished"));
        assert_eq!(rules(&learnt.text("brodo policy learn", None)), ["good.example"]);
    }

    #[test]
    fn every_destination_has_the_narrowest_rule() {
        let text = learnt(&[
            ("Pkg.example.com.", "192.0.2.1:443", "tcp"),
            ("pkg.example.com", "192.0.2.2:443", "tcp"),
            ("pkg.example.com", "192.0.2.2:443", "udp"),
            ("a.example", "192.0.2.3:80", "tcp"),
            ("git.example", "192.0.2.4:22", "tcp"),
            ("", "[2001:db8::1]:53", "udp"),
            ("", "192.0.2.5:7", "echo"),
        ]);
        let expected = [
            "http://a.example",
            "ping://192.0.2.5",
            "pkg.example.com",
            "quic://pkg.example.com",
            "tcp://git.example:22",
            "udp://[2001:db8::1]:53",
        ];
        assert_eq!(rules(&text), expected);
        assert!(text.contains("\"pkg.example.com\", # 2 flows, 1000 sent"), "{text}");
        assert!(text.starts_with("# Made by") && text.contains("hostile"));
    }

    #[test]
    fn flows_with_long_texts_are_counted_alone() {
        let long = "x".repeat(NAME_MAX + 1);
        let text = learnt(&[(&long, "192.0.2.1:443", "tcp")]);
        assert!(!text.contains(&long) && text.contains("1 flow to further destinations"), "{text}");
    }

    #[test]
    fn brodo_s_own_dns_server_is_left_out() {
        let text = learnt(&[
            ("", "10.0.2.3:53", "udp"),
            ("", "[fd62:726f:646f::3]:53", "udp"),
            ("", "169.254.1.1:53", "tcp"),
            ("", "10.0.2.3:443", "tcp"),
            ("", "192.0.2.1:53", "udp"),
        ]);
        assert_eq!(rules(&text), ["tcp://10.0.2.3:443", "udp://192.0.2.1:53"]);
        assert!(text.contains("# Left out: 3 flows to brodo's own DNS server"), "{text}");
    }

    /// A network that serves knows the address, which `--dns` may have moved.
    #[test]
    fn the_own_dns_server_is_known_where_it_is_not_by_default() {
        let own: std::net::Ipv4Addr = "10.0.2.9".parse().expect("an address");
        let mut config = Config::default();
        config.v4.as_mut().expect("by default").dns = Some(own);
        config.v6.as_mut().expect("by default").dns = None;
        let flows = [("", "10.0.2.9:53", "udp"), ("", "10.0.2.3:53", "udp"), ("", "192.0.2.1:53", "tcp")];
        let text = learnt_by(Learnt::under(&config), &flows);
        assert_eq!(rules(&text), ["tcp://192.0.2.1:53", "udp://10.0.2.3:53"]);
        assert!(text.contains("# Left out: 1 flow to brodo's own DNS server"), "{text}");
        // The next program knows it too.
        let saved = serde_json::to_string(&Learnt::under(&config)).expect("JSON");
        let resumed = serde_json::from_str(&saved).expect("a learnt policy");
        assert_eq!(learnt_by(resumed, &flows), text);
    }

    /// A reply of the control socket has room for all of it.
    #[test]
    fn names_of_a_guest_are_bounded_in_bytes_too() {
        let mut learnt = Learnt::default();
        let long = "a".repeat(30);
        for n in 0..10_000 {
            // Escaped, each backslash is two bytes, and in JSON four.
            learnt.add(&flow((&format!("{n}{}", "\\".repeat(400)), "192.0.2.1:443", "tcp"), "finished"));
            let name = format!("x{n}.{long}.{long}.{long}.{long}.{long}.{long}.{long}.example");
            learnt.add(&flow((&name, "192.0.2.1:443", "tcp"), "finished"));
        }
        let text = learnt.text("brodo policy learn", None);
        let json = serde_json::to_string(&text).expect("JSON");
        assert!(json.len() < MESSAGE_MAX, "{} bytes", json.len());
        let rules = allowed(&text).len();
        assert!(rules > 1000, "{rules} rules");
        let listed = text.lines().filter(|line| line.ends_with("(1 flow)")).count();
        assert!(listed > 100, "{listed} are listed");
        let more = format!("# Left out: {} flows to further destinations.", 20_000 - rules - listed);
        assert!(text.contains(&more), "{:?}", &text[text.len() - 200..]);
        // The next program has the same bound.
        let saved = serde_json::to_string(&learnt).expect("JSON");
        let mut resumed: Learnt = serde_json::from_str(&saved).expect("a learnt policy");
        resumed.add(&flow((&format!("y.{long}.{long}.{long}.example"), "192.0.2.1:443", "tcp"), "finished"));
        assert_eq!(resumed.rules.len(), rules);
    }

    /// They lead to a resolver of the host's, by which rules judge them.
    #[test]
    fn flows_to_the_dns_address_by_tls_are_left_out_and_listed() {
        let text = learnt(&[("", "10.0.2.3:853", "tcp"), ("", "192.0.2.1:853", "tcp")]);
        assert_eq!(rules(&text), ["tcp://192.0.2.1:853"]);
        assert!(text.contains("\n# tcp://10.0.2.3:853 (1 flow)\n"), "{text}");
    }

    #[test]
    fn what_no_rule_can_have_is_left_out_and_listed() {
        let text = learnt(&[
            ("c2VjcmV0IGRhdGEgaW4gYSBsYWJlbCBvZiBhIG5hbWU.evil.example", "192.0.2.1:443", "tcp"),
            ("0123456789abcdef01.evil.example", "192.0.2.1:443", "tcp"),
            ("a\nb = \"x", "192.0.2.1:443", "tcp"),
            ("xn--bcher-kva.example", "192.0.2.1:443", "tcp"),
            // A guest may ask for each of these, and rules read another thing.
            ("*.github.io", "192.0.2.1:443", "tcp"),
            ("*", "192.0.2.1:80", "tcp"),
            ("Host.", "192.0.2.1:443", "tcp"),
            ("10.0.0.0/8", "192.0.2.1:22", "tcp"),
        ]);
        assert_eq!(rules(&text), ["xn--bcher-kva.example"]);
        assert_eq!(
            text.lines().filter(|line| line.starts_with("# ") && line.ends_with("(1 flow)")).count(),
            7
        );
        assert!(text.contains("\n# tcp://192.0.2.1:443 for \"*.github.io\" (1 flow)\n"), "{text}");
    }
}
