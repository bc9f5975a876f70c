//! A stream on which each monitor speaks as it likes: frames behind their length ([`crate::socket`]), or
//! vhost-user ([`crate::vhost_user`]).
//!
//! *First bytes.* A frame's length is 14 or more, most significant byte first; a vhost-user connection begins
//! with the number of a request, which is less, in the machine's byte order. No four bytes are both.
//!
//! *Silence.* A front end of vhost-user speaks first, at once. A monitor of frames has nothing to say until
//! its guest has; one that is silent while frames for it wait is taken for one of frames after some time
//! ([`SILENT_WAITS`]), and at once if the monitor before it was.
//!
//! *After a crash* the next process goes on with a connection on which nothing was said: the source keeps it
//! with a state of its own, which is forgotten before the first bytes are taken. They were only peeked at.
//!
//! *Parts.* Both links exist all the time, with sources of connections in which this link puts one
//! ([`Handed`]); one of them at most has it. States for other processes have the protocol as their first
//! byte.
//!
//! System calls: recvfrom, shutdown, getsockopt; those of the links.

use crate::batch::Batch;
use crate::connections::{Arrival, Arrived, Connections, KeptLink, Requests};
use crate::poller::Poller;
use crate::socket::{Framing, SocketLink};
use crate::vhost_user::{MachineConfig, VhostUserLink};
use crate::virtio::link::KEY_MIN;
use crate::virtio::unread::UnreadFrames;
use crate::{CreditWait, EventFlags, FailedCall, GuestLink, LinkLosses, LinkReady, SavedLink, Taken};
use brodo_core::link::{Link, LinkCaps, NoCredit, TxFrame, Unread};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketType, recv, shutdown, sockopt};
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Keys of the links' descriptors: of the source, and of the connection.
const SOURCE: u32 = 0;
const CONNECTION: u32 = 1;

/// Waits for a monitor to speak, each of which the loop finds too long ([`CreditWait::EventAtFirst`]):
/// together about a second.
const SILENT_WAITS: u32 = 100;
/// Shortest frame, in bytes: an Ethernet header.
const LENGTH_MIN: u32 = 14;

/// A protocol on the stream; its number is that in saved states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Frames = 0,
    VhostUser = 1,
}

/// In the place of a protocol in saved states: nothing was said.
const UNSPOKEN: u8 = 2;

impl Protocol {
    /// The protocol of a connection that begins with these bytes.
    fn of(first: [u8; 4]) -> Self {
        let is_request = (1..LENGTH_MIN).contains(&u32::from_ne_bytes(first));
        if is_request { Self::VhostUser } else { Self::Frames }
    }

    /// The protocol of this number.
    fn numbered(number: u8) -> Option<Self> {
        [Self::Frames, Self::VhostUser].into_iter().find(|protocol| *protocol as u8 == number)
    }
}

/// The source of this link's connections, and the connection for one of the two links.
struct Shared {
    requests: Requests,
    /// For the link with this protocol.
    given: Option<(Protocol, Arrival)>,
    /// The link with this protocol has no connection.
    wanted: Option<Protocol>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The source of one of the two links.
struct Handed {
    shared: Arc<Mutex<Shared>>,
    protocol: Protocol,
}

impl Connections for Handed {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn request(&mut self) {
        lock(&self.shared).wanted = Some(self.protocol);
    }

    fn take(&mut self) -> Arrival {
        let mut shared = lock(&self.shared);
        let own = self.protocol;
        match shared.given.take_if(|(protocol, _)| *protocol == own) {
            Some((_, arrival)) => {
                shared.wanted = None;
                arrival
            }
            None => Arrival::Pending,
        }
    }

    fn wants_state(&mut self) -> bool {
        lock(&self.shared).requests.wants_state()
    }

    fn keep(&mut self, state: &SavedLink<'_>) {
        lock(&self.shared).requests.keep(&with_protocol(self.protocol as u8, state));
    }

    fn forget(&mut self) -> bool {
        lock(&self.shared).requests.forget()
    }
}

/// A state with the protocol as its first byte.
fn with_protocol<'a>(number: u8, state: &SavedLink<'a>) -> SavedLink<'a> {
    SavedLink { bytes: [&[number], &*state.bytes].concat(), descriptors: state.descriptors.clone() }
}

