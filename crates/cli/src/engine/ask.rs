//! Requests to workers, for the warden and for metrics: a command each, with a wait for its reply.
//!
//! A worker that does not reply within [`PATIENCE`] stands still (its machine is suspended, its link's driver
//! hangs), and the client learns that. Nothing is lost by it: the command is executed when the worker goes
//! on, and its reply is dropped.

use brodo_control::rpc::{Error, code};
use brodo_net::command::{Command, NoReply, Pending, ReplyTo};
use brodo_net::workers::Workers;
use std::time::Duration;

/// Longest wait for a worker. A turn takes about a millisecond.
const PATIENCE: Duration = Duration::from_secs(2);

/// Flows examined by one command: the work of some hundred microseconds.
pub(crate) const FLOWS_PER_COMMAND: usize = 256;

fn wait<T>(pending: Pending<T>) -> Result<T, Error> {
    pending.wait(PATIENCE).map_err(|error| {
        let why = match error {
            NoReply::Late => "brodo is too busy to answer",
            NoReply::Dropped => "brodo serves no network any more",
        };
        Error::new(code::BUSY, why)
    })
}

/// Sends a request to one worker.
pub(crate) fn ask<T>(
    workers: &Workers,
    worker: u32,
    command: impl FnOnce(ReplyTo<T>) -> Command,
) -> Result<T, Error> {
    wait(workers.ask(worker, command))
}

/// Sends a request to all workers at once; replies in order of their numbers.
pub(crate) fn ask_all<T>(
    workers: &Workers,
    command: impl Fn(ReplyTo<T>) -> Command,
) -> Result<Vec<T>, Error> {
    let pending: Vec<_> = (0..workers.workers()).map(|worker| workers.ask(worker, &command)).collect();
    pending.into_iter().map(wait).collect()
}
