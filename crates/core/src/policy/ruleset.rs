//! The rules of a policy, compiled: evaluation of questions and new flows as pure functions.
//!
//! Rules are sets, not a list: their order decides only which of several that fit is counted. A refusal wins
//! over a permission. A *question* is judged by its name ([`Ruleset::question`]), in this order: a name
//! denied as a whole, a type that is not answered, a name that a rule names. A *flow* is judged by its
//! address and by the names under which DNS gave that address to the guest ([`Ruleset::opening`]):
//!
//! | # | | |
//! |---|---|---|
//! | 1 | the floor | before all this, see [`floor`] |
//! | 2 | denied by address | refused, `deny RULE` |
//! | 3 | private, and no rule lifts it | refused, `private` |
//! | 4 | allowed by address | opened |
//! | 5 | a name of it is allowed by `tcp`, `udp` or `ping` | opened |
//! | 6 | a name of it is allowed by `https`, `tls`, `http` or `quic` | opened behind a gate for the name |
//! | 7 | the default | refused, `default` or `not-given-by-dns`, or opened |
//!
//! *Denied names, where the default is to open.* A name denied by `https`, `tls`, `http` or `quic` puts a
//! gate before its addresses, which lets every other name pass. One denied by `tcp`, `udp` or `ping` is known
//! by its address alone, which is refused unless DNS gave it as well for a name that an allow rule names, and
//! that none denies there.
//!
//! *Cost.* Names are looked up by their suffixes and addresses by prefix length, so the number of rules
//! enters by its logarithm at most; [`Matches`] keeps the rules of a name, so a flow does not look for them.

use super::address_table::AddressTable;
use super::domain_name::DomainName;
use super::limits::{Limits, Usage};
use super::port_table::{Class, PortTable, RuleNumber, Span, spans};
use super::private;
use super::rule::{Effect, Rule, RuleTarget};
use super::telling::Telling;
use super::{FlowRate, RULES_MAX, floor};
use crate::flow::Protocol;
use crate::time::Duration;
use crate::wire::dns::message::{A, AAAA, CNAME, MX, PTR, SRV};
use hashbrown::HashMap;
use siphasher::sip::SipHasher13;
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Types of service bindings: SVCB and HTTPS (RFC 9460), which may carry addresses and other targets.
pub(crate) const SERVICE_BINDINGS: [u16; 2] = [64, 65];

/// Time for which a name's address is good at least (default), and at most.
pub const PIN_DEFAULT: Duration = Duration::from_secs(3600);
/// Longest time for which an address is good after an answer.
pub const PIN_MAX: Duration = Duration::from_secs(86_400);

/// A rule that allows, with what it lifts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowRule {
    /// The rule.
    pub rule: Rule,
    /// Whether it holds for private addresses too; a rule for a network does unless it says otherwise.
    pub private: bool,
    /// Whether the outer name of an encrypted ClientHello (ECH) is taken for the server's; without, ECH is
    /// refused.
    pub ech_outer: bool,
    /// Index of its limits in [`PolicyRules::limits`].
    pub limits: Option<usize>,
}

impl From<Rule> for AllowRule {
    fn from(rule: Rule) -> Self {
        let private = !rule.target.is_named();
        Self { rule, private, ech_outer: false, limits: None }
    }
}

/// A policy as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRules {
    /// Verdict on flows and names that no rule is about.
    pub default: Effect,
    /// Whether a person is asked before that verdict is one of refusal.
    pub asks: bool,
    /// Verdict on private destinations that no rule lifts.
    pub private: Effect,
    /// Allow rules, in the order in which they were written.
    pub allow: Vec<AllowRule>,
    /// Limits, each for all flows of the allow rules that name it.
    pub limits: Vec<Limits>,
    /// Deny rules, likewise.
    pub deny: Vec<Rule>,
    /// Time for which an address is good at least after an answer, at most [`PIN_MAX`].
    pub pin: Duration,
    /// Types of questions that are asked (numbers of RFC 1035 and its successors).
    pub types: Vec<u16>,
    /// Rate of questions, for all workers together.
    pub questions: FlowRate,
    /// New names in an hour below one wildcard.
    pub names_per_wildcard: u32,
    /// Words for refused programs.
    pub telling: Telling,
}

