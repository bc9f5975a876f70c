//! Rules of the protocol and forwards of brodo, each as the other.
//!
//! A forward becomes one rule for each range of ports without exclusions. `all` and `auto` are flags of
//! rules for ranges. Backwards a rule is a forward; those of `all` or `auto` at one place are one, with the
//! ports between them excluded.

use super::wire::{ANY, Rule, SCAN, TCP, Table, TableId, UDP, WEAK};
use brodo_control::flow::Protocol;
use brodo_control::method::{AddForward, Forward, Side};
use brodo_net::forward::spec::{Mapping, PortRange, Ports, Spec};
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;

/// All ports.
const PORTS: PortRange = PortRange { first: 1, last: u16::MAX };
/// The guest's loopback, as the protocol names it in rules of SPLICE.
const LOOPBACK: &str = "lo";

/// The table of a forward's rules.
pub(super) fn table_of(side: Side) -> TableId {
    match side {
        Side::Host => TableId::Host,
        Side::Guest => TableId::Splice,
    }
}

/// Both tables with the rules of these forwards.
pub(super) fn tables(forwards: &[Forward], ephemeral: &RangeInclusive<u16>) -> Vec<Table> {
    let of = |id| {
        let forwards = forwards.iter().filter(|forward| table_of(forward.side) == id);
        Table { id, rules: forwards.flat_map(|forward| of_forward(forward, ephemeral)).collect() }
    };
    TableId::ALL.map(of).to_vec()
}

/// Rules of a forward; none of one that is not understood.
pub(super) fn of_forward(forward: &Forward, ephemeral: &RangeInclusive<u16>) -> Vec<Rule> {
    let spec = forward.spec.parse::<Spec>();
    spec.map(|spec| of_spec(&spec, table_of(forward.side), forward.protocol, ephemeral)).unwrap_or_default()
}

/// Rules of a specification. `ephemeral` are the ports that the host hands out to clients.
pub(crate) fn of_spec(
    spec: &Spec,
    table: TableId,
    protocol: Protocol,
    ephemeral: &RangeInclusive<u16>,
) -> Vec<Rule> {
    let at = |to_address| move |from: PortRange| Mapping { from, to_address, to: from.first };
    let same = at(None);
    let ephemeral = PortRange { first: *ephemeral.start(), last: *ephemeral.end() };
    let (mappings, flags) = match &spec.ports {
        Ports::None => (Vec::new(), 0),
        Ports::These(mappings) => (mappings.clone(), 0),
        Ports::AutoOf(ranges) => (ranges.iter().copied().map(same).collect(), SCAN),
        Ports::All(to) => (without(PORTS, &[ephemeral]).into_iter().map(at(*to)).collect(), WEAK),
        Ports::Auto => (vec![same(PORTS)], WEAK | SCAN),
    };
    let is_loopback = table == TableId::Splice && spec.address.is_none() && spec.interface.is_none();
    let interface = if is_loopback { Some(LOOPBACK.to_owned()) } else { spec.interface.clone() };
    let rule = |Mapping { from, to_address, to }: Mapping, range: PortRange| Rule {
        listen: spec.address.unwrap_or(Ipv6Addr::UNSPECIFIED.into()),
        interface: interface.clone(),
        first: range.first,
        last: range.last,
        target: to_address,
        to: to + (range.first - from.first),
        protocol: if protocol == Protocol::Udp { UDP } else { TCP },
        flags: flags | if spec.address.is_none() { ANY } else { 0 },
    };
    let rules = mappings
        .into_iter()
        .map(|mapping| without(mapping.from, &spec.excluded).into_iter().map(move |range| (mapping, range)));
    rules.flatten().map(|(mapping, range)| rule(mapping, range)).collect()
}

