//! Policy: floor, deny rules and limits, decided once for each new flow of the guest and nowhere else.
//!
//! In this order; the first that refuses decides and is counted, under a text that names it:
//!
//! 1. the [`floor`], which holds for every guest: the host's loopback (reached only through an address mapped
//!    to it, or a forward), link-local addresses, and the metadata services of clouds;
//! 2. the *deny rules*, in the order of the configuration. A rule matches the address and port of the guest's
//!    packet or their translation: the mapped loopback can be denied under either address;
//! 3. the *limits*: flows to one destination at a time, then new flows in a time. Last, so that flows refused
//!    otherwise take no share of them. The bound on all flows is the table's, but counted here with the
//!    others.
//!
//! *Embedded IPv4.* An IPv6 address that a translator or tunnel turns into an IPv4 one is judged as both
//! ([`embedded`]), by floor, rules and limits alike.
//!
//! *Exempt*: queries to the DNS address, which are brodo's own service, and connections accepted on a
//! published port. Datagrams to a published port meet floor and deny rules ([`Policy::decide_inbound`]):
//! their source address is a claim, and a forged one would open the guest a way to a denied destination.
//! Inbound flows have a share of the table ([`crate::flow::quota`]). Rules by name belong behind the deny
//! rules: the name learnt from the guest's DNS answers would be one more field of [`Request`].
//!
//! State is bounded by the flow table: the flows counted for a destination are flows that exist.

mod embedded;
mod floor;

use crate::cidr::Cidr;
use crate::counters::DropReason;
use crate::flow::{FlowId, Protocol};
use crate::port_range::PortRange;
use crate::rate::Bucket;
use crate::snapshot::saved::{Saved, is_count};
use crate::snapshot::v1::PolicyV1;
use crate::time::{Duration, Instant};
use embedded::embedded_ipv4;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Destination of a deny rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Network(Cidr),
    /// All addresses that the host has at the time ([`Policy::set_host_addresses`]), except its loopback.
    Host,
}

/// Deny rule: a network or the host, with all ports or a range of them.
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

    /// The network of the rule, if it has one.
    pub fn network(&self) -> Option<Cidr> {
        match self.target {
            Target::Network(network) => Some(network),
            Target::Host => None,
        }
    }

    /// Whether the rule matches this destination, literally or by its embedded IPv4 address; an echo has no
    /// port. `host` has the host's addresses, sorted.
    fn names(&self, ip: IpAddr, port: Option<u16>, host: &[IpAddr]) -> bool {
        let port_fits = |ports: PortRange| port.is_some_and(|port| ports.contains(port));
        let is_target = |ip: IpAddr| match self.target {
            Target::Network(network) => network.contains(ip),
            Target::Host => !ip.is_loopback() && host.binary_search(&ip).is_ok(),
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
    /// Deny rules; the first that matches is counted.
    pub deny: Vec<Deny>,
    /// Rate of new flows; unlimited by default.
    pub new_flows: Option<FlowRate>,
    /// Most flows to one destination at a time; unlimited by default.
    pub flows_per_destination: Option<u32>,
    /// Number of workers among which both limits are divided; one by default. Each has at least one flow.
    pub workers: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self { deny: Vec::new(), new_flows: None, flows_per_destination: None, workers: 1 }
    }
}

/// A new flow to decide on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) protocol: Protocol,
    /// Destination as the guest addresses it.
    pub(crate) remote: SocketAddr,
    /// Destination on the host.
    pub(crate) to: SocketAddr,
    /// Destination of a forward: the user's permission, to which the floor yields.
    pub(crate) forwarded: bool,
}

/// Decision on a new flow. A rule that needs the flow's first bytes (a name in a TLS or HTTP request) adds a
/// variant for the gate that reads them, and one arm where admission matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The flow may be opened.
    Allow,
    /// The flow is denied by this rule.
    Deny(Refusal),
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
    deny: Vec<Deny>,
    /// The host's own addresses, sorted.
    host_addresses: Arc<[IpAddr]>,
    new_flows: Option<Bucket>,
    per_destination: Option<u32>,
    /// Flows by destination, and their number for each destination; empty without a limit.
    destinations: BTreeMap<IpAddr, u32>,
    counted: BTreeSet<FlowId>,
    /// Text and refusals of each rule.
    counts: Vec<(Arc<str>, u64)>,
}

