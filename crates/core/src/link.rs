//! Guest side of the stack: the link that carries layer-2 frames.
//!
//! A link takes one frame at a time and never queues: either it accepts the whole frame or it has no credit
//! now and the stack keeps the payload where it is (pull, not push). Checksums and segmentation follow
//! virtio-net: a frame may carry only the pseudo-header sum, and may be up to 64 KiB long with the size at
//! which the guest cuts it. Offloads that the link lacks (see [`LinkCaps`]) are done by the stack before it
//! sends.

use crate::wire::UDP;
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

/// One frame from the guest.
#[derive(Debug, Clone, Copy, Default)]
pub struct RxFrame<'a> {
    /// Metadata from the link.
    pub meta: RxMeta,
    /// The frame, Ethernet header first.
    pub bytes: &'a [u8],
}

impl RxFrame<'_> {
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
}
