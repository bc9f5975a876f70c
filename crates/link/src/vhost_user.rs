//! A virtual machine by vhost-user: its frames in rings of its own memory, without a system call per frame.
//!
//! Theory of operation. The monitor (QEMU, cloud-hypervisor, crosvm, UML) connects to a Unix socket and tells
//! by messages ([`message`]) which features its guest's driver has accepted, where the guest's memory is, and
//! where the rings are ([`device`]). From then on frames are copied between the rings and the stack
//! ([`crate::virtio`]); the socket is for changes.
//!
//! *Notification.* Each ring has a *kick*, an eventfd that the guest's writes reach, and a *call*, by which
//! the driver is notified. Kicks are watched edge-triggered and never read. While the loop is awake none is
//! asked for, because rings are looked at in every turn; before it waits the ring of the guest's frames is
//! armed ([`GuestLink::has_frames`]). The ring of frames to the guest is armed when it has refused a frame.
//! Calls are made once per turn and ring, and after each [`CALL_BYTES`] of a long turn.
//!
//! *Back pressure.* A ring without buffers is `NoCredit`, as is the time without a ring (firmware, reboot, a
//! machine that is paused, no connection): payload stays in the host's kernel. Frames of the guest that are
//! not taken stay in its ring.
//!
//! *Lost connections.* The device ends with its connection, and its memory is unmapped; flows stay. A monitor
//! that connects again (QEMU's `reconnect-ms=`) sets the rings up where they were left, because nothing is
//! ever in flight in them, and the guest notices nothing.
//!
//! *Hostile monitor and guest.* A message that is not vhost-user's ends the connection, impossible content of
//! a ring that ring; both are counted.
//!
//! System calls: recvmsg, recvfrom, sendto, getsockopt, fstat, mmap, munmap, madvise, write, close.

mod channel;
mod device;
#[cfg(any(test, feature = "driver"))]
pub mod front_end;
mod message;

use crate::batch::Batch;
use crate::connections::{Connections, Requests};
use crate::poller::Poller;
use crate::virtio::queues::Sent;
use crate::{CreditWait, EventFlags, FailedCall, GuestLink, LinkLosses, LinkReady, Taken};
use brodo_core::link::{Link, LinkCaps, NoCredit, TxFrame};
use brodo_core::wire::ethernet::MacAddr;
use channel::{Channel, Lost, Message};
use device::{Device, FROM_GUEST, RINGS, Refused, TO_GUEST};
use message::{Reply, Request};
use rustix::fd::OwnedFd;
use std::io;

/// Key of the connection source's descriptor.
const SOURCE: u32 = 0;
/// Key of the connection.
const CONNECTION: u32 = 1;
/// Key of the first ring's kick; that of ring `n` is `n` more.
const KICKS: u32 = 2;

/// Messages served per event; the connection is watched level-triggered, so more have another.
const MESSAGES: usize = 64;
/// Bytes to the guest after which it is called within a turn, so that it works while the turn goes on.
const CALL_BYTES: usize = 64 << 10;

/// Properties of a machine that its driver may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineConfig {
    /// MAC address, for monitors that have none of their own.
    pub mac: MacAddr,
    /// MTU in bytes.
    pub mtu: u16,
    /// Whether checksums and segmentation are offered to be left to the other side.
    pub offload: bool,
}

/// A connection and what it has set up.
#[derive(Debug)]
struct Session {
    channel: Channel,
    device: Device,
}

impl Session {
    /// Serves messages that have come.
    fn serve(&mut self) -> Result<(), Lost> {
        for _ in 0..MESSAGES {
            let Some(Message { header, payload, descriptors }) = self.channel.receive()? else { break };
            let request = Request::read(header.request, payload).ok_or(Lost::BadMessage)?;
            let answer = self.device.handle(request, descriptors);
            // REPLY_ACK counts from the message that negotiates it.
            let wanted = header.needs_reply && self.device.acknowledges();
            let reply = match answer {
                Ok(Some(reply)) => Some(reply),
                Ok(None) => wanted.then_some(Reply::Number(0)),
                Err(Refused) if wanted => Some(Reply::Number(1)),
                Err(Refused) => return Err(Lost::BadMessage),
            };
            if let Some(reply) = reply {
                self.channel.reply(&reply.message(header.request))?;
            }
        }
        Ok(())
    }
}

/// The link to a virtual machine by vhost-user.
pub struct VhostUserLink {
    requests: Requests,
    config: MachineConfig,
    session: Option<Session>,
    /// Watched kicks of connections that have ended.
    old_kicks: Vec<OwnedFd>,
    /// A frame was refused since the last accepted one.
    refused: bool,
    /// Bytes sent since the last call.
    uncalled: usize,
    losses: LinkLosses,
}

impl VhostUserLink {
    /// A link to the monitor whose connections come from `source`.
    pub fn new(source: Box<dyn Connections>, config: MachineConfig) -> Self {
        Self {
            requests: Requests::new(source),
            config,
            session: None,
            old_kicks: Vec::new(),
            refused: false,
            uncalled: 0,
            losses: LinkLosses::default(),
        }
    }

    /// Ends the connection; the next turn's end requests another one.
    fn lose(&mut self, lost: Lost) {
        self.losses.bad_messages += u64::from(lost == Lost::BadMessage);
        if let Some(session) = self.session.take() {
            self.old_kicks.extend(session.device.into_kicks());
        }
    }

    /// The device, if there is one.
    fn device(&mut self) -> Option<&mut Device> {
        self.session.as_mut().map(|session| &mut session.device)
    }

