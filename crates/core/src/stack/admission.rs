//! Whether and where a new flow of the guest's goes: the one place in which this is decided, for TCP, UDP and
//! echo alike.
//!
//! Three questions in a row: where the address leads ([`crate::destination`]), whether rules and limits allow
//! it ([`crate::policy`]), and whether the table has room for it. The caller answers a refusal at once: a
//! reset for TCP, an ICMP error otherwise.

use super::{DropReason, FlowKey, IcmpCause, Io, Platform, Stack};
use crate::destination::{self, Destination};
use crate::flow::end::EndCause;
use crate::policy::{Refusal, Request};
use crate::time::Instant;
use std::net::SocketAddr;

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// The flow may be opened: to this address of the host's, or to this resolver.
    Granted { to: SocketAddr },
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
        let (to, dns) = match destination::resolve(&self.shared.config, self.shared.resolver(now), remote)? {
            Destination::Host(to) => (to, false),
            Destination::Resolver(to) => (to, true),
            Destination::Refused => {
                self.note_unopened(*key, EndCause::Refused, None);
                let (cause, reason) = (IcmpCause::PortUnreachable, DropReason::Refused);
                return Ok(Admission::Refused { cause, reason });
            }
        };
        if !dns {
            let request = Request { protocol: key.protocol, remote, to };
            if let Err(refusal) = self.policy.decide(now, &request) {
                self.note_unopened(*key, EndCause::Denied, self.policy.text(refusal));
                return Ok(refusal.into());
            }
        }
        if !self.make_room(io, now) {
            let refusal = self.policy.table_full();
            self.note_unopened(*key, EndCause::NoResources, self.policy.text(refusal));
            return Ok(refusal.into());
        }
        Ok(Admission::Granted { to })
    }
}

/// A rule has refused a flow.
impl From<Refusal> for Admission {
    fn from(refusal: Refusal) -> Self {
        Self::Refused { cause: IcmpCause::Prohibited, reason: refusal.reason }
    }
}
