//! Frames of another worker's flows.
//!
//! TAP queue selection: the kernel steers a flow's frames to the queue on which its answers were
//! written, and falls back to a flow hash when that entry expires after some seconds of silence. For
//! outbound flows both name the same queue. An inbound flow belongs to the worker that accepted it,
//! independent of the hash; so a frame of an unknown flow is checked here for resteering to that worker.

use super::{RxFrame, RxMeta, Stack, TcpFlags};
use crate::ingress::{self, Frame, L4};

/// A frame of a flow that this stack does not know, and does not open by right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resteer {
    /// A TCP segment that opens no connection.
    Segment,
    /// A UDP datagram from this port of the guest.
    Datagram(u16),
}

impl Stack {
    /// Whether a frame may be of a flow that another worker has; `None` of what is this one's, or
    /// nobody's, or cannot be read.
    pub fn resteer(&self, frame: &[u8]) -> Option<Resteer> {
        let frame = RxFrame { meta: RxMeta::default(), bytes: frame };
        let Ok(Frame::Packet(packet)) = ingress::decode(&self.shared.config, &frame) else { return None };
        if self.flows.find(&packet.key()?).is_some() {
            return None;
        }
        match &packet.l4 {
            L4::Tcp(Ok((tcp, _))) => {
                let opens = tcp.flags.contains(TcpFlags::SYN) && !tcp.flags.contains(TcpFlags::ACK);
                (!opens).then_some(Resteer::Segment)
            }
            L4::Udp(Ok((udp, _))) => Some(Resteer::Datagram(udp.src_port)),
            _ => None,
        }
    }
}
