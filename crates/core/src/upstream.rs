//! Upstream: the candidates to which an allowed flow is dialled, one after another until one accepts.
//!
//! Most flows have one candidate, the destination itself. A connection to the DNS address has the host's
//! resolvers, in the order of [`crate::dns`]'s preference for connections: one that refuses or is silent is
//! noted there and the next is dialled. Protocols only dial the present candidate, and ask for the next
//! address when that fails.

use crate::config::RESOLVERS_MAX;
use crate::context::Shared;
use crate::host::HostError;
use crate::snapshot::saved::{Invalid, Saved};
use crate::snapshot::v1::UpstreamV1;
use crate::time::{Duration, Instant};
use std::net::SocketAddr;

/// Time for each candidate but the last: the kernel's second SYN is answered within it.
const WAIT: Duration = Duration::from_secs(2);

/// Remaining candidates of a flow, should the present one fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upstream {
    /// None: the destination is the only candidate.
    Destination,
    /// Further resolvers.
    Resolvers {
        /// Index of the resolver dialled.
        current: u8,
        /// Bit set of the resolvers dialled before it, all of which failed.
        failed: u8,
    },
}

impl Upstream {
    /// All resolvers, the one at index `first` before the others.
    pub(crate) fn resolvers(first: usize) -> Self {
        Self::Resolvers { current: first as u8, failed: 0 }
    }

    /// Index of the resolver dialled, if it is one.
    pub(crate) fn resolver(self) -> Option<usize> {
        match self {
            Self::Resolvers { current, .. } => Some(usize::from(current)),
            Self::Destination => None,
        }
    }

    /// Time at which the next candidate is dialled if the present one has not accepted by then; `None` if
    /// there is no other. The first was dialled at `began`.
    pub(crate) fn deadline(self, shared: &Shared, began: Instant) -> Option<Instant> {
        let Self::Resolvers { current, failed } = self else { return None };
        let tried = failed | 1u8.checked_shl(current.into()).unwrap_or(0);
        let count = shared.config.resolvers.len().min(RESOLVERS_MAX);
        (tried.count_ones() < count as u32).then(|| began + WAIT * tried.count_ones())
    }

    /// The next candidate after the present one has failed with `error`; `None` if there is no other, or if
    /// the host has no socket for any.
    pub(crate) fn next(&mut self, shared: &mut Shared, error: HostError, now: Instant) -> Option<SocketAddr> {
        let Self::Resolvers { current, failed } = self else { return None };
        if error == HostError::Exhausted {
            return None;
        }
        shared.dns.preference.connect_failed(usize::from(*current), now);
        *failed |= 1u8.checked_shl((*current).into()).unwrap_or(0);
        let next = shared.dns.preference.next_to_connect(now, shared.config.resolvers.len(), *failed)?;
        *current = next as u8;
        shared.counters.dns_retries += 1;
        shared.config.resolvers.get(next).copied()
    }
}

impl Saved<UpstreamV1> for Upstream {
    fn save(&self) -> UpstreamV1 {
        match *self {
            Self::Destination => UpstreamV1::Destination,
            Self::Resolvers { current, failed } => UpstreamV1::Resolvers { current, failed },
        }
    }

    fn restore(saved: UpstreamV1) -> Result<Self, Invalid> {
        Ok(match saved {
            UpstreamV1::Destination => Self::Destination,
            UpstreamV1::Resolvers { current, failed } => Self::Resolvers { current, failed },
        })
    }
}

/// First candidate of an allowed flow, and the remaining ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dial {
    pub(crate) to: SocketAddr,
    pub(crate) upstream: Upstream,
}
