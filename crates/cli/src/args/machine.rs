//! Options of `brodo vm` that depend on each other: the socket of the monitor, its protocol, queue pairs.

use super::Vm;
use crate::engine::launch::MonitorProtocol;
use crate::option_values::MonitorSocket;
use brodo_link::socket::Framing;
use rustix::net::SocketType;

/// Queue pairs of a virtual machine without `--queues`: as many as it will have processors, mostly.
const QUEUES_DEFAULT: usize = 8;

impl Vm {
    /// The socket for vhost-user alone.
    fn vhost_user(&self) -> Option<&MonitorSocket> {
        self.vhost_user.as_ref().or(self.fd.as_ref())
    }

    /// The socket for the monitor, and its type.
    pub(crate) fn monitor(&self) -> (&MonitorSocket, SocketType) {
        match (self.socket.as_ref().or(self.vhost_user()), &self.dgram, &self.seqpacket) {
            (Some(place), ..) => (place, SocketType::STREAM),
            (_, Some(place), _) => (place, SocketType::DGRAM),
            (.., Some(place)) => (place, SocketType::SEQPACKET),
            // The parser requires one of them.
            _ => (&MonitorSocket::Descriptor(-1), SocketType::STREAM),
        }
    }

    /// Queue pairs that the machine may use.
    pub(crate) fn queues(&self) -> usize {
        self.queues.map_or_else(|| self.workers().max(QUEUES_DEFAULT), usize::from)
    }

    /// Number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.network.workers.unwrap_or(1) as usize
    }

    /// The protocol on that socket.
    pub(crate) fn protocol(&self) -> MonitorProtocol {
        let queues = self.queues();
        match (self.vhost_user(), &self.socket) {
            (Some(_), _) => MonitorProtocol::VhostUser { queues, plain: self.no_backend_channel },
            (None, Some(_)) => MonitorProtocol::AsSpoken { queues },
            (None, None) => MonitorProtocol::Frames(Framing::of(self.monitor().1)),
        }
    }
}
