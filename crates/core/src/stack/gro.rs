//! Packets of one flow that stand together in a batch, handled as one.
//!
//! A guest that sends as fast as it can fills a batch with segments of one connection, each beginning where
//! the one before ends, or with datagrams of one conversation, all of one size. Writing them to the host
//! socket with one call instead of one each saves the calls and, more, the wake-ups of the reader behind it;
//! datagrams even cross the host's stack as one. Only what is plain in every respect is taken together;
//! anything else makes [`Stack::gro`] give 0, and the frame takes the ordinary way, where each check has its
//! counted reason.

use super::input::checksum_is_right;
use super::{
    Endpoint, EtherType, EthernetHeader, Flow, FlowKey, Gso, Io, IpAddr, Ipv4Header, Ipv6Header, Platform,
    Protocol, RxChecksum, RxFrame, Stack, TCP, TcpFlags, TcpHeader, UDP, UdpHeader,
};
use crate::datagram::{SEGMENTS_MAX, SEND_BYTES_MAX};
use crate::host::IpHeaderFields;
use std::io::IoSlice;

/// Most packets written together.
const TOGETHER_MAX: usize = SEGMENTS_MAX;

/// A packet of the guest's whose checksum is right.
struct Packet<'a> {
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    marks: IpHeaderFields,
    /// Payload of the IP packet.
    content: &'a [u8],
}

/// A segment with payload and nothing else of note.
struct Segment<'a> {
    key: FlowKey,
    header: TcpHeader,
    payload: &'a [u8],
}

/// A datagram with payload.
struct Datagram<'a> {
    key: FlowKey,
    marks: IpHeaderFields,
    payload: &'a [u8],
}

