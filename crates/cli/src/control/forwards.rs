//! Forwarded ports, all of which belong to the first worker: list, add, remove.

use super::{Controlled, ask};
use brodo_control::flow::Protocol;
use brodo_control::method::{AddForward, Forward, Side};
use brodo_control::rpc::{Error, code};
use brodo_net::command::{Command, ForwardRefusal, ForwardReport, ReplyTo};
use brodo_net::forward::{self, Direction, ForwardError, Transport};

/// The worker that has the forwards.
const FIRST: u32 = 0;
/// Listening addresses given for each forward; further ones are only counted.
const LISTENING_MAX: usize = 16;

/// Sends a request to the first worker.
fn ask<T>(
    controlled: &Controlled,
    command: impl FnOnce(ReplyTo<Result<T, ForwardRefusal>>) -> Command,
) -> Result<T, Error> {
    ask::ask(&controlled.workers, FIRST, command)?.map_err(|refusal| match refusal {
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
pub(super) fn list(controlled: &Controlled) -> Result<Vec<Forward>, Error> {
    let listed = ask(controlled, |reply| Command::ListForwards { sockets_max: LISTENING_MAX, reply });
    match listed {
        Err(error) if error.code == code::UNSUPPORTED => Ok(Vec::new()),
        other => other.map(|reports| reports.into_iter().map(message).collect()),
    }
}

fn message(ForwardReport { listed, listening }: ForwardReport) -> Forward {
    let forward::Forward { direction, transport, spec } = &listed.forward;
    Forward {
        id: listed.id.into(),
        side: if *direction == Direction::In { Side::Host } else { Side::Guest },
        protocol: if *transport == Transport::Tcp { Protocol::Tcp } else { Protocol::Udp },
        spec: spec.to_string(),
        sockets: listed.listeners as u64,
        listening,
    }
}

/// Adds a forward; existing ones stay.
pub(super) fn add(controlled: &Controlled, wanted: &AddForward) -> Result<Forward, Error> {
    let invalid = |why: String| Error::new(code::INVALID_PARAMS, why);
    let spec = wanted.spec.parse().map_err(|why| invalid(format!("{}: {why}", wanted.spec)))?;
    let transport = match wanted.protocol {
        Protocol::Tcp => Transport::Tcp,
        Protocol::Udp => Transport::Udp,
        _ => return Err(invalid("ports of TCP and of UDP can be forwarded".to_owned())),
    };
    let direction = if wanted.side == Side::Host { Direction::In } else { Direction::Out };
    let forward = forward::Forward { direction, transport, spec };
    let added = |reply| Command::AddForward { forward, sockets_max: LISTENING_MAX, reply };
    ask(controlled, added).map(message)
}

/// Removes a forward and returns its last state.
pub(super) fn remove(controlled: &Controlled, id: u64) -> Result<Forward, Error> {
    // A number beyond any forward's is not found either.
    let id = u32::try_from(id).map_err(|_| not_found(id))?;
    ask(controlled, |reply| Command::RemoveForward { id, sockets_max: LISTENING_MAX, reply }).map(message)
}
