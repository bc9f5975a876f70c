//! Snapshots: the state of a stack as records, for a hand-over to another process (an upgrade in place, or
//! the recovery from a crash).
//!
//! # Theory of operation
//!
//! [`Stack::save`] walks over the stack and gives one record after another; [`Stack::restore`] builds a
//! stack from them that goes on as the first would have: the same frames at the same times, the same calls
//! on host sockets. The simulator holds it to that, with a hand-over at every event of every script
//! (`sim/tests/handover`).
//!
//! *Format.* A record is a tag, a version, a length, and so many bytes of postcard ([`Record`]). Tag and
//! version fix the content for ever: the structs of [`v1`], which are kept apart from the live types and
//! are never changed. A live type is put together from its saved form field by field, so that a new field
//! without a place in the record does not compile. A changed type gets a struct `…V2` with a conversion
//! from `…V1` ([`v2`]), and its record has version 2 from then on, or where version 1 does not say all: older
//! readers take such a record for missing. A snapshot of version 1 stays among the tests
//! (`sim/tests/conformance/handover.rs`).
//!
//! *Order.* [`Tag::Begin`], then what all flows share, then for each flow its [`Tag::Flow`] (key, id, socket,
//! sequence numbers of a reset) and the record of its kind, then the orders in which flows
//! stand (timers, schedule), then [`Tag::End`]. A flow behind a gate has its gate in the record of its kind,
//! which has a tag of its own: no version may let it go on without the gate. One that the gate has refused
//! has no such record, and its guest is reset.
//!
//! *Compatibility.* Records with an unknown tag are skipped. A flow whose record has an unknown version,
//! or no valid content, is lost alone: its descriptor and the numbers for a reset are reported. Any other
//! record of unknown version is as if it were missing, and its part of the stack begins as in a new one.
//!
//! *Time.* All times are those of the driver's clock. Deadlines stay absolute, so both processes must have
//! the same zero: a driver hands over its origin in CLOCK_MONOTONIC too.
//!
//! *Sockets.* A record holds the index of a descriptor in a list that the driver makes while the stack is
//! saved. The driver of the other process gives each descriptor a socket of its own ([`Adopt`]).
//!
//! *The driver's part.* Settings are not saved: rules and addresses come from the options, which a
//! snapshot must not change. Before it saves, a driver takes the records of ended flows and closes the
//! sockets of released carriers. With each descriptor it hands over its own state of the socket: the
//! flow's id is in the records, but a published port's peer, header fields already set on the socket, or
//! TCP_NODELAY are the host's matter. After restoring, it
//!
//! * resets lost flows ([`Stack::reset_lost`]) and closes with a reset each descriptor that no flow has
//!   claimed;
//! * registers the sockets anew, edge-triggered and with room to write reported, so that each one's
//!   readiness is reported once more. The stack takes a readiness that it knows already;
//! * reports the link's credit and makes a turn.
//!
//! Workers that share a budget are handed over all at once, into a new budget.
//!
//! *Left out*: fragments of incomplete packets and pending DNS queries. The guest sends both again, as
//! after a loss. A gate that only looks on is left out too, and its flow goes on ([`Omitted`]).
//!
//! *Trust.* After a crash the bytes may come from a compromised process. Every value is checked where it
//! is restored, so that no content can make the stack panic later, or use memory beyond its budget and
//! bounds; restoring itself takes some ten times the length of the bytes, which the driver bounds.
//! Sequence numbers, payload and learnt names cannot be checked, and do harm to the guest alone. A driver
//! that distrusts names leaves out the records of [`Tag::DnsCache`] and [`Tag::LearntNames`]; one that takes
//! addresses for permissions under a policy, that of [`Tag::Pins`].
//!
//! [`Stack::save`]: crate::stack::Stack::save
//! [`Stack::restore`]: crate::stack::Stack::restore
//! [`Stack::reset_lost`]: crate::stack::Stack::reset_lost
//! [`Adopt`]: crate::stack::Adopt
//! [`Omitted`]: crate::stack::Omitted

pub(crate) mod saved;
pub(crate) mod v1;
pub(crate) mod v2;

use postcard::ser_flavors::Flavor;
use serde::{Deserialize, Serialize};

