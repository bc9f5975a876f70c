//! Order of preference of the host's resolvers.
//!
//! The order is the host's, because the first may know names that the others do not. A failed resolver
//! (silent or unreachable) is behind all others for a minute; then one query finds out whether it is back. An
//! answer with a failure code is no failure of the resolver: it may be the right one for every other name.
//!
//! Nor is a slower answer than that of another, queried later: a name that is hard to find out makes the best
//! resolver slow for once. After [`OUTRUN_MAX`] such cases without an answer of it between, it counts as
//! silent; after one if it was silent before.
//!
//! Connections have an order of their own: a resolver without DNS over TCP is the first for datagrams still,
//! but one that is silent there is not dialled first either. Before all of them is the one whose answer was
//! cut ([`crate::across_workers`]).

use crate::config::RESOLVERS_MAX;
use crate::snapshot::saved::{Invalid, Saved};
use crate::snapshot::v1::PreferenceV1;
use crate::time::{Duration, Instant};

/// Time for which a failed resolver is queried last.
const PENALTY: Duration = Duration::from_secs(60);

/// Time for which a resolver seen to fold letter case, or to refuse EDNS, is assumed to do so always.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// Most answers of others in a row that may be faster.
const OUTRUN_MAX: u8 = 3;

/// Failures of the resolvers, and their times.
#[derive(Debug, Default)]
pub(crate) struct Preference {
    failed_at: [Option<Instant>; RESOLVERS_MAX],
    /// Times at which connects failed.
    connect_failed_at: [Option<Instant>; RESOLVERS_MAX],
    /// Number of times another was faster since the resolver's last answer.
    outrun: [u8; RESOLVERS_MAX],
    /// Time at which the resolver was last seen to fold letter case.
    folded_at: [Option<Instant>; RESOLVERS_MAX],
    /// Time at which it last refused a query with EDNS and answered the same without.
    plain_at: [Option<Instant>; RESOLVERS_MAX],
}

impl Preference {
    /// The resolver to query next, of the first `count`, without those whose bits are set in `tried`.
    pub(crate) fn next(&self, now: Instant, count: usize, tried: u8) -> Option<usize> {
        first(count, tried, |r| recent(self.failed_at[r], now))
    }

    /// The resolver to connect to next, likewise.
    pub(crate) fn next_to_connect(&self, now: Instant, count: usize, tried: u8) -> Option<usize> {
        first(count, tried, |r| recent(self.failed_at[r].max(self.connect_failed_at[r]), now))
    }

    /// Notes a failed connect to a resolver.
    pub(crate) fn connect_failed(&mut self, resolver: usize, now: Instant) {
        note(&mut self.connect_failed_at, resolver, now);
    }

    /// Whether a connect to a resolver has failed lately.
    pub(crate) fn refuses_connects(&self, resolver: usize, now: Instant) -> bool {
        self.connect_failed_at.get(resolver).is_some_and(|&at| recent(at, now).is_some())
    }

    /// Notes a failure of a resolver.
    pub(crate) fn failed(&mut self, resolver: usize, now: Instant) {
        note(&mut self.failed_at, resolver, now);
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
        note(&mut self.folded_at, resolver, now);
    }

    /// Whether a resolver is known to fold letter case.
    pub(crate) fn is_folding(&self, resolver: usize, now: Instant) -> bool {
        is_remembered(&self.folded_at, resolver, now)
    }

    /// Notes an answer of a resolver to a query without EDNS, after a refusal of the same with EDNS.
    pub(crate) fn answered_plain(&mut self, resolver: usize, now: Instant) {
        note(&mut self.plain_at, resolver, now);
    }

    /// Whether a resolver is known to refuse EDNS.
    pub(crate) fn is_plain(&self, resolver: usize, now: Instant) -> bool {
        is_remembered(&self.plain_at, resolver, now)
    }

    /// Notes an answer of a resolver.
    pub(crate) fn answered(&mut self, resolver: usize) {
        if let (Some(times), Some(at)) = (self.outrun.get_mut(resolver), self.failed_at.get_mut(resolver)) {
            (*times, *at) = (0, None);
        }
    }
}

/// Of the first `count` resolvers that of the lowest rank, without those whose bits are set in `tried`.
fn first(count: usize, tried: u8, rank: impl Fn(usize) -> Option<Instant>) -> Option<usize> {
    // `None` sorts before every time, and of equals the first is taken.
    (0..count.min(RESOLVERS_MAX)).filter(|r| tried & 1 << r == 0).min_by_key(|&r| rank(r))
}

/// Notes that a resolver was seen to do this.
fn note(seen_at: &mut [Option<Instant>; RESOLVERS_MAX], resolver: usize, now: Instant) {
    if let Some(at) = seen_at.get_mut(resolver) {
        *at = Some(now);
    }
}

/// Whether a resolver was seen lately to do this.
fn is_remembered(seen_at: &[Option<Instant>; RESOLVERS_MAX], resolver: usize, now: Instant) -> bool {
    seen_at.get(resolver).copied().flatten().is_some_and(|at| now - at < REMEMBERED_FOR)
}

/// The time of a failure that counts still.
fn recent(failed_at: Option<Instant>, now: Instant) -> Option<Instant> {
    failed_at.filter(|&at| now - at < PENALTY)
}

/// Failed connects and resolvers without EDNS are left out: a successor finds them out.
impl Saved<PreferenceV1> for Preference {
    fn save(&self) -> PreferenceV1 {
        let Self { failed_at, connect_failed_at: _, outrun, folded_at, plain_at: _ } = self;
        PreferenceV1 { failed_at: failed_at.save(), outrun: outrun.save(), folded_at: folded_at.save() }
    }

    fn restore(saved: PreferenceV1) -> Result<Self, Invalid> {
        let PreferenceV1 { failed_at, outrun, folded_at } = saved;
        Ok(Self {
            failed_at: Saved::restore(failed_at)?,
            outrun: Saved::restore(outrun)?,
            folded_at: Saved::restore(folded_at)?,
            ..Self::default()
        })
    }
}

#[cfg(test)]
mod tests;
