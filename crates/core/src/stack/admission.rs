//! Whether and where a new flow of the guest's goes: the one place in which this is decided, for TCP, UDP and
//! echo alike.
//!
//! Three questions in a row: where the address leads ([`crate::destination`]), whether rules and limits allow
//! it ([`crate::policy`]), and whether the table has room for it. The caller answers a refusal at once: a
//! reset for TCP, an ICMP error otherwise.

use super::{DropReason, FlowKey, IcmpCause, Io, Platform, Protocol, Stack};
use crate::destination::{self, Destination};
use crate::flow::end::EndCause;
use crate::policy::{Refusal, Request, Verdict};
use crate::time::Instant;
use crate::upstream::{Dial, Upstream};

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// The flow may be opened: what to dial.
    Granted(Dial),
    /// Refused; the ICMP error to send, and the reason to count.
    Refused { cause: IcmpCause, reason: DropReason },
}

impl Stack {
    /// Decides about a new flow; if it is granted, there is room for it.
    ///
    /// # Errors
    /// [`DropReason::BadDestination`] for an address that no host can have, which is not answered.
    pub(super) fn admit<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        key: &FlowKey,
        now: Instant,
    ) -> Result<Admission, DropReason> {
        let remote = key.remote.into();
        let resolver = self.shared.resolver(now);
        let dial = match destination::resolve(&self.shared.config, resolver, remote)? {
            Destination::Host(to) => Dial { to, upstream: Upstream::Destination },
            Destination::Resolver(to) => Dial { to, upstream: Upstream::resolvers(resolver.unwrap_or(0)) },
            Destination::Refused => {
                self.note_unopened(*key, EndCause::Refused, None);
                let (cause, reason) = (IcmpCause::PortUnreachable, DropReason::Refused);
                return Ok(Admission::Refused { cause, reason });
            }
        };
        // The DNS address is brodo's own service.
        if dial.upstream == Upstream::Destination {
            match self.policy.decide(now, &Request { protocol: key.protocol, remote, to: dial.to }) {
                Verdict::Allow => {}
                Verdict::Deny(refusal) => {
                    self.note_unopened(*key, EndCause::Denied, self.policy.text(refusal));
                    return Ok(refusal.into());
                }
            }
        }
        if key.protocol == Protocol::Udp {
            self.make_room_for_udp(io, now);
        }
        if !self.make_room(io, now) {
            let refusal = self.policy.table_full();
            self.note_unopened(*key, EndCause::NoResources, self.policy.text(refusal));
            return Ok(refusal.into());
        }
        Ok(Admission::Granted(dial))
    }
}

/// A rule has refused a flow.
impl From<Refusal> for Admission {
    fn from(refusal: Refusal) -> Self {
        Self::Refused { cause: IcmpCause::Prohibited, reason: refusal.reason }
    }
}
