//! The queue of datagrams beside the guest's interface, in the agent's hands.
//!
//! The transmit queue of the guest's interface drops frames that find it full, whatever they are: beside a
//! flood of datagrams, which nothing slows down, also handshakes, requests and acknowledgements of TCP. While
//! datagrams fill it they are steered, as segments of promoted flows are, to a TAP of their own:
//!
//! ```text
//!  guest's namespace
//!  +---------------------------------------------------+
//!  | eth0 (TAP) --- egress hook: UDP? ---> eth0-udp     |   a TAP without addresses, which drops frames that
//!  |   |                                      |         |   find it full
//!  +---|--------------------------------------|---------+
//!      v                                      v
//!  brodo: everything else, without a loss     brodo: datagrams
//! ```
//!
//! *Beside the interface:* by way of the middle namespace a flood was a third slower, for the second hop.
//!
//! *Made at the first flood*, of a descriptor that was opened before the agent was confined: most guests
//! never have one, and the end of an interface takes the kernel 10 to 30 ms, in which the end of brodo would
//! wait.
//!
//! *Order.* One client at a time has the queue, and has its descriptor before the steering begins: wherever
//! the agent is killed, datagrams go where they are read. When the client ends they go to the interface.
//!
//! *Without the agent* the kernel ends the steering after [`STEERED_MAX`], which the agent renews every
//! [`RENEWAL_INTERVAL`]. A client that ends within that time takes the TAP along: datagrams are lost then.
//!
//! System calls: ioctl `TUNSETIFF` and those of [`Tap::attach`], ioctl `SIOCGIFINDEX`, sendto, recvfrom
//! (rtnetlink); those of [`super::steering`].

use super::Stage;
use super::message::Refused;
use super::steering::{STEERED_MAX, Steering};
use crate::netlink::{LinkSettings, Netlink};
use brodo_link::tap::{Tap, Wanted};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Interval of renewals.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(1);
const _: () = assert!(RENEWAL_INTERVAL.as_secs() < STEERED_MAX.as_secs());

/// The interface that is to be made, and what it takes.
#[derive(Debug)]
pub struct DatagramInterface {
    /// Its name.
    pub name: String,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// Length of its queue, in frames.
    pub tx_queue_len: u32,
}

/// The interface that is made.
#[derive(Debug)]
struct Made {
    tap: OwnedFd,
    index: u32,
}

/// The queue, and its present client.
#[derive(Debug)]
pub struct DatagramQueue {
    interface: DatagramInterface,
    netlink: Netlink,
    /// Of [`Tap::device`], until the interface is made of it.
    device: Option<OwnedFd>,
    made: Option<Made>,
    client: Option<u64>,
    /// Time of the next renewal, while datagrams are steered.
    renew_at: Option<Instant>,
}

impl DatagramQueue {
    /// A queue of which nothing is made yet: of a descriptor of [`Tap::device`] and a socket, both of the
    /// guest's namespace.
    pub fn new(interface: DatagramInterface, device: OwnedFd, netlink: Netlink) -> Self {
        let (made, client, renew_at) = Default::default();
        Self { interface, netlink, device: Some(device), made, client, renew_at }
    }

    /// Gives it to a client: its descriptor, unless the client has it already.
    pub(super) fn give(&mut self, steering: &Steering, client: u64) -> Result<Option<OwnedFd>, Refused> {
        match self.client {
            Some(present) if present == client => return Ok(None),
            Some(_) => return Err(Stage::Number.refusal(Errno::BUSY)),
            None => {}
        }
        if let Some(device) = self.device.take() {
            let made = self.make(device).map_err(|errno| Stage::Socket.refusal(errno))?;
            steering.lead_datagrams(made.index).map_err(|errno| Stage::Steering.refusal(errno))?;
            self.made = Some(made);
        }
        let made = self.made.as_ref().ok_or(Stage::Request.refusal(Errno::NODEV))?;
        let tap = made.tap.try_clone().map_err(|_| Stage::Socket.refusal(Errno::MFILE))?;
        self.client = Some(client);
        Ok(Some(tap))
    }

    /// Makes the interface: it has no address and says nothing of its own.
    fn make(&self, device: OwnedFd) -> Result<Made, Errno> {
        let DatagramInterface { name, mtu, tx_queue_len } = &self.interface;
        let tap = Tap::attach(device, name, Wanted::Everything).map_err(|_| Errno::NODEV)?;
        if !tap.has_header() {
            return Err(Errno::OPNOTSUPP);
        }
        let index = self.netlink.index_of(name)?;
        let (mtu, tx_queue_len) = (Some(*mtu), Some(*tx_queue_len));
        self.netlink.set_link(index, &LinkSettings { mtu, tx_queue_len, ..LinkSettings::default() })?;
        let quiet = LinkSettings { automatic_link_local: Some(false), ..LinkSettings::default() };
        // A kernel without IPv6 has no such property.
        let _ = self.netlink.set_link(index, &quiet);
        self.netlink.set_up(index)?;
        Ok(Made { tap: tap.into_fd(), index })
    }

    /// Steers datagrams to the queue, now that a client has it. Without the set, which the guest may have
    /// deleted, they stay with the interface.
    pub(super) fn divert(&mut self, steering: &mut Steering) {
        if self.client.is_some() && self.renew_at.is_none() && steering.add_datagrams().is_ok() {
            self.renew_at = Some(Instant::now() + RENEWAL_INTERVAL);
        }
    }

    /// Time until the next renewal.
    pub(super) fn renewal_in(&self, now: Instant) -> Option<Duration> {
        self.renew_at.map(|at| at.saturating_duration_since(now))
    }

    /// Renews the steering when that is due.
    pub(super) fn renew(&mut self, steering: &Steering, now: Instant) {
        if self.renew_at.is_some_and(|at| now >= at) {
            // Without the set, which the guest may have deleted, they stay with the interface.
            let _ = steering.renew_datagrams();
            self.renew_at = Some(now + RENEWAL_INTERVAL);
        }
    }

    /// Takes it from a client, if it is this one's.
    pub(super) fn rejoin(&mut self, steering: &mut Steering, client: u64) {
        if self.client != Some(client) {
            return;
        }
        self.client = None;
        if self.renew_at.take().is_some() {
            let _ = steering.remove_datagrams();
        }
    }

    /// Datagrams that it has dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.made.as_ref().and_then(|made| self.netlink.dropped(made.index).ok()).unwrap_or(0)
    }
}
