//! The message of a program that is about to become the keeper of new engines (`host.rs`).

use serde::{Deserialize, Serialize};

/// Longest message, in bytes.
pub(crate) const MESSAGE_MAX: usize = 4 << 10;

/// The first and only message of the program; the keeper that it has made goes on with the socket.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Hosted {
    /// Its version.
    pub(crate) version: String,
    /// Process id of the keeper, a child of the warden.
    pub(crate) keeper: Option<i32>,
    /// The reason that there is none, as a sentence.
    pub(crate) failure: Option<String>,
}
