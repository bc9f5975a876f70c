//! Types of descriptors from another process, as the kernel tells them.

use crate::tcp_info::{self, TcpInfo};
use rustix::io::Result;
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use std::os::fd::BorrowedFd;

/// Type that a descriptor must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// TCP socket that does not listen.
    Stream,
    /// The same, found to be a connection already; whether it lingers is not asked.
    Examined,
    /// TCP socket that listens.
    Listener,
    /// UDP socket.
    Udp,
    /// Ping socket.
    Echo,
}

impl Expected {
    /// Whether a socket is of this type.
    pub(crate) fn is(self, socket: BorrowedFd<'_>) -> Result<bool> {
        let (wanted, protocols) = match self {
            // No other kind of socket has TCP_INFO: one call for four. One that lingers would hold up
            // whichever process closes it.
            Self::Stream => {
                let listens = TcpInfo::of(socket)?.state == tcp_info::LISTENS;
                return Ok(!listens && sockopt::socket_linger(socket)?.is_none());
            }
            Self::Examined => return Ok(true),
            Self::Listener => (SocketType::STREAM, [ipproto::TCP; 2]),
            Self::Udp => (SocketType::DGRAM, [ipproto::UDP; 2]),
            Self::Echo => (SocketType::DGRAM, [ipproto::ICMP, ipproto::ICMPV6]),
        };
        let family = sockopt::socket_domain(socket)?;
        let kind = sockopt::socket_type(socket)?;
        let protocol = sockopt::socket_protocol(socket)?;
        let internet = family == AddressFamily::INET || family == AddressFamily::INET6;
        let fits = internet && kind == wanted && protocol.is_some_and(|it| protocols.contains(&it));
        Ok(fits && (self != Self::Listener || sockopt::socket_acceptconn(socket)?))
    }

    /// Whether a socket, which perhaps `blocks`, is of this type; sees to it that it does not block.
    pub(crate) fn fits(self, socket: BorrowedFd<'_>, blocks: bool) -> bool {
        let waits_not = || !blocks || rustix::io::ioctl_fionbio(socket, true).is_ok();
        self.is(socket).unwrap_or(false) && waits_not()
    }
}