impl Default for PolicyRules {
    /// Denies everything.
    fn default() -> Self {
        Self {
            default: Effect::Deny,
            asks: false,
            private: Effect::Deny,
            allow: Vec::new(),
            limits: Vec::new(),
            deny: Vec::new(),
            pin: PIN_DEFAULT,
            types: vec![A, AAAA, CNAME, MX, SRV, PTR],
            questions: FlowRate { per_second: 100, burst: 500 },
            names_per_wildcard: 256,
            telling: Telling::default(),
        }
    }
}

/// The rules about one name, or about the names below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NameRules {
    allow: PortTable,
    /// Of the allow rules, those that hold for private addresses.
    private: PortTable,
    /// Of the allow rules, those that take the outer name of an encrypted ClientHello.
    ech: PortTable,
    deny: PortTable,
    /// Deny rule about the name as a whole.
    whole: Option<RuleNumber>,
    /// First allow rule.
    first: Option<RuleNumber>,
}

impl NameRules {
    /// Tables of the rules about one target.
    fn new(about: &[Keyed<'_>]) -> Self {
        let table = |wanted: fn(&Keyed<'_>) -> bool| {
            PortTable::new(about.iter().filter(|keyed| wanted(keyed)).flat_map(Keyed::spans).collect())
        };
        let first = |wanted: fn(&Keyed<'_>) -> bool| about.iter().find(|it| wanted(it)).map(|it| it.number);
        Self {
            allow: table(|keyed| keyed.allow.is_some()),
            private: table(|keyed| keyed.allow.is_some_and(|allow| allow.private)),
            ech: table(|keyed| keyed.allow.is_some_and(|allow| allow.ech_outer)),
            deny: table(|keyed| keyed.allow.is_none() && keyed.rule.scheme.is_some()),
            whole: first(|keyed| keyed.allow.is_none() && keyed.rule.scheme.is_none()),
            first: first(|keyed| keyed.allow.is_some()),
        }
    }
}

/// Where the rules of a name stand: index into [`Ruleset::name_rules`].
type NameSlot = u32;
/// Those of the rules about one name, and of those about the names below it.
type NameSlots = [Option<NameSlot>; 2];

/// The rules that fit a name; empty for a name that no rule is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Matches {
    places: Box<[NameSlot]>,
    /// Allow rule that names it: the first.
    pub(crate) rule: Option<RuleNumber>,
    /// Whether that is by a wildcard below a name, and by no rule for the name itself.
    pub(crate) by_wildcard: bool,
}

/// Reason of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ground {
    /// This deny rule.
    Deny(RuleNumber),
    /// A private destination.
    Private,
    /// A rule names something at this port, but DNS has not given the address for it.
    NotGivenByDns,
    /// No rule fits.
    Default,
}

/// Ways in which a flow behind a gate may name its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Checks {
    pub(crate) tls: bool,
    pub(crate) http: bool,
    pub(crate) quic: bool,
    /// The address is private: the name's rule has to hold there too.
    pub(crate) private: bool,
    /// The gate only looks on: it holds nothing back and refuses nothing.
    pub(crate) observed: bool,
}

/// Verdict of the rules on a new flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// It may be opened, by this rule or by default.
    Open(Option<RuleNumber>),
    /// It may be opened, and its first bytes are to name an allowed server.
    Gate(Checks),
    /// It may not.
    Refuse(Ground),
}

/// Verdict of the rules on a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A resolver is asked.
    Ask,
    /// The name has no records of this type.
    NoData,
    /// The name does not exist.
    NxDomain(Ground),
}

