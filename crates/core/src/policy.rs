//! Policy: floor, deny rules and limits, decided once for each new flow of the guest and nowhere else.
//!
//! In this order; the first that refuses decides and is counted, under a text that names it:
//!
//! 1. the [`floor`], which holds for every guest: the host's loopback (reached only through an address mapped
//!    to it, or a forward), link-local addresses, and the metadata services of clouds;
//! 2. the *deny rules*, in the order of the configuration. A rule matches the address and port of the guest's
//!    packet or their translation: the mapped loopback can be denied under either address;
//! 3. the *shared policy* ([`SharedPolicy`]), if there is one: rules by name and address for all workers
//!    ([`Ruleset`] has their order), and the addresses that DNS gave the guest for names. It judges questions
//!    too, before a resolver is asked;
//! 4. the *limits*: flows to one destination at a time, then new flows in a time. Last, so that flows refused
//!    otherwise take no share of them. The bound on all flows is the table's, but counted here with the
//!    others. The shared policy's permission is noted behind all three ([`Policy::note_opening`]): a flow is
//!    either allowed or refused.
//!
//! *Embedded IPv4.* An IPv6 address that a translator or tunnel turns into an IPv4 one is judged as both
//! ([`embedded`]), by floor, rules and limits alike.
//!
//! *Exempt*: queries to the DNS address, which are brodo's own service (except by TLS or QUIC, where
//! nothing judges questions: for the shared policy those are flows to the resolver itself), and connections
//! accepted on a published port. Forwards into the guest's loopback are the user's permission, to which all
//! but deny rules yield. Datagrams to a published port meet floor and deny rules
//! ([`Policy::decide_inbound`]): their source address is a claim, and a forged one would open the guest a
//! way to a denied destination. Inbound flows have a share of the table ([`crate::flow::quota`]).
//!
//! State is bounded by the flow table: the flows counted for a destination are flows that exist.

mod address_table;
mod asking;
mod decisions;
mod domain_name;
mod embedded;
mod floor;
mod limited_flows;
mod limits;
mod named;
mod pins;
mod port_table;
mod private;
pub(crate) mod reason;
mod rule;
mod rule_totals;
mod ruleset;
mod saved;
mod secret_hash;
mod shared;
mod telling;
mod trial;
mod wildcards;

use crate::cidr::Cidr;
use crate::counters::DropReason;
use crate::flow::{FlowId, FlowKey, Protocol};
use crate::port_range::PortRange;
use crate::rate::Bucket;
use crate::time::{Duration, Instant};
use embedded::embedded_ipv4;
pub(crate) use limited_flows::{Admission, Allowing, Due, Held, LimitedFlows, Outcome};
pub(crate) use limits::{DOWN, UP};
pub(crate) use named::{Named, Said};
pub(crate) use port_table::Class;
pub(crate) use ruleset::{Checks, NewFlow};
use shared::FlowVerdict;
pub(crate) use shared::review::Reviewed;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub use asking::Asked;
pub use decisions::{
    Audited, Counted, Decision, Kept, NameSource, Occasion, Particulars, Ruling, Stage, Tallied, Trailed,
};
pub use domain_name::DomainName;
pub use limits::{Limits, RATE_MIN};
pub use private::is_private;
pub use rule::{Effect, Rule, RuleError, RuleTarget, Scheme};
pub use rule_totals::RuleTotal;
pub use ruleset::{AllowRule, PIN_DEFAULT, PIN_MAX, PolicyRules, Ruleset, TooManyRules};
pub(crate) use shared::{Permission, QuestionVerdict};
pub use shared::{SharedPolicy, Used};
pub(crate) use telling::cut;
pub use telling::{NOTE_LEN_MAX, Tell, Telling};
pub use trial::Tried;

/// Most rules of a policy.
pub const RULES_MAX: usize = 16_384;

/// Destination of a deny rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Network(Cidr),
    /// All addresses that the host has at the time ([`Policy::set_host_addresses`]), except its loopback.
    Host,
    /// Private networks, and the host's addresses likewise ([`private`]).
    Private,
}

/// Deny rule: a network, the host or all that is private, with all ports or a range of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deny {
    target: Target,
    ports: Option<PortRange>,
}

