//! The guest's end of the link: accepts frames of the stack, verifies them as a guest's kernel would, and
//! queues them.
//!
//! Every frame is checked when it is sent, so that the backtrace of a failure points at the sender: IP and
//! layer-4 lengths, checksums (complete, or partial exactly as virtio-net wants them), segmentation that
//! agrees with the headers, the MTU, the MAC addresses, and the link's capabilities. An invalid frame panics,
//! in every test.
//!
//! Credit is explicit. A link with `credit` refuses frames once it is used up, at any call, until the test
//! gives more; the stack must then neither lose nor reorder frames.

use crate::crash_point;
use crate::fragments::{Joined, Joint};
use crate::packet::{self, Layout, Macs, pseudo_sum};
use crate::unread::UnreadEnds;
use brodo_core::link::{FRAME_MAX, Gso, HEADERS_MAX, Link, LinkCaps, NoCredit, TxFrame, Unread};
use smoltcp::wire::checksum;
use std::collections::VecDeque;

/// The guest's MAC address in every simulation.
pub const GUEST_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x15];

/// One frame of the stack, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentFrame {
    /// The bytes, with the checksum completed as the guest's kernel would.
    pub bytes: Vec<u8>,
    /// Length of all headers, in bytes.
    pub headers_len: usize,
    /// Whether the checksum had been left to the guest.
    pub partial: bool,
    /// Segmentation left to the guest.
    pub gso: Gso,
}

/// The simulated link.
#[derive(Debug)]
pub struct SimLink {
    caps: LinkCaps,
    mtu: usize,
    mac: [u8; 6],
    credit: Option<usize>,
    sent: VecDeque<SentFrame>,
    refused: u64,
    starved: bool,
    fragments: Joint,
    /// Ends of the guest's frames.
    pub(crate) unread: UnreadEnds,
}

impl SimLink {
    /// A link with unlimited credit. `mtu` in bytes of an IP packet; `mac` is the MAC address of the stack.
    pub fn new(caps: LinkCaps, mtu: u16, mac: [u8; 6]) -> Self {
        Self {
            caps,
            mtu: caps.packet_max.map_or(mtu, |most| most.min(mtu)).into(),
            mac,
            credit: None,
            sent: VecDeque::new(),
            refused: 0,
            starved: false,
            fragments: Joint::default(),
            unread: UnreadEnds::default(),
        }
    }

    /// Credit: frames still accepted; `None` for unlimited.
    pub fn set_credit(&mut self, frames: Option<usize>) {
        self.credit = frames;
    }

    /// Takes the oldest frame that was sent.
    pub fn take(&mut self) -> Option<SentFrame> {
        self.sent.pop_front()
    }

    /// Frames sent and not yet taken.
    pub fn queued(&self) -> usize {
        self.sent.len()
    }

    /// Whether the link would take a frame now.
    pub fn has_credit(&self) -> bool {
        self.credit != Some(0)
    }

    /// Number of frames refused for lack of credit.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Writable edge: a frame was refused since the last call and there is credit again. The driver passes it
    /// to the stack.
    pub fn take_writable(&mut self) -> bool {
        self.starved && self.credit != Some(0) && std::mem::take(&mut self.starved)
    }
}

impl Link for SimLink {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    fn read(&self, unread: Unread, into: &mut [u8]) -> usize {
        self.unread.read(unread, into)
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        crash_point::point();
        let mut bytes = frame.headers.to_vec();
        frame.payload.iter().for_each(|s| bytes.extend_from_slice(s));
        let fragment = is_fragment(&bytes);
        let sent = if fragment {
            check_fragment(frame, bytes.len(), self.mtu).map(|()| None)
        } else {
            check(frame, self.caps, self.mtu, self.mac).map(Some)
        };
        let sent = sent.unwrap_or_else(|why| invalid(&why, frame));
        match &mut self.credit {
            Some(0) => {
                self.refused += 1;
                self.starved = true;
                return Err(NoCredit);
            }
            Some(n) => *n -= 1,
            None => {}
        }
        let joined = if fragment { self.fragments.take(&bytes) } else { Ok(Joined::Whole) };
        match joined.unwrap_or_else(|why| invalid(&why, frame)) {
            Joined::Whole => self.sent.extend(sent),
            Joined::Waits => {}
            Joined::Complete(whole) => {
                let whole = TxFrame { headers: &whole, payload: &[], partial: None, gso: Gso::None };
                let sent = check_whole(&whole, self.mac).unwrap_or_else(|why| invalid(&why, &whole));
                self.sent.push_back(sent);
            }
        }
        crash_point::point();
        Ok(())
    }
}

fn invalid(why: &str, frame: &TxFrame<'_>) -> ! {
    panic!("the stack sent an invalid frame: {why}\n{frame:02x?}")
}

/// Whether a frame carries a fragment.
fn is_fragment(bytes: &[u8]) -> bool {
    matches!(Joint::default().take(bytes), Ok(Joined::Waits | Joined::Complete(_)) | Err(_))
}

