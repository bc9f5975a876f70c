//! Connections to a virtual machine's monitor, which the engine requests and the warden passes on: a channel
//! of one-byte messages, with the connected socket beside the byte in one direction.

/// A request, and the byte beside a connection.
pub(crate) const REQUEST: u8 = 1;
