//! Connections to the monitor, found by a thread of the warden and passed to the engine.
//!
//! The engine sends one byte for each connection that it wants: the first, and the next after a loss. The
//! thread takes the byte from the channel only after the connection has gone the other way, so that a request
//! outlives the thread when another program takes the warden's place. When there is no further connection,
//! the channel is shut down, by which the engine knows.

use super::monitor::Monitor;
use crate::conversation::connections::REQUEST;
use brodo_net::fd_passing;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, shutdown};
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
        while self.receive(RecvFlags::PEEK) {
            let Some(connection) = self.monitor.next() else { break };
            let passed =
                fd_passing::send(&*self.channel, &[REQUEST], &[connection.as_fd()], SendFlags::empty());
            if passed.is_err() || !self.receive(RecvFlags::empty()) {
                break;
            }
        }
        // The engine has ended, or is to see the end.
        let _ = shutdown(&*self.channel, Shutdown::Both);
    }

    /// Waits for a request; false at the end of the channel.
    fn receive(&self, flags: RecvFlags) -> bool {
        retry_on_intr(|| recv(&*self.channel, &mut [0; 1][..], flags)).is_ok_and(|(len, _)| len == 1)
    }
}