/// Checks of a single fragment: no offload is left to the link, and it fits the MTU.
fn check_fragment(frame: &TxFrame<'_>, len: usize, mtu: usize) -> Result<(), String> {
    require(frame.partial.is_none() && frame.gso == Gso::None, || "offloads of a fragment".to_owned())?;
    require(len - 14 <= mtu, || format!("a fragment of {} bytes on MTU {mtu}", len - 14))?;
    require(frame.headers.len() <= HEADERS_MAX, || format!("{} bytes of headers", frame.headers.len()))
}

/// Checks of a reassembled packet: as of any other, but of any length and with headers in a separate buffer.
fn check_whole(frame: &TxFrame<'_>, mac: [u8; 6]) -> Result<SentFrame, String> {
    let bytes = frame.headers.to_vec();
    require(bytes[6..12] == mac, || format!("source MAC address {:02x?}", &bytes[6..12]))?;
    packet::parse(&bytes)?;
    Ok(SentFrame { headers_len: bytes.len(), bytes, partial: false, gso: Gso::None })
}

fn require(ok: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if ok { Ok(()) } else { Err(what()) }
}

/// Checks a frame as the guest's kernel would and more strictly, and completes its checksum.
fn check(frame: &TxFrame<'_>, caps: LinkCaps, mtu: usize, mac: [u8; 6]) -> Result<SentFrame, String> {
    let mut bytes = frame.headers.to_vec();
    frame.payload.iter().for_each(|s| bytes.extend_from_slice(s));
    require(frame.headers.len() >= 14, || "headers shorter than Ethernet".to_owned())?;
    require(bytes.len() <= FRAME_MAX, || format!("{} bytes is longer than any frame", bytes.len()))?;
    require(bytes[6..12] == mac, || format!("source MAC address {:02x?}", &bytes[6..12]))?;
    require(bytes[..6] == GUEST_MAC || bytes[0] & 1 == 1, || {
        format!("destination MAC address {:02x?}", &bytes[..6])
    })?;

    let headers_len = frame.headers.len();
    let layout = packet::layout(&bytes)?;
    if let Some(at) = layout {
        require(bytes[if at.src.is_ipv4() { 22 } else { 21 }] > 0, || "hop limit 0".to_owned())?;
    }
    let l4_header = layout.and_then(|at| l4_header_len(&bytes, at));
    if let (Some(at), Some(len)) = (layout, l4_header) {
        require(headers_len == at.l4 + len, || {
            format!("headers of {headers_len} bytes, but layer 4 begins at {} and has {len}", at.l4)
        })?;
        require(headers_len <= HEADERS_MAX, || format!("{headers_len} bytes of headers"))?;
    }
    complete_checksum(frame, caps, layout, &mut bytes)?;
    let parsed = packet::parse(&bytes)?;
    if let packet::ParsedFrame::Tcp(segment) = &parsed {
        require(!segment.has(packet::flags::SYN) || segment.data.is_empty(), || "data in a SYN".to_owned())?;
    }
    check_size(frame, caps, layout, mtu, bytes.len())?;
    Ok(SentFrame { bytes, headers_len, partial: frame.partial.is_some(), gso: frame.gso })
}

/// Length of the layer-4 header of a packet whose headers have a buffer of their own.
fn l4_header_len(bytes: &[u8], at: Layout) -> Option<usize> {
    match at.protocol {
        6 => bytes.get(at.l4 + 12).map(|&b| usize::from(b >> 4) * 4),
        // A DHCP reply is written as a whole, like an ICMP message.
        17 if bytes.get(at.l4..at.l4 + 2) == Some(&67u16.to_be_bytes()) => None,
        17 => Some(8),
        _ => None,
    }
}

/// A partial checksum must be what virtio-net asks for: the folded sum over the pseudo-header in the field,
/// and the offsets of exactly that field.
fn complete_checksum(
    frame: &TxFrame<'_>,
    caps: LinkCaps,
    layout: Option<Layout>,
    bytes: &mut [u8],
) -> Result<(), String> {
    let Some(partial) = frame.partial else { return Ok(()) };
    require(caps.checksum, || "partial checksum on a link that cannot complete it".to_owned())?;
    let at = layout.ok_or("partial checksum on ARP")?;
    require(matches!(at.protocol, 6 | 17), || format!("partial checksum on protocol {}", at.protocol))?;
    let offset = packet::checksum_offset(at.protocol, at.src.is_ipv4()).ok_or("no checksum field")?;
    require((partial.start as usize, partial.offset as usize) == (at.l4, offset), || {
        format!("checksum at {}+{}, not {}+{offset}", partial.start, partial.offset, at.l4)
    })?;
    let field = at.l4 + offset;
    let pseudo = pseudo_sum(at.src, at.dst, at.protocol, (bytes.len() - at.l4) as u32);
    let found = u16::from_be_bytes([bytes[field], bytes[field + 1]]);
    require(found == pseudo, || format!("partial checksum {found:#06x}, pseudo-header sum {pseudo:#06x}"))?;
    finish_checksum(at, bytes);
    Ok(())
}

