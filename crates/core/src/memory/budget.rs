//! The memory budget shared by all workers: one figure, and the protocol by which a worker waits for it.
//!
//! Workers share only this, and it is two kinds of atomic integers: no lock, no list. [`Budget`] counts the
//! chunk memory in use; from that figure come the memory pressure and the memory cap of a flow, the same for
//! all workers.
//!
//! No polling: a worker that lacks memory parks itself, and the worker that frees memory wakes it.
//! [`StopWake`] is that protocol, with one rule for each side:
//!
//! * the waiter sets its flag, passes a fence, and then checks once more for *its own* room: the amount it
//!   needs, not an empty store, because others may hold the rest for as long as they like;
//! * the releaser frees memory, passes a fence, and then wakes the workers whose flag is set, if there is
//!   enough.
//!
//! Fences: they are totally ordered, so the side whose fence is second sees the stores made before the first.
//! Either the waiter sees the room, or the releaser sees the waiter's flag; both is a spurious wake-up, which
//! is harmless. The releaser's threshold must not exceed the waiter's requirement, or the wake-up is lost.
//!
//! `tests/stop_wake.rs` compiles this file against a model checker, which tries all interleavings and all
//! that the processor's memory model allows, and finds the lost wake-up in the variants that leave one of
//! these steps out.

use crate::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// Most workers that can share a budget: one bit of a mask each.
pub const WORKERS_MAX: u32 = 64;

/// Room required for a read from a host socket: one large chunk, in bytes.
pub const READ_ROOM: usize = 64 << 10;

/// Memory pressure, and its consequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Every connection may hold as much as is still free: n busy ones settle at budget / (n + 1) each.
    None,
    /// Above 85 % of the budget: every connection may hold a few segments, no limit grows.
    Short,
    /// Above 95 %: no more payload is taken from the guest that would have to be kept. The rest lets bytes
    /// toward the guest pass, so that peers which read only when they can write do not wait for us while we
    /// wait for them.
    Spent,
}

/// Memory that a parked flow waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// To read from its host socket: [`READ_ROOM`].
    Read,
    /// To open its window to the guest: pressure below [`Pressure::Spent`].
    Window,
}

impl Need {
    /// Both kinds of need.
    pub const ALL: [Self; 2] = [Self::Read, Self::Window];
}

/// Parked workers, as one bit per worker.
#[derive(Debug)]
pub struct StopWake {
    stopped: AtomicU64,
}

impl Default for StopWake {
    fn default() -> Self {
        Self { stopped: AtomicU64::new(0) }
    }
}

impl StopWake {
    /// Marks `worker` as parked. It must then check for its own room once more, and goes on if there is some.
    /// False if it has been woken since it last parked.
    pub fn stop(&self, worker: u32) -> bool {
        let bit = 1 << worker;
        let before = self.stopped.fetch_or(bit, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        before & bit != 0
    }

    /// Whether `worker` is parked and has not been woken since.
    pub fn is_stopped(&self, worker: u32) -> bool {
        self.stopped.load(Ordering::Relaxed) & (1 << worker) != 0
    }

    /// The workers to wake after memory was freed, one bit each; none if there is not `enough`.
    #[must_use = "a worker that is not woken now waits for ever"]
    pub fn freed(&self, enough: impl FnOnce() -> bool) -> u64 {
        fence(Ordering::SeqCst);
        if self.stopped.load(Ordering::Relaxed) == 0 || !enough() {
            return 0;
        }
        self.stopped.swap(0, Ordering::Relaxed)
    }
}

/// Chunk memory of all workers.
#[derive(Debug)]
pub struct Budget {
    total: usize,
    used: AtomicUsize,
    reserved: AtomicUsize,
    reads: StopWake,
    windows: StopWake,
}

impl Budget {
    /// A budget of `total` bytes.
    pub fn new(total: usize) -> Self {
        let (used, reserved) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { total, used, reserved, reads: StopWake::default(), windows: StopWake::default() }
    }

    /// The whole budget, in bytes.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Window reservations of all workers, in bytes: the counted part of advertised windows that guests have
    /// not used yet.
    pub fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Changes one reservation from `before` to `now` bytes. No flow is woken for this: reservations bound
    /// the opening of windows, and close none.
    pub fn reserve_window(&self, before: usize, now: usize) {
        if now >= before {
            self.reserved.fetch_add(now - before, Ordering::Relaxed);
        } else {
            let reserved = self.reserved.fetch_sub(before - now, Ordering::Relaxed);
            debug_assert!(reserved >= before - now, "more is released than was reserved");
        }
    }

    /// Bytes of chunk memory in use, by all workers.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes of the budget that are free.
    pub fn available(&self) -> usize {
        self.total.saturating_sub(self.used())
    }

    /// The present memory pressure.
    pub fn pressure(&self) -> Pressure {
        // Rounding: the percentages of a tiny budget are less than a chunk.
        let (used, hundredth) = (self.used(), self.total / 100);
        if used > hundredth * 95 {
            Pressure::Spent
        } else if used > hundredth * 85 {
            Pressure::Short
        } else {
            Pressure::None
        }
    }

    /// Takes `bytes`; false, with nothing taken, if that would exceed the budget.
    pub fn take(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|&after| after <= self.total);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Returns `bytes` to the budget; the workers to wake, one bit each.
    #[must_use = "a worker that is not woken now waits for ever"]
    pub fn give_back(&self, bytes: usize) -> u64 {
        let used = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(used >= bytes, "more memory is returned than was taken");
        self.reads.freed(|| self.has_room(Need::Read)) | self.windows.freed(|| self.has_room(Need::Window))
    }

    /// Whether there is room for a flow with this need.
    pub fn has_room(&self, need: Need) -> bool {
        match need {
            Need::Read => self.available() >= READ_ROOM,
            Need::Window => self.pressure() < Pressure::Spent,
        }
    }

    /// Workers parked for this need.
    pub fn stopped(&self, need: Need) -> &StopWake {
        match need {
            Need::Read => &self.reads,
            Need::Window => &self.windows,
        }
    }
}
