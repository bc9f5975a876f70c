//! QUIC at a gate: the server that the Initials of a flow name ([`crate::wire::quic`]).
//!
//! Datagrams are held until the ClientHello in their CRYPTO frames is whole and its name is allowed; frames
//! may come in any order and in any packet. From then on datagrams pass, but the Initials in them are read
//! on: a server takes an Initial with a connection ID that it did not issue for a new connection, and a
//! guest may keep the first copy of a byte from reaching the server. So
//!
//! * every Initial has to open with the keys of its own connection ID, or of one before it that began an
//!   *attempt*, and what it holds under either is judged;
//! * every attempt names the server: the same as the first, and an encrypted ClientHello is judged if the
//!   first was not one;
//! * bytes that come again are the same bytes, and a second ClientHello names the same server.
//!
//! A datagram that cannot be read ends the flow. A flow that does not begin with an Initial (a connection
//! that has moved to another port) is refused, and its client begins a new connection.

mod saved;

use super::tls;
use super::{Subject, held_until};
use crate::flow::Protocol;
use crate::host::IpHeaderFields;
use crate::policy::{Checks, Class, Named, Said, SharedPolicy, reason};
use crate::time::{Duration, Instant};
use crate::wire::quic::protection::ClientKeys;
use crate::wire::quic::{CryptoFrames, LongPacket, LongType, QuicPacket, Version};
use std::sync::Arc;

/// Longest time for which datagrams are held.
const HELD_MAX: Duration = Duration::from_secs(3);
/// Most datagrams held, and their bytes.
const DATAGRAMS_MAX: usize = 4;
const BYTES_MAX: usize = 16 << 10;
/// Longest stream of handshake messages of an attempt, in bytes: two ClientHellos.
const STREAM_MAX: usize = 8 << 10;
/// Most attempts of a flow: the first, one after a Retry, and one in another version.
const ATTEMPTS_MAX: usize = 3;
/// Length of the header of a handshake message.
const MESSAGE_HEADER_LEN: usize = 4;

/// Fate of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It may leave, behind those that are held.
    Pass,
    /// It is to be held.
    Hold,
    /// The flow is refused.
    Refuse,
}

/// A datagram that waits.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) payload: Box<[u8]>,
    pub(crate) fields: IpHeaderFields,
}

/// The gate of one flow.
#[derive(Debug)]
pub(crate) struct QuicGate {
    subject: Subject,
    attempts: Vec<Attempt>,
    /// Name of the first attempt, and whether it is the outer one of an encrypted ClientHello.
    name: Option<(Box<[u8]>, bool)>,
    /// The name that was judged last.
    named: Option<Box<Named>>,
    held: Vec<Held>,
    /// A refusal that is not enforced was noted.
    noted: bool,
    deadline: Option<Instant>,
    refusal: Option<Arc<str>>,
}

impl QuicGate {
    /// A closed gate.
    pub(crate) fn new(subject: Subject) -> Self {
        let (attempts, held) = (Vec::new(), Vec::new());
        Self { subject, attempts, name: None, named: None, held, noted: false, deadline: None, refusal: None }
    }

    /// Time at which the gate refuses, while it holds datagrams.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether no name was allowed yet.
    pub(crate) fn is_closed(&self) -> bool {
        self.name.is_none() && self.refusal.is_none() && !self.subject.checks.observed
    }

    /// Ways in which the server may be named.
    pub(crate) fn checks(&self) -> Checks {
        self.subject.checks
    }

    /// The rule or reason of the refusal.
    pub(crate) fn refusal(&self) -> Option<&Arc<str>> {
        self.refusal.as_ref()
    }

    /// The name that was judged last, allowed or not.
    pub(crate) fn named(&self) -> Option<&Named> {
        self.named.as_deref()
    }

    /// Refuses the flow because its time is over.
    pub(crate) fn time_out(&mut self) {
        self.refuse(reason::TIMEOUT.into());
    }

    fn refuse(&mut self, reason: Arc<str>) {
        self.refusal = Some(reason);
        self.deadline = None;
        self.held = Vec::new();
    }

    /// Whether a datagram that begins so passes without being read: it has no Initial.
    pub(crate) fn is_past(&self, datagram: &[u8]) -> bool {
        self.held.is_empty()
            && self.refusal.is_none()
            && self.name.is_some()
            && matches!(QuicPacket::parse(datagram), Ok((QuicPacket::Short, _)))
    }

