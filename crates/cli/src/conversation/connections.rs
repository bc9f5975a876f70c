//! Connections to a virtual machine's monitor, which the engine requests and the warden passes on: a channel
//! of messages, of which the first byte is the kind.
//!
//! ```text
//! engine                                  warden
//! REQUEST                -->              waits for a monitor
//!                        <-- REQUEST, with the socket
//! KEEP, state            -->              keeps it, with the socket and further descriptors
//! FORGET                 -->
//! REQUEST                -->              (the next engine, after a crash)
//!                        <-- KEEP, state
//!                        <-- LOST         the warden's program was replaced, and has nothing kept
//! ```

/// Request for a connection, the first one or the next after a loss; and the connection itself.
pub(crate) const REQUEST: u8 = 1;
/// State of a link for the next engine, and the same back.
pub(crate) const KEEP: u8 = 2;
/// The state is to change.
pub(crate) const FORGET: u8 = 3;
/// Nothing is kept any more.
pub(crate) const LOST: u8 = 4;

/// Longest message, in bytes: the state of a device with some hundred rings.
pub(crate) const MESSAGE_MAX: usize = 48 << 10;
