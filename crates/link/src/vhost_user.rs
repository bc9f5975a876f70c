//! A virtual machine by vhost-user: its frames in rings of its own memory, without a system call per frame.
//!
//! Theory of operation. The monitor (QEMU, cloud-hypervisor, crosvm, UML) connects to a Unix socket and tells
//! by messages ([`message`]) which features its guest's driver has accepted, where the guest's memory is, and
//! where the rings are ([`device`]). From then on frames are copied between the rings and the stack
//! ([`crate::virtio::link`]); the socket is for changes.
//!
//! *Several workers.* One link serves the socket, the first worker's; the others have the rings of their
//! pairs alone ([`VirtioLink`]).
//!
//! *Lost connections.* The device ends with its connection, and its memory is unmapped; flows stay. A monitor
//! that connects again (QEMU's `reconnect-ms=`) sets the rings up where they were left, because nothing is
//! ever in flight in them, and the guest notices nothing.
//!
//! *Hand-over.* Another process sets the device up anew by the monitor's own messages, with the rings where
//! they are, so what was handed over is checked as they are.
//!
//! *After a crash* the next process does the same with the messages that the connection's source has kept
//! since the last one. Positions of the rings are in the guest's memory: a chain that was used and not shown
//! to the driver is taken once more.
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
use crate::connections::{Arrived, Connections, Requests};
use crate::poller::Poller;
use crate::virtio::device::NetDevice;
use crate::virtio::link::{KEY_MIN, VirtioLink};
use crate::virtio::unread::UnreadFrames;
use crate::{CreditWait, EventFlags, FailedCall, GuestLink, LinkLosses, LinkReady, SavedLink, Taken};
use brodo_core::link::{Link, LinkCaps, NoCredit, TxFrame, Unread};
use brodo_core::wire::ethernet::MacAddr;
use channel::{Channel, Lost, Message};
use device::{Device, Refused};
use message::{Header, Reply, Request};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io;
use std::sync::Arc;

/// Key of the connection source's descriptor.
const SOURCE: u32 = 0;
/// Key of the connection.
const CONNECTION: u32 = 1;

/// Most queue pairs of a machine ([`MachineConfig::queues`]).
pub const QUEUES_MAX: usize = device::QUEUES_MAX;

/// Messages served per event; the connection is watched level-triggered, so more have another.
const MESSAGES: usize = 64;
/// Properties of a machine that its driver may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineConfig {
    /// MAC address, for monitors that have none of their own.
    pub mac: MacAddr,
    /// MTU in bytes.
    pub mtu: u16,
    /// Whether checksums and segmentation are offered to be left to the other side.
    pub offload: bool,
    /// Queue pairs that are advertised, 1 to [`QUEUES_MAX`].
    pub queues: usize,
    /// Whether neither a channel for requests of the device nor a configuration space is offered, which
    /// QEMU's `-netdev passt` does not expect of its program.
    pub plain: bool,
}

/// A connection and what it has set up.
#[derive(Debug)]
struct Session {
    channel: Channel,
    device: Device,
}

impl Session {
    /// A session in a state of [`Session::save`]. `None` if it is no such state, or the device refuses one of
    /// its messages; rings may be in service then.
    fn restore(
        state: &[u8],
        descriptors: Vec<OwnedFd>,
        config: MachineConfig,
        rings: &Arc<NetDevice>,
    ) -> Option<Self> {
        let (pairs, mut messages) = state.split_first_chunk()?;
        let mut descriptors = descriptors.into_iter();
        let socket = descriptors.next()?;
        let is_stream = sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
        let is_unix = sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX);
        let mut device = (is_stream && is_unix).then(|| Device::new(config, rings.clone()))?;
        while let Some((header, rest)) = messages.split_first_chunk() {
            let header = Header::read(header)?;
            let (payload, rest) = rest.split_at_checked(header.size)?;
            let request = Request::read(header.request, payload)?;
            let with = descriptors.by_ref().take(request.descriptors()).collect();
            device.handle(request, with).ok()?;
            messages = rest;
        }
        rings.use_pairs(u16::from_le_bytes(*pairs).into());
        Some(Self { channel: Channel::new(socket), device })
    }

    /// Number of pairs in use as 16 bits, least significant first, then the messages that set up a device
    /// like this one; the descriptors are the socket and those of the messages. `None` in the midst of a
    /// message.
    fn save(&self) -> Option<SavedLink<'_>> {
        let pairs = u16::try_from(self.device.pairs_in_use()).ok()?;
        let socket = self.channel.between_messages()?.as_fd();
        let mut saved = SavedLink { bytes: pairs.to_le_bytes().to_vec(), descriptors: vec![socket] };
        for (request, descriptor) in self.device.requests() {
            saved.bytes.extend(request.message()?);
            saved.descriptors.extend(descriptor);
        }
        Some(saved)
    }

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
            self.device.announce();
        }
        Ok(())
    }
}

/// The connection to a monitor.
struct Control {
    requests: Requests,
    config: MachineConfig,
    session: Option<Session>,
    /// Pairs in use in the state that the source keeps; the driver changes them by the control queue.
    pairs_kept: usize,
}

impl Control {
    /// Serves messages that have come. The state kept before them must not be gone on with after them.
    fn serve(&mut self) -> Result<(), Lost> {
        let Some(session) = &mut self.session else { return Ok(()) };
        if !self.requests.forget() {
            return Err(Lost::Closed);
        }
        session.serve()
    }

    /// Has the source keep the state of the connection, if it has not, and there is one.
    fn keep(&mut self) {
        let Some(session) = &self.session else { return };
        let pairs = session.device.pairs_in_use();
        if pairs == self.pairs_kept && !self.requests.wants_state() {
            return;
        }
        if let Some(state) = session.save() {
            self.requests.keep(&state);
            self.pairs_kept = pairs;
        }
    }
}

