//! Upstream: the candidates that an allowed flow is dialled to, one after another until one takes it.
//!
//! Most flows have one candidate, the destination itself. A connection to the DNS address has the host's
//! resolvers, in the order of [`crate::dns`]'s preference: one that cannot be reached is noted there and the
//! next is dialled. The protocols know none of this: they dial what they are given, and ask for the next
//! address when that fails.

use crate::context::Shared;
use crate::host::HostError;
use crate::time::Instant;
use std::net::SocketAddr;

/// What is left to dial for a flow if its present candidate fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upstream {
    /// Nothing: the destination is the only candidate.
    Destination,
    /// Further resolvers.
    Resolvers {
        /// The place of the one that is dialled.
        current: u8,
        /// Those that were dialled before it and failed, one bit each.
        failed: u8,
    },
}

impl Upstream {
    /// The resolvers, the one at place `first` before the others.
    pub(crate) fn resolvers(first: usize) -> Self {
        Self::Resolvers { current: first as u8, failed: 0 }
    }

    /// The next candidate after the present one has failed with `error`; `None` if there is no other, or if
    /// the host has no socket for any.
    pub(crate) fn next(&mut self, shared: &mut Shared, error: HostError, now: Instant) -> Option<SocketAddr> {
        let Self::Resolvers { current, failed } = self else { return None };
        if error == HostError::Exhausted {
            return None;
        }
        shared.dns.preference.failed(usize::from(*current), now);
        *failed |= 1u8.checked_shl((*current).into()).unwrap_or(0);
        let next = shared.dns.preference.next(now, shared.config.resolvers.len(), *failed)?;
        *current = next as u8;
        shared.counters.dns_retries += 1;
        shared.config.resolvers.get(next).copied()
    }
}

/// Where an allowed flow is dialled first, and what is left after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dial {
    pub(crate) to: SocketAddr,
    pub(crate) upstream: Upstream,
}
