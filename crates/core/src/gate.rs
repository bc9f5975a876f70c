//! Gates: flows whose first bytes are to name an allowed server before any of them leaves.
//!
//! A gate stands before a flow that the policy opened for a *checked* name ([`crate::policy`]). The host
//! socket is connected first, so errors of the network stay the network's. The bytes judged are the bytes
//! sent. While the gate is closed nothing comes from the host either.
//!
//! * A connection's gate ([`Gate`]) stands in its receiver: bytes of the guest are kept in order in the
//!   receiver's queue, where the gate reads them, in one copy behind reassembly, so overlaps and repetitions
//!   with other content change nothing. [`tls`] reads until the handshake cannot begin anew, [`http`] every
//!   request of the connection.
//! * A gate for datagrams ([`quic`]) keeps them until the name in their Initials is whole.
//!
//! Closed it is for some seconds at most. It passes if the name is allowed at this port and DNS gave the
//! guest this address for that very name. A refused flow ends: the host's peer got no byte, the guest gets
//! the refusal in the protocol that it speaks. Everything that cannot be read is refused: no name, another
//! protocol, encrypted names, contradictions. A gate never falls back to the address.
//!
//! A gate of a policy that only observes reads the same and notes what it would refuse, but holds nothing
//! back.

#[cfg(test)]
mod cost;
mod http;
pub(crate) mod quic;
mod saved;
mod tls;

use crate::flow::Protocol;
use crate::policy::{
    Checks, Class, Decision, Named, Particulars, Ruling, Said, SharedPolicy, Stage, Telling, reason,
};
use crate::time::{Duration, Instant};
use http::HttpGate;
use std::net::SocketAddr;
use std::sync::Arc;
use tls::TlsGate;

/// Longest time for which a connection's gate is closed, from the SYN-ACK on.
const CLOSED_MAX: Duration = Duration::from_secs(5);
/// Most closed gates of one worker, and most flows of QUIC behind gates.
pub(crate) const GATES_MAX: u32 = 1024;

/// Outcome of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Bytes not released before stay held.
    Hold,
    /// All bytes so far may leave.
    Release,
    /// All bytes so far may leave, and the gate is done.
    Open,
    /// The flow is refused.
    Refuse,
}

/// Subject of a gate: the flow for which a name is judged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject {
    /// The guest's side.
    pub(crate) guest: SocketAddr,
    /// Destination as the guest addresses it.
    pub(crate) remote: SocketAddr,
    /// Ways in which the server may be named.
    pub(crate) checks: Checks,
}

impl Subject {
    /// Whether the flow may go on that has said this name.
    ///
    /// # Errors
    /// The rule or reason that refuses it.
    fn judge(&self, now: Instant, policy: &SharedPolicy, said: Said<'_>) -> Result<(), Arc<str>> {
        policy.name_at_gate(now, self.guest, self.remote, self.checks.private, said)
    }
}

impl Subject {
    /// Notes a refusal that is not enforced.
    fn note(
        &self,
        now: Instant,
        policy: &SharedPolicy,
        protocol: Protocol,
        reason: Arc<str>,
        named: Option<&Named>,
    ) {
        let said = Particulars::of_named(named, &reason);
        let name = named.map(|named| String::from_utf8_lossy(&named.name).into());
        let refusal = Decision { stage: Stage::Gate, name, ..self.opening(protocol, reason) };
        policy.note(now, self.guest, refusal, said);
    }

    fn opening(&self, protocol: Protocol, reason: Arc<str>) -> Decision {
        Decision::on_flow(protocol, self.remote, reason, Ruling::WouldDeny)
    }
}

/// Reader of the guest's bytes.
#[derive(Debug)]
enum Reader {
    /// TLS and HTTP are both possible, and no byte has come.
    Undecided,
    Tls(TlsGate),
    Http(HttpGate),
}

/// Time for which a gate has been closed that is so for `longest` and refuses at `deadline`, if it has one.
fn held_until(now: Instant, deadline: Option<Instant>, longest: Duration) -> Duration {
    deadline.map_or(Duration::ZERO, |deadline| longest.saturating_sub(deadline.since(now)))
}

/// The gate of one connection.
#[derive(Debug)]
pub(crate) struct Gate {
    subject: Subject,
    deadline: Option<Instant>,
    reader: Reader,
    /// A first name was allowed.
    passed: bool,
    /// The name that was judged last.
    named: Option<Box<Named>>,
    refusal: Option<Arc<str>>,
}