impl Deny {
    /// A rule for the network of `address` with a prefix of so many bits (0 to 32 or 128), and for `ports`
    /// or, without, for all traffic, echo included. `None` if the
    /// prefix is too long or the ports are in the wrong order.
    pub fn new(address: IpAddr, prefix_len: u8, ports: Option<PortRange>) -> Option<Self> {
        let network = Cidr::new(address, prefix_len)?;
        in_order(ports).then_some(Self { target: Target::Network(network), ports })
    }

    /// A rule for the addresses that the host has at the time, except its loopback: that belongs to the
    /// floor, and its mapping to an address of the link is deliberate. `None` if the ports are in the wrong
    /// order.
    pub fn host(ports: Option<PortRange>) -> Option<Self> {
        in_order(ports).then_some(Self { target: Target::Host, ports })
    }

    /// A rule for private networks (RFC 6890 and multicast groups) and the addresses that the host has at the
    /// time, except its loopback, as for [`Deny::host`]. `None` if the ports are in the wrong order.
    pub fn private(ports: Option<PortRange>) -> Option<Self> {
        in_order(ports).then_some(Self { target: Target::Private, ports })
    }

    /// The network of the rule, if it has one.
    pub fn network(&self) -> Option<Cidr> {
        match self.target {
            Target::Network(network) => Some(network),
            Target::Host | Target::Private => None,
        }
    }

    /// Whether this is every address of a family, whatever the port.
    fn is_whole(&self, v6: bool) -> bool {
        let covers = |net: Cidr| net.prefix_len() == 0 && net.address().is_ipv6() == v6;
        self.ports.is_none() && self.network().is_some_and(covers)
    }

    /// Whether the rule matches this destination, literally or by its embedded IPv4 address; an echo has no
    /// port. `host` has the host's addresses, sorted.
    fn names(&self, ip: IpAddr, port: Option<u16>, host: &[IpAddr]) -> bool {
        let port_fits = |ports: PortRange| port.is_some_and(|port| ports.contains(port));
        let is_target = |ip: IpAddr| match self.target {
            Target::Network(network) => network.contains(ip),
            Target::Host => !ip.is_loopback() && host.binary_search(&ip).is_ok(),
            Target::Private => !ip.is_loopback() && private::readings(ip, host).next().is_some(),
        };
        self.ports.is_none_or(port_fits)
            && (is_target(ip) || embedded_ipv4(ip).any(|inner| is_target(inner.into())))
    }
}

fn in_order(ports: Option<PortRange>) -> bool {
    ports.is_none_or(|ports| ports.first <= ports.last)
}

impl fmt::Display for Deny {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.target, self.ports) {
            (Target::Host, _) => f.write_str("host")?,
            (Target::Private, _) => f.write_str("private")?,
            (Target::Network(network), Some(_)) if network.address().is_ipv6() => {
                write!(f, "[{}]/{}", network.address(), network.prefix_len())?;
            }
            (Target::Network(network), _) => write!(f, "{network}")?,
        }
        match self.ports {
            Some(ports) => write!(f, ":{ports}"),
            None => Ok(()),
        }
    }
}

/// Rate limit of new flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowRate {
    /// New flows per second, at least one.
    pub per_second: u32,
    /// New flows at once after a pause, at least one.
    pub burst: u32,
}

impl fmt::Display for FlowRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", self.per_second)?;
        if self.burst == self.per_second { Ok(()) } else { write!(f, ":{}", self.burst) }
    }
}

/// Rules and limits for the flows of a guest, besides their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Whether the floor leaves out link-local addresses and the metadata services of clouds.
    pub link_local: bool,
    /// Deny rules; the first that matches is counted.
    pub deny: Vec<Deny>,
    /// Rate of new flows; unlimited by default.
    pub new_flows: Option<FlowRate>,
    /// Most flows to one destination at a time; unlimited by default.
    pub flows_per_destination: Option<u32>,
    /// Rate of questions to resolvers without a policy, which has one of its own.
    pub questions: FlowRate,
    /// Rules by name and address that all workers share; without, every destination is allowed that `deny`
    /// does not name.
    pub shared: Option<Arc<SharedPolicy>>,
    /// Number of workers among which these limits are divided; one by default. Each has at least one flow.
    pub workers: u32,
}

