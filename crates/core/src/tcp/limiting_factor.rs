//! Limiting factor of a connection, with the time of each.
//!
//! At any time exactly one thing limits each direction of a connection. A [`LimitingClock`] is updated
//! whenever it may have changed and adds up the time; reading it answers "why is this connection slow?".

use crate::snapshot::saved::{saved_enum, saved_struct};
use crate::snapshot::v1::LimitingClockV1;
use crate::time::{Duration, Instant};

/// Limiting factor of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum LimitingFactor {
    /// The sender has no data.
    #[default]
    Application,
    /// Window offered by the guest (toward the guest).
    GuestWindow,
    /// Our own limit: the window we offer (from the guest) or the bytes we put in flight (toward it).
    OurLimit,
    /// The host socket takes no more bytes (from the guest).
    HostSocket,
    /// The guest link has no credit (toward the guest), or its TX queue no room (from the guest).
    Link,
    /// The memory budget.
    Memory,
    /// A loss is being repaired (toward the guest).
    Loss,
}

impl LimitingFactor {
    /// All factors in order of declaration: the index of [`LimitingFactors::times`].
    pub const ALL: [Self; 7] = [
        Self::Application,
        Self::GuestWindow,
        Self::OurLimit,
        Self::HostSocket,
        Self::Link,
        Self::Memory,
        Self::Loss,
    ];

    /// Name in messages, metrics and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::GuestWindow => "guest window",
            Self::OurLimit => "our limit",
            Self::HostSocket => "host socket",
            Self::Link => "link",
            Self::Memory => "memory",
            Self::Loss => "loss",
        }
    }
}

/// Present limiting factor of a direction, and the time of each so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitingFactors {
    /// Present limiting factor.
    pub current: LimitingFactor,
    /// Time for each of [`LimitingFactor::ALL`], the current one included.
    pub times: [Duration; LimitingFactor::ALL.len()],
}

/// Change of a limiting factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FactorChange {
    pub(crate) from: LimitingFactor,
    pub(crate) to: LimitingFactor,
    /// Time for which the former has limited, exact to a unit.
    pub(crate) after: Duration,
}

/// Unit of the times that are added up, nanoseconds, so that three days fit into 32 bits: ten thousand idle
/// connections are to cost little. The rest of a unit goes to the next limiting factor, as in the accounting
/// of processor time.
const UNIT_NS: u64 = 1 << 16;

/// Sum of the time of each limiting factor of one direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitingClock {
    current: LimitingFactor,
    since: Instant,
    units: [u32; LimitingFactor::ALL.len()],
}

impl LimitingClock {
    /// A clock that begins with nothing to send.
    pub(crate) fn new(now: Instant) -> Self {
        Self { current: LimitingFactor::default(), since: now, units: [0; LimitingFactor::ALL.len()] }
    }

    /// Limiting factor from `now` on; gives the change, if it is one.
    pub(crate) fn set(&mut self, now: Instant, to: LimitingFactor) -> Option<FactorChange> {
        if to == self.current {
            return None;
        }
        let (from, after) = (self.current, now - self.since);
        let units = after.as_nanos() as u64 / UNIT_NS;
        let sum = &mut self.units[from as usize];
        *sum = sum.saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
        self.since = self.since + Duration::from_nanos(units * UNIT_NS);
        self.current = to;
        Some(FactorChange { from, to, after })
    }

    /// Present limiting factor and its start, exact to a unit.
    pub(crate) fn current(&self) -> (LimitingFactor, Instant) {
        (self.current, self.since)
    }

    /// Factors and times at `now`.
    pub(crate) fn read(&self, now: Instant) -> LimitingFactors {
        let mut times = self.units.map(|units| Duration::from_nanos(u64::from(units) * UNIT_NS));
        times[self.current as usize] += now - self.since;
        LimitingFactors { current: self.current, times }
    }
}
saved_enum!(LimitingFactor {
    Application = 0, GuestWindow = 1, OurLimit = 2, HostSocket = 3, Link = 4, Memory = 5, Loss = 6,
});
saved_struct!(LimitingClock as LimitingClockV1 { current, since, units });
