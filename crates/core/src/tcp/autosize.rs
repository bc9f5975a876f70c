//! Automatic buffer limits: how a connection's receive and send limits find their size.
//!
//! A limit starts at `initial` and grows while the connection shows that it is what holds it back. The receiver's
//! limit (guest to host) doubles when in one interval the guest came close to the edge of the window (*hit*) and the
//! host socket took everything (*starved*): with the window larger, more would have flowed. The sender's limit (host
//! to guest) doubles when the bytes in flight reached it while the host socket still had data. A flow that is slow
//! for any other reason, because the host socket is full, the guest's window is small or the application is idle,
//! grows nothing. An interval is one smoothed round trip of the link, at least 500 us.
//!
//! After a second without reaching even an eighth of the limit the limit falls back: an idle connection starts again
//! from `initial`.

use crate::config::BufferBounds;
use crate::time::{Duration, Instant};

const INTERVAL_MIN: Duration = Duration::from_micros(500);
const INTERVAL_MAX: Duration = Duration::from_millis(100);
/// A limit that was not used for this long falls.
const IDLE: Duration = Duration::from_secs(1);

/// One direction's limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    bounds: BufferBounds,
    now: u32,
    /// End of the current interval.
    interval_end: Instant,
    /// When the limit was last used to an eighth or more.
    used_at: Instant,
    hit: bool,
    /// How often it grew and shrank.
    grows: u32,
    shrinks: u32,
}

/// What an update did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Grew,
    Shrank,
}

impl Limit {
    /// A limit of `bounds`, capped at `cap` bytes (65535 without window scaling).
    pub(crate) fn new(bounds: BufferBounds, cap: u32, now: Instant) -> Self {
        let bounds = BufferBounds { initial: bounds.initial.min(cap), max: bounds.max.min(cap) };
        Self {
            bounds,
            now: bounds.initial,
            interval_end: now,
            used_at: now,
            hit: false,
            grows: 0,
            shrinks: 0,
        }
    }

    /// The limit in bytes.
    pub(crate) const fn get(&self) -> u32 {
        self.now
    }

    /// The highest that the limit can get, bytes.
    pub(crate) const fn max(&self) -> u32 {
        self.bounds.max
    }

    /// How often it grew and shrank.
    pub(crate) const fn changes(&self) -> (u32, u32) {
        (self.grows, self.shrinks)
    }

    /// The peer reached the limit while nothing else held the flow back.
    pub(crate) fn hit(&mut self) {
        self.hit = true;
    }

    /// Something was lost: half the limit (sender only).
    pub(crate) fn halve(&mut self) -> Change {
        self.set((self.now / 2).max(self.bounds.initial))
    }

    /// Called as data flows; `outstanding` is what the limit bounds now, in bytes, `rtt` the link's.
    pub(crate) fn update(&mut self, now: Instant, outstanding: u32, rtt: Option<Duration>) -> Change {
        let idle = now - self.used_at >= IDLE;
        if outstanding >= self.now / 8 || self.hit {
            self.used_at = now;
        }
        if idle && !self.hit {
            self.used_at = now;
            return self.set(self.bounds.initial);
        }
        if now < self.interval_end {
            return Change::None;
        }
        let interval = rtt.unwrap_or(INTERVAL_MIN).clamp(INTERVAL_MIN, INTERVAL_MAX);
        self.interval_end = now + interval;
        if std::mem::take(&mut self.hit) {
            return self.set(self.now.saturating_mul(2).min(self.bounds.max));
        }
        Change::None
    }

    fn set(&mut self, limit: u32) -> Change {
        let before = std::mem::replace(&mut self.now, limit);
        match limit.cmp(&before) {
            std::cmp::Ordering::Greater => {
                self.grows += 1;
                Change::Grew
            }
            std::cmp::Ordering::Less => {
                self.shrinks += 1;
                Change::Shrank
            }
            std::cmp::Ordering::Equal => Change::None,
        }
    }
}
