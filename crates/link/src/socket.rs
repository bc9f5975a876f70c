//! A virtual machine behind a Unix socket: its monitor (QEMU, libkrun, UML) sends and takes Ethernet frames.
//!
//! Theory of operation. A [`SocketLink`] serves one monitor at a time. Its connections come from a source
//! ([`Connections`]): a socket that is connected already, a listening one, or another process that may open
//! paths. While there is none, only the link is down; flows wait.
//!
//! Frames have the form of [`Framing`]: on a stream each follows its length ([`stream`]), otherwise each is
//! one packet ([`packets`]). Neither has a virtio-net header. Toward the guest every frame is within its MTU,
//! has complete checksums and at least 60 bytes. Frames of the guest are never verified: some monitors
//! (libkrun) pass on frames of 64 KiB with the pseudo-header's sum alone and say so nowhere, and a Unix
//! socket corrupts nothing.
//!
//! *Back pressure.* A full socket is `NoCredit`, as is the time without a connection: payload stays in the
//! host's kernel. A frame that was written in part is finished before any other. The guest's frames are not
//! taken faster than the stack handles them, and its monitor waits.
//!
//! *Hostile monitor.* Lengths are bounded; an impossible one ends that connection and is counted. All memory
//! of the link is allocated with the connection.
//!
//! *Hand-over.* Another process goes on in the midst of a frame: it gets the socket, what was received of the
//! next frame, and what is left of the last one to be written. After a crash another process has only the
//! socket, which the source of connections keeps for it: packets go on, and so does a stream that is between
//! two frames ([`stream`]).
//!
//! System calls: recvfrom, sendmsg, shutdown, close, getsockopt, ioctl SIOCOUTQ; those of the source.

mod packets;
mod position;
mod stream;

use crate::batch::Batch;
use crate::connections::{Arrived, Connections, KeptLink, Requests};
use crate::poller::Poller;
use crate::{CreditWait, EventFlags, FailedCall, GuestLink, LinkLosses, LinkReady, SavedLink, Taken};
use brodo_core::link::{Link, LinkCaps, NoCredit, RxChecksum, RxMeta, TxFrame};
use packets::Packets;
use position::Position;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, Shutdown, SocketType, sendmsg, shutdown, sockopt,
};
use std::io::{self, IoSlice};
use std::sync::atomic::AtomicU64;
use stream::Stream;

/// Shortest frame sent to the guest, in bytes, without its check sequence (IEEE 802.3, 3.2.8); shorter ones
/// are padded.
const FRAME_MIN: usize = 60;

/// Frames that are too long and are passed over in one call, so that a monitor which sends nothing else does
/// not keep the loop: half a megabyte.
const SKIPPED_MAX: u32 = 8;

/// Metadata of every frame of the guest.
const RX_META: RxMeta = RxMeta { checksum: RxChecksum::Valid, gso: brodo_core::link::Gso::None };

/// Key of the connection source's descriptor.
const SOURCE: u32 = 0;
/// Key of the connection.
const CONNECTION: u32 = 1;

/// Form of frames on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// A stream: each frame behind its length as 32 bits, most significant first. QEMU's `-netdev stream`,
    /// libkrun's `unixstream`, the form of passt.
    Length,
    /// SOCK_DGRAM or SOCK_SEQPACKET: each packet is a frame. QEMU's `-netdev dgram`, libkrun's `unixgram`,
    /// vfkit, UML's `bess`.
    Packet,
}

impl Framing {
    /// Form of frames on a socket of this type.
    pub fn of(kind: SocketType) -> Self {
        if kind == SocketType::STREAM { Self::Length } else { Self::Packet }
    }
}

/// Cause of a connection's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// The monitor has closed it, or an error of the socket.
    Closed,
    /// A frame length that no frame has.
    BadLength,
}

/// Reason why a frame was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unsent {
    /// Nothing of the frame was taken, until this.
    Full(CreditWait),
    /// Refused for itself; it is lost.
    Refused,
    /// Connection lost, and the frame with it.
    Closed,
}

/// A connection to a monitor, with frames that are under way in it.
#[derive(Debug)]
enum Connection {
    Stream(Stream),
    Packets(Packets),
}

impl Connection {
    fn new(socket: OwnedFd, framing: Framing, position: Position) -> Self {
        match framing {
            Framing::Length => Self::Stream(Stream::new(socket, position)),
            Framing::Packet => Self::Packets(Packets::new(socket)),
        }
    }

    /// Position in its frames, for [`Connection::restore`].
    fn save(&self) -> Vec<u8> {
        match self {
            Self::Stream(stream) => stream.save(),
            Self::Packets(_) => Vec::new(),
        }
    }

