//! Segments of one bulk transfer that stand together in a batch, handled as one.
//!
//! A guest that sends as fast as it can fills a batch with segments of one connection, each beginning where the one before
//! ends. Writing them to the host socket with one call instead of one each saves the calls and, more, the wake-ups of the
//! reader behind it. Only what is plain in every respect is taken together; anything else makes [`Stack::bulk`] give 0, and
//! the frame takes the ordinary way, where each check has its counted reason.

use super::input::checksum_is_right;
use super::{
    EtherType, EthernetHeader, Flow, FlowKey, Host, Io, IpAddr, Ipv4Header, Ipv6Header, Link, Protocol,
    RxChecksum, RxFrame, SocketAddr, Stack, TCP, TcpFlags, TcpHeader,
};
use std::io::IoSlice;

/// Most segments written together.
const SEGMENTS_MAX: usize = 64;

/// A segment with payload and nothing else of note.
struct Plain<'a> {
    key: FlowKey,
    header: TcpHeader,
    payload: &'a [u8],
}

impl Stack {
    /// Handles the segments at the start of `frames` that belong together; gives how many frames that were, 0 if the
    /// first two do not, or are not plain.
    pub(super) fn bulk<L: Link, H: Host>(&mut self, io: &mut Io<'_, L, H>, frames: &[RxFrame<'_>]) -> usize {
        if frames.len() < 2 {
            return 0;
        }
        let Some(first) = self.plain(&frames[0]) else { return 0 };
        let mut payload = [IoSlice::new(&[]); SEGMENTS_MAX];
        payload[0] = IoSlice::new(first.payload);
        let (mut count, mut last, mut end) = (1, first.header, first.header.seq + first.payload.len() as u32);
        for frame in frames[1..].iter().take(SEGMENTS_MAX - 1) {
            let Some(next) = self.plain(frame).filter(|n| n.key == first.key && n.header.seq == end) else {
                break;
            };
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
        if !connection.segments(&mut self.env, io, &last, first.header.seq, &payload[..count]) {
            return 0;
        }
        self.env.counters.rx_frames += count as u64;
        self.env.counters.rx_bytes += frames[..count].iter().map(|f| f.bytes.len() as u64).sum::<u64>();
        self.after(io.host, id);
        count
    }

    /// The segment in `frame`, if it is from the guest to us, its checksum is right, and it carries payload
    /// and no control bit but ACK and PSH.
    fn plain<'a>(&self, frame: &RxFrame<'a>) -> Option<Plain<'a>> {
        let (eth, packet) = EthernetHeader::parse(frame.bytes).ok()?;
        if eth.dst != self.env.config.mac || eth.src.is_multicast() {
            return None;
        }
        let (src, dst, protocol, segment): (IpAddr, IpAddr, u8, &[u8]) = match eth.ethertype {
            EtherType::Ipv4 => {
                let (ip, rest) = Ipv4Header::parse(packet).ok()?;
                (ip.src.into(), ip.dst.into(), ip.protocol, rest)
            }
            EtherType::Ipv6 => {
                let (ip, rest) = Ipv6Header::parse(packet).ok()?;
                (ip.src.into(), ip.dst.into(), ip.next_header, rest)
            }
            _ => return None,
        };
        let checked =
            || frame.meta.checksum == RxChecksum::Valid || checksum_is_right((src, dst), TCP, segment);
        if protocol != TCP || !self.is_guest(src) || !checked() {
            return None;
        }
        let (header, payload) = TcpHeader::parse(segment).ok()?;
        let flags = header.flags.0 & !TcpFlags::PSH.0;
        if flags != TcpFlags::ACK.0 || payload.is_empty() {
            return None;
        }
        let key = FlowKey {
            protocol: Protocol::Tcp,
            guest: SocketAddr::new(src, header.src_port),
            remote: SocketAddr::new(dst, header.dst_port),
        };
        Some(Plain { key, header, payload })
    }
}
