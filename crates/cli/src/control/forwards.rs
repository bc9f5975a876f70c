//! Forwarded ports, all of which belong to the first worker: list, add, remove.

use super::Controlled;
use super::visits::ask;
use brodo_control::flow::Protocol;
use brodo_control::method::{AddForward, Forward, Side};
use brodo_control::rpc::{Error, code};
use brodo_net::driver::WorkerView;
use brodo_net::forward::{self, Direction, ForwardError, Forwards, Listed, Transport};

/// The worker that has the forwards.
const FIRST: u32 = 0;
/// Listening addresses given for each forward; further ones are only counted.
const LISTENING_MAX: usize = 16;

/// Visits the forwards.
fn with<T: Send + 'static>(
    controlled: &Controlled,
    does: impl FnOnce(&mut Forwards) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    ask(&controlled.workers, FIRST, |inside: &mut WorkerView<'_>| {
        let none = || Error::new(code::UNSUPPORTED, "this brodo forwards no ports");
        inside.forwards.as_deref_mut().ok_or_else(none).and_then(does)
    })?
}

/// All of them, in order of their number.
pub(super) fn list(controlled: &Controlled) -> Result<Vec<Forward>, Error> {
    let listed =
        with(controlled, |forwards| Ok(forwards.list().iter().map(|one| message(forwards, one)).collect()));
    match listed {
        Err(error) if error.code == code::UNSUPPORTED => Ok(Vec::new()),
        other => other,
    }
}

fn message(forwards: &Forwards, listed: &Listed) -> Forward {
    let forward::Forward { direction, transport, spec } = &listed.forward;
    Forward {
        id: listed.id.into(),
        side: if *direction == Direction::In { Side::Host } else { Side::Guest },
        protocol: if *transport == Transport::Tcp { Protocol::Tcp } else { Protocol::Udp },
        spec: spec.to_string(),
        sockets: listed.listeners as u64,
        listening: forwards.listening(listed.id, LISTENING_MAX),
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
    with(controlled, move |forwards| {
        let id =
            forwards.add(forward::Forward { direction, transport, spec }).map_err(|error| match error {
                ForwardError::Nonsense(why) => Error::new(code::INVALID_PARAMS, why),
                socket @ ForwardError::Socket { .. } => Error::new(code::FAILED, socket.to_string()),
            })?;
        find(forwards, id.into())
    })
}

fn find(forwards: &Forwards, id: u64) -> Result<Forward, Error> {
    let listed = forwards.list();
    let found = listed.iter().find(|one| u64::from(one.id) == id);
    found
        .map(|one| message(forwards, one))
        .ok_or_else(|| Error::new(code::NOT_FOUND, format!("there is no forward {id}")))
}

/// Removes a forward and gives it.
pub(super) fn remove(controlled: &Controlled, id: u64) -> Result<Forward, Error> {
    with(controlled, move |forwards| {
        let was = find(forwards, id)?;
        // It was found, so its number is one of theirs.
        forwards.remove(id as u32);
        Ok(was)
    })
}
