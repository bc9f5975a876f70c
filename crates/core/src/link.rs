//! Guest side of the stack: the link that carries layer-2 frames.
//!
//! A link takes one frame at a time and never queues: either it accepts the whole frame or it has no credit
//! now and the stack keeps the payload where it is (pull, not push). Checksums and segmentation follow
//! virtio-net: a frame may carry only the pseudo-header sum, and may be up to 64 KiB long with the size at
//! which the guest cuts it. Offloads that the link lacks (see [`LinkCaps`]) are done by the stack before it
//! sends.
//!
//! *Zero copy.* A link may leave the end of a frame in the guest's memory ([`Unread`]): the stack passes it
//! on by its place alone, to a host that sends from there ([`crate::host::Host::tcp_send_pieces`]), and reads
//! it only where the bytes are needed ([`Link::read`]).

use crate::wire::{TCP, UDP};
use std::io::IoSlice;

/// Room for Ethernet, IP and TCP headers with options, in bytes.
pub const HEADERS_MAX: usize = 14 + 40 + 60;

/// The largest frame on any link, in bytes: an IP packet of 65,535 bytes and its Ethernet header.
pub const FRAME_MAX: usize = 65_535 + 14;

/// Capabilities of a link: of the guest behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkCaps {
    /// The guest accepts frames whose TCP or UDP checksum is only the pseudo-header sum.
    pub checksum: bool,
    /// The guest accepts TCP super-segments (TSO, both families).
    pub tso: bool,
    /// The guest accepts UDP super-datagrams (USO, both families).
    pub uso: bool,
    /// Longest IP packet that the guest has buffers for, in bytes, if that is less than the MTU: its
    /// interface has the MTU all the same, and its frames may be as long.
    pub packet_max: Option<u16>,
}

/// Segmentation that a super-frame still needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gso {
    /// An ordinary frame.
    #[default]
    None,
    /// TCP over IPv4, payload bytes per segment.
    Tcp4(u16),
    /// TCP over IPv6, payload bytes per segment.
    Tcp6(u16),
    /// UDP over either family, payload bytes per datagram.
    Udp(u16),
}

/// Checksum status of a received frame, as known to the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RxChecksum {
    /// Not verified: the stack does it.
    #[default]
    Unknown,
    /// Verified, or left partial by the guest's kernel because it never crosses a wire.
    Valid,
}

/// Metadata of a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxMeta {
    /// State of the layer-4 checksum.
    pub checksum: RxChecksum,
    /// Segmentation requested by the guest.
    pub gso: Gso,
}

/// Zero copy: the end of a frame, or a part of it, which the link has left in the guest's memory. It is there
/// until the link's next batch. The guest may change it at any time, so it is read once at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unread {
    /// Number of the frame among those that the link has left unread.
    pub frame: u32,
    /// First byte, counted from the first unread one of the frame.
    pub start: u32,
    /// Length in bytes; 0 if nothing is unread.
    pub len: u32,
}

impl Unread {
    /// The part without its first `count` bytes.
    #[must_use]
    pub fn skip(self, count: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(self.len);
        Self { start: self.start + count, len: self.len - count, ..self }
    }

    /// The first `count` bytes of the part.
    #[must_use]
    pub fn first(self, count: usize) -> Self {
        Self { len: u32::try_from(count).unwrap_or(u32::MAX).min(self.len), ..self }
    }
}

/// Payload of one frame: bytes that were read, and those behind them that were not.
#[derive(Debug, Clone, Copy, Default)]
pub struct Piece<'a> {
    /// Bytes that were read.
    pub bytes: &'a [u8],
    /// Bytes behind these.
    pub unread: Unread,
}

impl<'a> Piece<'a> {
    /// Bytes with nothing unread behind them.
    pub const fn read(bytes: &'a [u8]) -> Self {
        Self { bytes, unread: Unread { frame: 0, start: 0, len: 0 } }
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.bytes.len() + self.unread.len as usize
    }

    /// Whether there are no bytes, read or unread.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The piece without its first `count` bytes.
    #[must_use]
    pub fn skip(self, count: usize) -> Self {
        let read = count.min(self.bytes.len());
        Self { bytes: &self.bytes[read..], unread: self.unread.skip(count - read) }
    }
}