/// A new flow, as the rules see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewFlow<'a> {
    pub(crate) protocol: Protocol,
    /// The guest's side.
    pub(crate) guest: SocketAddr,
    /// Destination as the guest addresses it.
    pub(crate) remote: SocketAddr,
    /// Destination on the host.
    pub(crate) to: SocketAddr,
    /// The host's addresses, sorted.
    pub(crate) host: &'a [IpAddr],
    /// A resolver's port for DNS over TLS or QUIC, which the DNS address stands for. Questions there are not
    /// judged, so it is a flow to that resolver like any other.
    pub(crate) dns_tls: bool,
    /// Destination by the router's other address, if it has two ways to the host's loopback.
    pub(crate) alias: Option<SocketAddr>,
}

impl NewFlow<'_> {
    fn class(&self) -> Class {
        Class::of(self.protocol)
    }

    fn port(&self, address: SocketAddr) -> u16 {
        if self.protocol == Protocol::Echo { 0 } else { address.port() }
    }

    /// Whether the destination was mapped on purpose.
    fn is_translated(&self) -> bool {
        !self.dns_tls && self.remote.ip() != self.to.ip()
    }

    /// Destination by which rules that allow judge it, and which decisions name.
    pub(crate) fn judged(&self) -> SocketAddr {
        if self.dns_tls { self.to } else { self.remote }
    }
}

/// Compiled rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    source: PolicyRules,
    allowed: AddressTable,
    /// Of the allow rules those that hold for private addresses; none if that is all of them.
    lifting: Option<AddressTable>,
    denied: AddressTable,
    /// Slots of names. The guest adds none, so hashes need no secret.
    names: HashMap<Arc<str>, NameSlots, BuildHasherDefault<SipHasher13>>,
    /// Slot of the rules about every name.
    any_name: Option<NameSlot>,
    name_rules: Vec<NameRules>,
    /// Ports of all allow rules about names, and of those with limits.
    named_ports: PortTable,
    limited_ports: PortTable,
    /// Texts under which refusals by deny rules are counted.
    deny_texts: Box<[Arc<str>]>,
}

/// More rules than a policy may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyRules(pub usize);

impl std::fmt::Display for TooManyRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the policy has {} rules, and may have {RULES_MAX}", self.0)
    }
}

impl std::error::Error for TooManyRules {}

impl Ruleset {
    /// Compiles a policy.
    ///
    /// # Errors
    /// It has more than [`RULES_MAX`] rules.
    pub fn new(source: PolicyRules) -> Result<Self, TooManyRules> {
        let count = source.allow.len() + source.deny.len();
        if count > RULES_MAX {
            return Err(TooManyRules(count));
        }
        let (mut names, mut any_name) = (HashMap::<_, NameSlots, _>::default(), None);
        let keyed = keyed(&source);
        let mut name_rules = Vec::with_capacity(keyed.len());
        for about in keyed.chunk_by(|a, b| a.key == b.key) {
            let slot = Some(name_rules.len() as NameSlot);
            name_rules.push(NameRules::new(about));
            let (name, below) = match about[0].key {
                NameKey::Any => {
                    any_name = slot;
                    continue;
                }
                NameKey::Name(name) => (name, 0),
                NameKey::Below(name) => (name, 1),
            };
            names.entry(name.shared()).or_default()[below] = slot;
        }
        let by_address = || (0..).zip(&source.allow).filter(|(_, allow)| !allow.rule.target.is_named());
        let lifts = |allow: &AllowRule| allow.private;
        let allow_table = |wanted: fn(&AllowRule) -> bool| {
            let wanted = by_address().filter(|(_, allow)| wanted(allow));
            address_table(&wanted.map(|(number, allow)| (number, &allow.rule)).collect::<Vec<_>>())
        };
        let allowed = allow_table(|_| true);
        let all_lift = by_address().all(|(_, allow)| lifts(allow));
        let lifting = (!all_lift).then(|| allow_table(lifts));
        let denied = address_table(&(0..).zip(&source.deny).collect::<Vec<_>>());
        let ports = |wanted: fn(&AllowRule) -> bool| {
            let wanted = keyed.iter().filter(|keyed| keyed.allow.is_some_and(wanted));
            PortTable::new(wanted.flat_map(Keyed::spans).collect())
        };
        let (named_ports, limited_ports) = (ports(|_| true), ports(|allow| allow.limits.is_some()));
        let deny_texts = source.deny.iter().map(|rule| format!("deny {rule}").into()).collect();
        Ok(Self {
            source,
            allowed,
            lifting,
            denied,
            names,
            any_name,
            name_rules,
            named_ports,
            limited_ports,
            deny_texts,
        })
    }