impl Rules {
    /// Whether deny rules alone leave a guest of these families no destination at all.
    pub(crate) fn deny_everything(&self, v4: bool, v6: bool) -> bool {
        let is_denied = |v6| self.deny.iter().any(|rule| rule.is_whole(v6));
        self.shared.is_none() && (v4 || v6) && (!v4 || is_denied(false)) && (!v6 || is_denied(true))
    }

    /// One worker's part of a rate.
    pub(crate) fn bucket(&self, rate: FlowRate) -> Bucket {
        let workers = self.workers.max(1);
        let interval = 1_000_000_000 * u64::from(workers) / u64::from(rate.per_second.max(1));
        Bucket::new(Duration::from_nanos(interval), rate.burst / workers)
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            link_local: false,
            deny: Vec::new(),
            new_flows: None,
            flows_per_destination: None,
            questions: FlowRate { per_second: 1000, burst: 5000 },
            shared: None,
            workers: 1,
        }
    }
}

/// A new flow to decide on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) protocol: Protocol,
    /// The guest's side.
    pub(crate) guest: SocketAddr,
    /// Destination as the guest addresses it.
    pub(crate) remote: SocketAddr,
    /// Destination on the host.
    pub(crate) to: SocketAddr,
    /// Destination of a forward: the user's permission, to which the floor yields.
    pub(crate) forwarded: bool,
    /// A resolver's port for DNS over TLS or QUIC, which the DNS address stands for.
    pub(crate) dns_tls: bool,
}

/// Decision on a new flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The flow may be opened if there is room for it: by this permission, to be noted when it is.
    Allow(Option<Permission>),
    /// The flow may be opened behind a gate, which reads the server's name in its first bytes.
    Inspect(Checks),
    /// A person is asked: neither opened nor refused.
    Wait,
    /// The flow is denied by this rule.
    Deny(Refusal),
}

/// A question that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedQuestion {
    /// The rule or reason of the policy; none if it was beyond the rate.
    pub(crate) by: Option<Arc<str>>,
    /// The name, without final dot.
    pub(crate) name: Box<str>,
    /// Type of the records asked for.
    pub(crate) qtype: u16,
    /// The guest's side.
    pub(crate) guest: SocketAddr,
    /// Under which it is counted.
    pub(crate) reason: DropReason,
}

/// The rule that denies a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: DropReason,
    /// Index of the rule among the counts.
    rule: usize,
}

/// Limits, last in the list of counts.
#[derive(Debug, Clone, Copy)]
enum Limit {
    PerDestination,
    NewFlows,
    MaxFlows,
}

/// Rules of one worker, with their counters.
#[derive(Debug)]
pub(crate) struct Policy {
    link_local: bool,
    deny: Vec<Deny>,
    /// The host's own addresses, sorted.
    host_addresses: Arc<[IpAddr]>,
    /// The router's address by which flows to it are judged, and its other one, if both lead to the host's
    /// loopback.
    router: Option<[IpAddr; 2]>,
    new_flows: Option<Bucket>,
    per_destination: Option<u32>,
    /// Flows by destination, and their number for each destination; empty without a limit.
    destinations: BTreeMap<IpAddr, u32>,
    counted: BTreeSet<FlowId>,
    /// Rules shared by all workers.
    shared: Option<Arc<SharedPolicy>>,
    /// Flows whose end the shared policy is to learn, with their destinations.
    held: BTreeMap<FlowId, IpAddr>,
    /// Flows whose rules have limits.
    pub(crate) limited: LimitedFlows,
    /// Text and refusals of each rule: of the floor, the deny rules and the limits, then of the shared
    /// policy as they occur.
    counts: Vec<(Arc<str>, u64)>,
    /// Counts of a policy that has ended, by digest, as far as no rule goes on with them.
    before: BTreeMap<u64, u64>,
    /// Places in `counts` behind the limits.
    by_text: BTreeMap<Arc<str>, usize>,
}