    /// Takes a ring out of service for its content.
    fn break_ring(&mut self, ring: usize) {
        self.losses.broken_rings += 1;
        if let Some(device) = self.device() {
            device.break_ring(ring);
        }
    }

    /// Calls the guest for frames to it, if it wants that.
    fn finish_to_guest(&mut self) {
        self.uncalled = 0;
        let Some(device) = self.device() else { return };
        let Some(queue) = &mut device.to_guest else { return };
        match queue.finish(&device.memory) {
            Ok(true) => device.call(TO_GUEST),
            Ok(false) => {}
            Err(_) => self.break_ring(TO_GUEST),
        }
    }

    /// Calls the guest for its frames that were taken, if it wants that.
    fn finish_from_guest(&mut self) {
        let Some(device) = self.device() else { return };
        let Some(queue) = &mut device.from_guest else { return };
        match queue.finish(&device.memory) {
            Ok(true) => device.call(FROM_GUEST),
            Ok(false) => {}
            Err(_) => self.break_ring(FROM_GUEST),
        }
    }

    /// Follows changes of the kicks. A kick that cannot be watched ends the connection.
    fn watch_kicks(&mut self, poller: Poller<'_>) {
        let Some(device) = self.device() else { return };
        let watched: io::Result<()> = device.take_new_kicks().try_for_each(|(ring, kick)| {
            debug_assert!(ring < RINGS, "as many keys");
            Ok(poller.add(kick, KICKS + ring as u32, EventFlags::IN | EventFlags::ET)?)
        });
        let old = std::mem::take(&mut device.old_kicks);
        self.old_kicks.extend(old);
        if watched.is_err() {
            self.lose(Lost::BadMessage);
        }
    }

    /// Takes the connection that has come.
    fn connect(&mut self, poller: Poller<'_>) {
        let Some(socket) = self.requests.next() else { return };
        if poller.add(&socket, CONNECTION, EventFlags::IN).is_ok() {
            let device = Device::new(self.config);
            self.session = Some(Session { channel: Channel::new(socket), device });
        }
    }
}

impl Link for VhostUserLink {
    fn caps(&self) -> LinkCaps {
        self.session.as_ref().map_or_else(LinkCaps::default, |session| session.device.caps())
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        self.refused = true;
        let Some(device) = self.device() else { return Err(NoCredit) };
        if !device.is_enabled(TO_GUEST) {
            return Err(NoCredit);
        }
        let header_len = device.header_len();
        let Some(queue) = &mut device.to_guest else { return Err(NoCredit) };
        match queue.send(&device.memory, header_len, frame) {
            Ok(Sent::Whole) => self.uncalled += frame.len(),
            Ok(Sent::TooLong) => self.losses.refused += 1,
            Ok(Sent::NoBuffers) => return Err(NoCredit),
            Err(_) => {
                self.break_ring(TO_GUEST);
                return Err(NoCredit);
            }
        }
        self.refused = false;
        if self.uncalled >= CALL_BYTES {
            self.finish_to_guest();
        }
        Ok(())
    }
}

impl GuestLink for VhostUserLink {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        self.requests.register(poller, SOURCE)
    }

    fn ready(&mut self, key: u32, _events: EventFlags) -> LinkReady {
        const TO_GUEST_KICK: u32 = KICKS + TO_GUEST as u32;
        match key {
            SOURCE => {
                self.requests.ready();
                LinkReady::default()
            }
            CONNECTION => {
                if let Some(Err(lost)) = self.session.as_mut().map(Session::serve) {
                    self.lose(lost);
                }
                // A ring may have come.
                LinkReady { frames: true, credit: true }
            }
            TO_GUEST_KICK => LinkReady { frames: false, credit: true },
            _ => LinkReady { frames: true, credit: false },
        }
    }

    fn take(&mut self, batch: &mut Batch<'_>) -> Result<Taken, FailedCall> {
        let Some(Session { device, .. }) = &mut self.session else { return Ok(Taken::All) };
        let (header_len, enabled) = (device.header_len(), device.is_enabled(FROM_GUEST));
        let Some(queue) = &mut device.from_guest else { return Ok(Taken::All) };
        let taken =
            queue.take(&device.memory, header_len, enabled.then_some(batch), &mut self.losses.oversized);
        Ok(taken.unwrap_or_else(|_| {
            self.break_ring(FROM_GUEST);
            Taken::All
        }))
    }

    fn has_frames(&mut self, arm: bool) -> bool {
        let Some(device) = self.device() else { return false };
        let Some(queue) = &mut device.from_guest else { return false };
        let found = if arm { queue.arm(&device.memory) } else { queue.has_frames(&device.memory) };
        found.unwrap_or_else(|_| {
            self.break_ring(FROM_GUEST);
            false
        })
    }

    fn flush(&mut self, poller: Poller<'_>) {
        self.finish_to_guest();
        self.finish_from_guest();
        self.watch_kicks(poller);
        for kick in self.old_kicks.drain(..) {
            // The monitor has a copy, so closing alone would not end the watch.
            let _ = poller.remove(&kick);
        }
        if self.session.is_none() {
            self.connect(poller);
        }
    }

    fn credit_wait(&self) -> Option<CreditWait> {
        self.refused.then_some(CreditWait::Event)
    }

    /// The ring was armed when it refused.
    fn await_credit(&mut self, _poller: Poller<'_>, _awaited: bool) -> io::Result<()> {
        Ok(())
    }

    fn forget_refusal(&mut self) {
        self.refused = false;
    }

    fn gone(&self) -> bool {
        self.requests.is_ended()
    }

    fn losses(&self) -> LinkLosses {
        self.losses
    }
}

#[cfg(test)]
mod tests;