/// Length of a record's header: tag, version and length of the content.
pub const HEADER_LEN: usize = 2 + 2 + 4;

/// Kind of a record. Numbers are never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Tag {
    /// First record of every snapshot: that it is one, and when it was made.
    Begin = 1,
    /// Secret keys: hash of the flow table, initial sequence numbers, DNS queries.
    Keys = 2,
    /// Counters of the worker, by name.
    Counters = 3,
    /// Counters and rate limit of the policy.
    Policy = 4,
    /// Way to the guest: its MAC address, credit, TX queue budget.
    Link = 5,
    /// State shared by all TCP connections.
    Tcp = 6,
    /// State of the resolvers.
    Resolvers = 7,
    /// Cached DNS answers.
    DnsCache = 8,
    /// Names learnt from DNS answers.
    LearntNames = 9,
    /// Batch of datagrams on its way to the guest.
    Inbox = 10,
    /// All else that belongs to no flow.
    Stack = 11,
    /// Slots of the flow table: generations, free slots, order of use.
    Table = 12,
    /// Identity of a flow; the record of its kind follows.
    Flow = 13,
    /// TCP connection.
    TcpFlow = 14,
    /// UDP conversation or echo.
    DatagramFlow = 15,
    /// Flow that a splice or a relay carries.
    CarriedFlow = 16,
    /// Timer wheel.
    Timers = 17,
    /// Order of the flows to be served and to be acknowledged.
    Schedule = 18,
    /// Flows parked for memory.
    Parked = 19,
    /// Last record of every snapshot.
    End = 20,
    /// Addresses that DNS has given the guest for names of a shared policy.
    Pins = 21,
    /// Server that the connection before has named at a gate which is done.
    NamedServer = 22,
    /// TCP connection whose guest has not confirmed yet what it had before a crash, or a reset.
    UnconfirmedFlow = 23,
    /// Bytes that flows which are over, or end with the hand-over, have used of limits of a shared policy.
    Usage = 24,
    /// Addresses of a guest that configures itself.
    GuestAddresses = 25,
    /// Totals of a shared policy.
    PolicyTotals = 26,
    /// TCP connection behind a gate, with the gate.
    GatedTcpFlow = 27,
    /// UDP conversation behind a gate, with the gate.
    GatedDatagramFlow = 28,
    /// Bytes from which on flows are charged for their limits.
    ChargedFrom = 29,
    /// New names below wildcards of a shared policy.
    Wildcards = 30,
    /// Least MTU reported of paths over IPv6 within the guest.
    PathMtu = 31,
}

/// One record of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Number of its [`Tag`], or of one that a later version has added.
    pub tag: u16,
    /// Version of the content, from 1.
    pub version: u16,
    /// Content in postcard.
    pub bytes: &'a [u8],
}

impl Record<'_> {
    /// Appends the record to `out`: tag, version and length in little-endian order, then the content.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.tag.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&(self.bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(self.bytes);
    }

    /// Appends a record of version 1 to `out`, with `content` in postcard.
    pub fn append_v1<T: Serialize>(out: &mut Vec<u8>, tag: u16, content: &T) {
        let begun = Self::begin_v1(out, tag);
        // Nothing but a map or sequence of unknown length can fail, and no record has one.
        match encode(content, std::mem::take(out)) {
            Ok(bytes) => *out = bytes,
            Err(error) => return debug_assert!(false, "record {tag} is not encoded: {error}"),
        }
        Self::end_v1(out, begun);
    }

    /// Begins a record of version 1 whose content is appended to `out` in parts; the argument of
    /// [`Record::end_v1`].
    pub fn begin_v1(out: &mut Vec<u8>, tag: u16) -> usize {
        out.extend(tag.to_le_bytes());
        out.extend(1u16.to_le_bytes());
        out.extend([0; 4]);
        out.len()
    }

    /// Ends the record that [`Record::begin_v1`] has begun.
    pub fn end_v1(out: &mut [u8], begun: usize) {
        let len = (out.len() - begun) as u32;
        out[begun - 4..begun].copy_from_slice(&len.to_le_bytes());
    }

    /// Whether it has this tag.
    pub(crate) const fn is(&self, tag: Tag) -> bool {
        self.tag == tag as u16
    }
}

