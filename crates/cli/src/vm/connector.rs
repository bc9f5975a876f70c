//! Connections to the monitor, found by a thread of the warden and passed to the engine; and the state of a
//! link, kept for the next engine ([`crate::conversation::connections`]).
//!
//! The engine requests each connection that it wants: the first, and the next after a loss. The thread takes
//! a request from the channel only after the connection has gone the other way, so that it outlives the
//! thread when another program takes the warden's place. When there is no further connection, the channel is
//! shut down, by which the engine knows.
//!
//! *After a crash* the next engine's request is answered by what the last one has had kept, if the monitor
//! has not closed that connection. It is passed on once: an engine that cannot go on with it, or crashes by
//! it, costs the connection.
//!
//! *Trust.* A state is the engine's, and is not looked into here: its bounds are those of a message.

use super::monitor::Monitor;
use crate::conversation::connections::{FORGET, KEEP, LOST, MESSAGE_MAX, REQUEST};
use brodo_net::fd_passing::{self, DESCRIPTORS_MAX};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, shutdown};
use rustix::time::Timespec;
use std::io;
use std::sync::Arc;
use std::thread;

/// The thread's state.
pub(super) struct Connector {
    monitor: Arc<Monitor>,
    channel: Arc<OwnedFd>,
    kept: Option<Kept>,
}

/// A message of the engine's with the state of its link.
struct Kept {
    message: Vec<u8>,
    /// The connection first.
    descriptors: Vec<OwnedFd>,
}

impl Kept {
    /// Whether the monitor has not closed the connection.
    fn goes_on(&self) -> bool {
        let Some(connection) = self.descriptors.first() else { return false };
        let mut polled = [PollFd::new(connection, PollFlags::RDHUP)];
        retry_on_intr(|| poll(&mut polled, Some(&Timespec::default()))) == Ok(0)
    }
}

impl Connector {
    /// Starts the thread, which ends with the channel or the process.
    ///
    /// # Errors
    /// No thread can be made.
    pub(super) fn start(monitor: Arc<Monitor>, channel: Arc<OwnedFd>) -> io::Result<()> {
        let connector = Self { monitor, channel, kept: None };
        thread::Builder::new().name("connector".into()).spawn(move || connector.run()).map(drop)
    }

    fn run(mut self) {
        // If it was another program's, an engine serves.
        let _ = self.send(&[LOST], &[]);
        while self.serve().is_ok() {}
        // The engine has ended, or is to see the end.
        let _ = shutdown(&*self.channel, Shutdown::Both);
    }

    /// Waits for a message, and does what it demands.
    ///
    /// # Errors
    /// There is no further connection, or the channel has ended.
    fn serve(&mut self) -> Result<(), Errno> {
        let mut kind = [0; 1];
        retry_on_intr(|| recv(&*self.channel, &mut kind[..], RecvFlags::PEEK))?;
        if kind == [REQUEST] {
            self.connect()?;
        }
        let mut message = vec![0; MESSAGE_MAX];
        let received =
            fd_passing::receive(&*self.channel, &mut message, DESCRIPTORS_MAX, RecvFlags::empty())?;
        message.truncate(received.length);
        match message.first() {
            Some(&REQUEST) => {}
            Some(&KEEP) => self.kept = Some(Kept { message, descriptors: received.descriptors }),
            Some(&FORGET) => self.kept = None,
            _ => return Err(Errno::PROTO),
        }
        Ok(())
    }

    /// Passes a connection on: the one that is kept, or the next one.
    fn connect(&mut self) -> Result<(), Errno> {
        match self.kept.take().filter(Kept::goes_on) {
            Some(Kept { message, descriptors }) => self.send(&message, &descriptors),
            None => self.send(&[REQUEST], &[self.monitor.next().ok_or(Errno::NOTCONN)?]),
        }
    }

    fn send(&self, message: &[u8], descriptors: &[OwnedFd]) -> Result<(), Errno> {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        fd_passing::send(&*self.channel, message, &descriptors, SendFlags::empty()).map(drop)
    }
}
