//! Admission of new flows: whether and where a new flow goes, decided in one place for TCP, UDP and echo, and
//! for every carrier.
//!
//! Three questions in a row: where the address leads ([`crate::destination`]), whether rules and limits allow
//! it ([`crate::policy`]), and whether the table has room for it. The caller answers a refusal at once: a
//! reset for TCP, an ICMP error otherwise.

use super::{DropReason, FlowKey, IcmpCause, Io, Platform, Protocol, Stack};
use crate::destination::{self, Destination};
use crate::dns::STREAMS_MAX;
use crate::flow::FlowId;
use crate::flow::end::EndCause;
use crate::flow::info::{Initiator, Opening};
use crate::gate::{GATES_MAX, Subject};
use crate::left_out::Part;
use crate::policy::{Permission, Refusal, Request, Verdict};
use crate::time::Instant;
use crate::upstream::{Dial, Upstream};
use std::net::SocketAddr;

/// The answer.
#[derive(Debug)]
pub(super) enum Admission {
    /// The flow may be opened: what to dial, and the subject of its gate, if it begins behind one.
    Granted(Dial, Option<Subject>),
    /// Neither: the guest is to try again. The reason to count.
    Waits(DropReason),
    /// Refused; the ICMP error to send, and the reason to count.
    Refused { cause: IcmpCause, reason: DropReason },
}

