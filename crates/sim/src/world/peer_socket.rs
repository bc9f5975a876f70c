//! The peer's socket: the far end of a host socket, near or far, as used by the peer program of a
//! [`World`](super::World).

use super::conversation::Behind;
use crate::host::SimHost;
use crate::kernel_socket::KernelSocket;
use brodo_core::host::SocketId;
use brodo_core::time::Instant;

/// A connected socket of the peer.
pub(super) enum PeerSocket {
    /// Without a path: bytes read by the peer are room in the send buffer at once.
    Near { socket: SocketId, buffer: usize },
    /// Behind two kernels and a path.
    Far(Box<KernelSocket>),
}

impl PeerSocket {
    /// The peer of a host socket that has just connected.
    pub(super) fn new(host: &mut SimHost, socket: SocketId, behind: Behind) -> Self {
        match behind {
            Behind::Buffer(buffer) => {
                host.set_space(socket, buffer);
                Self::Near { socket, buffer }
            }
            Behind::Kernel(wire) => Self::Far(Box::new(KernelSocket::new(host, socket, wire, wire))),
        }
    }

    /// The kernels and the path between, if there are such.
    pub(super) fn kernel(&self) -> Option<&KernelSocket> {
        match self {
            Self::Near { .. } => None,
            Self::Far(kernel) => Some(kernel),
        }
    }

    /// Time of the next event on the path.
    pub(super) fn next(&self) -> Option<Instant> {
        match self {
            Self::Near { .. } => None,
            Self::Far(kernel) => kernel.next(),
        }
    }

    /// Delivers the path's arrivals up to `now`.
    pub(super) fn advance(&mut self, host: &mut SimHost, now: Instant) {
        if let Self::Far(kernel) = self
            && kernel.next().is_some_and(|at| at <= now)
        {
            kernel.advance(host, now);
        }
    }

    /// Takes over the stack's operations on the host socket.
    pub(super) fn settle(&mut self, host: &mut SimHost, now: Instant) {
        if let Self::Far(kernel) = self {
            kernel.settle(host, now);
        }
    }

    /// Reads up to `max` bytes.
    pub(super) fn read(&mut self, host: &mut SimHost, now: Instant, max: usize) -> Vec<u8> {
        match self {
            Self::Near { socket, .. } => {
                let data = host.peer_take(*socket, max);
                if host.closed(*socket).is_none() && !data.is_empty() {
                    host.give_space(*socket, data.len());
                }
                data
            }
            Self::Far(kernel) => kernel.peer_read(host, now, max),
        }
    }

    /// Whether the end of the stream is all that is left to read.
    pub(super) fn sees_end(&self, host: &SimHost) -> bool {
        match self {
            Self::Near { socket, .. } => host.peer_sees_fin(*socket),
            Self::Far(kernel) => kernel.peer_sees_end(),
        }
    }

    /// Bytes accepted by a write now.
    pub(super) fn room(&self, host: &SimHost) -> usize {
        match self {
            Self::Near { socket, buffer } => buffer.saturating_sub(host.waiting(*socket)),
            Self::Far(kernel) => kernel.peer_room(),
        }
    }

    /// Short write: `data` as far as the send buffer has room for it.
    pub(super) fn write(&mut self, host: &mut SimHost, now: Instant, data: &[u8]) {
        match self {
            Self::Near { socket, .. } => host.peer_send(*socket, data),
            Self::Far(kernel) => kernel.peer_write(now, data),
        }
    }

    /// Closes the peer's direction.
    pub(super) fn close(&mut self, host: &mut SimHost, now: Instant) {
        match self {
            Self::Near { socket, .. } => host.peer_fin(*socket),
            Self::Far(kernel) => kernel.peer_close(now),
        }
    }
}