/// Replaces the layer-4 checksum by the complete one.
fn finish_checksum(at: Layout, bytes: &mut [u8]) {
    let Some(offset) = packet::checksum_offset(at.protocol, at.src.is_ipv4()) else { return };
    let field = at.l4 + offset;
    bytes[field..field + 2].fill(0);
    let sum = match packet::l4_sum(at.src, at.dst, at.protocol, &bytes[at.l4..]) {
        0xffff if at.protocol == 17 => 0xffff,
        sum => !sum,
    };
    bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Checks the MTU, or segmentation within it.
fn check_size(
    frame: &TxFrame<'_>,
    caps: LinkCaps,
    layout: Option<Layout>,
    mtu: usize,
    len: usize,
) -> Result<(), String> {
    let payload = len - frame.headers.len();
    let (size, allowed, fits) = match frame.gso {
        Gso::None => {
            return require(len - 14 <= mtu, || format!("IP packet of {} bytes on MTU {mtu}", len - 14));
        }
        Gso::Tcp4(n) => (n, caps.tso, layout.is_some_and(|l| l.protocol == 6 && l.src.is_ipv4())),
        Gso::Tcp6(n) => (n, caps.tso, layout.is_some_and(|l| l.protocol == 6 && l.src.is_ipv6())),
        Gso::Udp(n) => (n, caps.uso, layout.is_some_and(|l| l.protocol == 17)),
    };
    let size = usize::from(size);
    require(allowed, || format!("{:?} on a link with {caps:?}", frame.gso))?;
    require(fits, || format!("{:?} on {layout:?}", frame.gso))?;
    require(frame.partial.is_some(), || "segmentation with a complete checksum".to_owned())?;
    require(size > 0 && payload > size, || format!("{payload} bytes in segments of {size}"))?;
    require(frame.headers.len() - 14 + size <= mtu, || format!("segments of {size} on MTU {mtu}"))?;
    let most = if matches!(frame.gso, Gso::Udp(_)) { 64 } else { usize::MAX };
    require(payload.div_ceil(size) <= most, || format!("{} datagrams in one", payload.div_ceil(size)))
}

impl SentFrame {
    /// The frames that the guest sees: the frame itself, or the segments its kernel cuts from it.
    pub fn cut(&self) -> Vec<Vec<u8>> {
        let (Gso::Tcp4(size) | Gso::Tcp6(size) | Gso::Udp(size)) = self.gso else {
            return vec![self.bytes.clone()];
        };
        let at = packet::layout(&self.bytes).ok().flatten().expect("checked when sent");
        let (headers, payload) = self.bytes.split_at(self.headers_len);
        let pieces = payload.len().div_ceil(size.into());
        let chunks = payload.chunks(size.into()).enumerate();
        chunks.map(|(i, piece)| cut_one(headers, at, piece, i, i + 1 == pieces, size)).collect()
    }
}

/// One segment of a super-frame: lengths, sequence number and flags as Linux's segmentation sets them.
fn cut_one(headers: &[u8], at: Layout, piece: &[u8], index: usize, last: bool, size: u16) -> Vec<u8> {
    use packet::flags::{CWR, FIN, PSH};
    let mut bytes = [headers, piece].concat();
    let (ip_len, l4) = (bytes.len() - 14, at.l4);
    if at.src.is_ipv4() {
        bytes[16..18].copy_from_slice(&(ip_len as u16).to_be_bytes());
        let id = u16::from_be_bytes([bytes[18], bytes[19]]).wrapping_add(index as u16);
        bytes[18..20].copy_from_slice(&id.to_be_bytes());
        bytes[24..26].fill(0);
        let sum = !checksum::data(&bytes[14..l4]);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        bytes[18..20].copy_from_slice(&(ip_len as u16 - 40).to_be_bytes());
    }
    if at.protocol == 6 {
        let seq = u32::from_be_bytes([bytes[l4 + 4], bytes[l4 + 5], bytes[l4 + 6], bytes[l4 + 7]]);
        let seq = seq.wrapping_add(index as u32 * u32::from(size));
        bytes[l4 + 4..l4 + 8].copy_from_slice(&seq.to_be_bytes());
        if !last {
            bytes[l4 + 13] &= !(FIN | PSH);
        }
        if index > 0 {
            bytes[l4 + 13] &= !CWR;
        }
    } else {
        let len = (bytes.len() - l4) as u16;
        bytes[l4 + 4..l4 + 6].copy_from_slice(&len.to_be_bytes());
    }
    finish_checksum(at, &mut bytes);
    bytes
}

/// MAC addresses of a frame from the guest to a stack with the address `mac`.
pub const fn to_stack(mac: [u8; 6]) -> Macs {
    Macs { to: mac, from: GUEST_MAC }
}

#[cfg(test)]
mod tests;
