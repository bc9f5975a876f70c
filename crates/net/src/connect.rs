//! connect(2) of non-blocking TCP sockets, for flows of the stack and for spliced connections; their reset.

use brodo_core::host::Connect;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::net::SocketAddr;
use std::time::Duration;

/// Starts to connect; [`Connect::Pending`] ends with an event of the socket.
///
/// # Errors
/// The kernel's refusal, at once if no socket listens at a loopback address.
pub(crate) fn connect(socket: impl AsFd, to: SocketAddr) -> Result<Connect, Errno> {
    match rustix::net::connect(&socket, &to) {
        Ok(()) => Ok(Connect::Done),
        // On loopback the handshake runs inside connect, yet it answers EINPROGRESS; a second call gives the
        // result.
        Err(Errno::INPROGRESS) => match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(Errno::ISCONN) => Ok(Connect::Done),
            Err(Errno::INPROGRESS | Errno::ALREADY) => Ok(Connect::Pending),
            Err(errno) => Err(errno),
        },
        Err(errno) => Err(errno),
    }
}

/// State of a pending connect.
///
/// # Errors
/// Its failure (SO_ERROR).
pub(crate) fn connected(socket: impl AsFd) -> Result<Connect, Errno> {
    sockopt::socket_error(&socket)??;
    match rustix::net::getpeername(&socket) {
        Ok(_) => Ok(Connect::Done),
        Err(Errno::NOTCONN) => Ok(Connect::Pending),
        Err(errno) => Err(errno),
    }
}

/// Closes a connection with a reset.
pub(crate) fn reset(socket: OwnedFd) {
    let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    drop(socket);
}
