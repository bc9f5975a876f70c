//! Running of a network on brodo's own threads: the first worker on the calling one, the others on threads of
//! theirs, and all of them parked while the network is frozen.
//!
//! Each worker but the first is behind a lock that its thread holds while it works. A thread that parks lets
//! go of it, so the first worker's thread then has all workers at hand.

use super::handover::Frozen;
use super::{Network, NetworkError};
use crate::driver::{Wake, Worker};
use crate::workers::{NotFrozen, Workers};
use brodo_link::GuestLink;
use std::ops::ControlFlow;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// A worker in the care of its thread.
type Slot<'a, L> = Mutex<&'a mut Worker<L>>;

/// Reason for the return of a worker's run.
enum Outcome<T> {
    /// The network has ended.
    Ended,
    /// The worker is to park.
    Freeze,
    /// The caller has ended the run.
    Broken(T),
}

impl<L: GuestLink> Network<L> {
    /// As [`Network::run`], with two more callbacks on this thread. `on_started` is called once all threads
    /// run and before any of them works: for a process that confines itself, and can start no thread from
    /// then on. `on_frozen` is called after [`Handle::freeze`](super::Handle::freeze), when all workers are
    /// parked, or could not be: to go on is to thaw them, and to break ends the run without another turn
    /// ([`crate::handover`]).
    ///
    /// # Errors
    /// As [`Network::run`].
    pub fn run_after<T>(
        &mut self,
        on_started: impl FnOnce(),
        on_wake: impl FnMut(Wake) -> ControlFlow<T>,
        on_other: &(impl Fn(Wake) + Sync),
        on_frozen: impl FnMut(Result<Frozen<'_, L>, NotFrozen>) -> ControlFlow<T>,
    ) -> Result<Option<T>, NetworkError>
    where
        L: Send,
    {
        let shared = self.shared.clone();
        let _close = CloseOnDrop(&shared);
        let Some((first, others)) = self.workers.split_first_mut() else { return Ok(None) };
        if others.is_empty() {
            on_started();
            return First { worker: first, others: &[], shared: &shared }.run(on_wake, on_frozen);
        }
        let others: Vec<Slot<'_, L>> = others.iter_mut().map(Mutex::new).collect();
        // Held until all threads run; each waits for it before its first turn.
        let gate = Mutex::new(());
        let (arrival, arrivals) = sync_channel(others.len());
        thread::scope(|scope| {
            let closed = gate.lock();
            let stop = StopOnDrop(&shared);
            let mut threads = Vec::with_capacity(others.len());
            for (number, slot) in (2..).zip(&others) {
                let other = Other { slot, shared: &shared, gate: &gate, arrival: arrival.clone() };
                let spawned = thread::Builder::new()
                    .name(format!("worker {number}"))
                    .spawn_scoped(scope, move || other.run(on_other));
                threads.push(spawned.map_err(NetworkError::io("start a worker: clone"))?);
            }
            for _ in &threads {
                let _ = arrivals.recv();
            }
            on_started();
            drop(closed);
            let result = First { worker: first, others: &others, shared: &shared }.run(on_wake, on_frozen);
            drop(stop);
            for thread in threads {
                match thread.join() {
                    // The failure of another worker is the reason why this one was stopped.
                    Ok(ended) if matches!(result, Ok(None)) => ended?,
                    Ok(_) => {}
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            result
        })
    }

    /// Runs until `on_wake` breaks, the guest is gone (`None`) or [`Handle::stop`](super::Handle::stop): the
    /// first worker on this thread, the others on threads of their own, which pass their reports to
    /// `on_other`. The end of one worker, by an error or a panic too, ends all. A freeze is thawed at once.
    ///
    /// # Errors
    /// epoll or a link is broken for good, or a thread could not be started.
    pub fn run<T>(
        &mut self,
        on_wake: impl FnMut(Wake) -> ControlFlow<T>,
        on_other: &(impl Fn(Wake) + Sync),
    ) -> Result<Option<T>, NetworkError>
    where
        L: Send,
    {
        self.run_after(|| {}, on_wake, on_other, |_| ControlFlow::Continue(()))
    }
}

/// The first worker on its thread.
struct First<'r, 'w, L> {
    worker: &'r mut Worker<L>,
    others: &'r [Slot<'w, L>],
    shared: &'r Workers,
}

impl<L: GuestLink> First<'_, '_, L> {
    fn run<T>(
        &mut self,
        mut on_wake: impl FnMut(Wake) -> ControlFlow<T>,
        mut on_frozen: impl FnMut(Result<Frozen<'_, L>, NotFrozen>) -> ControlFlow<T>,
    ) -> Result<Option<T>, NetworkError> {
        loop {
            match drive(self.worker, &mut on_wake)? {
                Outcome::Ended => return Ok(None),
                Outcome::Broken(value) => return Ok(Some(value)),
                Outcome::Freeze => {
                    if let ControlFlow::Break(value) = self.frozen(&mut on_frozen) {
                        // Parked workers end instead of going on.
                        self.shared.stop();
                        return Ok(Some(value));
                    }
                    self.shared.thaw();
                }
            }
        }
    }

    /// Waits until all others are parked, and has the caller act.
    fn frozen<T>(
        &mut self,
        on_frozen: &mut impl FnMut(Result<Frozen<'_, L>, NotFrozen>) -> ControlFlow<T>,
    ) -> ControlFlow<T> {
        if let Err(reason) = self.shared.await_parked() {
            return on_frozen(Err(reason));
        }
        let lock = |slot| Mutex::lock(slot).unwrap_or_else(PoisonError::into_inner);
        let mut others: Vec<_> = self.others.iter().map(lock).collect();
        let others = others.iter_mut().map(|worker| &mut **worker);
        on_frozen(Ok(Frozen::new(std::iter::once(&mut *self.worker).chain(others.map(|it| &mut **it)))))
    }
}

/// Another worker on its thread.
struct Other<'r, 'w, L> {
    slot: &'r Slot<'w, L>,
    shared: &'r Workers,
    gate: &'r Mutex<()>,
    arrival: SyncSender<()>,
}

impl<L: GuestLink> Other<'_, '_, L> {
    fn run(self, on_other: &impl Fn(Wake)) -> Result<(), NetworkError> {
        let _stop = StopOnDrop(self.shared);
        // Its set-up by the C library is over, which takes system calls of its own.
        let _ = self.arrival.send(());
        drop(self.gate.lock());
        let mut on_wake = |wake| -> ControlFlow<()> {
            on_other(wake);
            ControlFlow::Continue(())
        };
        loop {
            let mut worker = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
            let outcome = drive(&mut worker, &mut on_wake)?;
            drop(worker);
            if !matches!(outcome, Outcome::Freeze) || !self.shared.park() {
                return Ok(());
            }
        }
    }
}

/// Runs one worker until it ends or is to park.
fn drive<L: GuestLink, T>(
    worker: &mut Worker<L>,
    on_wake: &mut impl FnMut(Wake) -> ControlFlow<T>,
) -> Result<Outcome<T>, NetworkError> {
    loop {
        match worker.run().map_err(NetworkError::Failed)? {
            Wake::GuestGone | Wake::Stopped => return Ok(Outcome::Ended),
            Wake::Freeze => return Ok(Outcome::Freeze),
            wake => {
                if let ControlFlow::Break(value) = on_wake(wake) {
                    return Ok(Outcome::Broken(value));
                }
            }
        }
    }
}

/// Stops all workers when one ends, also by a panic.
struct StopOnDrop<'a>(&'a Workers);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Refuses all commands once the workers have ended, also by a panic: no caller waits for a reply in vain.
struct CloseOnDrop<'a>(&'a Workers);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
