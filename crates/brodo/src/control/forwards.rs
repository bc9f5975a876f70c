//! Forwarded ports as the control socket sees them: whoever forwards implements [`Forwards`].

use brodo_control::method::{AddForward, Forward};
use brodo_control::rpc::{Error, code};

/// Ports that are forwarded, and may be changed while brodo runs. Called on the thread of the control socket.
pub(crate) trait Forwards: Send {
    /// All of them, in order of their number.
    fn list(&self) -> Vec<Forward>;

    /// Forwards more.
    ///
    /// # Errors
    /// [`code::INVALID_PARAMS`] for what makes no sense, [`code::FAILED`] for what could not be done, in a sentence.
    fn add(&mut self, wanted: &AddForward) -> Result<Forward, Error>;

    /// Forwards some no more; gives what they were.
    ///
    /// # Errors
    /// [`code::NOT_FOUND`].
    fn remove(&mut self, id: u64) -> Result<Forward, Error>;
}

/// Of an instance that forwards nothing and cannot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoForwards;

impl Forwards for NoForwards {
    fn list(&self) -> Vec<Forward> {
        Vec::new()
    }

    fn add(&mut self, _: &AddForward) -> Result<Forward, Error> {
        Err(Error::new(code::UNSUPPORTED, "this brodo forwards no ports"))
    }

    fn remove(&mut self, id: u64) -> Result<Forward, Error> {
        Err(Error::new(code::NOT_FOUND, format!("there is no forward {id}")))
    }
}
