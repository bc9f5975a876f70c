//! In which order the host's resolvers are asked.
//!
//! The order is the host's, because the first may know names that the others do not. One that has failed, by
//! silence or because it cannot be reached, goes behind all that have not, for a minute: then one question
//! finds out whether it is back. One that answers that it cannot or will not has not failed: it may be the
//! right one for every other name.
//!
//! Nor has one that another, asked later, was faster than: a name that is hard to find out makes the best
//! resolver slow for once. When that happens [`OUTRUN_MAX`] times without an answer of it between, it counts
//! as silence; for one that was silent before, once is enough.

use crate::time::{Duration, Instant};

/// Resolvers that are used; the C library uses three.
pub(crate) const RESOLVERS_MAX: usize = 8;
/// For how long one that has failed is asked last.
const PENALTY: Duration = Duration::from_secs(60);

/// For how long one that does not keep the case of letters is taken for one that never does.
const FOLDING: Duration = Duration::from_secs(600);

/// How often in a row another may be faster.
const OUTRUN_MAX: u8 = 3;

/// Which resolvers have failed, and when.
#[derive(Debug, Default)]
pub(crate) struct Preference {
    failed_at: [Option<Instant>; RESOLVERS_MAX],
    /// How often another was faster since its last answer.
    outrun: [u8; RESOLVERS_MAX],
    /// When it was last seen not to keep the case of letters.
    folded_at: [Option<Instant>; RESOLVERS_MAX],
}

impl Preference {
    /// The resolver to be asked next, of the first `count`, if those whose bits are set in `tried` have been.
    pub(crate) fn next(&self, now: Instant, count: usize, tried: u8) -> Option<usize> {
        let rank = |&r: &usize| self.failed_at[r].filter(|&at| now - at < PENALTY);
        // None comes before every time, and of equals the first is taken.
        (0..count.min(RESOLVERS_MAX)).filter(|r| tried & 1 << r == 0).min_by_key(rank)
    }

    /// Notes that a resolver has failed.
    pub(crate) fn failed(&mut self, resolver: usize, now: Instant) {
        if let Some(at) = self.failed_at.get_mut(resolver) {
            *at = Some(now);
        }
    }

    /// Notes that another one, asked later, has answered before this one.
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

    /// Notes that a resolver has answered with a question in other letters than it was asked.
    pub(crate) fn folded(&mut self, resolver: usize, now: Instant) {
        if let Some(at) = self.folded_at.get_mut(resolver) {
            *at = Some(now);
        }
    }

    /// Whether a resolver does not keep the case of letters, as far as is known.
    pub(crate) fn is_folding(&self, resolver: usize, now: Instant) -> bool {
        self.folded_at.get(resolver).copied().flatten().is_some_and(|at| now - at < FOLDING)
    }

    /// Notes that a resolver has answered.
    pub(crate) fn answered(&mut self, resolver: usize) {
        if let (Some(times), Some(at)) = (self.outrun.get_mut(resolver), self.failed_at.get_mut(resolver)) {
            (*times, *at) = (0, None);
        }
    }
}

#[cfg(test)]
mod tests;