    /// The policy from which it was compiled.
    pub fn source(&self) -> &PolicyRules {
        &self.source
    }

    /// Text under which refusals by a deny rule are counted.
    pub(crate) fn deny_text(&self, rule: RuleNumber) -> Option<Arc<str>> {
        self.deny_texts.get(rule as usize).cloned()
    }

    /// Texts under which refusals by deny rules are counted.
    pub(crate) fn deny_texts(&self) -> &[Arc<str>] {
        &self.deny_texts
    }

    /// Text of an allow rule.
    pub(crate) fn allow_text(&self, rule: RuleNumber) -> Option<Arc<str>> {
        self.source.allow.get(rule as usize).map(|allow| allow.rule.text.clone())
    }

    /// Index of the limits of an allow rule.
    pub(crate) fn limits_of(&self, rule: RuleNumber) -> Option<usize> {
        self.source.allow.get(rule as usize)?.limits
    }

    /// Usage of the limits, in their order: what was used of `earlier` limits of the same rules, or nothing.
    pub(crate) fn usage(&self, earlier: &[Arc<Usage>]) -> Vec<Arc<Usage>> {
        let texts = |place: usize| {
            let rules = self.source.allow.iter().filter(|allow| allow.limits == Some(place));
            rules.map(|allow| allow.rule.text.clone()).collect::<Box<[_]>>()
        };
        let usage = |(place, limits): (usize, &Limits)| {
            let rules = texts(place);
            match earlier.iter().find(|earlier| earlier.rules == rules) {
                Some(earlier) => Usage::following(*limits, earlier),
                None => Arc::new(Usage::new(*limits, rules)),
            }
        };
        self.source.limits.iter().enumerate().map(usage).collect()
    }

    /// The deny rule about the address of a flow, as the guest or as the host sees it.
    pub(crate) fn denying_address(&self, flow: &NewFlow<'_>) -> Option<RuleNumber> {
        let class = flow.class();
        let find = |address: SocketAddr| self.denied.find(address.ip(), class, flow.port(address), flow.host);
        [Some(flow.remote), Some(flow.to), flow.alias].into_iter().flatten().filter_map(find).min()
    }

    /// Whether a rule about addresses, or the default, allows echo requests to this one.
    pub(crate) fn allows_ping(&self, address: IpAddr) -> bool {
        let by_address = || self.allowed_at(address).find_literal(address, Class::Ping, 0, &[]).is_some();
        self.source.default == Effect::Allow || by_address()
    }

    /// The allow rules about addresses that may hold for this one.
    fn allowed_at(&self, address: IpAddr) -> &AddressTable {
        self.allowed_for(private::readings(address, &[]).next().is_some())
    }

    /// The allow rules about addresses, of which some leave out the `private` ones and the host's.
    fn allowed_for(&self, private: bool) -> &AddressTable {
        let lifting = self.lifting.as_ref().filter(|_| private && self.source.private == Effect::Deny);
        lifting.unwrap_or(&self.allowed)
    }

    /// Slots of a name.
    fn slots(&self, name: &str) -> NameSlots {
        self.names.get(name).copied().unwrap_or_default()
    }

    /// The rules that fit `name`.
    pub(crate) fn matches(&self, name: &DomainName) -> Matches {
        let own = self.slots(name.as_str())[0];
        let below = name.parents().filter_map(|parent| self.slots(parent)[1]);
        let places: Box<[NameSlot]> = own.into_iter().chain(below).chain(self.any_name).collect();
        let first = |place: NameSlot| self.name_rules.get(place as usize).and_then(|rules| rules.first);
        let rule = places.iter().filter_map(|&place| first(place)).min();
        let exact = own.and_then(first).is_some() || self.any_name.and_then(first).is_some();
        Matches { places, rule, by_wildcard: rule.is_some() && !exact }
    }