/// State of a connection on which nothing was said.
fn silence(socket: &OwnedFd) -> SavedLink<'_> {
    SavedLink { bytes: vec![UNSPOKEN], descriptors: vec![socket.as_fd()] }
}

/// The connection of such a state, if it is one.
fn silent_monitor(descriptors: Vec<OwnedFd>) -> Option<OwnedFd> {
    let socket = descriptors.into_iter().next()?;
    let is_stream = sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
    let is_unix = sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX);
    (is_stream && is_unix).then_some(socket)
}

/// State of the connection.
#[derive(Debug)]
enum Connection {
    /// There is none.
    Absent,
    /// Nothing was said on it; with the protocol, once that is known.
    Silent(OwnedFd, Option<Protocol>),
    /// It has ended before anything was said, and is still watched.
    Ended(OwnedFd),
    /// The link with this protocol has it.
    Spoken(Protocol),
}

/// The link to a virtual machine by a stream with either protocol, of one worker.
pub struct SpokenLink {
    shared: Arc<Mutex<Shared>>,
    frames: SocketLink,
    rings: VhostUserLink,
    connection: Connection,
    /// Protocol of the connection before.
    before: Option<Protocol>,
    /// Impossible lengths of frames before this connection.
    bad_lengths: u64,
    /// Waits for a silent monitor to speak.
    waits: u32,
    /// A frame was refused without one of the links.
    refused: bool,
    /// The loop waits for credit.
    awaited: bool,
}

impl SpokenLink {
    /// A link to the monitors whose connections come from `source`; `config` is for those that speak
    /// vhost-user.
    ///
    /// # Errors
    /// eventfd.
    pub fn new(source: Box<dyn Connections>, config: MachineConfig) -> io::Result<Self> {
        let requests = Requests::new(source);
        let shared = Arc::new(Mutex::new(Shared { requests, given: None, wanted: None }));
        let handed = |protocol| Box::new(Handed { shared: shared.clone(), protocol });
        let rings = VhostUserLink::links(handed(Protocol::VhostUser), config, 1)?.pop();
        Ok(Self {
            frames: SocketLink::new(handed(Protocol::Frames), Framing::Length),
            rings: rings.ok_or(io::ErrorKind::InvalidInput)?,
            shared,
            connection: Connection::Absent,
            before: None,
            bad_lengths: 0,
            waits: 0,
            refused: false,
            awaited: false,
        })
    }

    /// The link, with the position in a stream of frames noted in `word` ([`SocketLink::noting`]).
    #[must_use]
    pub fn noting(mut self, word: Option<&'static AtomicU64>) -> Self {
        self.frames = self.frames.noting(word);
        self
    }

    /// The link that has the connection.
    fn spoken(&mut self) -> Option<&mut dyn GuestLink> {
        match self.connection {
            Connection::Spoken(protocol) => Some(self.link(protocol)),
            Connection::Absent | Connection::Silent(..) | Connection::Ended(_) => None,
        }
    }

    fn link(&mut self, protocol: Protocol) -> &mut dyn GuestLink {
        match protocol {
            Protocol::Frames => &mut self.frames,
            Protocol::VhostUser => &mut self.rings,
        }
    }

    /// Looks for the first bytes of a connection.
    fn listen(&mut self) {
        let Connection::Silent(socket, protocol) = &mut self.connection else { return };
        let mut first = [0; 4];
        match retry_on_intr(|| recv(&*socket, &mut first[..], RecvFlags::PEEK | RecvFlags::DONTWAIT)) {
            Ok((4.., _)) => *protocol = Some(Protocol::of(first)),
            Ok((1.., _)) | Err(Errno::AGAIN) => {}
            Ok(_) | Err(_) => {
                if let Connection::Silent(socket, _) = self.take_connection() {
                    self.connection = Connection::Ended(socket);
                }
            }
        }
    }

    /// The connection, of which there is none then.
    fn take_connection(&mut self) -> Connection {
        std::mem::replace(&mut self.connection, Connection::Absent)
    }

    /// Closes a connection that has ended. The source may have a copy, so closing alone would end neither the
    /// watch nor the other half of the connection.
    fn close_ended(&mut self, poller: Poller<'_>) {
        if let Connection::Ended(socket) = &self.connection {
            // Errors: it has ended.
            let _ = poller.remove(socket);
            let _ = shutdown(socket, Shutdown::Both);
            self.connection = Connection::Absent;
        }
    }