/// One frame from the guest.
#[derive(Debug, Clone, Copy, Default)]
pub struct RxFrame<'a> {
    /// Metadata from the link.
    pub meta: RxMeta,
    /// The frame, Ethernet header first; without its end, if that is unread.
    pub bytes: &'a [u8],
    /// The end of the frame, if the link has left that unread. Then the link has no checksum to be verified,
    /// and all headers are in `bytes`.
    pub unread: Unread,
}

impl<'a> RxFrame<'a> {
    /// A frame that was read to its end, and of which the link says nothing.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Length of the whole frame in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.unread.len as usize
    }

    /// Copies the frame, and reads its end from `link` if that is unread; the number of bytes, as many as
    /// `into` has room for at most.
    pub fn read_whole(&self, link: &impl Link, into: &mut [u8]) -> usize {
        let read = self.bytes.len().min(into.len());
        let (begin, end) = into.split_at_mut(read);
        begin.copy_from_slice(&self.bytes[..read]);
        read + link.read(self.unread, end)
    }

    /// Whether it carries a TCP segment and no fragment of one, judged by EtherType, protocol and the fields
    /// of fragmentation alone.
    pub fn is_segment(&self) -> bool {
        let at = |offset: usize| self.bytes.get(offset).copied().unwrap_or(0);
        // "More fragments" and the offset, without the two bits before them.
        let fragment = u16::from_be_bytes([at(20), at(21)]) << 2;
        match (at(12), at(13)) {
            (0x08, 0x00) => at(23) == TCP && fragment == 0,
            (0x86, 0xdd) => at(20) == TCP,
            _ => false,
        }
    }

    /// Whether it carries a UDP datagram, judged by EtherType and protocol alone.
    pub fn is_datagram(&self) -> bool {
        // The EtherType, and the protocol of IPv4 or the next header of IPv6, perhaps of a fragment (44).
        let at = |offset: usize| self.bytes.get(offset).copied();
        match (at(12), at(13)) {
            (Some(0x08), Some(0x00)) => at(23) == Some(UDP),
            (Some(0x86), Some(0xdd)) => match at(20) {
                Some(44) => at(54) == Some(UDP),
                next => next == Some(UDP),
            },
            _ => false,
        }
    }
}

/// The checksum that the guest's kernel must complete, as in virtio-net.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialChecksum {
    /// Offset in bytes from the start of the frame where summing begins (the layer-4 header).
    pub start: u16,
    /// Offset in bytes of the checksum field from `start`.
    pub offset: u16,
}

/// One frame to send.
#[derive(Debug, Clone, Copy)]
pub struct TxFrame<'a> {
    /// All headers, Ethernet first. Its length is exactly the header length that segmentation repeats.
    pub headers: &'a [u8],
    /// The layer-4 payload, in order.
    pub payload: &'a [IoSlice<'a>],
    /// The checksum left to the guest, if any; only on a link whose caps allow it.
    pub partial: Option<PartialChecksum>,
    /// Segmentation; only on a link whose caps allow it.
    pub gso: Gso,
}

impl TxFrame<'_> {
    /// Length of the whole frame in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub fn len(&self) -> usize {
        self.headers.len() + self.payload.iter().map(|s| s.len()).sum::<usize>()
    }
}

/// Refusal of a frame for lack of credit; [`crate::stack::Stack::link_writable`] reports that there is credit
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoCredit;

/// A layer-2 link toward a guest.
pub trait Link {
    /// Capabilities. They may change with the guest's driver (firmware first, then a kernel); the stack takes
    /// note of it between turns ([`crate::stack::Stack::set_caps`]).
    fn caps(&self) -> LinkCaps;

    /// Sends one frame, whole or not at all.
    ///
    /// # Errors
    /// [`NoCredit`] if the link's queue is full: nothing was taken. The caller keeps the frame's content and
    /// tries again after the driver has reported credit.
    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit>;

    /// Reads bytes that the link has left unread, as many as both sides have, and returns their number. By
    /// default a link leaves none.
    fn read(&self, unread: Unread, into: &mut [u8]) -> usize {
        let _ = (unread, into);
        0
    }
}