impl Stack {
    /// Decides about a new flow; if it is granted, there is room for it.
    ///
    /// # Errors
    /// [`DropReason::BadDestination`] for an address that no host can have, and [`DropReason::LeftOut`]: no
    /// answer.
    pub(super) fn admit<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        key: &FlowKey,
        now: Instant,
    ) -> Result<Admission, DropReason> {
        self.notice_address(key.guest.ip());
        let remote = key.remote.into();
        let resolver = if destination::is_dns(&self.shared.config, key.remote) {
            self.offered(Part::Dns)?;
            self.shared.resolver_of_questions(now)
        } else {
            self.shared.resolver(now)
        };
        let dial = match destination::resolve(&self.shared.config, resolver, key.protocol, remote)? {
            Destination::Host(to) => Dial { to, upstream: Upstream::Destination },
            Destination::Resolver(to) => Dial { to, upstream: Upstream::resolvers(resolver.unwrap_or(0)) },
            Destination::Refused => {
                self.note_unopened(*key, EndCause::Refused, None);
                let (cause, reason) = (self.shared.config.closed_ports.cause(), DropReason::Refused);
                return Ok(Admission::Refused { cause, reason });
            }
        };
        let has_streams_max = self.shared.dns.streams >= STREAMS_MAX;
        let (protocol, guest) = (key.protocol, key.guest.into());
        let dns_tls = destination::is_dns_tls(&self.shared.config, remote);
        let remote = destination::judged_as(&self.shared.config, remote);
        let request = Request { protocol, guest, remote, to: dial.to, forwarded: false, dns_tls };
        let mut allowed = Allowed::default();
        // The DNS address is brodo's own service; under a policy it judges every question.
        if dial.upstream == Upstream::Destination {
            match self.decide((*key).into(), now, &request) {
                Ok(by) => allowed = by,
                Err(unopened) => return Ok(unopened.into()),
            }
        } else if let Some(refusal) = self.policy.dns_over_tcp(now, key, has_streams_max) {
            self.note_unopened(*key, EndCause::Denied, self.policy.text(refusal));
            return Ok(refusal.into());
        }
        match self.make_room_outbound(io, (*key).into(), now, &request, allowed.by) {
            Ok(()) => Ok(Admission::Granted(dial, allowed.gate)),
            Err(refusal) => Ok(refusal.into()),
        }
    }

    /// Decides about a flow that another carrier will move; if it is admitted, there is room for it.
    ///
    /// # Errors
    /// The rule or bound that refuses it.
    pub(super) fn admit_carried<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        opening: Opening,
    ) -> Result<(), DropReason> {
        let FlowKey { protocol, guest, remote } = opening.key;
        let (guest, to) = (guest.into(), remote.into());
        match opening.initiator {
            Initiator::Guest => {
                let request = Request { protocol, guest, remote: to, to, forwarded: true, dns_tls: false };
                let allowed = self.decide(opening, io.now, &request).map_err(|unopened| unopened.reason())?;
                debug_assert!(allowed.gate.is_none(), "a forward is the user's own permission");
                let room = self.make_room_outbound(io, opening, io.now, &request, allowed.by);
                room.map_err(|refusal| refusal.reason)
            }
            Initiator::Peer => self.admit_inbound(io, &opening.key, to),
        }
    }

    /// Decides about a flow that begins on the host's side, with `peer` as the host sees it; if it is
    /// admitted, there is room for it.
    ///
    /// # Errors
    /// The rule or bound that refuses it.
    pub(super) fn admit_inbound<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        key: &FlowKey,
        peer: SocketAddr,
    ) -> Result<(), DropReason> {
        let (protocol, guest, remote) = (key.protocol, key.guest.into(), key.remote.into());
        let request = Request { protocol, guest, remote, to: peer, forwarded: true, dns_tls: false };
        if let Some(refusal) = self.policy.inbound_lockdown(io.now, &request) {
            return Err(refusal.reason);
        }
        self.offered(match key.protocol {
            Protocol::Tcp => Part::Tcp,
            Protocol::Udp => Part::Udp,
            Protocol::Echo => Part::Ping,
        })?;
        // An accepted connection is the host's own wish; a datagram makes a flow by which the guest can send.
        if key.protocol == Protocol::Udp {
            self.policy.decide_inbound(io.now, &request).map_err(|refusal| refusal.reason)?;
        }
        self.make_room_inbound(io, key.remote.ip(), io.now)
    }

    /// Opens a flow for the driver by `open`, and counts a refusal.
    pub(super) fn opening<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        open: impl FnOnce(&mut Self, &mut Io<'_, P>) -> Result<FlowId, DropReason>,
    ) -> Result<FlowId, DropReason> {
        self.recorder.now = io.now;
        open(self, io).inspect_err(|&reason| self.shared.counters.drop(reason))
    }

    /// Asks the policy, and records a refusal.
    fn decide(&mut self, opening: Opening, now: Instant, request: &Request) -> Result<Allowed, Unopened> {
        let gates = match request.protocol {
            Protocol::Tcp => self.shared.closed_gates,
            Protocol::Udp | Protocol::Echo => self.shared.quic_gates,
        };
        let refusal = match self.policy.decide(now, request) {
            Verdict::Allow(by) => return Ok(Allowed { by, gate: None }),
            Verdict::Inspect(checks) if gates < GATES_MAX => {
                let (guest, remote) = (request.guest, request.remote);
                return Ok(Allowed { by: None, gate: Some(Subject { guest, remote, checks }) });
            }
            Verdict::Wait => return Err(Unopened::Waits),
            Verdict::Inspect(checks) => match self.policy.gates_full(now, request, checks) {
                Some(refusal) => refusal,
                None => return Ok(Allowed::default()),
            },
            Verdict::Deny(refusal) => refusal,
        };
        self.note_unopened(opening, EndCause::Denied, self.policy.text(refusal));
        Err(Unopened::Refused(refusal))
    }

    /// Makes room for a flow of the guest's, and records a refusal; the permission `by` is noted if there is
    /// room.
    fn make_room_outbound<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        opening: Opening,
        now: Instant,
        request: &Request,
        by: Option<Permission>,
    ) -> Result<(), Refusal> {
        if opening.key.protocol == Protocol::Udp {
            self.make_room_for_udp(io, now);
        }
        if self.make_room(io, now) {
            if let Some(by) = by {
                self.policy.note_opening(now, request, by);
            }
            return Ok(());
        }
        let refusal = self.policy.table_full(now, request);
        self.note_unopened(opening, EndCause::NoResources, self.policy.text(refusal));
        Err(refusal)
    }
}

/// A flow that may be opened.
#[derive(Debug, Default)]
struct Allowed {
    /// The permission to note.
    by: Option<Permission>,
    /// Subject of the gate, if it begins behind one.
    gate: Option<Subject>,
}

/// A flow that is not opened.
#[derive(Debug)]
enum Unopened {
    /// A person is asked first.
    Waits,
    Refused(Refusal),
}

impl Unopened {
    fn reason(&self) -> DropReason {
        match self {
            Self::Waits => DropReason::PolicyAsks,
            Self::Refused(refusal) => refusal.reason,
        }
    }
}

impl From<Unopened> for Admission {
    fn from(unopened: Unopened) -> Self {
        match unopened {
            Unopened::Waits => Self::Waits(unopened.reason()),
            Unopened::Refused(refusal) => refusal.into(),
        }
    }
}

/// A rule has refused a flow.
impl From<Refusal> for Admission {
    fn from(refusal: Refusal) -> Self {
        Self::Refused { cause: IcmpCause::Prohibited, reason: refusal.reason }
    }
}