    /// Whether the addresses of a name are pinned: an allow rule names it, or a deny rule that its addresses
    /// decide about, where all else is allowed.
    pub(crate) fn is_pinned(&self, matches: &Matches) -> bool {
        let denied = || self.rules_of(matches).any(|rules| !rules.deny.is_empty());
        matches.rule.is_some() || (self.source.default == Effect::Allow && denied())
    }

    /// Whether an allow rule names a name, other than by `*`.
    fn is_named(&self, matches: &Matches) -> bool {
        let named = |place: &NameSlot| {
            let rules = self.name_rules.get(*place as usize);
            Some(*place) != self.any_name && rules.is_some_and(|rules| rules.first.is_some())
        };
        matches.places.iter().any(named)
    }

    /// Verdict on a question for `name` (`None`: a name that no rule can have) and a record type. `reverse`
    /// is the address whose names a PTR question is about, and `pinned` whether DNS gave it for a name; its
    /// digits may be data, so a rule for every name is not about it.
    pub(crate) fn question(
        &self,
        matches: Option<&Matches>,
        qtype: u16,
        reverse: Option<IpAddr>,
        pinned: bool,
    ) -> Answer {
        if let Some(rule) = matches.and_then(|matches| self.denied_as_a_whole(matches)) {
            return Answer::NxDomain(Ground::Deny(rule));
        }
        let open = self.source.default == Effect::Allow;
        if SERVICE_BINDINGS.contains(&qtype) || (!open && !self.source.types.contains(&qtype)) {
            return Answer::NoData;
        }
        let named = match reverse {
            Some(address) => {
                let named = || matches.is_some_and(|matches| self.is_named(matches));
                pinned || self.allowed_at(address).has(address) || named()
            }
            None => matches.is_some_and(|matches| matches.rule.is_some()),
        };
        if named || open { Answer::Ask } else { Answer::NxDomain(Ground::Default) }
    }

    /// The deny rule about the name as a whole.
    fn denied_as_a_whole(&self, matches: &Matches) -> Option<RuleNumber> {
        self.rules_of(matches).filter_map(|rules| rules.whole).min()
    }

