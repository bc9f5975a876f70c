//! Packets of one flow that stand together in a batch, handled as one.
//!
//! A guest that sends as fast as it can fills a batch with segments of one connection, each beginning
//! where the one before ends, or with datagrams of one conversation, all of one size. Writing them to
//! the host socket with one call instead of one each saves the calls and, more, the wake-ups of the
//! reader behind it; datagrams even cross the host's stack as one. Only what is plain in every respect
//! is taken together; anything else makes [`Stack::gro`] give 0, and the frame takes the ordinary way,
//! where each check has its counted reason.
//!
//! A segment whose end the link has left unread ([`crate::link::Unread`]) is taken alone too: this is the way
//! that passes it on without a copy. On the ordinary way it is read.

use super::{DropReason, EthernetHeader, Flow, FlowKey, Gso, Io, Platform, Protocol, RxFrame, Stack, TCP};
use super::{TcpFlags, TcpHeader, UDP};
use crate::config::Config;
use crate::context::Cx;
use crate::host::{Host, IpHeaderFields, SEGMENTS_MAX, SEND_BYTES_MAX};
use crate::ingress::{self, Frame, L4, Packet};
use crate::link::Piece;
use std::io::IoSlice;

/// A frame as [`ingress::decode`] gives it.
type Decoded<'a> = Result<Frame<'a>, DropReason>;

/// Most packets written together.
const TOGETHER_MAX: usize = SEGMENTS_MAX;

/// A segment with payload and nothing else of note.
struct Segment<'a> {
    key: FlowKey,
    header: TcpHeader,
    payload: Piece<'a>,
}

/// A datagram with payload.
struct Datagram<'a> {
    key: FlowKey,
    fields: IpHeaderFields,
    payload: &'a [u8],
}

impl Stack {
    /// Handles the packets at the start of `frames` that belong together; gives how many frames that
    /// were, 0 if the first two do not, or are not plain.
    pub(super) fn gro<'a, P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        first: &Packet<'a>,
        frames: &[RxFrame<'a>],
        next: &mut Option<Decoded<'a>>,
    ) -> usize {
        let least = Self::run_min(first);
        if frames.len() < least || !self.is_plain(first) {
            return 0;
        }
        let count = match first.protocol {
            TCP => self.segments(io, first, frames, next),
            UDP if first.unread.len == 0 => self.datagrams(io, first, frames, next),
            _ => 0,
        };
        debug_assert!(count == 0 || count >= least, "a run of {count}");
        self.shared.counters.rx_frames += count as u64;
        self.shared.counters.rx_bytes += frames[..count].iter().map(|f| f.len() as u64).sum::<u64>();
        count
    }

    /// Frames of the shortest run that is worth this way.
    fn run_min(first: &Packet<'_>) -> usize {
        if first.unread.len > 0 { 1 } else { 2 }
    }

    fn segments<'a, P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        first: &Packet<'a>,
        frames: &[RxFrame<'a>],
        next: &mut Option<Decoded<'a>>,
    ) -> usize {
        let least = Self::run_min(first);
        let sends = io.host.sends_unread();
        let fits = |segment: &Segment<'_>| sends || segment.payload.unread.len == 0;
        let Some(first) = Segment::of(first).filter(fits) else { return 0 };
        let mut payload = [Piece::default(); TOGETHER_MAX];
        payload[0] = first.payload;
        let (mut count, mut last, mut end) = (1, first.header, first.header.seq + first.payload.len() as u32);
        for frame in frames[1..].iter().take(TOGETHER_MAX - 1) {
            let decoded = ingress::decode(&self.shared.config, frame);
            let segment = self.plain(&decoded).and_then(Segment::of);
            let Some(segment) = segment.filter(|s| s.key == first.key && s.header.seq == end && fits(s))
            else {
                *next = Some(decoded);
                break;
            };
            payload[count] = segment.payload;
            end += segment.payload.len() as u32;
            last = segment.header;
            count += 1;
        }
        if count < least {
            return 0;
        }
        self.hand_over(io, &first.key, count, next, |flow, cx| match flow {
            Flow::Tcp(connection) => connection.segments(cx, &last, first.header.seq, &payload[..count]),
            _ => false,
        })
    }

