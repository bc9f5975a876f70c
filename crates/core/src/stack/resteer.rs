//! Frames of another worker's flows.
//!
//! TAP queue selection: the kernel steers a flow's frames to the queue on which its answers were written, and
//! falls back to a flow hash when that entry expires after some seconds of silence. For outbound flows both
//! name the same queue. An inbound flow belongs to the worker that accepted it, independent of the hash; so a
//! frame of an unknown flow is checked here for resteering to that worker.

use super::{
    EtherType, EthernetHeader, FlowKey, Ipv4Header, Ipv6Header, Protocol, Stack, TCP, TcpFlags, TcpHeader,
    UDP, UdpHeader,
};
use crate::flow::Endpoint;
use std::net::IpAddr;

/// A frame of a flow that this stack does not know, and does not open by right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resteer {
    /// A TCP segment that opens no connection.
    Segment,
    /// A UDP datagram from this port of the guest.
    Datagram(u16),
}

impl Stack {
    /// Whether a frame may be of a flow that another worker has; `None` of what is this one's, or nobody's,
    /// or cannot be read.
    pub fn resteer(&self, frame: &[u8]) -> Option<Resteer> {
        let (ethernet, packet) = EthernetHeader::parse(frame).ok()?;
        let (src, dst, protocol, payload): (IpAddr, IpAddr, u8, &[u8]) = match ethernet.ethertype {
            EtherType::Ipv4 => {
                let (ip, payload) = Ipv4Header::parse(packet).ok()?;
                (ip.src.into(), ip.dst.into(), ip.protocol, payload)
            }
            EtherType::Ipv6 => {
                let (ip, payload) = Ipv6Header::parse(packet).ok()?;
                (ip.src.into(), ip.dst.into(), ip.next_header, payload)
            }
            _ => return None,
        };
        let key = |protocol, (from, to)| FlowKey {
            protocol,
            guest: Endpoint::new(src, from),
            remote: Endpoint::new(dst, to),
        };
        match protocol {
            TCP => {
                let (tcp, _) = TcpHeader::parse(payload).ok()?;
                let key = key(Protocol::Tcp, (tcp.src_port, tcp.dst_port));
                let opens = tcp.flags.contains(TcpFlags::SYN) && !tcp.flags.contains(TcpFlags::ACK);
                (!opens && self.flows.find(&key).is_none()).then_some(Resteer::Segment)
            }
            UDP => {
                let (udp, _) = UdpHeader::parse(payload).ok()?;
                let key = key(Protocol::Udp, (udp.src_port, udp.dst_port));
                self.flows.find(&key).is_none().then_some(Resteer::Datagram(udp.src_port))
            }
            _ => None,
        }
    }
}