    /// Verdict on a new flow above the floor; `names` are those under which DNS gave the guest its address.
    pub(crate) fn opening<'a, I>(&self, flow: &NewFlow<'_>, names: &I) -> Opening
    where
        I: Iterator<Item = &'a Matches> + Clone,
    {
        let class = flow.class();
        if let Some(rule) = self.denying_address(flow) {
            return Opening::Refuse(Ground::Deny(rule));
        }
        let port = flow.port(flow.judged());
        let private = self.source.private == Effect::Deny && !flow.is_translated();
        let readings = || private::readings(flow.judged().ip(), flow.host).filter(|_| private);
        let lifting = self.allowed_for(true);
        let lifts = |ip: IpAddr| lifting.find_literal(ip, class, port, flow.host).is_some();
        let lifted = readings().all(lifts);
        let table = self.allowed_for(flow.is_translated() || readings().next().is_some());
        let by_rule = table.find_literal(flow.judged().ip(), class, port, flow.host);
        if by_rule.is_some() && lifted {
            return Opening::Open(by_rule);
        }
        // The host's loopback is the usual place of a resolver.
        let is_private = !lifted || (flow.dns_tls && floor::forbids(flow.to.ip(), false).is_some());
        // Names that DNS gave the DNS address are none of the resolver's.
        let names = || names.clone().filter(|_| !flow.dns_tls);
        let by_name =
            |class: Class| names().find_map(|matches| self.allowing(matches, class, port, is_private));
        let fits = |class: Class| by_name(class).is_some();
        if let Some(rule) = by_name(class) {
            return Opening::Open(Some(rule));
        }
        let of = |protocol: Protocol, class: Class| flow.protocol == protocol && fits(class);
        let (tls, http) = (of(Protocol::Tcp, Class::Tls), of(Protocol::Tcp, Class::Http));
        let quic = of(Protocol::Udp, Class::Quic);
        let by_default = self.opens_by_default(is_private);
        if by_default && let Some(rule) = self.denying_all(&names(), class, port) {
            return Opening::Refuse(Ground::Deny(rule));
        }
        let denied = |protocol: Protocol, class: Class| {
            let denies = |rules: &'_ NameRules| rules.deny.find(class, port).is_some();
            by_default && flow.protocol == protocol && names().any(|it| self.rules_of(it).any(denies))
        };
        let checks = Checks {
            tls: tls || denied(Protocol::Tcp, Class::Tls),
            http: http || denied(Protocol::Tcp, Class::Http),
            quic: quic || denied(Protocol::Udp, Class::Quic),
            private: is_private,
            observed: false,
        };
        if checks.tls || checks.http || checks.quic {
            return Opening::Gate(checks);
        }
        match self.source.default {
            _ if is_private => Opening::Refuse(Ground::Private),
            Effect::Allow => Opening::Open(None),
            Effect::Deny if self.is_named_port(flow.protocol, port) => Opening::Refuse(Ground::NotGivenByDns),
            Effect::Deny => Opening::Refuse(Ground::Default),
        }
    }

    /// Whether what no rule is about is opened; `private` if the address is, and no rule lifts it.
    pub(crate) fn opens_by_default(&self, private: bool) -> bool {
        self.source.default == Effect::Allow && !private
    }

    /// The rule that denies all traffic of the transport `class` at `port`, or the name as a whole, if there
    /// is one for each of `names` that an allow rule names, and for one of them all at least.
    fn denying_all<'a, I>(&self, names: &I, class: Class, port: u16) -> Option<RuleNumber>
    where
        I: Iterator<Item = &'a Matches> + Clone,
    {
        let found = |rules: &'_ NameRules| rules.deny.find(class, port).into_iter().chain(rules.whole).min();
        let denied = |matches: &Matches| self.rules_of(matches).filter_map(found).min();
        let passes = |matches: &Matches| matches.rule.is_some() && denied(matches).is_none();
        if names.clone().any(passes) { None } else { names.clone().filter_map(denied).min() }
    }

    /// The allow rule for a name in `class` at `port`, unless a deny rule fits; `private` if the address is.
    pub(crate) fn allowing(
        &self,
        matches: &Matches,
        class: Class,
        port: u16,
        private: bool,
    ) -> Option<RuleNumber> {
        if self.denying(matches, class, port).is_some() {
            return None;
        }
        let table = |rules: &'_ NameRules| {
            if private { rules.private.find(class, port) } else { rules.allow.find(class, port) }
        };
        self.rules_of(matches).filter_map(table).min()
    }

    /// Whether a rule takes the outer name of an encrypted ClientHello for the server's.
    pub(crate) fn allows_ech(&self, matches: &Matches, class: Class, port: u16) -> bool {
        self.rules_of(matches).any(|rules| rules.ech.find(class, port).is_some())
    }

    /// The deny rule for a name in `class` at `port`: one about the name as a whole, about the class, or
    /// about its transport. A flow that is not checked is denied by a rule about any name it may contain.
    pub(crate) fn denying(&self, matches: &Matches, class: Class, port: u16) -> Option<RuleNumber> {
        let classes: &[Class] = match class {
            Class::Tcp => &[Class::Tcp, Class::Tls, Class::Http],
            Class::Udp => &[Class::Udp, Class::Quic],
            Class::Ping => &[Class::Ping],
            Class::Tls => &[Class::Tls, Class::Tcp],
            Class::Http => &[Class::Http, Class::Tcp],
            Class::Quic => &[Class::Quic, Class::Udp],
        };
        let found = |rules: &'_ NameRules| {
            let by_port = classes.iter().filter_map(|&class| rules.deny.find(class, port));
            by_port.chain(rules.whole).min()
        };
        self.rules_of(matches).filter_map(found).min()
    }

    fn rules_of<'a>(&'a self, matches: &'a Matches) -> impl Iterator<Item = &'a NameRules> {
        matches.places.iter().filter_map(|&place| self.name_rules.get(place as usize))
    }

    /// The rules that open a flow behind a gate with these checks, whatever name it says.
    pub(crate) fn behind_gate<'a, I>(
        &self,
        flow: &NewFlow<'_>,
        names: &I,
        checks: Checks,
    ) -> impl Iterator<Item = RuleNumber>
    where
        I: Iterator<Item = &'a Matches> + Clone,
    {
        let classes = [(checks.tls, Class::Tls), (checks.http, Class::Http), (checks.quic, Class::Quic)];
        let (port, names) = (flow.port(flow.remote), names.clone());
        let classes = classes.into_iter().filter_map(|(checked, class)| checked.then_some(class));
        classes.flat_map(move |class| {
            let allowing = move |matches| self.allowing(matches, class, port, checks.private);
            names.clone().filter_map(allowing)
        })
    }

    /// Whether a rule allows something by name at this port.
    fn is_named_port(&self, protocol: Protocol, port: u16) -> bool {
        classes_of(protocol).iter().any(|&class| self.named_ports.find(class, port).is_some())
    }

    /// Whether a rule about a name may put a flow under limits.
    pub(crate) fn may_limit(&self, flow: &NewFlow<'_>) -> bool {
        let found = |&class: &Class| self.limited_ports.find(class, flow.port(flow.remote));
        classes_of(flow.protocol).iter().find_map(found).is_some()
    }
}