impl<'a> Record<'a> {
    /// Content in version 1, if it has that version and is valid to its last byte.
    pub fn v1<T: Deserialize<'a>>(&self) -> Option<T> {
        self.content(1)
    }

    /// The same in version 2.
    pub(crate) fn v2<T: Deserialize<'a>>(&self) -> Option<T> {
        self.content(2)
    }

    fn content<T: Deserialize<'a>>(&self, version: u16) -> Option<T> {
        if self.version != version {
            return None;
        }
        let (content, rest) = postcard::take_from_bytes(self.bytes).ok()?;
        rest.is_empty().then_some(content)
    }
}

/// Records of a snapshot, in order. Ends at the first that is cut off.
#[derive(Debug, Clone)]
pub struct Records<'a>(&'a [u8]);

impl<'a> Records<'a> {
    /// The records in `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let (&[t0, t1, v0, v1, l0, l1, l2, l3], rest) = self.0.split_first_chunk::<HEADER_LEN>()?;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let (bytes, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some(Record { tag: u16::from_le_bytes([t0, t1]), version: u16::from_le_bytes([v0, v1]), bytes })
    }
}

/// Reason for which nothing at all can be restored. The driver then begins with a new stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreError {
    /// The bytes do not begin as a snapshot does.
    NotASnapshot,
    /// A snapshot of a later version, this one.
    UnknownVersion(u16),
    /// The last record is missing: the snapshot was not finished.
    Truncated,
    /// The snapshot was made later than now: the clocks of the two processes have different zeros.
    ClockBehind,
    /// The keys are missing. Sequence numbers under others would not be above those used before.
    NoKeys,
}

impl std::fmt::Display for RestoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotASnapshot => f.write_str("not a snapshot of a stack"),
            Self::UnknownVersion(version) => write!(f, "snapshot of unknown version {version}"),
            Self::Truncated => f.write_str("the snapshot was not finished"),
            Self::ClockBehind => f.write_str("the snapshot is from the future: another clock"),
            Self::NoKeys => f.write_str("the snapshot has no keys"),
        }
    }
}

impl std::error::Error for RestoreError {}

/// Appends `content` in postcard to `bytes`.
fn encode<T: Serialize>(content: &T, bytes: Vec<u8>) -> postcard::Result<Vec<u8>> {
    postcard::serialize_with_flavor(content, Append(bytes))
}

/// Bytes of the longest number in postcard, of 64 bits.
const NUMBER_MAX: usize = 10;

/// The end of a vector. A record is some hundred numbers of a byte or two, which postcard's own flavor for
/// vectors (`to_extend`) appends by a call each.
struct Append(Vec<u8>);

impl Flavor for Append {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        // Numbers: as many bytes as the longest has, without a call.
        if bytes.len() > NUMBER_MAX {
            self.0.extend_from_slice(bytes);
        } else {
            for &byte in bytes {
                self.0.push(byte);
            }
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

/// Writer of a snapshot: each record is encoded into one buffer, used again for the next.
pub(crate) struct Writer<'w> {
    write: &'w mut dyn FnMut(Record<'_>),
    bytes: Vec<u8>,
}

impl<'w> Writer<'w> {
    pub(crate) fn new(write: &'w mut dyn FnMut(Record<'_>)) -> Self {
        Self { write, bytes: Vec::new() }
    }

    /// Writes one record of version 1.
    pub(crate) fn v1<T: Serialize>(&mut self, tag: Tag, content: &T) {
        self.record(tag, 1, content);
    }

    /// Writes one record of version 2.
    pub(crate) fn v2<T: Serialize>(&mut self, tag: Tag, content: &T) {
        self.record(tag, 2, content);
    }

    fn record<T: Serialize>(&mut self, tag: Tag, version: u16, content: &T) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        // Nothing but a map or sequence of unknown length can fail, and no record has one.
        match encode(content, bytes) {
            Ok(bytes) => {
                (self.write)(Record { tag: tag as u16, version, bytes: &bytes });
                self.bytes = bytes;
            }
            Err(error) => debug_assert!(false, "{tag:?} is not encoded: {error}"),
        }
    }
}
