//! Time as a value: nanoseconds since an arbitrary zero, passed in by the caller.
//!
//! The driver reads its monotonic clock once per loop turn; the simulator counts its own. No code in the core
//! can read a clock, so a run with the same inputs is the same run.

use core::num::NonZeroU64;
use core::ops::{Add, Sub};
pub use core::time::Duration;

/// A point in time: nanoseconds since the driver's zero. Wraps after 584 years.
// One is added, so that an `Option` of it takes no more room: connections hold many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(NonZeroU64);

impl Default for Instant {
    fn default() -> Self {
        Self::ZERO
    }
}

impl Instant {
    /// The driver's zero.
    pub const ZERO: Self = Self(NonZeroU64::MIN);

    /// The instant `ns` nanoseconds after zero.
    pub const fn from_ns(ns: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(ns))
    }

    /// The instant `ms` milliseconds after zero.
    pub const fn from_ms(ms: u64) -> Self {
        Self::from_ns(ms * 1_000_000)
    }

    /// Nanoseconds since zero.
    pub const fn as_ns(self) -> u64 {
        self.0.get() - 1
    }

    /// Time since `earlier`; zero if `earlier` is in fact later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}
