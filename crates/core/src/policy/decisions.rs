//! Decisions of the policy, kept for explanations and for an audit log, and counted for metrics.
//!
//! *Refusals* ([`refusals`]): each distinct one once, with its number; the one that has not occurred for the
//! longest time makes room. *The tally* ([`tally`]) counts all by step, verdict and a word of a closed list.
//! *The trail* ([`trail`]) has every decision since it was taken last, equal ones as one, in the order in
//! which they were made first, and counts those beyond its bound. A name in a decision is text of the
//! guest's, as long as a name may be.
//!
//! Hashes find decisions in refusals and trail: a flood has a hundred thousand refusals a second.

mod refusals;
mod tally;
mod trail;

use super::named::Named;
use super::port_table::Class;
use super::reason;
use crate::flow::Protocol;
use crate::snapshot::saved::saved_enum;
use crate::time::Instant;
use std::net::SocketAddr;
use std::sync::Arc;

pub(super) use refusals::Refusals;
pub use tally::Tallied;
pub(super) use tally::Tally;
pub(super) use trail::Trail;

/// Most names listed of one destination.
pub(super) const PINNED_MAX: usize = 4;

/// Step at which a decision was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// A question to DNS.
    Question,
    /// The opening of a flow.
    Open,
    /// The name that a flow has said.
    Gate,
    /// The end of an open flow that the policy does not allow any more.
    End,
    /// A connection or datagram to a published port. Only refusals are decisions of the policy's.
    Inbound,
}

saved_enum!(Stage { Question = 0, Open = 1, Gate = 2, End = 3, Inbound = 4 });

/// Verdict of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ruling {
    /// It was allowed.
    Allowed,
    /// It was refused.
    Denied,
    /// It would have been refused, but the policy only observes.
    WouldDeny,
}

saved_enum!(Ruling { Allowed = 0, Denied = 1, WouldDeny = 2 });

/// A decision, without its time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Decision {
    /// Destination of the flow as the guest addresses it, or the peer of an inbound one; an echo has port 0.
    pub remote: Option<SocketAddr>,
    /// The name that was asked for or said.
    pub name: Option<Box<str>>,
    /// Protocol of the flow.
    pub protocol: Option<Protocol>,
    /// Step at which it was made.
    pub stage: Stage,
    /// Its verdict.
    pub ruling: Ruling,
    /// The rule or reason; `default` if no rule was needed.
    pub reason: Arc<str>,
}

impl Decision {
    /// A decision on a question.
    pub(crate) fn on_question(name: Box<str>, reason: Arc<str>, ruling: Ruling) -> Self {
        let (protocol, remote) = (None, None);
        Self { stage: Stage::Question, ruling, reason, protocol, remote, name: Some(name) }
    }

    /// A decision on opening a flow.
    pub(crate) fn on_flow(protocol: Protocol, remote: SocketAddr, reason: Arc<str>, ruling: Ruling) -> Self {
        let port = if protocol == Protocol::Echo { 0 } else { remote.port() };
        let remote = Some(SocketAddr::new(remote.ip(), port));
        Self { stage: Stage::Open, ruling, reason, protocol: Some(protocol), remote, name: None }
    }

    /// A refusal of what `peer` has begun.
    pub(crate) fn on_inbound(protocol: Protocol, peer: SocketAddr, reason: Arc<str>) -> Self {
        Self { stage: Stage::Inbound, ..Self::on_flow(protocol, peer, reason, Ruling::Denied) }
    }
}

/// Way in which the guest has said a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NameSource {
    /// A question to DNS.
    Dns,
    /// Server name in a ClientHello of TLS.
    Sni,
    /// Host of an HTTP request.
    Host,
    /// Server name in the Initials of QUIC.
    Quic,
}

/// Further properties of a decision, which distinguish lines of an audit log, but not refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Particulars {
    /// Way in which the name was said.
    pub name_from: Option<NameSource>,
    /// Type of the records asked for (RFC 1035, 3.2.2 and its successors).
    pub qtype: Option<u16>,
    /// An encrypted ClientHello (RFC 9849) was there, or bytes that look like one.
    pub encrypted: bool,
}

impl Particulars {
    /// Those of a question.
    pub(crate) fn of_question(qtype: u16) -> Self {
        Self { name_from: Some(NameSource::Dns), qtype: Some(qtype), encrypted: false }
    }

    /// Those of a decision for `reason` about the name that a flow has said, if it has.
    pub(crate) fn of_named(named: Option<&Named>, reason: &str) -> Self {
        let source = |named: &Named| match named.class {
            Class::Http => NameSource::Host,
            Class::Quic => NameSource::Quic,
            Class::Tls | Class::Tcp | Class::Udp | Class::Ping => NameSource::Sni,
        };
        let encrypted = reason == reason::ECH || named.is_some_and(|named| named.encrypted);
        Self { name_from: named.map(source), qtype: None, encrypted }
    }
}

/// Circumstances of a decision. Of equal decisions those of the first are kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Occasion {
    /// Its time.
    pub at: Instant,
    /// The guest's side of the flow, or of the question.
    pub guest: Option<SocketAddr>,
    /// Names for which DNS had given the guest this destination, the first four.
    pub pinned: Vec<Box<str>>,
}

/// A decision in the trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audited {
    /// Number of the policy that decided.
    pub generation: u64,
    /// The decision.
    pub decision: Decision,
    /// Its further properties.
    pub particulars: Particulars,
    /// Number of times.
    pub count: u64,
    /// Circumstances of the first.
    pub occasion: Occasion,
}

/// Decisions of the trail, and the number of those for which there was no room.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trailed {
    /// Different decisions.
    pub decisions: Vec<Audited>,
    /// Number of decisions that are missing.
    pub left_out: u64,
}

/// A decision, and how often it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The decision.
    pub decision: Decision,
    /// Number of times.
    pub count: u64,
}

/// Decisions that were kept, and those that were not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kept {
    /// Different decisions.
    pub decisions: Vec<Counted>,
    /// Number of decisions for which there was no room.
    pub left_out: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn refusal(name: &str) -> Decision {
        Decision::on_question(name.into(), "policy question".into(), Ruling::Denied)
    }
}