    /// Follows the loss of the connection by the link that has had it.
    fn follow_loss(&mut self) {
        if let Connection::Spoken(protocol) = self.connection
            && lock(&self.shared).wanted == Some(protocol)
        {
            self.connection = Connection::Absent;
            // It was not what it was taken for.
            self.before = Some(protocol).filter(|_| self.frames.losses().bad_lengths == self.bad_lengths);
        }
    }

    /// Requests a connection, and takes the one that has come.
    fn connect(&mut self, poller: Poller<'_>) {
        let arrived = lock(&self.shared).requests.next();
        match arrived {
            None => {}
            Some(Arrived::New(socket)) => {
                let protocol = self.before.filter(|before| *before == Protocol::Frames);
                // A connection that cannot be watched is closed, and its monitor may try again.
                self.begin(socket, protocol, poller);
            }
            Some(Arrived::Kept(KeptLink { mut bytes, descriptors })) => {
                let number = if bytes.is_empty() { None } else { Some(bytes.remove(0)) };
                if let Some(protocol) = number.and_then(Protocol::numbered) {
                    return self.give(protocol, Arrival::Kept(KeptLink { bytes, descriptors }), poller);
                }
                let silent = silent_monitor(descriptors).filter(|_| number == Some(UNSPOKEN));
                if !silent.is_some_and(|socket| self.begin(socket, None, poller)) {
                    lock(&self.shared).requests.forget();
                }
            }
        }
    }

    /// Begins with a connection on which nothing was said; false if it cannot be watched, and is closed.
    fn begin(&mut self, socket: OwnedFd, protocol: Option<Protocol>, poller: Poller<'_>) -> bool {
        let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let is_watched = poller.add(&socket, CONNECTION, events).is_ok();
        if is_watched {
            (self.connection, self.waits) = (Connection::Silent(socket, protocol), 0);
        }
        is_watched
    }

    /// Has the source keep a connection on which nothing was said.
    fn keep(&self) {
        let Connection::Silent(socket, _) = &self.connection else { return };
        let mut shared = lock(&self.shared);
        if shared.requests.wants_state() {
            shared.requests.keep(&silence(socket));
        }
    }

    /// Gives a connection whose protocol is known to its link.
    fn hand_over(&mut self, poller: Poller<'_>) {
        match self.take_connection() {
            Connection::Silent(socket, Some(protocol)) => {
                // A later process would take the rest of what was said for its beginning.
                if !lock(&self.shared).requests.forget() {
                    self.connection = Connection::Ended(socket);
                    return self.close_ended(poller);
                }
                // Watched by its link from now on. An error: it has ended.
                let _ = poller.remove(&socket);
                self.give(protocol, Arrival::Connected(socket), poller);
            }
            other => self.connection = other,
        }
    }

    fn give(&mut self, protocol: Protocol, arrival: Arrival, poller: Poller<'_>) {
        lock(&self.shared).given = Some((protocol, arrival));
        (self.connection, self.before) = (Connection::Spoken(protocol), Some(protocol));
        self.bad_lengths = self.frames.losses().bad_lengths;
        let awaited = self.awaited;
        let link = self.link(protocol);
        link.ready(SOURCE, EventFlags::IN);
        link.flush(poller);
        // Frames were refused before it: there is an event for them now.
        if awaited {
            // An error: the connection has ended.
            let _ = link.await_credit(poller, true);
        }
    }
}

impl Link for SpokenLink {
    fn caps(&self) -> LinkCaps {
        match self.connection {
            Connection::Spoken(Protocol::VhostUser) => self.rings.caps(),
            _ => self.frames.caps(),
        }
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        match self.connection {
            Connection::Spoken(Protocol::Frames) => self.frames.send(frame),
            Connection::Spoken(Protocol::VhostUser) => self.rings.send(frame),
            Connection::Absent | Connection::Silent(..) | Connection::Ended(_) => {
                self.refused = true;
                Err(NoCredit)
            }
        }
    }

    fn read(&self, unread: Unread, into: &mut [u8]) -> usize {
        self.rings.read(unread, into)
    }
}

