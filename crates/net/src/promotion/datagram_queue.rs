//! The queue of datagrams beside the guest's interface, in the agent's hands.
//!
//! The transmit queue of the guest's interface drops what finds it full, whatever it is: beside a flood of
//! datagrams, which nothing slows down, also handshakes, requests and acknowledgements of TCP. While datagrams
//! fill it they are steered, as segments of promoted flows are, to a TAP of their own:
//!
//! ```text
//!  guest's namespace
//!  +---------------------------------------------------+
//!  | eth0 (TAP) --- egress hook: UDP? ---> eth0-udp     |   a TAP without addresses, which drops what finds
//!  |   |                                      |         |   it full
//!  +---|--------------------------------------|---------+
//!      v                                      v
//!  brodo: everything else, without a loss     brodo: datagrams
//! ```
//!
//! Beside the interface, as it has to be: by way of the middle namespace a flood of datagrams was a third
//! slower, for the second hop.
//!
//! One client at a time has the queue, and has its descriptor before the steering begins: wherever the agent is
//! killed, datagrams go where they are read. When the client ends they go to the interface again.

use super::Stage;
use super::message::Refused;
use super::steering::Steering;
use crate::txqueuelen::TxQueueLenWatch;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// The queue, and its present client.
#[derive(Debug)]
pub struct DatagramQueue {
    tap: OwnedFd,
    watch: TxQueueLenWatch,
    client: Option<u64>,
    steered: bool,
}

impl DatagramQueue {
    /// A queue that a TAP takes, whose drops the watch knows.
    pub fn new(tap: OwnedFd, watch: TxQueueLenWatch) -> Self {
        // The first look asks for the socket's own address, which no later one needs.
        watch.look();
        Self { tap, watch, client: None, steered: false }
    }

    /// Gives it to a client: its descriptor, unless the client has it already.
    pub(super) fn give(&mut self, client: u64) -> Result<Option<OwnedFd>, Refused> {
        match self.client {
            Some(present) if present == client => return Ok(None),
            Some(_) => return Err(Stage::Number.refusal(Errno::BUSY)),
            None => {}
        }
        let tap = self.tap.try_clone().map_err(|_| Stage::Socket.refusal(Errno::MFILE))?;
        self.client = Some(client);
        Ok(Some(tap))
    }

    /// Steers datagrams to the queue, now that a client has it. Without the set, which the guest may have
    /// deleted, they stay with the interface.
    pub(super) fn divert(&mut self, steering: &mut Steering) {
        if self.client.is_some() && !self.steered {
            self.steered = steering.add_datagrams().is_ok();
        }
    }

    /// Takes it from a client, if it is this one's.
    pub(super) fn rejoin(&mut self, steering: &mut Steering, client: u64) {
        if self.client != Some(client) {
            return;
        }
        self.client = None;
        if std::mem::take(&mut self.steered) {
            let _ = steering.remove_datagrams();
        }
    }

    /// Datagrams that it has dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.watch.look();
        self.watch.dropped()
    }
}

/// The refusal of an agent without a queue.
pub(super) fn missing() -> Refused {
    Stage::Request.refusal(Errno::NODEV)
}
