//! Connections to a virtual machine's monitor, requested of the warden: the engine can neither listen at a
//! path nor connect to one ([`crate::vm`]).

use crate::conversation::connections::REQUEST;
use brodo_link::connections::{Arrival, Connections};
use brodo_net::fd_passing;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// The engine's end of the channel to the warden's thread.
#[derive(Debug)]
pub(super) struct Arrivals(OwnedFd);

impl Arrivals {
    pub(super) fn new(channel: OwnedFd) -> Self {
        Self(channel)
    }
}

impl Connections for Arrivals {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn request(&mut self) {
        // An error: the other end is shut down, which shows in `take`.
        let _ = fd_passing::send(&self.0, &[REQUEST], &[], SendFlags::DONTWAIT);
    }

    fn take(&mut self) -> Arrival {
        match fd_passing::receive(&self.0, &mut [0; 1], 1, RecvFlags::DONTWAIT) {
            Ok(mut received) if received.length > 0 => {
                if let Some(connection) = received.descriptors.pop() {
                    return Arrival::Connected(connection);
                }
                // Descriptors are short here: the connection is lost, and the next one is requested.
                self.request();
                Arrival::Pending
            }
            Err(Errno::AGAIN) => Arrival::Pending,
            Ok(_) | Err(_) => Arrival::Ended,
        }
    }
}
