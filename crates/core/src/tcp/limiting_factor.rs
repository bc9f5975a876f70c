//! Limiting factor of a connection, with the time of each.
//!
//! At any time exactly one thing limits each direction of a connection. A [`LimitingClock`] is updated whenever
//! it may have changed and adds up the time; reading it answers "why is this connection slow?".

use crate::time::{Duration, Instant};

/// Limiting factor of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum LimitingFactor {
    /// The sender has no data.
    #[default]
    Application,
    /// The window the guest offers (toward the guest).
    GuestWindow,
    /// Our own limit: the window we offer (from the guest) or the bytes we put in flight (toward it).
    OurLimit,
    /// The host socket takes no more bytes (from the guest).
    HostSocket,
    /// The guest link has no credit (toward the guest), or its ring no room (from the guest).
    Link,
    /// The memory budget.
    Memory,
    /// A loss is being repaired (toward the guest).
    Loss,
}

impl LimitingFactor {
    /// Every one, in order of declaration: the index of [`LimitingFactors::times`].
    pub const ALL: [Self; 7] = [
        Self::Application,
        Self::GuestWindow,
        Self::OurLimit,
        Self::HostSocket,
        Self::Link,
        Self::Memory,
        Self::Loss,
    ];

    /// The name shown to people and written to metrics.
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

/// Time is added up in units of this many nanoseconds, so that three days fit into 32 bits: ten thousand idle
/// connections are to cost little. The rest of a unit goes to the next limiting factor, as in the accounting
/// of processor time.
const UNIT_NS: u64 = 1 << 16;

/// Adds up time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitingClock {
    by: LimitingFactor,
    since: Instant,
    held_units: [u32; LimitingFactor::ALL.len()],
}

impl LimitingClock {
    /// A clock that begins with nothing to send.
    pub(crate) fn new(now: Instant) -> Self {
        Self { by: LimitingFactor::default(), since: now, held_units: [0; LimitingFactor::ALL.len()] }
    }

    /// From `now` on `by` is what limits. Gives what did before and for how long, if that is a change.
    pub(crate) fn set(&mut self, now: Instant, by: LimitingFactor) -> Option<(LimitingFactor, Duration)> {
        if by == self.by {
            return None;
        }
        let (before, time) = (self.by, now - self.since);
        let units = time.as_nanos() as u64 / UNIT_NS;
        let held = &mut self.held_units[before as usize];
        *held = held.saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
        self.since = self.since + Duration::from_nanos(units * UNIT_NS);
        self.by = by;
        Some((before, time))
    }

    /// Present limiting factor and its start, exact to a unit.
    pub(crate) fn current(&self) -> (LimitingFactor, Instant) {
        (self.by, self.since)
    }

    /// Factors and times at `now`.
    pub(crate) fn read(&self, now: Instant) -> LimitingFactors {
        let mut times = self.held_units.map(|units| Duration::from_nanos(u64::from(units) * UNIT_NS));
        times[self.by as usize] += now - self.since;
        LimitingFactors { current: self.by, times }
    }
}
