//! Time as a value: nanoseconds since an arbitrary zero, handed in by the caller.
//!
//! The driver reads its monotonic clock once per loop turn; the simulator counts its own. Nothing in the core can
//! ask what time it is, so a run with the same inputs is the same run.

use core::ops::{Add, Sub};
pub use core::time::Duration;

/// A point in time: nanoseconds since the driver's zero. Wraps after 584 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The driver's zero.
    pub const ZERO: Self = Self(0);

    /// The instant `ns` nanoseconds after zero.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// The instant `ms` milliseconds after zero.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// Nanoseconds since zero.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Time since `earlier`; zero if `earlier` is in fact later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
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