impl Policy {
    /// This worker's part of `rules`, with all counters zero.
    pub(crate) fn new(rules: &Rules) -> Self {
        let limit = |name: &str, value: Option<String>| match value {
            Some(value) => format!("{name} {value}"),
            None => name.to_owned(),
        };
        let texts = floor::NAMES
            .iter()
            .map(|&name| name.to_owned())
            .chain(rules.deny.iter().map(|rule| format!("deny {rule}")))
            .chain([
                limit("max-flows-per-destination", rules.flows_per_destination.map(|n| n.to_string())),
                limit("max-new-flows", rules.new_flows.map(|rate| rate.to_string())),
                limit("max-flows", None),
            ]);
        Self {
            counts: texts.map(|text| (text.into(), 0)).collect(),
            before: BTreeMap::new(),
            by_text: BTreeMap::new(),
            shared: rules.shared.clone(),
            held: BTreeMap::new(),
            limited: LimitedFlows::default(),
            link_local: rules.link_local,
            deny: rules.deny.clone(),
            host_addresses: Arc::default(),
            router: None,
            new_flows: rules.new_flows.map(|rate| rules.bucket(rate)),
            per_destination: rules.flows_per_destination.map(|n| (n / rules.workers.max(1)).max(1)),
            destinations: BTreeMap::new(),
            counted: BTreeSet::new(),
        }
    }

    /// Sets the router's addresses: the one by which flows to it are judged, and its other one. A deny rule
    /// for either holds for both.
    pub(crate) fn set_router(&mut self, router: Option<[IpAddr; 2]>) {
        self.router = router;
    }

    /// The destination of a flow by the router's other address.
    fn alias(&self, request: &Request) -> Option<SocketAddr> {
        let [judged, other] = self.router.filter(|_| !request.forwarded)?;
        (request.remote.ip() == judged).then(|| SocketAddr::new(other, request.remote.port()))
    }

    /// Sets the host's own addresses, sorted. Open flows stay.
    pub(crate) fn set_host_addresses(&mut self, addresses: Arc<[IpAddr]>) {
        debug_assert!(addresses.is_sorted(), "the host's addresses are looked up by halves");
        self.host_addresses = addresses;
    }

    /// The host's own addresses.
    pub(crate) fn host_addresses(&self) -> Arc<[IpAddr]> {
        self.host_addresses.clone()
    }

    /// The verdict on a new flow, with a refusal counted. An allowed flow takes its token of the rate limit;
    /// [`Policy::opened`] follows if the flow is then created.
    pub(crate) fn decide(&mut self, now: Instant, request: &Request) -> Verdict {
        let denied =
            self.forbidden(request).or_else(|| self.denying(request).map(|n| floor::NAMES.len() + n));
        if let Some(rule) = denied {
            let reason = if rule < floor::NAMES.len() { DropReason::Refused } else { DropReason::Denied };
            let text = self.counts[rule].0.clone();
            self.note_unopened(now, request, &text);
            return Verdict::Deny(self.count(rule, reason));
        }
        let verdict = match self.judged_by_shared(now, request) {
            FlowVerdict::Open(permission) => Verdict::Allow(permission),
            FlowVerdict::Gate(checks) => Verdict::Inspect(checks),
            FlowVerdict::Wait => return Verdict::Wait,
            FlowVerdict::Refuse(text) => {
                self.note_unopened(now, request, &text);
                return Verdict::Deny(self.count_text(&text, DropReason::Denied));
            }
        };
        let open = self.destinations.get(&counted_as(request.remote.ip())).copied().unwrap_or(0);
        if self.per_destination.is_some_and(|limit| open >= limit) {
            return Verdict::Deny(self.beyond(now, request, Limit::PerDestination));
        }
        if self.new_flows.as_mut().is_some_and(|bucket| !bucket.take(now)) {
            return Verdict::Deny(self.beyond(now, request, Limit::NewFlows));
        }
        verdict
    }

    /// The refusal of a flow beyond a limit, counted and noted.
    fn beyond(&mut self, now: Instant, request: &Request, limit: Limit) -> Refusal {
        let reason = match limit {
            Limit::PerDestination => DropReason::FlowsPerDestination,
            Limit::NewFlows => DropReason::NewFlowRate,
            Limit::MaxFlows => DropReason::FlowTableFull,
        };
        let place = self.place(limit);
        let text = self.counts[place].0.clone();
        self.note_unopened(now, request, &text);
        self.count(place, reason)
    }