    /// Reads a datagram of the guest's.
    pub(crate) fn read(&mut self, now: Instant, policy: &SharedPolicy, datagram: &[u8]) -> Fate {
        if self.refusal.is_some() {
            return Fate::Refuse;
        }
        match self.judge(now, policy, datagram) {
            Ok(Fate::Hold) if self.subject.checks.observed => Fate::Pass,
            Ok(fate) => fate,
            Err(reason) if self.subject.checks.observed => {
                if !std::mem::replace(&mut self.noted, true) {
                    self.subject.note(now, policy, Protocol::Udp, reason, self.named());
                }
                Fate::Pass
            }
            Err(reason) => {
                self.refuse(reason);
                Fate::Refuse
            }
        }
    }

    /// Keeps a datagram; without room the flow is refused.
    pub(crate) fn hold(&mut self, now: Instant, payload: &[u8], fields: IpHeaderFields) -> Fate {
        let bytes: usize = self.held.iter().map(|held| held.payload.len()).sum();
        if self.held.len() >= DATAGRAMS_MAX || bytes + payload.len() > BYTES_MAX {
            self.refuse(reason::HELLO.into());
            return Fate::Refuse;
        }
        self.deadline = self.deadline.or(Some(now + HELD_MAX));
        self.held.push(Held { payload: payload.into(), fields });
        Fate::Hold
    }

    /// Takes the datagrams that may leave now, in order: all that are held, unless an attempt is not judged.
    pub(crate) fn release(&mut self) -> Vec<Held> {
        if !self.is_judged() {
            return Vec::new();
        }
        self.deadline = None;
        std::mem::take(&mut self.held)
    }

    fn is_judged(&self) -> bool {
        self.attempts.iter().all(|attempt| attempt.stream.is_judged())
    }

    fn judge(&mut self, now: Instant, policy: &SharedPolicy, datagram: &[u8]) -> Result<Fate, Arc<str>> {
        let (mut rest, mut has_initial) = (datagram, false);
        loop {
            let (packet, behind) = QuicPacket::parse(rest).map_err(|_| reason::NOT_QUIC)?;
            match packet {
                QuicPacket::Long(packet) if packet.kind == LongType::Initial => {
                    self.initial(now, policy, &packet)?;
                    has_initial = true;
                }
                // Only servers send it.
                QuicPacket::Long(packet) if packet.kind == LongType::Retry => {
                    return Err(reason::NOT_QUIC.into());
                }
                _ if self.attempts.is_empty() => return Err(reason::NOT_QUIC.into()),
                QuicPacket::Long(_) | QuicPacket::Short => {}
            }
            if behind.is_empty() {
                break;
            }
            rest = behind;
        }
        let is_open = if has_initial { self.is_judged() } else { self.name.is_some() };
        Ok(if is_open { Fate::Pass } else { Fate::Hold })
    }

    /// Reads an Initial under every key with which it opens.
    fn initial(
        &mut self,
        now: Instant,
        policy: &SharedPolicy,
        packet: &LongPacket<'_>,
    ) -> Result<(), Arc<str>> {
        let mut opens = false;
        let mut is_known = false;
        for n in 0..self.attempts.len() {
            let attempt = &mut self.attempts[n];
            is_known |= attempt.is_of(packet);
            if let Some(payload) = attempt.open(packet) {
                opens = true;
                attempt.stream.take(&payload)?;
                self.judge_hellos(now, policy, n)?;
            }
        }
        let known = if opens { Ok(()) } else { Err(reason::HELLO.into()) };
        if is_known {
            return known;
        }
        let keys = ClientKeys::new(packet.version, packet.destination);
        let Some(payload) = keys.open(packet) else { return known };
        if self.attempts.len() >= ATTEMPTS_MAX {
            return Err(reason::HELLO.into());
        }
        let mut attempt = Attempt::new(packet, keys);
        attempt.stream.take(&payload)?;
        // Nearly all flows have one.
        self.attempts.reserve_exact(1);
        self.attempts.push(attempt);
        self.judge_hellos(now, policy, self.attempts.len() - 1)
    }

