//! Egress: headers toward the guest around payload that is never moved.
//!
//! Headers are built in a small array on the stack ([`headers`]) and go to the link together with slices of
//! chunk memory, so payload is never copied here. If the link completes checksums itself only the
//! pseudo-header sum is written and no pass over the payload is made; otherwise the checksum is computed over
//! the slices.
//!
//! Relayed datagrams and echo replies over IPv4 that are longer than [`DONT_FRAGMENT_LEN_MAX`] may be
//! fragmented by a router in the guest: the guest's link may be the widest of the path behind it (a bridge of
//! containers), and the "do not fragment" of the original is not known. TCP measures the path, and keeps it.
//!
//! Over IPv6 the guest reports links that are too narrow, and datagrams and echo replies leave in fragments
//! that they carry: all of them for ten minutes ([`AcrossWorkers`]), not only those of the flow that was
//! reported. A guest that routes to containers has few addresses for many of them, and the next question of a
//! program comes from another port.
//!
//! A refusal of the link ([`NoCredit`]) stalls [`TxState`]: nothing is sent until the driver reports credit.

pub(crate) mod fragments;
pub(crate) mod headers;

use crate::across_workers::AcrossWorkers;
use crate::config::Config;
use crate::counters::Counters;
use crate::flow::{Addresses, Ends};
use crate::journal::Journal;
use crate::link::{Gso, HEADERS_MAX, Link, LinkCaps, NoCredit, PartialChecksum, TxFrame};
use crate::tx_queue::TxQueueBudget;
use crate::wire::ethernet::{EthernetHeader, MacAddr};
use crate::wire::ipv4::Ipv4Header;
use crate::wire::tcp::TcpHeader;
use crate::wire::udp::UdpHeader;
use crate::wire::{TCP, UDP, checksum};
use headers::{Checksum, Ip, Macs, sum_slices};
use std::io::IoSlice;
use std::net::IpAddr;
use std::sync::Arc;

/// Longest IPv4 datagram, in bytes, with "do not fragment": every host takes one of this length (RFC 791),
/// and nearly every link carries it.
const DONT_FRAGMENT_LEN_MAX: usize = 576;

/// Transmit state toward the guest.
#[derive(Debug)]
pub(crate) struct TxState {
    /// Capabilities of the link.
    pub(crate) caps: LinkCaps,
    /// Our MAC address.
    pub(crate) mac: MacAddr,
    /// The guest's MAC address: learnt from its frames.
    pub(crate) guest_mac: MacAddr,
    /// Facts that all workers share.
    pub(crate) across: Arc<AcrossWorkers>,
    /// Whether the link has refused a frame: nothing is sent until the driver reports credit.
    pub(crate) stalled: bool,
    /// Budget of frames in the guest's transmit queue that advertised windows may fill.
    pub(crate) queue: TxQueueBudget,
}

impl TxState {
    /// State for a link with `caps`; the guest's MAC address is broadcast until it is configured or learnt.
    pub(crate) fn new(config: &Config, caps: LinkCaps) -> Self {
        Self {
            caps,
            mac: config.mac,
            guest_mac: config.guest_mac.unwrap_or(MacAddr::BROADCAST),
            across: Arc::default(),
            stalled: false,
            queue: TxQueueBudget::default(),
        }
    }

    /// MAC addresses of a frame from brodo to the guest.
    const fn macs(&self) -> Macs {
        Macs { src: self.mac, dst: self.guest_mac }
    }

    /// The header of `count` datagrams of `len` bytes behind the IP header each, which the guest cuts from
    /// one frame: without "do not fragment" if they are long. The guest numbers them from the first on.
    fn datagram_ip(&self, ip: Ip, len: usize, count: usize) -> Ip {
        if ip.addresses.src.is_ipv6() || Ipv4Header::LEN + len <= DONT_FRAGMENT_LEN_MAX {
            return ip;
        }
        Ip { ident: Some(self.across.next_ident(count as u32) as u16), ..ip }
    }

    /// The part of checksums that brodo computes.
    const fn checksum(&self) -> Checksum {
        if self.caps.checksum { Checksum::Pseudo } else { Checksum::Complete }
    }
}

/// The parts of a context that sending a frame needs.
pub(crate) struct Egress<'a, L> {
    pub(crate) tx: &'a mut TxState,
    pub(crate) counters: &'a mut Counters,
    pub(crate) journal: &'a Journal,
    pub(crate) link: &'a mut L,
}