    /// A connection at a saved position, or without one behind a crash; `None` if the descriptor is no such
    /// socket, or there is no such position.
    fn restore(socket: OwnedFd, framing: Framing, saved: &[u8], position: Position) -> Option<Self> {
        let is_unix = sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX);
        if !is_unix || Framing::of(sockopt::socket_type(&socket).ok()?) != framing {
            return None;
        }
        match framing {
            Framing::Length if saved.is_empty() => Stream::after_a_crash(socket, position).map(Self::Stream),
            Framing::Length => Stream::restore(socket, saved, position).map(Self::Stream),
            Framing::Packet => Some(Self::Packets(Packets::new(socket))),
        }
    }

    /// Whether another link can go on with the socket alone, whenever this one ends.
    fn is_stateless(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.is_whole(),
            Self::Packets(_) => self.is_of_one_monitor(),
        }
    }

    /// Datagrams have no connection of their own: the socket is the one on which the next monitor is awaited.
    fn is_of_one_monitor(&self) -> bool {
        match self {
            Self::Stream(_) => true,
            Self::Packets(packets) => packets.is_connection(),
        }
    }

    fn socket(&self) -> &OwnedFd {
        match self {
            Self::Stream(stream) => stream.socket(),
            Self::Packets(packets) => packets.socket(),
        }
    }

    fn take(&mut self, batch: &mut Batch<'_>, oversized: &mut u64) -> Result<Taken, Lost> {
        match self {
            Self::Stream(stream) => stream.take(batch, oversized),
            Self::Packets(packets) => packets.take(batch, oversized),
        }
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), Unsent> {
        match self {
            Self::Stream(stream) => stream.send(frame),
            Self::Packets(packets) => packets.send(frame),
        }
    }

    /// Writes what is gathered, unless it waits for room.
    fn flush(&mut self) -> Result<(), Lost> {
        match self {
            Self::Stream(stream) => stream.flush(),
            Self::Packets(_) => Ok(()),
        }
    }

    /// Writes what has waited for room.
    fn go_on(&mut self) -> Result<(), Lost> {
        match self {
            Self::Stream(stream) => stream.go_on(),
            Self::Packets(_) => Ok(()),
        }
    }

    /// Wait of what is under way, if there is no room for it.
    fn blocked(&self) -> Option<CreditWait> {
        match self {
            Self::Stream(stream) => stream.blocked(),
            Self::Packets(_) => None,
        }
    }
}

/// Wait that follows a failed write: for room, or for memory, which no event reports. None if the connection
/// is lost.
fn wait_after(errno: Errno) -> Option<CreditWait> {
    match errno {
        Errno::AGAIN => Some(CreditWait::Event),
        Errno::NOBUFS | Errno::NOMEM => Some(CreditWait::Timer),
        _ => None,
    }
}

/// Writes without waiting and without SIGPIPE.
fn write(socket: &OwnedFd, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry_on_intr(|| sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags))
}

/// The link to a virtual machine by a socket.
pub struct SocketLink {
    requests: Requests,
    framing: Framing,
    position: Position,
    connection: Option<Connection>,
    /// A connection that was lost since the last turn's end, still watched.
    lost: Option<Connection>,
    /// Wait of a frame refused since the last accepted one.
    refused: Option<CreditWait>,
    /// The loop waits for credit.
    awaited: bool,
    losses: LinkLosses,
}

impl SocketLink {
    /// A link to the monitor whose connections come from `source`, of sockets with this framing.
    pub fn new(source: Box<dyn Connections>, framing: Framing) -> Self {
        Self {
            requests: Requests::new(source),
            framing,
            position: Position::default(),
            connection: None,
            lost: None,
            refused: None,
            awaited: false,
            losses: LinkLosses::default(),
        }
    }

    /// The link, with its position in a stream noted in `word`, which outlives this process: the link of
    /// the next one has the same word.
    #[must_use]
    pub fn noting(mut self, word: Option<&'static AtomicU64>) -> Self {
        self.position = Position::new(word);
        self
    }

    /// Events of the connection that are waited for.
    fn events(&self) -> EventFlags {
        let room = if self.awaited { EventFlags::OUT } else { EventFlags::empty() };
        EventFlags::IN | EventFlags::RDHUP | EventFlags::ET | room
    }

    /// Wait of what is under way.
    fn blocked(&self) -> Option<CreditWait> {
        self.connection.as_ref().and_then(Connection::blocked)
    }

    /// Does `step` with the connection, which may be lost by it.
    fn with_connection(&mut self, step: fn(&mut Connection) -> Result<(), Lost>) {
        if let Some(Err(lost)) = self.connection.as_mut().map(step) {
            self.lose(lost);
        }
    }