impl Stack {
    /// Handles the packets at the start of `frames` that belong together; gives how many frames that were, 0
    /// if the first two do not, or are not plain.
    pub(super) fn gro<P: Platform>(&mut self, io: &mut Io<'_, P>, frames: &[RxFrame<'_>]) -> usize {
        if frames.len() < 2 {
            return 0;
        }
        let Some(first) = self.plain(&frames[0]) else { return 0 };
        let count = match first.protocol {
            TCP => self.segments(io, &first, frames),
            UDP => self.datagrams(io, &first, frames),
            _ => 0,
        };
        self.shared.counters.rx_frames += count as u64;
        self.shared.counters.rx_bytes += frames[..count].iter().map(|f| f.bytes.len() as u64).sum::<u64>();
        count
    }

    fn segments<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        first: &Packet<'_>,
        frames: &[RxFrame<'_>],
    ) -> usize {
        let Some(first) = Segment::of(first) else { return 0 };
        let mut payload = [IoSlice::new(&[]); TOGETHER_MAX];
        payload[0] = IoSlice::new(first.payload);
        let (mut count, mut last, mut end) = (1, first.header, first.header.seq + first.payload.len() as u32);
        for frame in frames[1..].iter().take(TOGETHER_MAX - 1) {
            let next = self.plain(frame).and_then(|packet| Segment::of(&packet));
            let Some(next) = next.filter(|n| n.key == first.key && n.header.seq == end) else { break };
            payload[count] = IoSlice::new(next.payload);
            end += next.payload.len() as u32;
            last = next.header;
            count += 1;
        }
        if count == 1 {
            return 0;
        }
        let Some(id) = self.flows.find(&first.key) else { return 0 };
        let Some(Flow::Tcp(connection)) = self.flows.get_mut(id) else { return 0 };
        if !connection.segments(&mut io.cx(&mut self.shared), &last, first.header.seq, &payload[..count]) {
            return 0;
        }
        self.used(id, io.now);
        self.after(io, id);
        count
    }

    /// Datagrams of one size, of which the last may be shorter: a flow that is open already needs nothing
    /// else.
    fn datagrams<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        first: &Packet<'_>,
        frames: &[RxFrame<'_>],
    ) -> usize {
        let Some(first) = Datagram::of(first, &frames[0]) else { return 0 };
        let size = first.payload.len();
        let mut payload = [IoSlice::new(&[]); TOGETHER_MAX];
        payload[0] = IoSlice::new(first.payload);
        let (mut count, mut bytes) = (1, size);
        for frame in frames[1..].iter().take(TOGETHER_MAX - 1) {
            let next = self.plain(frame).and_then(|packet| Datagram::of(&packet, frame));
            let alike = |n: &Datagram<'_>| {
                (n.key, n.marks) == (first.key, first.marks)
                    && n.payload.len() <= size
                    && bytes + n.payload.len() <= SEND_BYTES_MAX
            };
            let Some(next) = next.filter(alike) else { break };
            payload[count] = IoSlice::new(next.payload);
            count += 1;
            bytes += next.payload.len();
            if next.payload.len() < size {
                break;
            }
        }
        if count == 1 {
            return 0;
        }
        let Some(id) = self.flows.find(&first.key) else { return 0 };
        let Some(Flow::Datagram(flow)) = self.flows.get_mut(id) else { return 0 };
        let how = (Some(size as u16), first.marks);
        flow.send(&mut io.cx(&mut self.shared), &mut payload[..count], how, |n| {
            &frames[n].bytes[EthernetHeader::LEN..]
        });
        self.used(id, io.now);
        self.after(io, id);
        count
    }

    /// The packet in `frame`, if it is from the guest to us and its checksum is right.
    fn plain<'a>(&self, frame: &RxFrame<'a>) -> Option<Packet<'a>> {
        let (eth, packet) = EthernetHeader::parse(frame.bytes).ok()?;
        if eth.dst != self.shared.config.mac || eth.src.is_multicast() {
            return None;
        }
        let (ttl, packet) = match eth.ethertype {
            EtherType::Ipv4 => {
                let (ip, content) = Ipv4Header::parse(packet).ok()?;
                let (src, dst) = (ip.src.into(), ip.dst.into());
                let marks = self.marks(dst, (ip.tos, ip.ttl, ip.dont_fragment), packet.len());
                (ip.ttl, Packet { src, dst, protocol: ip.protocol, marks, content })
            }
            EtherType::Ipv6 => {
                let (ip, content) = Ipv6Header::parse(packet).ok()?;
                let (src, dst) = (ip.src.into(), ip.dst.into());
                let marks = self.marks(dst, (ip.traffic_class, ip.hop_limit, true), packet.len());
                (ip.hop_limit, Packet { src, dst, protocol: ip.next_header, marks, content })
            }
            _ => return None,
        };
        let checked = || {
            frame.meta.checksum == RxChecksum::Valid
                || checksum_is_right((packet.src, packet.dst), packet.protocol, packet.content)
        };
        let goes_on = self.is_guest(packet.src) && !self.ends_here(packet.dst, ttl);
        (matches!(packet.protocol, TCP | UDP) && goes_on && checked()).then_some(packet)
    }
}

impl<'a> Segment<'a> {
    /// The segment in `packet`, if it carries payload and no control bit but ACK and PSH.
    fn of(packet: &Packet<'a>) -> Option<Self> {
        if packet.protocol != TCP {
            return None;
        }
        let (header, payload) = TcpHeader::parse(packet.content).ok()?;
        let flags = header.flags.0 & !TcpFlags::PSH.0;
        if flags != TcpFlags::ACK.0 || payload.is_empty() {
            return None;
        }
        let key = FlowKey {
            protocol: Protocol::Tcp,
            guest: Endpoint::new(packet.src, header.src_port),
            remote: Endpoint::new(packet.dst, header.dst_port),
        };
        Some(Self { key, header, payload })
    }
}

impl<'a> Datagram<'a> {
    /// The datagram in `packet`, if it carries payload and is not to be cut. One without a checksum takes the
    /// ordinary way, and so does one with something behind it.
    fn of(packet: &Packet<'a>, frame: &RxFrame<'_>) -> Option<Self> {
        if packet.protocol != UDP || frame.meta.gso != Gso::None {
            return None;
        }
        let (header, payload) = UdpHeader::parse(packet.content).ok()?;
        if payload.is_empty() || usize::from(header.length) != packet.content.len() || header.checksum == 0 {
            return None;
        }
        let key = FlowKey {
            protocol: Protocol::Udp,
            guest: Endpoint::new(packet.src, header.src_port),
            remote: Endpoint::new(packet.dst, header.dst_port),
        };
        Some(Self { key, marks: packet.marks, payload })
    }
}
