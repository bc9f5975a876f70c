//! Conversations between warden and engine: messages, and the sockets that carry them.
//!
//! | conversation | socket | content |
//! |---|---|---|
//! | requests | stream | the warden's requests and the engine's replies, lines of JSON-RPC ([`message`]) |
//! | records | stream | the engine's events, its readiness and its end, lines of JSON ([`message`]) |
//! | listen | messages | the engine's requests for listening sockets, the warden's replies ([`listen`]) |
//! | connections | messages | requests for connections to a monitor, and these ([`connections`]) |

pub(crate) mod connections;
pub(crate) mod forwards;
pub(crate) mod host;
pub(crate) mod lines;
pub(crate) mod listen;
pub(crate) mod message;
pub(crate) mod policy;
