//! The driver's clock: CLOCK_MONOTONIC counted from the start of the program.
//!
//! It is read once per loop turn and passed to the stack, which has no clock of its own. Messages have dates
//! of the wall clock as it stands when they are made ([`Clock::date_ns`]), frames of a capture those of its
//! begin ([`crate::capture`]).
//!
//! *Suspend.* CLOCK_MONOTONIC stands still while the machine is suspended, and so do the timers of both
//! kernels' TCP. Timers of brodo's own that jumped by the night would time out connections that both ends
//! believe alive, and feed a round trip of hours to the estimators. Only DNS records age:
//! [`Clock::suspended`] is CLOCK_BOOTTIME's lead, which the loop passes to the stack after a sleep.

use brodo_core::time::{Duration, Instant};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The zero from which [`Instant`]s are counted.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// CLOCK_MONOTONIC at zero, in nanoseconds.
    start_ns: u64,
    /// CLOCK_REALTIME at zero, in nanoseconds since 1970.
    unix_ns: u64,
    /// Time for which the machine had been suspended at zero.
    suspended: Duration,
}

/// Zero of a clock, for another process on the same machine to count from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// CLOCK_MONOTONIC at zero, in nanoseconds.
    pub start_ns: u64,
    /// CLOCK_REALTIME at zero, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Time for which the machine had been suspended at zero, in nanoseconds.
    pub suspended_ns: u64,
}

impl Clock {
    /// A clock with the zero of another. One that lies in the future counts as now.
    pub fn at(origin: Origin) -> Self {
        let Origin { start_ns, unix_ns, suspended_ns } = origin;
        let start_ns = start_ns.min(read_ns(ClockId::Monotonic));
        Self { start_ns, unix_ns, suspended: Duration::from_nanos(suspended_ns) }
    }

    /// Its zero.
    pub fn origin(&self) -> Origin {
        let Self { start_ns, unix_ns, suspended } = *self;
        Origin { start_ns, unix_ns, suspended_ns: u64::try_from(suspended.as_nanos()).unwrap_or(u64::MAX) }
    }

    /// A clock whose zero is now.
    pub fn start() -> Self {
        Self {
            start_ns: read_ns(ClockId::Monotonic),
            unix_ns: read_ns(ClockId::Realtime),
            suspended: suspended(),
        }
    }

    /// The time.
    pub fn now(&self) -> Instant {
        Instant::from_ns(read_ns(ClockId::Monotonic) - self.start_ns)
    }

    /// Time for which the machine has been suspended since zero. Two clocks are read one after the other, so
    /// it may be some microseconds too long.
    pub fn suspended(&self) -> Duration {
        suspended().saturating_sub(self.suspended)
    }

    /// Nanoseconds since 1970 at `at`, a moment ago, as the wall clock stands now: it may have been set since
    /// the start, and has gone on while the machine was suspended.
    pub fn date_ns(&self, at: Instant) -> u64 {
        let lead = || {
            let awake_ns = read_ns(ClockId::Monotonic);
            read_ns(ClockId::Realtime).saturating_sub(awake_ns)
        };
        // The least is that with the shortest time between the two.
        let lead = lead().min(lead()).min(lead());
        lead.saturating_add(self.start_ns).saturating_add(at.as_ns())
    }
}

/// Time for which the machine has been suspended since its boot.
fn suspended() -> Duration {
    let awake_ns = read_ns(ClockId::Monotonic);
    Duration::from_nanos(read_ns(ClockId::Boottime).saturating_sub(awake_ns))
}

fn read_ns(clock: ClockId) -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    // Neither clock is before its zero.
    (tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(tv_nsec as u64)
}

#[cfg(test)]
mod tests;