    /// Notes that a flow opens by a permission of the shared policy.
    pub(crate) fn note_opening(&self, now: Instant, request: &Request, permission: Permission) {
        if let Some(shared) = &self.shared {
            shared.opening_allowed(now, &self.as_new_flow(request), permission);
        }
    }

    /// The verdict on a flow begun by a datagram to a published port: `to` is the peer, `remote` its address
    /// as the guest sees it. The limits do not apply: they are for flows of the guest.
    ///
    /// # Errors
    /// The rule that refuses it, already counted.
    pub(crate) fn decide_inbound(&mut self, now: Instant, request: &Request) -> Result<(), Refusal> {
        let request = Request { to: canonical(request.to), ..*request };
        let refusal = if let Some(rule) = floor::forbids_peer(request.to.ip(), self.link_local) {
            self.count(rule, DropReason::Refused)
        } else if let Some(rule) = self.denying(&request) {
            self.count(floor::NAMES.len() + rule, DropReason::Denied)
        } else {
            let flow = self.as_new_flow(&request);
            let denied = self.shared.as_ref().and_then(|shared| shared.denied(&flow));
            let Some(text) = denied else { return Ok(()) };
            self.count_text(&text, DropReason::Denied)
        };
        self.note_inbound(now, &request, refusal);
        Err(refusal)
    }

    /// The refusal of everything that a peer begins, counted, in a lockdown.
    pub(crate) fn inbound_lockdown(&mut self, now: Instant, request: &Request) -> Option<Refusal> {
        let text = self.locked()?;
        let refusal = self.count_text(&text, DropReason::Denied);
        self.note_inbound(now, request, refusal);
        Some(refusal)
    }

    /// Keeps a refusal of what a peer has begun, under a shared policy.
    fn note_inbound(&self, now: Instant, request: &Request, refusal: Refusal) {
        if let (Some(shared), Some(text)) = (&self.shared, self.text(refusal)) {
            let decision = Decision::on_inbound(request.protocol, canonical(request.to), text);
            shared.note(now, request.guest, decision, Particulars::default());
        }
    }

    /// Verdict of the shared policy on a flow. A forward is the user's permission, to which all but deny
    /// rules yield.
    fn judged_by_shared(&self, now: Instant, request: &Request) -> FlowVerdict {
        let Some(shared) = &self.shared else { return FlowVerdict::Open(None) };
        let flow = self.as_new_flow(request);
        if request.forwarded {
            return shared.denied(&flow).map_or(FlowVerdict::Open(None), FlowVerdict::Refuse);
        }
        shared.opening(now, &flow)
    }

    /// Keeps a refusal under a shared policy for those who ask for reasons.
    fn note_unopened(&self, now: Instant, request: &Request, text: &Arc<str>) {
        self.note_ruling(now, request, text, Ruling::Denied);
    }

    fn note_ruling(&self, now: Instant, request: &Request, text: &Arc<str>, ruling: Ruling) {
        let Some(shared) = &self.shared else { return };
        let judged = self.as_new_flow(request).judged();
        let refusal = Decision::on_flow(request.protocol, judged, text.clone(), ruling);
        shared.note(now, request.guest, refusal, Particulars::default());
    }

    /// The reason by which everything is refused, if it is.
    pub(crate) fn locked(&self) -> Option<Arc<str>> {
        self.shared.as_ref()?.lockdown()
    }

