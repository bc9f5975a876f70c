//! A descriptor by which the other side of a ring is notified.

use rustix::fd::OwnedFd;
use rustix::io::{retry_on_intr, write};
use rustix::net::sockopt::socket_type;
use rustix::net::{SendFlags, send};
use std::sync::Arc;

/// An eventfd, or a socket in the place of one (User-Mode Linux).
#[derive(Debug)]
pub struct Signal {
    descriptor: Arc<OwnedFd>,
    is_socket: bool,
}

impl Signal {
    /// To this descriptor.
    pub fn new(descriptor: Arc<OwnedFd>) -> Self {
        let is_socket = socket_type(&descriptor).is_ok();
        Self { descriptor, is_socket }
    }

    /// Adds 1. A socket that is full has reported the same already. An eventfd never is, unless its reader
    /// fills it, whose own network waits then: its O_NONBLOCK is not brodo's to set, since the monitor reads
    /// by the same open file.
    pub fn send(&self) {
        let one = 1_u64.to_ne_bytes();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = retry_on_intr(|| {
            if self.is_socket { send(&self.descriptor, &one, flags) } else { write(&self.descriptor, &one) }
        });
    }
}
