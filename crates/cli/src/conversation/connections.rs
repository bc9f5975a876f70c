//! Connections to a virtual machine's monitor, which the engine requests and the warden passes on: a channel
//! of messages, of which the first byte is the kind.
//!
//! ```text
//! engine                                  warden
//! REQUEST                -->              waits for a monitor
//!                        <-- REQUEST, with the socket
//! KEEP, state            -->              keeps it, with the socket and further descriptors
//! FORGET                 -->
//! REQUEST                -->              (the next engine, after a crash: only the last request counts)
//!                        <-- KEEP, state  which stays kept
//!                        <-- LOST         the warden's program was replaced, and has nothing kept
//! ```
//!
//! The engine waits for room: a monitor that sets up a device of many rings has the state change faster than
//! a busy machine lets the warden read, and a state that is not forgotten must not change.

use super::lines;
use rustix::fd::OwnedFd;
use rustix::net::SocketType;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::io;
use std::time::Duration;

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

/// Longest time that the engine waits for room, in which no flow goes on. A warden that reads nothing for so
/// long (it is stopped) costs the connection.
const ROOM_TIMEOUT: Duration = Duration::from_secs(2);

/// The channel: the warden's end and the engine's.
///
/// # Errors
/// socketpair or setsockopt.
pub(crate) fn channel() -> io::Result<(OwnedFd, OwnedFd)> {
    let (warden, engine) = lines::pair(SocketType::SEQPACKET)?;
    set_socket_timeout(&engine, Timeout::Send, Some(ROOM_TIMEOUT))?;
    Ok((warden, engine))
}
