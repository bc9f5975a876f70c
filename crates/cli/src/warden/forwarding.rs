//! Forwards of a running instance, listed and changed for clients of any protocol: the control socket's, and
//! those of other programs.
//!
//! A forward is noted as desired before the engine is asked, because the engine asks for the listening
//! sockets at once and the warden opens none that is not desired. One that the next engine could not be given
//! any more is refused before.

use super::client::EngineClient;
use super::desired::Desired;
use crate::conversation::forwards;
use brodo_control::method::{AddForward, Forward, ListForwards, RemoveForward};
use brodo_control::rpc::{Error, code};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Forwards as a protocol sees them.
pub(crate) trait Forwards {
    /// All forwards.
    ///
    /// # Errors
    /// The engine does not answer.
    fn list(&self) -> Result<Vec<Forward>, Error>;

    /// Puts a forward in force; existing ones stay, and the same one again is no change.
    ///
    /// # Errors
    /// It is invalid, contradicts another, is one too many, or a port cannot be bound: then nothing of it is
    /// in force.
    fn add(&self, wanted: &AddForward) -> Result<Forward, Error>;

    /// Removes a forward by its number and returns its last state.
    ///
    /// # Errors
    /// There is none of this number.
    fn remove(&self, id: u64) -> Result<Forward, Error>;
}

/// The forwards of one instance.
#[derive(Debug, Clone)]
pub(crate) struct Forwarding {
    engine: Arc<EngineClient>,
    desired: Arc<Mutex<Desired>>,
}

impl Forwarding {
    /// Those of an engine, with the state for its successors.
    pub(crate) fn new(engine: Arc<EngineClient>, desired: Arc<Mutex<Desired>>) -> Self {
        Self { engine, desired }
    }

    fn desired(&self) -> MutexGuard<'_, Desired> {
        self.desired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Forwards for Forwarding {
    fn list(&self) -> Result<Vec<Forward>, Error> {
        self.engine.call(&ListForwards {}).map(|listed| listed.forwards)
    }

    fn add(&self, wanted: &AddForward) -> Result<Forward, Error> {
        let invalid = |why: String| Error::new(code::INVALID_PARAMS, why);
        let forward = forwards::parse(wanted).map_err(invalid)?;
        let mut engine = self.engine.hold();
        if !self.desired().has_room_for(&forward) {
            return Err(Error::new(code::FAILED, "there are too many forwards: one may be for many ports"));
        }
        let is_new = self.desired().add_forward(&forward);
        let added = engine.call_in_time(wanted, None);
        if added.is_err() && is_new {
            self.desired().remove_forward(&forward);
        }
        added
    }

    fn remove(&self, id: u64) -> Result<Forward, Error> {
        let mut engine = self.engine.hold();
        let listed = engine.call_in_time(&ListForwards {}, None)?.forwards;
        let removed = engine.call_in_time(&RemoveForward { id }, None);
        // A worker that does not reply in time executes the request when it goes on.
        let is_due = removed.as_ref().map_or_else(|error| error.code == code::BUSY, |_| true);
        if let Some(Forward { side, protocol, spec, .. }) = listed.into_iter().find(|listed| listed.id == id)
            && is_due
            && let Ok(forward) = forwards::parse(&AddForward { side, protocol, spec })
        {
            self.desired().remove_forward(&forward);
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::lines::{self, Lines};
    use brodo_control::flow::Protocol;
    use brodo_control::method::Side;
    use brodo_control::method::{Forwards as Listed, Method};
    use brodo_control::rpc::{self, Request};
    use rustix::fd::AsFd;
    use rustix::net::SocketType;
    use std::thread;
    use std::time::{Duration, Instant};

    fn wanted(port: u16) -> AddForward {
        AddForward {
            side: Side::Host,
            protocol: Protocol::Tcp,
            spec: format!("[2001:db8:1234:5678:9abc:def0:1234:{port:x}]/{port}:80"),
        }
    }

    /// The engine after a crash must not publish it again.
    #[test]
    fn a_forward_whose_removal_is_late_is_no_part_of_the_state() {
        const PATIENCE: Duration = Duration::from_secs(60);
        let AddForward { side, protocol, spec } = wanted(80);
        let forward = forwards::parse(&wanted(80)).expect("a forward");
        let desired = Desired { forwards: vec![forward], ..Desired::default() };
        let desired = Arc::new(Mutex::new(desired));
        let engine = Arc::new(EngineClient::new(0));
        let (requests, theirs) = lines::pair(SocketType::STREAM).expect("a pair");
        engine.hold().turn_to(requests, 0);
        let answering = thread::spawn(move || {
            let mut lines = Lines::new(theirs, 1 << 20);
            loop {
                let Ok(line) = lines.next_until(Instant::now() + PATIENCE) else { return };
                let request = Request::parse(&line).expect("a request");
                let (id, is_last) = (request.id.expect("a call"), request.method == RemoveForward::NAME);
                let (spec, listening) = (spec.clone(), Vec::new());
                let listed = Forward { id: 3, side, protocol, spec, sockets: 1, listening };
                let reply = if is_last {
                    rpc::error(Some(&id), &Error::new(code::BUSY, "late"))
                } else {
                    rpc::result(&id, &Listed { forwards: vec![listed] })
                };
                lines::send(lines.as_fd(), &reply, None, PATIENCE).expect("room");
            }
        });
        let forwarding = Forwarding::new(engine.clone(), desired.clone());
        for (id, left) in [(4, 1), (3, 0)] {
            assert_eq!(forwarding.remove(id).expect_err("late").code, code::BUSY);
            assert_eq!(desired.lock().expect("not poisoned").forwards.len(), left);
        }
        engine.disconnect();
        answering.join().expect("no panic");
    }

    /// The engine after a crash gets all forwards in one message.
    #[test]
    fn forwards_beyond_the_room_in_the_start_of_an_engine_are_refused() {
        let ports = 10_000..11_000;
        let forwards = ports.map(|port| forwards::parse(&wanted(port)).expect("a forward")).collect();
        let desired = Arc::new(Mutex::new(Desired { forwards, ..Desired::default() }));
        let forwarding = Forwarding::new(Arc::new(EngineClient::new(0)), desired.clone());
        let refused = |port| forwarding.add(&wanted(port)).expect_err("no engine").message;
        assert!(refused(11_000).contains("too many forwards"), "{}", refused(11_000));
        // One that is there takes no further room.
        assert!(refused(10_999).contains("no network"), "{}", refused(10_999));
        desired.lock().expect("not poisoned").forwards.truncate(400);
        assert!(refused(11_000).contains("no network"), "{}", refused(11_000));
    }
}