impl Policy {
    /// This worker's part of `rules`, with all counters zero.
    pub(crate) fn new(rules: &Rules) -> Self {
        let workers = rules.workers.max(1);
        let bucket = |rate: FlowRate| {
            let interval = 1_000_000_000 * u64::from(workers) / u64::from(rate.per_second.max(1));
            Bucket::new(Duration::from_nanos(interval), rate.burst / workers)
        };
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
            deny: rules.deny.clone(),
            host_addresses: Arc::default(),
            new_flows: rules.new_flows.map(bucket),
            per_destination: rules.flows_per_destination.map(|n| (n / workers).max(1)),
            destinations: BTreeMap::new(),
            counted: BTreeSet::new(),
        }
    }

    /// Sets the host's own addresses, sorted. Open flows stay.
    pub(crate) fn set_host_addresses(&mut self, addresses: Arc<[IpAddr]>) {
        debug_assert!(addresses.is_sorted(), "the host's addresses are looked up by halves");
        self.host_addresses = addresses;
    }

    /// The verdict on a new flow, with a refusal counted. An allowed flow takes its token of the rate limit;
    /// [`Policy::opened`] follows if the flow is then created.
    pub(crate) fn decide(&mut self, now: Instant, request: &Request) -> Verdict {
        let denied = forbidden(request).or_else(|| self.denying(request).map(|n| floor::NAMES.len() + n));
        if let Some(rule) = denied {
            let reason = if rule < floor::NAMES.len() { DropReason::Refused } else { DropReason::Denied };
            return Verdict::Deny(self.count(rule, reason));
        }
        let open = self.destinations.get(&counted_as(request.remote.ip())).copied().unwrap_or(0);
        if self.per_destination.is_some_and(|limit| open >= limit) {
            return Verdict::Deny(
                self.count(self.place(Limit::PerDestination), DropReason::FlowsPerDestination),
            );
        }
        if self.new_flows.as_mut().is_some_and(|bucket| !bucket.take(now)) {
            return Verdict::Deny(self.count(self.place(Limit::NewFlows), DropReason::NewFlowRate));
        }
        Verdict::Allow
    }

    /// The verdict on a flow begun by a datagram to a published port: `to` is the peer, `remote` its address
    /// as the guest sees it. The limits do not apply: they are for flows of the guest.
    ///
    /// # Errors
    /// The rule that refuses it, already counted.
    pub(crate) fn decide_inbound(&mut self, request: &Request) -> Result<(), Refusal> {
        if let Some(rule) = floor::forbids_peer(request.to.ip().to_canonical()) {
            return Err(self.count(rule, DropReason::Refused));
        }
        let peer = SocketAddr::new(request.to.ip().to_canonical(), request.to.port());
        match self.denying(&Request { to: peer, ..*request }) {
            Some(rule) => Err(self.count(floor::NAMES.len() + rule, DropReason::Denied)),
            None => Ok(()),
        }
    }

    /// Counts a flow refused because the table is full.
    pub(crate) fn table_full(&mut self) -> Refusal {
        self.count(self.place(Limit::MaxFlows), DropReason::FlowTableFull)
    }

    /// Counts a new flow after its verdict.
    pub(crate) fn opened(&mut self, destination: IpAddr, flow: FlowId) {
        if self.per_destination.is_some() && self.counted.insert(flow) {
            *self.destinations.entry(counted_as(destination)).or_default() += 1;
        }
        debug_assert!(self.destinations.len() <= self.counted.len(), "a destination without a flow");
    }

    /// Notes the end of any flow, counted or not.
    pub(crate) fn closed(&mut self, destination: IpAddr, flow: FlowId) {
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

    /// Index of the first deny rule that matches the request.
    fn denying(&self, request: &Request) -> Option<usize> {
        let port = |address: SocketAddr| (request.protocol != Protocol::Echo).then_some(address.port());
        let named =
            |rule: &Deny, address: SocketAddr| rule.names(address.ip(), port(address), &self.host_addresses);
        self.deny.iter().position(|rule| named(rule, request.remote) || named(rule, request.to))
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

/// For a snapshot.
impl Policy {
    /// Saved form: counts and rate limit. Rules are settings, and open flows are counted as they are
    /// restored.
    pub(crate) fn save(&self) -> PolicyV1<'_> {
        let Self { deny: _, host_addresses: _, new_flows, per_destination: _, .. } = self;
        let Self { destinations: _, counted: _, counts, .. } = self;
        let refused = counts.iter().filter(|(_, count)| *count > 0);
        PolicyV1 {
            refusals: refused.map(|(text, count)| (&**text, *count)).collect(),
            new_flows_full_at: new_flows.as_ref().map(|bucket| bucket.full_at().save()),
        }
    }

    /// Takes the counts of rules with the same texts, and the state of the rate limit.
    pub(crate) fn restore(&mut self, now: Instant, saved: &PolicyV1<'_>) {
        for (text, refusals) in saved.refusals.iter().filter(|(_, refusals)| is_count(*refusals)) {
            if let Some((_, count)) = self.counts.iter_mut().find(|(own, _)| **own == **text) {
                *count = *refusals;
            }
        }
        if let (Some(bucket), Some(at)) = (&mut self.new_flows, saved.new_flows_full_at) {
            bucket.restore(now, Instant::from_ns(at));
        }
    }
}

/// Index of the floor's rule that forbids the request. A destination behind a mapped address or a forward is
/// exempt: the mapping is deliberate.
fn forbidden(request: &Request) -> Option<usize> {
    let intended = request.forwarded || request.remote.ip() != request.to.ip();
    if intended { None } else { floor::forbids(request.remote.ip()) }
}

/// Canonical address of `destination` for the limit per destination, which holds for all its forms together.
fn counted_as(destination: IpAddr) -> IpAddr {
    embedded_ipv4(destination).next().map_or(destination, IpAddr::from)
}

#[cfg(test)]
mod tests;
