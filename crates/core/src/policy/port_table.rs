//! Ports to rules: for each class of traffic, disjoint ranges of ports, each with the first rule that fits.
//!
//! Rules may overlap as they like; the table is made once, when a policy is read, and a look-up is one binary
//! search. The cost of a flow does not depend on the number of rules that share a destination.

use super::rule::Scheme;
use crate::flow::Protocol;
use crate::port_range::PortRange;
use std::collections::BTreeSet;

/// Number of a rule in the order in which rules were written.
pub(super) type RuleNumber = u32;

/// Class of traffic. A flow of the guest's has one class for its transport, and one for each way in which its
/// name may be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// All TCP.
    Tcp,
    /// All UDP.
    Udp,
    /// Echo requests; their port is 0.
    Ping,
    /// TCP that names its server by TLS.
    Tls,
    /// TCP that names its host by HTTP.
    Http,
    /// UDP that names its server by QUIC.
    Quic,
}

impl Class {
    /// The class of a flow that is judged by its address.
    pub(crate) const fn of(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Tcp,
            Protocol::Udp => Self::Udp,
            Protocol::Echo => Self::Ping,
        }
    }

    pub(super) const fn of_scheme(scheme: Scheme) -> Self {
        match scheme {
            Scheme::Tls => Self::Tls,
            Scheme::Http => Self::Http,
            Scheme::Quic => Self::Quic,
            Scheme::Tcp => Self::Tcp,
            Scheme::Udp => Self::Udp,
            Scheme::Ping => Self::Ping,
        }
    }
}

/// Ports that a rule is about, in one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    class: Class,
    first: u16,
    last: u16,
    rule: RuleNumber,
}

/// Spans of a rule for `scheme` and `ports`: without a scheme all transports, and without ports echo too.
pub(super) fn spans(
    scheme: Option<Scheme>,
    ports: Option<PortRange>,
    rule: RuleNumber,
) -> impl Iterator<Item = Span> {
    const ALL: [Class; 3] = [Class::Tcp, Class::Udp, Class::Ping];
    let classes = match (scheme, ports) {
        (Some(scheme), _) => [Some(Class::of_scheme(scheme)), None, None],
        (None, Some(_)) => [Some(Class::Tcp), Some(Class::Udp), None],
        (None, None) => ALL.map(Some),
    };
    let (first, last) = ports.map_or((0, u16::MAX), |ports| (ports.first, ports.last));
    classes.into_iter().flatten().map(move |class| Span { class, first, last, rule })
}

/// The table: spans of one class are disjoint, sorted by class and port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PortTable(Box<[Span]>);

impl PortTable {
    /// A table of `spans`, which may overlap; of those that do the lowest rule is kept.
    pub(super) fn new(mut spans: Vec<Span>) -> Self {
        if spans.len() > 1 {
            // Of rules for the same ports, such as thousands of names at 443, the first is enough.
            spans.sort_unstable_by_key(|span| (span.class, span.first, span.last, span.rule));
            spans.dedup_by_key(|span| (span.class, span.first, span.last));
            let mut out = Vec::with_capacity(spans.len());
            for class in spans.chunk_by(|a, b| a.class == b.class) {
                flatten(class, &mut out);
            }
            spans = out;
        }
        Self(spans.into())
    }

    /// Whether no rule is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first rule for `port` of `class`.
    pub(super) fn find(&self, class: Class, port: u16) -> Option<RuleNumber> {
        let behind = self.0.partition_point(|span| (span.class, span.first) <= (class, port));
        let span = self.0.get(behind.checked_sub(1)?)?;
        (span.class == class && port <= span.last).then_some(span.rule)
    }
}

/// Makes spans of one class, sorted by their first port, disjoint: a sweep over the ports at which the set of
/// rules changes.
fn flatten(class: &[Span], out: &mut Vec<Span>) {
    let mut edges: Vec<u32> =
        class.iter().flat_map(|s| [u32::from(s.first), u32::from(s.last) + 1]).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut ends: Vec<&Span> = class.iter().collect();
    ends.sort_by_key(|span| span.last);
    let (mut begins, mut ends) = (class.iter().peekable(), ends.into_iter().peekable());
    let mut open = BTreeSet::new();
    for edge in edges.windows(2) {
        let [from, to] = [edge[0], edge[1]];
        while let Some(span) = ends.next_if(|span| u32::from(span.last) < from) {
            open.remove(&(span.rule, span.first, span.last));
        }
        while let Some(span) = begins.next_if(|span| u32::from(span.first) <= from) {
            open.insert((span.rule, span.first, span.last));
        }
        let Some(&(rule, ..)) = open.first() else { continue };
        let span = Span { class: class[0].class, first: from as u16, last: (to - 1) as u16, rule };
        match out.last_mut() {
            Some(last)
                if last.class == span.class && last.rule == rule && u32::from(last.last) + 1 == from =>
            {
                last.last = span.last;
            }
            _ => out.push(span),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(class: Class, first: u16, last: u16, rule: RuleNumber) -> Span {
        Span { class, first, last, rule }
    }

    /// The first span that fits, by looking at each.
    fn oracle(spans: &[Span], class: Class, port: u16) -> Option<RuleNumber> {
        let fits = |s: &&Span| s.class == class && (s.first..=s.last).contains(&port);
        spans.iter().filter(fits).map(|s| s.rule).min()
    }

    #[test]
    fn every_port_has_its_first_rule() {
        use Class::{Ping, Tcp, Tls, Udp};
        let spans = vec![
            span(Tcp, 80, 90, 3),
            span(Tcp, 85, 200, 1),
            span(Tcp, 0, 65_535, 7),
            span(Tcp, 85, 85, 0),
            span(Udp, 53, 53, 2),
            span(Udp, 53, 60, 2),
            span(Udp, 54, 54, 4),
            span(Ping, 0, 65_535, 5),
            span(Tls, 443, 443, 6),
        ];
        let table = PortTable::new(spans.clone());
        for class in [Tcp, Udp, Ping, Tls, Class::Http, Class::Quic] {
            for port in (0..300).chain([442, 443, 444, 65_534, 65_535]) {
                assert_eq!(table.find(class, port), oracle(&spans, class, port), "{class:?} {port}");
            }
        }
    }

    #[test]
    fn pseudorandom_tables_agree_with_a_walk_over_all_rules() {
        let mut state = 7u32;
        let mut next = |bound: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % bound
        };
        for _ in 0..200 {
            let spans: Vec<_> = (0..next(12))
                .map(|_| {
                    let first = next(40) as u16;
                    span(Class::Tcp, first, first + next(12) as u16, next(6))
                })
                .collect();
            let table = PortTable::new(spans.clone());
            for port in 0..60 {
                assert_eq!(table.find(Class::Tcp, port), oracle(&spans, Class::Tcp, port), "{spans:?}");
            }
        }
    }

    #[test]
    fn a_rule_without_scheme_is_about_all_transports() {
        let classes = |ports| spans(None, ports, 0).map(|span| span.class).collect::<Vec<_>>();
        assert_eq!(classes(None), [Class::Tcp, Class::Udp, Class::Ping]);
        assert_eq!(classes(Some(PortRange::one(9))), [Class::Tcp, Class::Udp]);
        let tls: Vec<_> = spans(Some(Scheme::Tls), Some(PortRange::one(443)), 1).collect();
        assert_eq!(tls, [span(Class::Tls, 443, 443, 1)]);
    }
}