/// The rest of a range.
fn without(range: PortRange, excluded: &[PortRange]) -> Vec<PortRange> {
    let mut left = vec![range];
    for hole in excluded {
        left = left
            .into_iter()
            .flat_map(|part| {
                let below = (part.first < hole.first)
                    .then(|| PortRange { first: part.first, last: part.last.min(hole.first - 1) });
                let above = (part.last > hole.last)
                    .then(|| PortRange { first: part.first.max(hole.last + 1), last: part.last });
                below.into_iter().chain(above)
            })
            .collect();
    }
    left
}

/// The forwards that these rules of a table ask for.
///
/// # Errors
/// A rule has ports or a protocol that there are not; a sentence.
pub(super) fn forwards(table: TableId, rules: &[Rule]) -> Result<Vec<AddForward>, String> {
    let side = match table {
        TableId::Host => Side::Host,
        TableId::Splice => Side::Guest,
    };
    let mut forwards: Vec<AddForward> = Vec::new();
    let mut left: Vec<&Rule> = rules.iter().collect();
    while let Some(&rule) = left.first() {
        let (same, others): (Vec<&Rule>, Vec<&Rule>) = match rule.flags & WEAK {
            0 => (vec![rule], left[1..].to_vec()),
            _ => left.iter().partition(|other| is_beside(rule, other)),
        };
        left = others;
        let protocol = match rule.protocol {
            TCP => Protocol::Tcp,
            UDP => Protocol::Udp,
            other => return Err(format!("{rule}: protocol {other} has no ports to forward")),
        };
        let spec = specification(table, &same)?;
        forwards.push(AddForward { side, protocol, spec: spec.to_string() });
    }
    Ok(forwards)
}

/// Whether two rules differ in their ports alone.
fn is_beside(one: &Rule, other: &Rule) -> bool {
    let of = |rule: &Rule| Rule { first: 0, last: 0, to: 0, ..rule.clone() };
    of(one) == of(other)
}

/// The specification of rules that differ in their ports alone.
fn specification(table: TableId, rules: &[&Rule]) -> Result<Spec, String> {
    let Some(&first) = rules.first() else { return Err("there is nothing to forward".to_owned()) };
    let range = |rule: &Rule| match (rule.first, rule.last) {
        (first @ 1.., last) if first <= last && rule.to > 0 && u16::MAX - rule.to >= last - first => {
            Ok(PortRange { first, last })
        }
        _ => Err(format!("{rule}: it has a port outside of 1 to 65535")),
    };
    let ranges = rules.iter().map(|rule| range(rule)).collect::<Result<Vec<_>, _>>()?;
    let is_same = rules.iter().all(|rule| rule.to == rule.first);
    let is_followed_elsewhere = first.flags & SCAN != 0 && first.target.is_some();
    if is_followed_elsewhere || (first.flags & (WEAK | SCAN) != 0 && !is_same) {
        return Err(format!("{first}: ports that are followed lead to those of the same number"));
    }
    let (ports, excluded) = match (first.flags & WEAK != 0, first.flags & SCAN != 0) {
        (false, false) => {
            let mapping = |from| Mapping { from, to_address: first.target, to: first.to };
            (Ports::These(ranges.into_iter().map(mapping).collect()), Vec::new())
        }
        (false, true) => (Ports::AutoOf(ranges), Vec::new()),
        (true, scans) => {
            let excluded = without(PORTS, &ranges);
            (if scans { Ports::Auto } else { Ports::All(first.target) }, excluded)
        }
    };
    let address = (first.flags & ANY == 0).then_some(first.listen);
    let is_loopback = table == TableId::Splice && first.interface.as_deref() == Some(LOOPBACK);
    let interface = first.interface.clone().filter(|_| !(is_loopback && address.is_none()));
    let target_fits = |listen: IpAddr| first.target.is_none_or(|to| to.is_ipv4() == listen.is_ipv4());
    if !address.is_none_or(target_fits) {
        return Err(format!("{first}: the two addresses are of different families"));
    }
    Ok(Spec { address, interface, ports, excluded })
}

#[cfg(test)]
mod tests;
