//! Forwarded ports, all of which belong to the first worker: list, add, remove.

use super::ask;
use crate::conversation::forwards;
use brodo_control::method::{AddForward, Forward};
use brodo_control::rpc::{Error, code};
use brodo_net::command::{Command, ForwardRefusal, ForwardReport, ReplyTo};
use brodo_net::forward::ForwardError;
use brodo_net::workers::Workers;

/// The worker that has the forwards.
const FIRST: u32 = 0;
/// Listening addresses given for each forward; further ones are only counted.
const LISTENING_MAX: usize = 16;

/// Sends a request to the first worker.
fn ask<T>(
    workers: &Workers,
    command: impl FnOnce(ReplyTo<Result<T, ForwardRefusal>>) -> Command,
) -> Result<T, Error> {
    ask::ask(workers, FIRST, command)?.map_err(|refusal| match refusal {
        ForwardRefusal::NoForwards => Error::new(code::UNSUPPORTED, "this brodo forwards no ports"),
        ForwardRefusal::NotFound(id) => not_found(id.into()),
        ForwardRefusal::Failed(ForwardError::Invalid(why)) => Error::new(code::INVALID_PARAMS, why),
        ForwardRefusal::Failed(socket @ ForwardError::Socket { .. }) => {
            Error::new(code::FAILED, socket.to_string())
        }
    })
}

fn not_found(id: u64) -> Error {
    Error::new(code::NOT_FOUND, format!("there is no forward {id}"))
}

/// All forwards, in order of their number.
pub(super) fn list(workers: &Workers) -> Result<Vec<Forward>, Error> {
    let listed = ask(workers, |reply| Command::ListForwards { sockets_max: LISTENING_MAX, reply });
    match listed {
        Err(error) if error.code == code::UNSUPPORTED => Ok(Vec::new()),
        other => other.map(|reports| reports.into_iter().map(message).collect()),
    }
}

fn message(ForwardReport { listed, listening }: ForwardReport) -> Forward {
    let AddForward { side, protocol, spec } = forwards::request(&listed.forward);
    Forward { id: listed.id.into(), side, protocol, spec, sockets: listed.listeners as u64, listening }
}

/// Adds a forward; existing ones stay.
pub(super) fn add(workers: &Workers, wanted: &AddForward) -> Result<Forward, Error> {
    let forward = forwards::parse(wanted).map_err(|why| Error::new(code::INVALID_PARAMS, why))?;
    let added = |reply| Command::AddForward { forward, sockets_max: LISTENING_MAX, reply };
    ask(workers, added).map(message)
}

/// Removes a forward and returns its last state.
pub(super) fn remove(workers: &Workers, id: u64) -> Result<Forward, Error> {
    // A number beyond any forward's is not found either.
    let id = u32::try_from(id).map_err(|_| not_found(id))?;
    ask(workers, |reply| Command::RemoveForward { id, sockets_max: LISTENING_MAX, reply }).map(message)
}