    /// Has the flow with this key `take` a run of `count` frames; how many it has taken: all or none.
    fn hand_over<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        key: &FlowKey,
        count: usize,
        next: &mut Option<Decoded<'_>>,
        take: impl FnOnce(&mut Flow, &mut Cx<'_, P>) -> bool,
    ) -> usize {
        // Unless the run is taken, `next` is not the frame behind the first one.
        let after = next.take();
        let Some(id) = self.flows.find(key) else { return 0 };
        if self.use_flow(io, id, |flow, cx, _| take(flow, cx)) != Some(true) {
            return 0;
        }
        *next = after;
        count
    }

    /// Datagrams of one size, of which the last may be shorter: a flow that is open already needs
    /// nothing else.
    fn datagrams<'a, P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        first: &Packet<'a>,
        frames: &[RxFrame<'a>],
        next: &mut Option<Decoded<'a>>,
    ) -> usize {
        let Some(first) = Datagram::of(first, &self.shared.config) else { return 0 };
        let size = first.payload.len();
        let mut payload = [IoSlice::new(&[]); TOGETHER_MAX];
        payload[0] = IoSlice::new(first.payload);
        let (mut count, mut bytes) = (1, size);
        for frame in frames[1..].iter().take(TOGETHER_MAX - 1) {
            let decoded = ingress::decode(&self.shared.config, frame);
            let datagram = self.plain(&decoded).and_then(|packet| Datagram::of(packet, &self.shared.config));
            let alike = |d: &Datagram<'_>| {
                (d.key, d.fields) == (first.key, first.fields)
                    && d.payload.len() <= size
                    && bytes + d.payload.len() <= SEND_BYTES_MAX
            };
            let Some(datagram) = datagram.filter(alike) else {
                *next = Some(decoded);
                break;
            };
            payload[count] = IoSlice::new(datagram.payload);
            count += 1;
            bytes += datagram.payload.len();
            if datagram.payload.len() < size {
                break;
            }
        }
        if count == 1 {
            return 0;
        }
        self.hand_over(io, &first.key, count, next, |flow, cx| {
            let Flow::Datagram(datagrams) = flow else { return false };
            let packet = |n: usize| &frames[n].bytes[EthernetHeader::LEN..];
            datagrams.send(cx, &mut payload[..count], Some(size as u16), first.fields, packet);
            true
        })
    }

    /// The packet in a frame, if it is plain.
    fn plain<'p, 'a>(&self, decoded: &'p Decoded<'a>) -> Option<&'p Packet<'a>> {
        let Ok(Frame::Packet(packet)) = decoded else { return None };
        self.is_plain(packet).then_some(packet)
    }

    /// Whether a packet is from the guest to us, of TCP or UDP, goes on, and has the right checksum.
    fn is_plain(&self, packet: &Packet<'_>) -> bool {
        packet.l2.dst == self.shared.config.mac
            && matches!(packet.protocol, TCP | UDP)
            && self.is_guest(packet.src)
            && !self.ends_here(packet.dst, packet.hop_limit)
            && packet.verify(packet.payload)
    }
}

impl<'a> Segment<'a> {
    /// The segment in `packet`, if it carries payload and no control bit but ACK and PSH.
    fn of(packet: &Packet<'a>) -> Option<Self> {
        let L4::Tcp(Ok((header, bytes))) = &packet.l4 else { return None };
        let payload = Piece { bytes, unread: packet.unread };
        let flags = header.flags.0 & !TcpFlags::PSH.0;
        if flags != TcpFlags::ACK.0 || payload.is_empty() {
            return None;
        }
        let key = packet.key_of(Protocol::Tcp, header.src_port, header.dst_port);
        Some(Self { key, header: *header, payload })
    }
}

impl<'a> Datagram<'a> {
    /// The datagram in `packet`, if it carries payload and is not to be cut. One without a checksum
    /// takes the ordinary way, and so does one with something behind it.
    fn of(packet: &Packet<'a>, config: &Config) -> Option<Self> {
        let L4::Udp(Ok((header, payload))) = &packet.l4 else { return None };
        let whole = usize::from(header.length) == packet.payload.len();
        if packet.meta.gso != Gso::None || payload.is_empty() || !whole || header.checksum == 0 {
            return None;
        }
        let key = packet.key_of(Protocol::Udp, header.src_port, header.dst_port);
        Some(Self { key, fields: packet.fields(config), payload })
    }
}
