//! Visits: closures that a worker runs between two turns, for the control socket and metrics, which wait for
//! the result.
//!
//! A worker that does not come within [`PATIENCE`] stands still (its machine is suspended, its link's driver
//! hangs): the visitor gets an error. The visit is made when the worker goes on, and its result is dropped.

use brodo_control::rpc::{Error, code};
use brodo_net::driver::WorkerView;
use brodo_net::workers::Workers;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Longest wait for a worker. A turn takes about a millisecond.
const PATIENCE: Duration = Duration::from_secs(2);

/// Flows looked at in one visit: what a worker does in some hundred microseconds.
pub(crate) const VISIT_FLOWS: usize = 256;

/// A result to wait for.
struct Pending<T>(Receiver<T>);

fn send<T: Send + 'static>(
    workers: &Workers,
    worker: u32,
    ask: impl FnOnce(&mut WorkerView<'_>) -> T + Send + 'static,
) -> Pending<T> {
    let (to, from) = sync_channel(1);
    // An error: the visitor has given up.
    workers.visit(worker, Box::new(move |inside| _ = to.try_send(ask(inside))));
    Pending(from)
}

impl<T> Pending<T> {
    fn wait(self) -> Result<T, Error> {
        self.0.recv_timeout(PATIENCE).map_err(|error| {
            let why = match error {
                RecvTimeoutError::Timeout => "brodo is too busy to answer",
                RecvTimeoutError::Disconnected => "brodo serves no network any more",
            };
            Error::new(code::BUSY, why)
        })
    }
}

/// Asks one worker.
pub(crate) fn ask<T: Send + 'static>(
    workers: &Workers,
    worker: u32,
    what: impl FnOnce(&mut WorkerView<'_>) -> T + Send + 'static,
) -> Result<T, Error> {
    send(workers, worker, what).wait()
}

/// Asks all workers at once; results in order of their numbers.
pub(crate) fn ask_all<T: Send + 'static>(
    workers: &Workers,
    what: impl Fn(&mut WorkerView<'_>) -> T + Clone + Send + 'static,
) -> Result<Vec<T>, Error> {
    let pending: Vec<_> = (0..workers.workers()).map(|worker| send(workers, worker, what.clone())).collect();
    pending.into_iter().map(Pending::wait).collect()
}