impl<L: Link> Egress<'_, L> {
    /// Sends one TCP segment, or with `payload` longer than `mss` one super-segment.
    ///
    /// # Errors
    /// The link has no credit.
    pub(crate) fn tcp(
        &mut self,
        addresses: Addresses,
        header: &TcpHeader,
        payload: &[IoSlice<'_>],
        mss: u16,
    ) -> Result<(), NoCredit> {
        let len: usize = payload.iter().map(|s| s.len()).sum();
        let gso = match addresses.src {
            _ if len <= usize::from(mss) => Gso::None,
            IpAddr::V4(_) => Gso::Tcp4(mss),
            IpAddr::V6(_) => Gso::Tcp6(mss),
        };
        let mut headers = [0; HEADERS_MAX];
        let l4_len = header.header_len();
        let l4 = headers::frame(self.tx.macs(), &Ip::new(addresses, TCP), l4_len + len, &mut headers);
        header.emit(&mut headers[l4..]);
        let pseudo = checksum::pseudo_header(addresses.src, addresses.dst, TCP, (l4_len + len) as u32);
        let field = match self.tx.checksum() {
            Checksum::Pseudo => checksum::fold(pseudo),
            Checksum::Complete => {
                let sum = checksum::sum(&headers[l4..l4 + l4_len], pseudo);
                checksum::finish(sum_slices(sum, payload))
            }
        };
        let at = l4 + TcpHeader::CHECKSUM_OFFSET;
        headers[at..at + 2].copy_from_slice(&field.to_be_bytes());
        let partial = self.partial(l4, TcpHeader::CHECKSUM_OFFSET);
        self.send(&TxFrame { headers: &headers[..l4 + l4_len], payload, partial, gso })
    }

    /// Sends one UDP datagram gathered from `payload`, or with `segment` shorter than the payload one
    /// super-datagram.
    ///
    /// # Errors
    /// The link has no credit.
    pub(crate) fn udp(
        &mut self,
        ends: Ends,
        tos: u8,
        payload: &[IoSlice<'_>],
        segment: Option<u16>,
    ) -> Result<(), NoCredit> {
        let payload_len: usize = payload.iter().map(|s| s.len()).sum();
        let gso = segment.filter(|&s| payload_len > usize::from(s)).map_or(Gso::None, Gso::Udp);
        let mut headers = [0; HEADERS_MAX];
        let size = match gso {
            Gso::Udp(size) => size.into(),
            _ => payload_len,
        };
        let count = payload_len.div_ceil(size.max(1)).max(1);
        let ip = Ip { tos, ..Ip::new(ends.addresses(), UDP) };
        let ip = self.tx.datagram_ip(ip, UdpHeader::LEN + size, count);
        let l4 = headers::frame(self.tx.macs(), &ip, UdpHeader::LEN + payload_len, &mut headers);
        headers::udp(ends, payload, self.tx.checksum(), &mut headers[l4..]);
        let partial = self.partial(l4, UdpHeader::CHECKSUM_OFFSET);
        self.send(&TxFrame { headers: &headers[..l4 + UdpHeader::LEN], payload, partial, gso })
    }

    /// Sends a relayed message, whose checksum is complete, behind an IP header.
    ///
    /// # Errors
    /// The link has no credit.
    pub(crate) fn message(&mut self, ip: &Ip, message: &[u8]) -> Result<(), NoCredit> {
        let mut headers = [0; HEADERS_MAX];
        let ip = self.tx.datagram_ip(*ip, message.len(), 1);
        let l4 = headers::frame(self.tx.macs(), &ip, message.len(), &mut headers);
        self.plain(&headers[..l4], message)
    }

    /// Sends a complete frame, checksums included.
    ///
    /// # Errors
    /// The link has no credit.
    pub(crate) fn frame(&mut self, frame: &[u8]) -> Result<(), NoCredit> {
        let (headers, payload) = frame.split_at(EthernetHeader::LEN);
        self.plain(headers, payload)
    }

    /// Sends headers and payload that leave nothing to the link.
    fn plain(&mut self, headers: &[u8], payload: &[u8]) -> Result<(), NoCredit> {
        let payload = &[IoSlice::new(payload)];
        self.send(&TxFrame { headers, payload, partial: None, gso: Gso::None })
    }

    /// Position of the checksum that the guest's kernel completes, if the link lets it.
    fn partial(&self, l4: usize, offset: usize) -> Option<PartialChecksum> {
        let partial = PartialChecksum { start: l4 as u16, offset: offset as u16 };
        (self.tx.checksum() == Checksum::Pseudo).then_some(partial)
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        debug_assert!(frame.headers.len() <= HEADERS_MAX, "{} bytes of headers", frame.headers.len());
        debug_assert!(self.tx.caps.checksum || frame.partial.is_none(), "the link completes no checksum");
        if self.tx.stalled {
            return Err(NoCredit);
        }
        if let Err(NoCredit) = self.link.send(frame) {
            self.tx.stalled = true;
            self.counters.link_stalls += 1;
            return Err(NoCredit);
        }
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += frame.len() as u64;
        Ok(())
    }
}
