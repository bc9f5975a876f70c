//! State of an interface's transmit queue, as its kernel describes it.

use super::socket::NetlinkSocket;
use netlink_packet_core::NlasIterator;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkMessage;
use rustix::io::Errno;

/// Bytes of `struct ifinfomsg`, which attributes follow.
const LINK_HEADER_LEN: usize = 16;
/// Offset of `tx_dropped` in `struct rtnl_link_stats64`, in bytes.
const TX_DROPPED_AT: usize = 7 * 8;

/// State of the transmit queue reported by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueState {
    /// Its length.
    pub(crate) frames: u32,
    /// Frames dropped since the interface was made.
    pub(crate) dropped: u64,
}

impl QueueState {
    /// Queries the interface of this index.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn of(socket: &NetlinkSocket, index: u32) -> Result<Self, Errno> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        socket.query(RouteNetlinkMessage::GetLink(link), |kind, payload| match kind {
            libc::RTM_NEWLINK => Self::parse(payload),
            _ => Err(Errno::BADMSG),
        })
    }

    /// The two attributes in use of a link message. The others are ignored: kernels add to them.
    pub(crate) fn parse(payload: &[u8]) -> Result<Self, Errno> {
        let attributes = payload.get(LINK_HEADER_LEN..).ok_or(Errno::BADMSG)?;
        let (mut frames, mut dropped) = (None, None);
        for attribute in NlasIterator::new(attributes) {
            let attribute = attribute.map_err(|_| Errno::BADMSG)?;
            let value = attribute.value();
            match attribute.kind() {
                libc::IFLA_TXQLEN => frames = value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)),
                libc::IFLA_STATS64 => {
                    let found = value.get(TX_DROPPED_AT..).and_then(<[u8]>::first_chunk);
                    dropped = found.map(|bytes| u64::from_ne_bytes(*bytes));
                }
                _ => {}
            }
        }
        frames.zip(dropped).map(|(frames, dropped)| Self { frames, dropped }).ok_or(Errno::BADMSG)
    }
}
