//! connect(2) of non-blocking TCP sockets, for flows of the stack and for spliced connections; their reset.
//!
//! *Own peer.* Without a listener at a port of this host, the kernel may choose that port for the socket that
//! connects to it: the SYN comes back to its sender, a simultaneous open (RFC 9293, 3.5) with itself. Each
//! attempt at an ephemeral port has that chance, and a guest that retries would talk to itself. Such a
//! connection is reset, which frees the port, and counts as refused.

use brodo_core::host::Connect;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Starts to connect; [`Connect::Pending`] ends with an event of the socket.
///
/// # Errors
/// The kernel's refusal, at once if no socket listens at a loopback address.
pub(crate) fn connect(socket: impl AsFd, to: SocketAddr) -> Result<Connect, Errno> {
    let connect = begin(&socket, to)?;
    // At once is only a connection to this host.
    if connect == Connect::Done { settle(socket, to) } else { Ok(connect) }
}

fn begin(socket: impl AsFd, to: SocketAddr) -> Result<Connect, Errno> {
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

/// State of a pending connect. `may_be_own`: whether the peer's address may be one of this host.
///
/// # Errors
/// Its failure (SO_ERROR).
pub(crate) fn connected(
    socket: impl AsFd,
    may_be_own: impl FnOnce(IpAddr) -> bool,
) -> Result<Connect, Errno> {
    sockopt::socket_error(&socket)??;
    match rustix::net::getpeername(&socket) {
        Ok(peer) => match peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
            Some(peer) if may_be_own(peer.ip()) => settle(socket, peer),
            _ => Ok(Connect::Done),
        },
        Err(Errno::NOTCONN) => Ok(Connect::Pending),
        Err(errno) => Err(errno),
    }
}

/// Refuses a connection that has its own address and port as peer; its close is a reset.
fn settle(socket: impl AsFd, peer: SocketAddr) -> Result<Connect, Errno> {
    let own = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    if (own.ip(), own.port()) != (peer.ip(), peer.port()) {
        return Ok(Connect::Done);
    }
    let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    Err(Errno::CONNREFUSED)
}

/// Closes a connection with a reset.
pub(crate) fn reset(socket: OwnedFd) {
    let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    drop(socket);
}
