//! Listening sockets of a process that has crashed, for the forwards of the next one.

use crate::forward::{ForwardDirection, ListenSpec, Opener, Transport};
use crate::inherited::{Inherited, host_namespace};
use crate::sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{SocketType, sockopt};
use std::net::SocketAddr;

/// Listening sockets that are used again, each for the place that it is bound to.
#[derive(Debug)]
pub struct ReusedListeners {
    sockets: Vec<OwnedFd>,
    /// The host's network namespace, if the kernel tells.
    host: Option<u64>,
}

impl ReusedListeners {
    /// Listening sockets that were found.
    pub fn of(inherited: &mut Inherited) -> Self {
        let sockets = inherited.listeners();
        Self { host: if sockets.is_empty() { None } else { host_namespace() }, sockets }
    }

    /// Opens sockets by `opener` where there is none to be used again.
    pub fn before(mut self, mut opener: Opener) -> Opener {
        Box::new(move |place| match self.take(place) {
            Some(socket) => Ok(socket),
            None => opener(place),
        })
    }

    /// The socket that listens at a place.
    fn take(&mut self, place: &ListenSpec) -> Option<OwnedFd> {
        let host = self.host?;
        let kind = match place.transport {
            Transport::Tcp => SocketType::STREAM,
            Transport::Udp => SocketType::DGRAM,
        };
        let at = (place.address, place.port);
        let interface = place.interface.as_deref().unwrap_or_default();
        let fits = |socket: &OwnedFd| {
            let bound =
                rustix::net::getsockname(socket).ok().and_then(|name| SocketAddr::try_from(name).ok());
            let is_host = sys::namespace_of(socket.as_fd()).is_ok_and(|of| of == host);
            let is_kind = sockopt::socket_type(socket) == Ok(kind);
            let is_there = bound.is_some_and(|bound| (bound.ip(), bound.port()) == at)
                && sys::bound_device(socket.as_fd()).is_ok_and(|of| of == interface);
            is_kind && is_there && is_host == (place.direction == ForwardDirection::In)
        };
        let found = self.sockets.iter().position(fits)?;
        Some(self.sockets.swap_remove(found))
    }
}
