//! Addresses to rules: the first rule about an address, whatever the number of rules.
//!
//! Networks are grouped by prefix length; a look-up asks one group for each length in use, thirty-odd at the
//! very most for IPv4, and takes the lowest of the rules found. The order of the rules decides only which of
//! several is counted.

use super::embedded::embedded_ipv4;
use super::port_table::{Class, PortTable, RuleNumber, Span};
use super::rule::RuleTarget;
use crate::cidr::Cidr;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Rules by network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AddressTable {
    networks: BTreeMap<Network, PortTable>,
    /// Bit sets of the prefix lengths in use.
    lengths_v4: u64,
    lengths_v6: [u128; 2],
    /// Rules about the host itself.
    host: PortTable,
}

/// Key of a network: its prefix length, then its address.
type Network = (u8, IpAddr);

impl AddressTable {
    /// A table of rules, each a target with its spans; those about names are left out.
    pub(super) fn new(rules: &[(&RuleTarget, Span)]) -> Self {
        let (mut networks, mut host) = (Vec::<(Network, Span)>::new(), Vec::new());
        for &(target, span) in rules {
            match target {
                RuleTarget::Network(net) => networks.push(((net.prefix_len(), net.address()), span)),
                RuleTarget::Host => host.push(span),
                RuleTarget::Name(_) | RuleTarget::Below(_) | RuleTarget::AnyName => {}
            }
        }
        networks.sort_by_key(|(network, _)| *network);
        let mut table = Self { host: PortTable::new(host), ..Self::default() };
        for ((length, address), _) in &networks {
            match address {
                IpAddr::V4(_) => table.lengths_v4 |= 1 << length,
                IpAddr::V6(_) => table.lengths_v6[usize::from(length / 128)] |= 1 << (length % 128),
            }
        }
        let spans = |about: &[(Network, Span)]| PortTable::new(about.iter().map(|(_, span)| *span).collect());
        let by_network = networks.chunk_by(|a, b| a.0 == b.0);
        table.networks = by_network.map(|about| (about[0].0, spans(about))).collect();
        table
    }

    /// The first rule for this address as it stands, `class` and `port`. `host` has the host's addresses,
    /// sorted.
    pub(super) fn find_literal(
        &self,
        ip: IpAddr,
        class: Class,
        port: u16,
        host: &[IpAddr],
    ) -> Option<RuleNumber> {
        let own = (!ip.is_loopback() && host.binary_search(&ip).is_ok())
            .then(|| self.host.find(class, port))
            .flatten();
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        let used = |&length: &u8| match ip {
            IpAddr::V4(_) => self.lengths_v4 & 1 << length != 0,
            IpAddr::V6(_) => self.lengths_v6[usize::from(length / 128)] & 1 << (length % 128) != 0,
        };
        let found = (0..=longest).filter(used).filter_map(|length| {
            let network = Cidr::new(ip, length)?;
            self.networks.get(&(length, network.address()))?.find(class, port)
        });
        found.chain(own).min()
    }

    /// Whether a rule is about this address as it stands, at any port; rules about the host are not counted.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        let network = |length| Cidr::new(ip, length).map(|network| (length, network.address()));
        (0..=longest).filter_map(network).any(|key| self.networks.contains_key(&key))
    }

    /// The first rule for this address or an IPv4 address embedded in it.
    pub(super) fn find(&self, ip: IpAddr, class: Class, port: u16, host: &[IpAddr]) -> Option<RuleNumber> {
        let inner = embedded_ipv4(ip).filter_map(|inner| self.find_literal(inner.into(), class, port, host));
        inner.chain(self.find_literal(ip, class, port, host)).min()
    }
}
