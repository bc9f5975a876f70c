//! Frames of another worker's flows.
//!
//! TAP queue selection: the kernel steers a flow's frames to the queue on which its answers were
//! written, and falls back to a flow hash when that entry expires after some seconds of silence. For
//! outbound flows both name the same queue. An inbound flow belongs to the worker that accepted it,
//! independent of the hash; so a frame of an unknown flow is checked here for resteering to that worker.
//!
//! ICMP errors of the guest have the hash of their own addresses, not of the packet that they quote: they may
//! come by any queue, and belong where the quoted packet's flow is.

use super::{ICMP, ICMPV6, Icmpv4Message, Icmpv6Message, IpAddr, RxFrame, RxMeta, Stack, TcpFlags};
use crate::flow::{FlowKey, Protocol};
use crate::icmp;
use crate::ingress::{self, Frame, L4, Packet};

/// A frame of a flow that this stack does not know, and does not open by right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resteer {
    /// A TCP segment that opens no connection, or an error for a segment.
    Segment,
    /// A UDP datagram from this port of the guest, or an error for a datagram to it.
    Datagram(u16),
}

impl Stack {
    /// Identity of a frame that may belong to another worker's flow; `None` if it is of this worker's flow,
    /// of no flow, or malformed.
    pub fn resteer(&self, frame: &[u8]) -> Option<Resteer> {
        let frame = RxFrame { meta: RxMeta::default(), bytes: frame };
        let Ok(Frame::Packet(packet)) = ingress::decode(&self.shared.config, &frame) else { return None };
        let key = packet.key().or_else(|| quoted_flow(&packet))?;
        if self.flows.find(&key).is_some() {
            return None;
        }
        match &packet.l4 {
            L4::Tcp(Ok((tcp, _))) => {
                let opens = tcp.flags.contains(TcpFlags::SYN) && !tcp.flags.contains(TcpFlags::ACK);
                (!opens).then_some(Resteer::Segment)
            }
            _ if key.protocol == Protocol::Tcp => Some(Resteer::Segment),
            _ => Some(Resteer::Datagram(key.guest.port())),
        }
    }
}

/// The flow of the packet that an ICMP error of the guest quotes.
fn quoted_flow(packet: &Packet<'_>) -> Option<FlowKey> {
    let message = packet.payload;
    let quoted = match (packet.protocol, packet.src, packet.dst) {
        (ICMP, ..) => match Icmpv4Message::parse(message) {
            Ok(Icmpv4Message::Unreachable { quoted, .. }) => quoted,
            _ => return None,
        },
        (ICMPV6, IpAddr::V6(src), IpAddr::V6(dst)) => match Icmpv6Message::parse(src, dst, message) {
            Ok(Icmpv6Message::Unreachable { quoted, .. }) => quoted,
            _ => return None,
        },
        _ => return None,
    };
    Some(icmp::quoted(quoted)?.key)
}