/// A link to a virtual machine by vhost-user, one for each worker.
pub struct VhostUserLink {
    rings: VirtioLink,
    /// Of the first worker.
    control: Option<Control>,
}

impl VhostUserLink {
    /// Links to the monitor whose connections come from `source`, for this number of workers. The first one
    /// serves the connection.
    ///
    /// # Errors
    /// eventfd.
    pub fn links(
        source: Box<dyn Connections>,
        config: MachineConfig,
        workers: usize,
    ) -> io::Result<Vec<Self>> {
        let config = MachineConfig { queues: config.queues.clamp(1, QUEUES_MAX), ..config };
        let device = NetDevice::new(device::rings(config.queues), workers)?;
        let mut control =
            Some(Control { requests: Requests::new(source), config, session: None, pairs_kept: 0 });
        let link = |rings| Self { rings, control: control.take() };
        Ok(VirtioLink::all(&device).into_iter().map(link).collect())
    }

    /// Ends the connection; the turn's end requests another one.
    fn lose(&mut self, lost: Lost) {
        let bad = u64::from(lost == Lost::BadMessage);
        let losses = self.rings.losses_mut();
        losses.bad_messages += bad;
        if let Some(session) = self.control.as_mut().and_then(|control| control.session.take()) {
            session.channel.shut_down();
        }
        self.rings.device().clear();
        self.rings.note_change();
    }

    /// Takes the connection that has come.
    fn connect(&mut self, poller: Poller<'_>) {
        let Some(control) = self.control.as_mut().filter(|control| control.session.is_none()) else { return };
        let session = match control.requests.next() {
            None => return,
            Some(Arrived::New(socket)) => {
                let device = Device::new(control.config, self.rings.device().clone());
                Session { channel: Channel::new(socket), device }
            }
            Some(Arrived::Kept(kept)) => {
                let Some(session) = self.restored(&kept.bytes, kept.descriptors) else {
                    return self.forget();
                };
                session.device.announce();
                session
            }
        };
        if poller.add(session.channel.socket(), CONNECTION, EventFlags::IN).is_err() {
            return self.forget();
        }
        if let Some(control) = &mut self.control {
            control.session = Some(session);
        }
    }

    /// Has the source forget a connection that this link does not go on with.
    fn forget(&mut self) {
        if let Some(control) = &mut self.control {
            control.requests.forget();
        }
    }

    /// The session in a saved state; the connection ends if there is none.
    fn restored(&self, state: &[u8], descriptors: Vec<OwnedFd>) -> Option<Session> {
        let (device, config) = (self.rings.device(), self.control.as_ref()?.config);
        let session = Session::restore(state, descriptors, config, device);
        if session.is_none() {
            device.clear();
        }
        session
    }
}

impl Link for VhostUserLink {
    fn caps(&self) -> LinkCaps {
        self.rings.caps()
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        self.rings.send(frame)
    }

    fn read(&self, unread: Unread, into: &mut [u8]) -> usize {
        self.rings.read(unread, into)
    }
}

impl GuestLink for VhostUserLink {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        if let Some(Control { requests, session, .. }) = &self.control {
            requests.register(poller, SOURCE)?;
            if let Some(session) = session {
                poller.add(session.channel.socket(), CONNECTION, EventFlags::IN)?;
            }
        }
        self.rings.register(poller)
    }

    fn ready(&mut self, key: u32, events: EventFlags) -> LinkReady {
        let Some(control) = self.control.as_mut().filter(|_| key < KEY_MIN) else {
            return self.rings.ready(key, events);
        };
        if key == SOURCE {
            control.requests.ready();
            return LinkReady::default();
        }
        // Messages wait for rings that are lent.
        self.rings.release();
        let served = control.serve();
        let broken = control.session.as_mut().map_or(0, |session| session.device.take_broken());
        self.rings.losses_mut().broken_rings += broken;
        match served {
            Err(lost) => self.lose(lost),
            Ok(()) => self.rings.note_change(),
        }
        // A ring may have come.
        LinkReady { frames: true, credit: true }
    }

    fn take(&mut self, batch: &mut Batch<'_>) -> Result<Taken, FailedCall> {
        self.rings.take(batch)
    }

    fn unread(&self) -> Option<Arc<UnreadFrames>> {
        self.rings.unread()
    }

    fn has_frames(&mut self, arm: bool) -> bool {
        self.rings.has_frames(arm)
    }

    fn flush(&mut self, poller: Poller<'_>) {
        self.rings.flush(poller);
        self.connect(poller);
        if let Some(control) = &mut self.control {
            control.keep();
        }
    }

    fn credit_wait(&self) -> Option<CreditWait> {
        self.rings.credit_wait()
    }

    fn await_credit(&mut self, poller: Poller<'_>, awaited: bool) -> io::Result<()> {
        self.rings.await_credit(poller, awaited)
    }

    fn wait_overdue(&mut self) {
        self.rings.wait_overdue();
    }

    fn forget_refusal(&mut self) {
        self.rings.forget_refusal();
    }

    fn take_reset(&mut self) -> bool {
        self.rings.take_reset()
    }

    fn gone(&self) -> bool {
        self.control.as_ref().is_some_and(|control| control.requests.is_ended())
    }

    fn losses(&self) -> LinkLosses {
        self.rings.losses()
    }

    fn save(&self) -> Option<SavedLink<'_>> {
        self.control.as_ref()?.session.as_ref()?.save()
    }

    fn restore(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        let session = self.restored(bytes, descriptors);
        if let (Some(control), Some(session)) = (&mut self.control, session) {
            session.device.announce();
            control.session = Some(session);
        }
    }
}

#[cfg(test)]
mod tests;