    /// Ends the connection; the turn's end closes it and requests another one.
    fn lose(&mut self, lost: Lost) {
        self.lost = self.connection.take();
        if let Some(connection) = self.lost.as_ref().filter(|connection| connection.is_of_one_monitor()) {
            // The source has a copy, which would keep it open. An error: it has ended already.
            let _ = shutdown(connection.socket(), Shutdown::Both);
        }
        self.losses.bad_lengths += u64::from(lost == Lost::BadLength);
    }

    /// Requests a connection, and takes the one that has come.
    fn connect(&mut self, poller: Poller<'_>) {
        if let Some(lost) = self.lost.take() {
            // The source has a copy, so closing alone would not end the watch, and the next connection is the
            // same socket if it is of datagrams: under the same number it could not be watched.
            let _ = poller.remove(lost.socket());
        }
        let connection = match self.requests.next() {
            None => return,
            Some(Arrived::New(socket)) => Some(Connection::new(socket, self.framing, self.position)),
            Some(Arrived::Kept(KeptLink { bytes, descriptors })) => self.restored(&bytes, descriptors),
        };
        // A connection that cannot be watched is closed, and its monitor may try again.
        let watched = |it: &Connection| poller.add(it.socket(), CONNECTION, self.events()).is_ok();
        self.connection = connection.filter(watched);
        if self.connection.is_none() {
            self.requests.forget();
        }
    }

    fn restored(&self, bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<Connection> {
        Connection::restore(descriptors.into_iter().next()?, self.framing, bytes, self.position)
    }

    /// Has the source keep the connection, if frames leave no state in it.
    fn keep(&mut self) {
        let Some(connection) = &self.connection else { return };
        let wanted = self.requests.wants_state();
        if wanted && connection.is_stateless() {
            let descriptors = vec![connection.socket().as_fd()];
            self.requests.keep(&SavedLink { bytes: Vec::new(), descriptors });
        } else if !wanted && !connection.is_stateless() && !self.requests.forget() {
            // A later process would go on at a wrong place.
            self.lose(Lost::Closed);
        }
    }
}

impl Link for SocketLink {
    fn caps(&self) -> LinkCaps {
        LinkCaps::default()
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        let nothing_connected = Err(Unsent::Full(CreditWait::Event));
        let sent = self.connection.as_mut().map_or(nothing_connected, |connection| connection.send(frame));
        self.refused = None;
        match sent {
            Ok(()) => {}
            Err(Unsent::Full(wait)) => {
                self.refused = Some(wait);
                return Err(NoCredit);
            }
            Err(Unsent::Refused) => self.losses.refused += 1,
            Err(Unsent::Closed) => {
                self.losses.down += 1;
                self.lose(Lost::Closed);
            }
        }
        Ok(())
    }
}

impl GuestLink for SocketLink {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        if let Some(restored) = &self.connection {
            poller.add(restored.socket(), CONNECTION, self.events())?;
        }
        self.requests.register(poller, SOURCE)
    }

    fn ready(&mut self, key: u32, events: EventFlags) -> LinkReady {
        if key == SOURCE {
            self.requests.ready();
            return LinkReady::default();
        }
        let writable = events.contains(EventFlags::OUT);
        if writable {
            self.with_connection(Connection::go_on);
        }
        LinkReady { frames: true, credit: writable && self.blocked().is_none() }
    }

    fn take(&mut self, batch: &mut Batch<'_>) -> Result<Taken, FailedCall> {
        let Some(connection) = &mut self.connection else { return Ok(Taken::All) };
        let taken = connection.take(batch, &mut self.losses.oversized);
        Ok(taken.unwrap_or_else(|lost| {
            self.lose(lost);
            Taken::All
        }))
    }

    fn flush(&mut self, poller: Poller<'_>) {
        self.with_connection(Connection::flush);
        if self.connection.is_none() {
            self.connect(poller);
        }
        self.keep();
    }

    fn credit_wait(&self) -> Option<CreditWait> {
        self.blocked().or(self.refused)
    }

    fn await_credit(&mut self, poller: Poller<'_>, awaited: bool) -> io::Result<()> {
        self.awaited = awaited;
        match &self.connection {
            Some(connection) => Ok(poller.modify(connection.socket(), CONNECTION, self.events())?),
            None => Ok(()),
        }
    }

    fn forget_refusal(&mut self) {
        self.refused = None;
        if self.blocked() == Some(CreditWait::Timer) {
            self.with_connection(Connection::go_on);
        }
    }

    fn gone(&self) -> bool {
        self.requests.is_ended()
    }

    fn losses(&self) -> LinkLosses {
        self.losses
    }

    fn save(&self) -> Option<SavedLink<'_>> {
        let connection = self.connection.as_ref()?;
        Some(SavedLink { bytes: connection.save(), descriptors: vec![connection.socket().as_fd()] })
    }

    fn restore(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        self.connection = self.restored(bytes, descriptors);
    }
}

#[cfg(test)]
mod tests;