/// Classes of rules that may allow a flow.
const fn classes_of(protocol: Protocol) -> &'static [Class] {
    match protocol {
        Protocol::Tcp => &[Class::Tcp, Class::Tls, Class::Http],
        Protocol::Udp => &[Class::Udp, Class::Quic],
        Protocol::Echo => &[Class::Ping],
    }
}

/// Target of a rule about names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameKey<'a> {
    Any,
    Name(&'a DomainName),
    Below(&'a DomainName),
}

impl<'a> NameKey<'a> {
    fn of(target: &'a RuleTarget) -> Option<Self> {
        match target {
            RuleTarget::Name(name) => Some(Self::Name(name)),
            RuleTarget::Below(name) => Some(Self::Below(name)),
            RuleTarget::AnyName => Some(Self::Any),
            RuleTarget::Network(_) | RuleTarget::Host => None,
        }
    }

    /// Order in which the rules about a name and those below it are neighbours.
    fn order(self) -> (&'a str, u8) {
        match self {
            Self::Any => ("", 0),
            Self::Name(name) => (name.as_str(), 1),
            Self::Below(name) => (name.as_str(), 2),
        }
    }
}

/// A rule about names, with its number in its list.
struct Keyed<'a> {
    key: NameKey<'a>,
    number: RuleNumber,
    rule: &'a Rule,
    /// The allow rule that it is of; `None`: it denies.
    allow: Option<&'a AllowRule>,
}

impl<'a> Keyed<'a> {
    /// A rule; `None` if it is about addresses.
    fn of(number: RuleNumber, rule: &'a Rule, allow: Option<&'a AllowRule>) -> Option<Self> {
        Some(Self { key: NameKey::of(&rule.target)?, number, rule, allow })
    }

    fn spans(&self) -> impl Iterator<Item = Span> {
        spans(self.rule.scheme, self.rule.ports, self.number)
    }
}

/// All rules about names, those about one target together, in the order in which they were written.
fn keyed(source: &PolicyRules) -> Vec<Keyed<'_>> {
    let allow = (0..).zip(&source.allow).filter_map(|(n, allow)| Keyed::of(n, &allow.rule, Some(allow)));
    let deny = (0..).zip(&source.deny).filter_map(|(n, rule)| Keyed::of(n, rule, None));
    let mut all: Vec<_> = allow.chain(deny).collect();
    all.sort_by(|a, b| a.key.order().cmp(&b.key.order()));
    all
}

/// The rules about addresses, with their numbers.
fn address_table(rules: &[(RuleNumber, &Rule)]) -> AddressTable {
    let spans = rules.iter().flat_map(|&(number, rule)| {
        spans(rule.scheme, rule.ports, number).map(move |span| (&rule.target, span))
    });
    AddressTable::new(&spans.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests;
