//! Connections to the monitor, found by a thread of the warden and passed to the engine.
//!
//! The engine sends one byte for each connection that it wants: the first, and the next after a loss. The
//! thread takes the byte from the channel only after the connection has gone the other way, so that a request
//! outlives the thread when another program takes the warden's place. When there is no further connection,
//! the channel is shut down, by which the engine knows.
//!
//! *After a crash* the next engine goes on with a connection of packets that the monitor has not closed. On a
//! stream the last engine may have been in the midst of a frame.

use super::monitor::Monitor;
use crate::conversation::connections::REQUEST;
use brodo_net::fd_passing;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::socket_type;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketType, recv, shutdown};
use rustix::time::Timespec;
use std::io;
use std::sync::Arc;
use std::thread;

/// The thread's state.
pub(super) struct Connector {
    monitor: Arc<Monitor>,
    channel: Arc<OwnedFd>,
}

impl Connector {
    /// Starts the thread, which ends with the channel or the process.
    ///
    /// # Errors
    /// No thread can be made.
    pub(super) fn start(monitor: Arc<Monitor>, channel: Arc<OwnedFd>) -> io::Result<()> {
        let connector = Self { monitor, channel };
        thread::Builder::new().name("connector".into()).spawn(move || connector.run()).map(drop)
    }

    fn run(&self) {
        let mut last = None;
        while self.receive(RecvFlags::PEEK) {
            let Some(connection) = last.take().filter(goes_on).or_else(|| self.monitor.next()) else { break };
            let passed =
                fd_passing::send(&*self.channel, &[REQUEST], &[connection.as_fd()], SendFlags::empty());
            if passed.is_err() || !self.receive(RecvFlags::empty()) {
                break;
            }
            last = Some(connection).filter(|it| socket_type(it) == Ok(SocketType::SEQPACKET));
        }
        // The engine has ended, or is to see the end.
        let _ = shutdown(&*self.channel, Shutdown::Both);
    }

    /// Waits for a request; false at the end of the channel.
    fn receive(&self, flags: RecvFlags) -> bool {
        retry_on_intr(|| recv(&*self.channel, &mut [0; 1][..], flags)).is_ok_and(|(len, _)| len == 1)
    }
}

/// Whether the monitor has not closed a connection.
fn goes_on(connection: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(connection, PollFlags::RDHUP)];
    retry_on_intr(|| poll(&mut polled, Some(&Timespec::default()))) == Ok(0)
}
