//! Order of preference of the host's resolvers.
//!
//! The order is the host's, because the first may know names that the others do not. A failed resolver
//! (silent or unreachable) is behind all others for a minute; then one query finds out whether it is back. An
//! answer with a failure code is no failure of the resolver: it may be the right one for every other name.
//!
//! Nor is a slower answer than that of another, queried later: a name that is hard to find out makes the best
//! resolver slow for once. After [`OUTRUN_MAX`] such cases without an answer of it between, it counts as
//! silent; after one if it was silent before.

use crate::config::RESOLVERS_MAX;
use crate::snapshot::saved::saved_struct;
use crate::snapshot::v1::PreferenceV1;
use crate::time::{Duration, Instant};

/// Time for which a failed resolver is queried last.
const PENALTY: Duration = Duration::from_secs(60);

/// Time for which a resolver seen to fold letter case is assumed to fold it always.
const FOLDING: Duration = Duration::from_secs(600);

/// Most answers of others in a row that may be faster.
const OUTRUN_MAX: u8 = 3;

/// Failures of the resolvers, and their times.
#[derive(Debug, Default)]
pub(crate) struct Preference {
    failed_at: [Option<Instant>; RESOLVERS_MAX],
    /// Number of times another was faster since the resolver's last answer.
    outrun: [u8; RESOLVERS_MAX],
    /// Time at which the resolver was last seen to fold letter case.
    folded_at: [Option<Instant>; RESOLVERS_MAX],
}

impl Preference {
    /// The resolver to query next, of the first `count`, without those whose bits are set in `tried`.
    pub(crate) fn next(&self, now: Instant, count: usize, tried: u8) -> Option<usize> {
        let rank = |&r: &usize| self.failed_at[r].filter(|&at| now - at < PENALTY);
        // `None` sorts before every time, and of equals the first is taken.
        (0..count.min(RESOLVERS_MAX)).filter(|r| tried & 1 << r == 0).min_by_key(rank)
    }

    /// Notes a failure of a resolver.
    pub(crate) fn failed(&mut self, resolver: usize, now: Instant) {
        if let Some(at) = self.failed_at.get_mut(resolver) {
            *at = Some(now);
        }
    }

    /// Notes that another resolver, queried later, has answered before this one.
    pub(crate) fn outrun(&mut self, resolver: usize, now: Instant) {
        let (Some(times), Some(at)) = (self.outrun.get_mut(resolver), self.failed_at.get_mut(resolver))
        else {
            return;
        };
        *times = times.saturating_add(1);
        if *times >= OUTRUN_MAX || at.is_some() {
            *at = Some(now);
        }
    }

    /// Notes an answer of a resolver with folded letter case.
    pub(crate) fn folded(&mut self, resolver: usize, now: Instant) {
        if let Some(at) = self.folded_at.get_mut(resolver) {
            *at = Some(now);
        }
    }

    /// Whether a resolver is known to fold letter case.
    pub(crate) fn is_folding(&self, resolver: usize, now: Instant) -> bool {
        self.folded_at.get(resolver).copied().flatten().is_some_and(|at| now - at < FOLDING)
    }

    /// Notes an answer of a resolver.
    pub(crate) fn answered(&mut self, resolver: usize) {
        if let (Some(times), Some(at)) = (self.outrun.get_mut(resolver), self.failed_at.get_mut(resolver)) {
            (*times, *at) = (0, None);
        }
    }
}

saved_struct!(Preference as PreferenceV1 { failed_at, outrun, folded_at });

#[cfg(test)]
mod tests;