impl Gate {
    /// A closed gate for a connection.
    pub(crate) fn new(subject: Subject) -> Self {
        let reader = match (subject.checks.tls, subject.checks.http) {
            (true, true) => Reader::Undecided,
            (_, false) => Reader::Tls(TlsGate::default()),
            (false, true) => Reader::Http(HttpGate::default()),
        };
        Self { subject, deadline: None, reader, passed: subject.checks.observed, named: None, refusal: None }
    }

    /// The guest can send from `now` on.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.deadline = Some(now + CLOSED_MAX);
    }

    /// Whether no byte may leave, and none may come.
    pub(crate) fn is_closed(&self) -> bool {
        !self.passed && self.refusal.is_none()
    }

    /// Ways in which the server may be named.
    pub(crate) fn checks(&self) -> Checks {
        self.subject.checks
    }

    /// Time at which a closed gate refuses.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline.filter(|_| self.is_closed())
    }

    /// The rule or reason of the refusal.
    pub(crate) fn refusal(&self) -> Option<&Arc<str>> {
        self.refusal.as_ref()
    }

    /// The name that was judged last, allowed or not.
    pub(crate) fn named(&self) -> Option<&Named> {
        self.named.as_deref()
    }

    /// The same, of a gate that is done.
    pub(crate) fn into_named(self) -> Option<Box<Named>> {
        self.named
    }

    /// Refuses the connection because its time is over.
    pub(crate) fn time_out(&mut self) {
        self.refusal = Some(reason::TIMEOUT.into());
    }

    /// Refuses the connection because the guest's stream ends in the midst of what is to be read.
    pub(crate) fn end(&mut self) {
        let reason = if let Reader::Http(_) = self.reader { reason::REQUEST } else { reason::HELLO };
        self.refusal = Some(reason.into());
    }

    /// Nothing has left behind the name that was allowed first, before the refusal.
    pub(crate) fn has_passed_nothing(&mut self) {
        self.passed = false;
    }

    /// The refusal in the protocol that the guest speaks, with as much of the reason as is reported; none
    /// after a pass, when it might fall into an answer of the server's.
    pub(crate) fn last_words(&self, telling: &Telling) -> Option<Vec<u8>> {
        (!self.passed).then(|| match &self.reader {
            Reader::Undecided => Vec::new(),
            Reader::Tls(_) => tls::ACCESS_DENIED.to_vec(),
            Reader::Http(_) => http::forbidden(self.refusal.as_deref().unwrap_or_default(), telling),
        })
    }

    /// Takes bytes of the guest's, in order, from the front of `bytes`, which are not empty: how many, and
    /// what they lead to.
    pub(crate) fn read(&mut self, now: Instant, policy: &SharedPolicy, bytes: &[u8]) -> (usize, Outcome) {
        if self.refusal.is_some() {
            return (bytes.len(), Outcome::Hold);
        }
        if let Reader::Undecided = self.reader {
            let is_tls = bytes.first() == Some(&tls::HANDSHAKE);
            self.reader =
                if is_tls { Reader::Tls(TlsGate::default()) } else { Reader::Http(HttpGate::default()) };
        }
        let (subject, named, opens) = (self.subject, &mut self.named, !self.passed);
        let held = held_until(now, self.deadline, CLOSED_MAX);
        let mut judge = |class: Class, name: &[u8], encrypted: bool| {
            let named = &**named.insert(Box::new(Named { class, name: name.into(), encrypted }));
            subject.judge(now, policy, Said { named, opens, held })
        };
        let read = match &mut self.reader {
            Reader::Tls(gate) => gate.read(bytes, |name, encrypted| judge(Class::Tls, name, encrypted)),
            Reader::Http(gate) => gate.read(bytes, |name| judge(Class::Http, name, false)),
            Reader::Undecided => Ok((0, Outcome::Hold)),
        };
        match read {
            Ok((taken, Outcome::Hold)) if subject.checks.observed => (taken, Outcome::Release),
            Ok((taken, outcome)) => {
                self.passed |= outcome != Outcome::Hold;
                (taken, outcome)
            }
            Err(reason) if self.subject.checks.observed => {
                self.subject.note(now, policy, Protocol::Tcp, reason, self.named());
                (bytes.len(), Outcome::Open)
            }
            Err(reason) => {
                self.refusal = Some(reason);
                (bytes.len(), Outcome::Refuse)
            }
        }
    }
}