    /// Judges the ClientHellos of attempt `n` that have become whole.
    fn judge_hellos(&mut self, now: Instant, policy: &SharedPolicy, n: usize) -> Result<(), Arc<str>> {
        let (subject, name, last) = (self.subject, &mut self.name, &mut self.named);
        let held = held_until(now, self.deadline, HELD_MAX);
        let Some(attempt) = self.attempts.get_mut(n) else { return Ok(()) };
        while let Some(message) = attempt.stream.next_message() {
            let (said, hello) = tls::judge(message, |said, encrypted| {
                // An attempt that was encrypted has said an outer name for as long as the flow is open.
                let outer = encrypted || name.as_ref().is_some_and(|(_, outer)| *outer);
                let named = Named { class: Class::Quic, name: said.into(), encrypted: outer };
                let named = last.insert(Box::new(named));
                let judge = |opens| subject.judge(now, policy, Said { named, opens, held });
                match name {
                    Some((first, outer)) => {
                        tls::again((first, *outer), (said, encrypted), |_, _| judge(false))
                    }
                    None => judge(true),
                }
            })?;
            name.get_or_insert_with(|| (said.into(), false)).1 |= hello.encrypted;
        }
        Ok(())
    }
}

/// A connection that the guest has begun: all Initials with the keys of one connection ID.
#[derive(Debug)]
struct Attempt {
    version: Version,
    destination: Box<[u8]>,
    keys: ClientKeys,
    stream: HelloStream,
}

impl Attempt {
    fn new(packet: &LongPacket<'_>, keys: ClientKeys) -> Self {
        let stream = HelloStream::default();
        Self { version: packet.version, destination: packet.destination.into(), keys, stream }
    }

    /// Whether the keys of the packet's own connection ID are those of this attempt.
    fn is_of(&self, packet: &LongPacket<'_>) -> bool {
        self.version == packet.version && *self.destination == *packet.destination
    }

    /// Payload of a packet that opens with the keys of this attempt's connection ID.
    fn open(&self, packet: &LongPacket<'_>) -> Option<Vec<u8>> {
        if self.version == packet.version {
            self.keys.open(packet)
        } else {
            ClientKeys::new(packet.version, &self.destination).open(packet)
        }
    }
}

/// The stream of handshake messages of an attempt.
#[derive(Debug, Default)]
struct HelloStream {
    /// The bytes, each at its place.
    bytes: Vec<u8>,
    /// Of each byte, whether it has come.
    has_come: Vec<bool>,
    /// Bytes without a gap from the front.
    whole: usize,
    /// Bytes of messages that were judged.
    judged: usize,
}

impl HelloStream {
    /// Takes the CRYPTO frames of a payload.
    ///
    /// # Errors
    /// It is malformed, too long, or says something else than before.
    fn take(&mut self, payload: &[u8]) -> Result<(), Arc<str>> {
        for frame in CryptoFrames::new(payload) {
            let frame = frame.map_err(|_| reason::HELLO)?;
            let start = usize::try_from(frame.offset).unwrap_or(usize::MAX);
            let end =
                start.checked_add(frame.data.len()).filter(|&end| end <= STREAM_MAX).ok_or(reason::HELLO)?;
            let mut before = self.bytes.iter().zip(&self.has_come).skip(start).zip(frame.data);
            if before.any(|((old, come), new)| *come && old != new) {
                return Err(reason::HELLO.into());
            }
            if self.bytes.len() < end {
                self.bytes.resize(end, 0);
                self.has_come.resize(end, false);
            }
            self.bytes[start..end].copy_from_slice(frame.data);
            self.has_come[start..end].fill(true);
            if start <= self.whole {
                self.whole = self.whole.max(end);
                self.whole += self.has_come[self.whole..].iter().take_while(|&&come| come).count();
            }
        }
        Ok(())
    }

    /// The next message, if it is whole.
    fn next_message(&mut self) -> Option<&[u8]> {
        let bytes = &self.bytes[self.judged..self.whole];
        let [_, a, b, c] = *bytes.first_chunk::<MESSAGE_HEADER_LEN>()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let message = bytes.get(..MESSAGE_HEADER_LEN + length)?;
        self.judged += message.len();
        Some(message)
    }

    /// Whether a message was judged, and nothing has come behind the last.
    fn is_judged(&self) -> bool {
        self.judged > 0 && self.judged == self.bytes.len()
    }
}