impl GuestLink for SpokenLink {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        if let Connection::Silent(socket, _) = &self.connection {
            poller.add(socket, CONNECTION, EventFlags::IN | EventFlags::RDHUP | EventFlags::ET)?;
        }
        self.frames.register(poller)?;
        self.rings.register(poller)?;
        lock(&self.shared).requests.register(poller, SOURCE)
    }

    fn ready(&mut self, key: u32, events: EventFlags) -> LinkReady {
        if key == SOURCE {
            lock(&self.shared).requests.ready();
        } else if key >= KEY_MIN {
            return self.rings.ready(key, events);
        }
        self.listen();
        self.spoken().map(|link| link.ready(key, events)).unwrap_or_default()
    }

    fn take(&mut self, batch: &mut Batch<'_>) -> Result<Taken, FailedCall> {
        match self.connection {
            Connection::Spoken(Protocol::Frames) => self.frames.take(batch),
            Connection::Spoken(Protocol::VhostUser) => self.rings.take(batch),
            Connection::Absent | Connection::Silent(..) | Connection::Ended(_) => Ok(Taken::All),
        }
    }

    fn unread(&self) -> Option<Arc<UnreadFrames>> {
        self.rings.unread()
    }

    fn flush(&mut self, poller: Poller<'_>) {
        if let Some(link) = self.spoken() {
            link.flush(poller);
        }
        self.follow_loss();
        self.close_ended(poller);
        if matches!(self.connection, Connection::Absent) {
            self.connect(poller);
        }
        self.hand_over(poller);
        self.keep();
    }

    fn has_frames(&mut self, arm: bool) -> bool {
        self.spoken().is_some_and(|link| link.has_frames(arm))
    }

    fn credit_wait(&self) -> Option<CreditWait> {
        let (wait, refused) = match self.connection {
            Connection::Spoken(Protocol::Frames) => (self.frames.credit_wait(), CreditWait::Event),
            Connection::Spoken(Protocol::VhostUser) => (self.rings.credit_wait(), CreditWait::Event),
            Connection::Silent(..) => (None, CreditWait::EventAtFirst),
            Connection::Absent | Connection::Ended(_) => (None, CreditWait::Event),
        };
        wait.or(self.refused.then_some(refused))
    }

    fn await_credit(&mut self, poller: Poller<'_>, awaited: bool) -> io::Result<()> {
        self.awaited = awaited;
        self.spoken().map_or(Ok(()), |link| link.await_credit(poller, awaited))
    }

    fn wait_overdue(&mut self) {
        match &mut self.connection {
            Connection::Spoken(protocol) => {
                let protocol = *protocol;
                self.link(protocol).wait_overdue();
            }
            Connection::Silent(_, protocol @ None) => {
                self.waits += 1;
                *protocol = Some(Protocol::Frames).filter(|_| self.waits >= SILENT_WAITS);
            }
            Connection::Absent | Connection::Silent(..) | Connection::Ended(_) => {}
        }
    }

    fn forget_refusal(&mut self) {
        self.refused = false;
        if let Some(link) = self.spoken() {
            link.forget_refusal();
        }
    }

    fn take_reset(&mut self) -> bool {
        self.rings.take_reset()
    }

    fn gone(&self) -> bool {
        lock(&self.shared).requests.is_ended()
    }

    fn losses(&self) -> LinkLosses {
        let mut losses = self.frames.losses();
        losses.add(&self.rings.losses());
        losses
    }

    fn save(&self) -> Option<SavedLink<'_>> {
        match &self.connection {
            Connection::Absent | Connection::Ended(_) => None,
            Connection::Silent(socket, _) => Some(silence(socket)),
            Connection::Spoken(Protocol::Frames) => {
                Some(with_protocol(Protocol::Frames as u8, &self.frames.save()?))
            }
            Connection::Spoken(Protocol::VhostUser) => {
                Some(with_protocol(Protocol::VhostUser as u8, &self.rings.save()?))
            }
        }
    }

    fn restore(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        let Some((number, state)) = bytes.split_first() else { return };
        if let Some(protocol) = Protocol::numbered(*number) {
            self.link(protocol).restore(state, descriptors);
            (self.connection, self.before) = (Connection::Spoken(protocol), Some(protocol));
        } else if let Some(socket) = silent_monitor(descriptors) {
            self.connection = Connection::Silent(socket, None);
        }
    }
}

#[cfg(test)]
mod tests;
