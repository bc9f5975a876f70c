//! Descriptors that were handed over: each is asked for its type before it is used, and given away once.
//!
//! A descriptor of another type than its record says stays here, and with the others that no part of the
//! network has taken it is closed with a reset ([`Incoming::rest`]). The kernel answers from the socket
//! itself, so nothing depends on the process that has sent it.

use crate::tcp_info::{self, TcpInfo};
use rustix::fs::{FileType, OFlags};
use rustix::io::Result;
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Type that a descriptor must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// TCP socket that does not listen.
    Stream,
    /// TCP socket that listens.
    Listener,
    /// UDP socket.
    Udp,
    /// Ping socket.
    Echo,
}

impl Expected {
    /// Whether a descriptor is of this type.
    pub(crate) fn is(self, socket: BorrowedFd<'_>) -> Result<bool> {
        let (wanted, protocols) = match self {
            // No other kind of socket has TCP_INFO: one call for four. One that lingers would hold up
            // whichever process closes it.
            Self::Stream => {
                let listens = TcpInfo::of(socket)?.state == tcp_info::LISTENS;
                return Ok(!listens && sockopt::socket_linger(socket)?.is_none());
            }
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
}

/// Whether a descriptor is a pipe's end with this access mode.
fn is_pipe_end(descriptor: BorrowedFd<'_>, mode: OFlags) -> Result<bool> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(descriptor)?.st_mode);
    Ok(kind == FileType::Fifo && rustix::fs::fcntl_getfl(descriptor)? & OFlags::RWMODE == mode)
}

/// Whether two descriptors are the ends of one pipe.
fn is_pipe(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<bool> {
    let (one, other) = (rustix::fs::fstat(from)?, rustix::fs::fstat(to)?);
    Ok(is_pipe_end(from, OFlags::RDONLY)?
        && is_pipe_end(to, OFlags::WRONLY)?
        && (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// The descriptors of a hand-over.
#[derive(Debug)]
pub(crate) struct Incoming {
    descriptors: Vec<Option<OwnedFd>>,
}

impl Incoming {
    pub(crate) fn new(descriptors: Vec<OwnedFd>) -> Self {
        Self { descriptors: descriptors.into_iter().map(Some).collect() }
    }

    /// Takes a socket of the expected type, and sees to it that it does not block.
    pub(crate) fn take(&mut self, index: u32, expected: Expected) -> Option<OwnedFd> {
        let place = self.descriptors.get_mut(index as usize)?;
        if Self::fits(place.as_ref()?.as_fd(), expected) { place.take() } else { None }
    }

    /// Whether a socket is of the expected type; sees to it that it does not block.
    pub(crate) fn fits(socket: BorrowedFd<'_>, expected: Expected) -> bool {
        expected.is(socket).unwrap_or(false) && rustix::io::ioctl_fionbio(socket, true).is_ok()
    }

    /// Takes both ends of a pipe that holds so many bytes.
    pub(crate) fn take_pipe(&mut self, from: u32, to: u32, held: u64) -> Option<(OwnedFd, OwnedFd)> {
        let at = |index: u32| self.descriptors.get(index as usize)?.as_ref().map(AsFd::as_fd);
        let (source, sink) = (at(from)?, at(to)?);
        if Self::bytes_in(source, sink)? != held {
            return None;
        }
        let [from, to] = [from, to].map(|index| self.descriptors[index as usize].take());
        from.zip(to)
    }

    /// Bytes in a pipe, of which these are both ends; sees to it that they do not block.
    pub(crate) fn bytes_in(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Option<u64> {
        let waits_not = |end| rustix::io::ioctl_fionbio(end, true).is_ok();
        let is_pipe = is_pipe(from, to).unwrap_or(false) && waits_not(from) && waits_not(to);
        if is_pipe { rustix::io::ioctl_fionread(from).ok() } else { None }
    }

    /// Takes the descriptors of a link, which asks them for their type itself.
    pub(crate) fn take_for_link(&mut self, indices: &[u32]) -> Vec<OwnedFd> {
        let mut take = |&index: &u32| self.descriptors.get_mut(index as usize)?.take();
        indices.iter().map_while(&mut take).collect()
    }

    /// Takes a descriptor back, which is then among the rest.
    pub(crate) fn put_back(&mut self, descriptor: OwnedFd) {
        self.descriptors.push(Some(descriptor));
    }

    /// Descriptors that were not taken.
    pub(crate) fn rest(self) -> Vec<OwnedFd> {
        self.descriptors.into_iter().flatten().collect()
    }
}
