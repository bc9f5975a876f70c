//! Fragmentation toward the guest: a datagram longer than the link's MTU is cut as the sender of IPv6 and any
//! router of IPv4 cuts it (RFC 8200 section 4.5, RFC 791).

use super::headers::{self, Checksum, Ip};
use super::{Egress, NoCredit};
use crate::flow::Ends;
use crate::link::{HEADERS_MAX, Link};
use crate::snapshot::saved::{Invalid, Saved, valid};
use crate::snapshot::v1::FragmentProgressV1;
use crate::wire::UDP;
use crate::wire::fragment::Fragment;
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::Ipv6Header;
use crate::wire::udp::UdpHeader;
use std::io::IoSlice;
use std::net::IpAddr;

/// Progress of a datagram sent in fragments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FragmentProgress {
    /// Identification of the packet, from the first fragment on.
    ident: Option<u32>,
    /// Bytes sent, counted behind the IP header.
    sent: usize,
}

impl Saved<FragmentProgressV1> for FragmentProgress {
    fn save(&self) -> FragmentProgressV1 {
        let Self { ident, sent } = *self;
        FragmentProgressV1 { ident, sent: sent as u32 }
    }

    fn restore(FragmentProgressV1 { ident, sent }: FragmentProgressV1) -> Result<Self, Invalid> {
        // Fragments end at multiples of eight bytes, but for the last, behind which there is no progress.
        let sent = u16::try_from(sent).map_err(|_| Invalid)?;
        valid(sent.is_multiple_of(8))?;
        Ok(Self { ident, sent: sent.into() })
    }
}

/// A datagram to be fragmented.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Datagram<'a> {
    /// Fields of each fragment's IP header.
    pub(crate) ip: Ip,
    /// Header of layer 4, at most 8 bytes, its checksum complete; may be part of `body`.
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a [u8],
}

impl<L: Link> Egress<'_, L> {
    /// Sends the remaining fragments of a datagram, each at most `mtu` bytes with its headers.
    ///
    /// # Errors
    /// The link has no credit; `progress` holds the position.
    pub(crate) fn fragments(
        &mut self,
        mtu: u16,
        datagram: &Datagram<'_>,
        progress: &mut FragmentProgress,
    ) -> Result<(), NoCredit> {
        let Datagram { ip, head, body } = *datagram;
        let total = head.len() + body.len();
        let headers_len = match ip.addresses.src {
            IpAddr::V4(_) => Ipv4Header::LEN,
            IpAddr::V6(_) => Ipv6Header::LEN + Fragment::LEN_V6,
        };
        let piece = usize::from(mtu).saturating_sub(headers_len).max(8) & !7;
        let ident = *progress.ident.get_or_insert_with(|| self.tx.across.next_ident(1));
        while progress.sent < total {
            let end = (progress.sent + piece).min(total);
            let fragment = Fragment { ident, offset: progress.sent as u16, more: end < total };
            let mut headers = [0; HEADERS_MAX];
            let mut len = headers::fragment(self.tx.macs(), &ip, fragment, end - progress.sent, &mut headers);
            let mut from = progress.sent.saturating_sub(head.len());
            if progress.sent == 0 {
                headers[len..len + head.len()].copy_from_slice(head);
                len += head.len();
                from = 0;
            }
            self.plain(&headers[..len], &body[from..end - head.len()])?;
            debug_assert!(end > progress.sent, "every fragment carries something");
            progress.sent = end;
        }
        Ok(())
    }

    /// Sends the remaining fragments of a UDP datagram with this payload, whose header is made here.
    ///
    /// # Errors
    /// As [`Egress::fragments`].
    pub(crate) fn udp_fragments(
        &mut self,
        mtu: u16,
        ends: Ends,
        tos: u8,
        payload: &[u8],
        progress: &mut FragmentProgress,
    ) -> Result<(), NoCredit> {
        let mut head = [0; UdpHeader::LEN];
        headers::udp(ends, &[IoSlice::new(payload)], Checksum::Complete, &mut head);
        let ip = Ip { tos, ..Ip::new(ends.addresses(), UDP) };
        self.fragments(mtu, &Datagram { ip, head: &head, body: payload }, progress)
    }
}
