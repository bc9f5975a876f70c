//! Protocols of other programs in which forwards are listed and changed ([`crate::forward_sockets`]).

use serde::{Deserialize, Serialize};

/// Protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Dialect {
    /// The API of slirp4netns.
    Slirp4netns,
    /// The protocol of pesto.
    Pesto,
}

impl Dialect {
    /// The option that asks for such a socket.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::Slirp4netns => "--slirp-socket",
            Self::Pesto => "--pesto-socket",
        }
    }
}
