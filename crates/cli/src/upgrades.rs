//! Upgrades in place: requests for them, and the thread that makes them.
//!
//! A client of the control socket, or SIGUSR2, leaves a wish here and wakes the warden's main thread, which
//! alone may make processes and replace the program. It leaves the outcome, and before the program is
//! replaced it waits a moment until the client has it ([`Upgrades::tell`]).
//!
//! The gate: the control thread holds it while it executes a request, the main thread while the engine is
//! exchanged and the state is saved. So no request is half done in between; changes that no request makes
//! (rules that expire) wait for the engine ([`crate::warden::client`]). After each request the main
//! thread is woken too, if it keeps the state somewhere ([`crate::store`]); so it is after a lockdown for
//! want of the audit log, which no request makes and which does not wait for the gate.

use crate::mailbox::Mailbox;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Longest wait for a client's reply to be written.
const PATIENCE: Duration = Duration::from_secs(1);

/// Upgrades so far, for the status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct History {
    pub(crate) count: u32,
    pub(crate) last: Option<Upgraded>,
    /// The last attempt, if it has failed.
    pub(crate) failure: Option<Failed>,
}

/// A completed upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Upgraded {
    /// RFC 3339.
    pub(crate) time: String,
    /// Version of the program from then on.
    pub(crate) version: String,
    /// Time for which no frame was carried.
    pub(crate) pause_us: u64,
    /// Flows that could not be handed over, and were reset.
    pub(crate) flows_lost: u64,
}

/// A failed attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failed {
    /// RFC 3339.
    pub(crate) time: String,
    /// A sentence.
    pub(crate) reason: String,
}

/// A wish: the program to go on with, or the one at the path of the present one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) program: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct Shared {
    wish: Option<Wish>,
    under_way: bool,
    /// The reason why there are none any more.
    closed: Option<&'static str>,
    outcome: Option<Result<Upgraded, String>>,
    history: History,
}

/// Upgrades of an instance.
#[derive(Debug)]
pub(crate) struct Upgrades {
    waker: OwnedFd,
    shared: Mutex<Shared>,
    notified: Condvar,
    gate: Mutex<()>,
    /// Whether the main thread is to know of each request.
    reports_requests: AtomicBool,
}

/// The gate, held by a request.
pub(crate) struct Gate<'a> {
    upgrades: &'a Upgrades,
    held: Option<MutexGuard<'a, ()>>,
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.held = None;
        self.upgrades.state_changed();
    }
}

impl Upgrades {
    /// Those after `history`.
    ///
    /// # Errors
    /// eventfd failed: no descriptors.
    pub(crate) fn new(history: History) -> io::Result<Self> {
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Mutex::new(Shared { history, ..Shared::default() });
        let (notified, gate, reports_requests) = Default::default();
        Ok(Self { waker, shared, notified, gate, reports_requests })
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds off an upgrade, for a request.
    pub(crate) fn gate(&self) -> Gate<'_> {
        let held = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        Gate { upgrades: self, held: Some(held) }
    }

    /// Holds off requests, for the main thread, unless one is executed: it may need that thread, for a
    /// listening socket.
    pub(crate) fn try_hold_requests(&self) -> Option<MutexGuard<'_, ()>> {
        match self.gate.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Wakes the main thread after each request from now on.
    pub(crate) fn report_requests(&self) {
        self.reports_requests.store(true, Ordering::Relaxed);
    }

    /// Wakes the main thread after a change of the state, if it keeps the state somewhere.
    pub(crate) fn state_changed(&self) {
        if self.reports_requests.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    fn wake(&self) {
        // It could only fail after 2^64 writes.
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    /// Upgrades so far.
    pub(crate) fn history(&self) -> History {
        self.lock().history.clone()
    }

    /// Readable when there is a wish, or a request was made.
    pub(crate) fn waker(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }

    /// Asks for an upgrade.
    ///
    /// # Errors
    /// One is under way, or there are none any more: a sentence.
    pub(crate) fn ask(&self, wish: Wish) -> Result<(), &'static str> {
        let mut shared = self.lock();
        if let Some(why) = shared.closed {
            return Err(why);
        }
        if std::mem::replace(&mut shared.under_way, true) {
            return Err("an upgrade is under way");
        }
        (shared.wish, shared.outcome) = (Some(wish), None);
        drop(shared);
        self.wake();
        Ok(())
    }

    /// Refuses all from now on for this reason; true if one is under way, the end of which is to be noted
    /// ([`Upgrades::tell`]).
    pub(crate) fn close(&self, why: &'static str) -> bool {
        let mut shared = self.lock();
        shared.closed = Some(why);
        shared.under_way
    }

    /// The wish, once.
    pub(crate) fn take(&self) -> Option<Wish> {
        let _ = rustix::io::read(&self.waker, &mut [0; 8]);
        self.lock().wish.take()
    }

    /// Notes the end of an upgrade, and waits until clients that have asked for it know (`clients` wakes
    /// them).
    pub(crate) fn tell<T>(
        &self,
        outcome: Result<Upgraded, String>,
        now: String,
        clients: Option<&Mailbox<T>>,
    ) {
        let mut shared = self.lock();
        match &outcome {
            Ok(upgraded) => {
                shared.history.count += 1;
                (shared.history.last, shared.history.failure) = (Some(upgraded.clone()), None);
            }
            Err(reason) => shared.history.failure = Some(Failed { time: now, reason: reason.clone() }),
        }
        shared.under_way = false;
        let Some(clients) = clients else { return };
        shared.outcome = Some(outcome);
        clients.wake();
        let _ = self.notified.wait_timeout_while(shared, PATIENCE, |shared| shared.outcome.is_some());
    }

    /// In the control thread: the outcome that clients are to know.
    pub(crate) fn outcome(&self) -> Option<Result<Upgraded, String>> {
        self.lock().outcome.clone()
    }

    /// In the control thread: clients have been notified.
    pub(crate) fn notified(&self) {
        self.lock().outcome = None;
        self.notified.notify_all();
    }

    /// Notes that the engine was upgraded but not the warden.
    pub(crate) fn warden_stays(&self, now: String, reason: String) {
        self.lock().history.failure = Some(Failed { time: now, reason });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_upgrade_at_a_time_and_its_outcome_is_kept() {
        let upgrades = Upgrades::new(History::default()).expect("an eventfd");
        let wish = Wish { program: Some("/bin/brodo".into()) };
        assert!(upgrades.ask(wish.clone()).is_ok() && upgrades.ask(Wish::default()).is_err());
        assert_eq!((upgrades.take(), upgrades.take()), (Some(wish), None));
        upgrades.tell::<()>(Err("why".to_owned()), "then".to_owned(), None);
        assert!(upgrades.history().failure.is_some_and(|failed| failed.reason == "why"));
        assert_eq!(upgrades.ask(Wish::default()), Ok(()));
        let last = Upgraded { time: String::new(), version: "2".to_owned(), pause_us: 7, flows_lost: 0 };
        upgrades.tell::<()>(Ok(last.clone()), String::new(), None);
        assert_eq!(upgrades.history(), History { count: 1, last: Some(last), failure: None });
        assert!(!upgrades.close("why"));
        assert_eq!(upgrades.ask(Wish::default()), Err("why"));
    }
}
