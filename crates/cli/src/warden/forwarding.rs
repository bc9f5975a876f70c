//! Forwards of a running instance, listed and changed for clients of any protocol: the control socket's, and
//! those of other programs.
//!
//! A forward is noted as desired before the engine is asked, because the engine asks for the listening
//! sockets at once and the warden opens none that is not desired.

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
    /// It is invalid, contradicts another, or a port cannot be bound: then nothing of it is in force.
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
        let is_new = self.desired().add_forward(&forward);
        let added = engine.call_in_time(wanted, None);
        if added.is_err() && is_new {
            self.desired().remove_forward(&forward);
        }
        added
    }

    fn remove(&self, id: u64) -> Result<Forward, Error> {
        let mut engine = self.engine.hold();
        let removed = engine.call_in_time(&RemoveForward { id }, None)?;
        let Forward { side, protocol, ref spec, .. } = removed;
        if let Ok(forward) = forwards::parse(&AddForward { side, protocol, spec: spec.clone() }) {
            self.desired().remove_forward(&forward);
        }
        Ok(removed)
    }
}
