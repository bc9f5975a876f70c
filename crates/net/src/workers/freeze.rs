//! Freeze of all workers: each parks after its turn, until all are thawed or stopped.
//!
//! The request is a flag that each worker reads at the end of a turn; the first worker, on its own thread,
//! then waits until all others are parked ([`Freeze::await_parked`]) and thaws them. A worker that was thawed
//! and is asked again before it has left is still parked, and stays so.
//!
//! System calls: futex.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for all workers to park. A turn takes about a millisecond; a worker that does not park stands
/// still.
const PATIENCE: Duration = Duration::from_secs(1);

/// A worker did not park in time, or the workers are stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotFrozen;

impl std::fmt::Display for NotFrozen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a worker did not end its turn in time")
    }
}

impl std::error::Error for NotFrozen {}

/// Request to freeze, and the workers that are parked.
#[derive(Debug, Default)]
pub(super) struct Freeze {
    requested: AtomicBool,
    stopping: AtomicBool,
    parked: Mutex<u32>,
    changed: Condvar,
}

impl Freeze {
    /// Requests the freeze. The workers must be woken then.
    pub(super) fn request(&self) {
        self.requested.store(true, Ordering::Release);
    }

    /// Whether a freeze is requested and not over.
    pub(super) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    /// Ends the freeze: parked workers go on.
    pub(super) fn thaw(&self) {
        let parked = self.lock();
        self.requested.store(false, Ordering::Release);
        drop(parked);
        self.changed.notify_all();
    }

    /// Ends all waits: parked workers end.
    pub(super) fn stop(&self) {
        let parked = self.lock();
        self.stopping.store(true, Ordering::Release);
        drop(parked);
        self.changed.notify_all();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Parks the calling worker until it is thawed. False if it must end instead.
    pub(super) fn park(&self) -> bool {
        let mut parked = self.lock();
        *parked += 1;
        self.changed.notify_all();
        while self.is_requested() && !self.is_stopping() {
            parked = self.changed.wait(parked).unwrap_or_else(PoisonError::into_inner);
        }
        *parked -= 1;
        !self.is_stopping()
    }

    /// Waits until so many workers are parked.
    ///
    /// # Errors
    /// One of them stands still, or all must stop.
    pub(super) fn await_parked(&self, workers: u32) -> Result<(), NotFrozen> {
        let until = Instant::now() + PATIENCE;
        let mut parked = self.lock();
        while *parked < workers {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_stopping() {
                return Err(NotFrozen);
            }
            parked = self.changed.wait_timeout(parked, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, u32> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