    fn as_new_flow(&self, request: &Request) -> NewFlow<'_> {
        let Request { protocol, guest, remote, to, dns_tls, .. } = *request;
        let (host, alias) = (&*self.host_addresses, self.alias(request));
        NewFlow { protocol, guest, remote, to, host, dns_tls, alias }
    }

    /// The rule or reason by which a flow that is open would be refused now, if its rules have changed.
    pub(crate) fn review(&self, now: Instant, request: &Request, reviewed: Reviewed<'_>) -> Option<Arc<str>> {
        let (shared, flow) = (self.shared.as_ref()?, self.as_new_flow(request));
        if request.forwarded { shared.denied(&flow) } else { shared.review(now, &flow, reviewed) }
    }

    /// Counts a refused question; without a rule or reason it was above the rate.
    pub(crate) fn question_refused(&mut self, now: Instant, refused: &RefusedQuestion) {
        let Some(shared) = self.shared.clone().filter(|_| refused.reason == DropReason::Denied) else {
            return;
        };
        let text = refused.by.clone().unwrap_or_else(|| shared.reason(reason::QUESTION_RATE));
        let refusal = Decision::on_question(refused.name.clone(), text.clone(), Ruling::Denied);
        shared.note(now, refused.guest, refusal, Particulars::of_question(refused.qtype));
        self.count_text(&text, DropReason::Denied);
    }

    /// Whether rules have limits.
    pub(crate) fn is_limiting(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.is_limiting())
    }

    /// Time of the change since which rules have limits.
    pub(crate) fn limiting_since(&self) -> Instant {
        self.shared.as_ref().map_or(Instant::ZERO, |shared| shared.limiting_since())
    }

    /// The rule that allows an open flow.
    pub(crate) fn allowing(&self, now: Instant, request: &Request, named: Option<&Named>) -> Allowing {
        let Some(shared) = &self.shared else { return Allowing::Unlimited };
        shared.allowing(now, &self.as_new_flow(request), named)
    }

    /// Counts a refusal by a gate.
    pub(crate) fn refused_at_gate(
        &mut self,
        now: Instant,
        text: &Arc<str>,
        key: &FlowKey,
        named: Option<&Named>,
    ) {
        self.count_text(text, DropReason::Denied);
        self.note_of_flow(now, Stage::Gate, text, key, named);
    }

    /// Notes the end of an open flow that is not allowed any more.
    pub(crate) fn ended_by(&self, now: Instant, text: &Arc<str>, key: &FlowKey, named: Option<&Named>) {
        self.note_of_flow(now, Stage::End, text, key, named);
    }

    /// Notes a refusal of a flow that had begun.
    fn note_of_flow(
        &self,
        now: Instant,
        stage: Stage,
        text: &Arc<str>,
        key: &FlowKey,
        named: Option<&Named>,
    ) {
        let Some(shared) = &self.shared else { return };
        let name = named.map(|named| String::from_utf8_lossy(&named.name).into());
        let opening = Decision::on_flow(key.protocol, key.remote.into(), text.clone(), Ruling::Denied);
        let said = Particulars::of_named(named, text);
        shared.note(now, key.guest.into(), Decision { name, stage, ..opening }, said);
    }

    /// Text of a reason of the policy.
    pub(crate) fn reason(&self, text: &str) -> Arc<str> {
        self.shared.as_ref().map_or_else(|| text.into(), |shared| shared.reason(text))
    }

    /// Counts a flow that has ended under the rule that allows it.
    pub(crate) fn account(&self, now: Instant, request: &Request, named: Option<&Named>, bytes: [u64; 2]) {
        if let Some(shared) = &self.shared {
            shared.account(now, &self.as_new_flow(request), named, bytes);
        }
    }

    /// Counts a flow beyond the bound of gates; it goes on without one if a gate would only look on.
    pub(crate) fn gates_full(&mut self, now: Instant, request: &Request, checks: Checks) -> Option<Refusal> {
        let text = reason::GATE_OVERLOAD.into();
        if checks.observed {
            self.note_ruling(now, request, &text, Ruling::WouldDeny);
            return None;
        }
        self.note_unopened(now, request, &text);
        Some(self.count_text(&text, DropReason::Denied))
    }

    /// Counts a connection to the DNS address that is refused, if it is: if there are as many as may be
    /// (`full`), or in a lockdown.
    pub(crate) fn dns_over_tcp(&mut self, now: Instant, key: &FlowKey, full: bool) -> Option<Refusal> {
        let Some(shared) = self.shared.as_ref() else {
            return full.then(|| self.count_text(&"dns-over-tcp".into(), DropReason::DnsOverload));
        };
        let full = || full.then(|| shared.reason(reason::DNS_OVER_TCP));
        let text = shared.lockdown().or_else(full)?;
        self.note_of_flow(now, Stage::Open, &text, key, None);
        Some(self.count_text(&text, DropReason::Denied))
    }

    /// The refusal of a flow because the table is full, counted and noted.
    pub(crate) fn table_full(&mut self, now: Instant, request: &Request) -> Refusal {
        self.beyond(now, request, Limit::MaxFlows)
    }

    /// Counts a new flow after its verdict.
    pub(crate) fn opened(&mut self, now: Instant, destination: IpAddr, flow: FlowId) {
        if self.shared.as_ref().is_some_and(|shared| shared.flow_opened(now, destination)) {
            self.held.insert(flow, destination);
        }
        if self.per_destination.is_some() && self.counted.insert(flow) {
            *self.destinations.entry(counted_as(destination)).or_default() += 1;
        }
        debug_assert!(self.destinations.len() <= self.counted.len(), "a destination without a flow");
    }

    /// Notes the end of any flow, counted or not.
    pub(crate) fn closed(&mut self, now: Instant, destination: IpAddr, flow: FlowId) {
        self.limited.close(flow);
        if let Some(held) = self.held.remove(&flow)
            && let Some(shared) = &self.shared
        {
            shared.flow_closed(now, held);
        }
        let destination = counted_as(destination);
        if self.counted.remove(&flow)
            && let Some(open) = self.destinations.get_mut(&destination)
        {
            *open -= 1;
            if *open == 0 {
                self.destinations.remove(&destination);
            }
        }
        debug_assert!(self.destinations.len() <= self.counted.len(), "a destination without a flow");
    }

    /// Text of the rule that refused a flow.
    pub(crate) fn text(&self, refusal: Refusal) -> Option<Arc<str>> {
        self.counts.get(refusal.rule).map(|(text, _)| text.clone())
    }

    /// Text and refusals of every rule: the floor, the deny rules in their order, the limits.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counts.iter().map(|(text, count)| (&**text, *count))
    }

    /// Index of the floor's rule that forbids the request. A destination behind a mapped address or a forward
    /// is exempt: the mapping is deliberate.
    fn forbidden(&self, request: &Request) -> Option<usize> {
        let intended = request.forwarded || request.remote.ip() != request.to.ip();
        if intended { None } else { floor::forbids(request.remote.ip(), self.link_local) }
    }

    /// Index of the first deny rule that matches the request.
    fn denying(&self, request: &Request) -> Option<usize> {
        let port = |address: SocketAddr| (request.protocol != Protocol::Echo).then_some(address.port());
        let named =
            |rule: &Deny, address: SocketAddr| rule.names(address.ip(), port(address), &self.host_addresses);
        let addresses = [Some(request.to), self.alias(request), Some(request.remote)];
        // The guest's own network is private, and an address of it that stands for another is judged by that.
        let is_mapped = request.remote.ip() != request.to.ip();
        self.deny.iter().position(|rule| {
            let count = if is_mapped && rule.target == Target::Private { 2 } else { 3 };
            addresses.into_iter().take(count).flatten().any(|address| named(rule, address))
        })
    }

    /// Counts a refusal by a rule or reason of the shared policy.
    fn count_text(&mut self, text: &Arc<str>, reason: DropReason) -> Refusal {
        let rule = self.place_of(text);
        self.count(rule, reason)
    }

    /// Place of the count of a rule or reason of the shared policy.
    fn place_of(&mut self, text: &Arc<str>) -> usize {
        let next = self.counts.len();
        let place = *self.by_text.entry(text.clone()).or_insert(next);
        if place == next {
            let before = self.before.remove(&digest(text));
            self.counts.push((text.clone(), before.unwrap_or_default()));
        }
        place
    }

    fn place(&self, limit: Limit) -> usize {
        floor::NAMES.len() + self.deny.len() + limit as usize
    }

    fn count(&mut self, rule: usize, reason: DropReason) -> Refusal {
        if let Some((_, count)) = self.counts.get_mut(rule) {
            *count += 1;
        }
        Refusal { reason, rule }
    }
}

/// Number by which a rule's text is known again, by the same program.
pub(crate) fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// Flows that end with their stack hold no pins.
impl Drop for Policy {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            for ip in std::mem::take(&mut self.held).values() {
                shared.flow_closed(Instant::ZERO, *ip);
            }
        }
    }
}

/// An address without its form for sockets of both families.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Canonical address of `destination` for the limit per destination, which holds for all its forms together.
fn counted_as(destination: IpAddr) -> IpAddr {
    embedded_ipv4(destination).next().map_or(destination, IpAddr::from)
}

#[cfg(test)]
mod tests;
