//! Fragments of the guest: a reassembled packet is handled like any other.
//!
//! UDP and echo only: TCP has segments, and DHCP and neighbour discovery are never fragmented (RFC 6980). On
//! its way out the host's kernel fragments it anew, to the MTU of the path it takes.
//!
//! Destination options of IPv6 may stand in front of the protocol, in the part that is fragmented (RFC 8200,
//! section 4.5). So the protocol is known for sure only of the whole packet, and is looked at again there.

use super::{
    DropReason, EthernetHeader, ICMP, ICMPV6, IcmpCause, Io, IpAddr, Packet, Platform, Stack, UDP, icmp,
};
use crate::fragments::{IpHeader, Reassembled};
use crate::wire::fragment::Fragment;
use crate::wire::ipv6;

impl Stack {
    /// A fragment from the guest, `data` being what follows its headers.
    pub(super) fn fragment<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        eth: EthernetHeader,
        header: IpHeader,
        fragment: Fragment,
        data: &[u8],
    ) -> Result<(), DropReason> {
        let (src, dst, wanted): (IpAddr, IpAddr, bool) = match header {
            IpHeader::V4(ip) => (ip.src.into(), ip.dst.into(), matches!(ip.protocol, UDP | ICMP)),
            IpHeader::V6(ip) => {
                let wanted = matches!(ip.next_header, UDP | ICMPV6 | ipv6::DESTINATION_OPTIONS);
                (ip.src.into(), ip.dst.into(), wanted)
            }
        };
        if !self.is_guest(src) {
            return Err(DropReason::SpoofedSource);
        }
        if dst.is_multicast() || !wanted {
            return Err(DropReason::Fragment);
        }
        let counters = &mut self.shared.counters;
        let Some(whole) = self.fragments.insert(counters, io.now, header, fragment, data)? else {
            return Ok(());
        };
        let result = self.whole(io, eth, &whole);
        self.fragments.give_back(whole);
        result
    }

    /// A packet that was put together.
    fn whole<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        eth: EthernetHeader,
        whole: &Reassembled,
    ) -> Result<(), DropReason> {
        let ipv6 = matches!(whole.header, IpHeader::V6(_));
        let packet = Packet::reassembled(eth, ipv6, whole.packet())?;
        if packet.protocol != UDP && packet.protocol != if ipv6 { ICMPV6 } else { ICMP } {
            return Err(DropReason::Fragment);
        }
        if self.pass_on(&packet) {
            return Ok(());
        }
        self.packet(io, &packet)
    }

    /// Drops incomplete datagrams at their time-out, with an ICMP error if the first fragment has arrived
    /// (RFC 792, RFC 4443 section 3.3).
    pub(in crate::stack) fn expire_fragments<P: Platform>(&mut self, io: &mut Io<'_, P>) {
        while let Some(given_up) = self.fragments.expire(&mut self.shared.counters, io.now) {
            if let Some(whole) = given_up {
                let cause = IcmpCause::ReassemblyTimeExceeded;
                icmp::send_error(&mut io.cx(&mut self.shared), cause, None, whole.packet());
                self.fragments.give_back(whole);
            }
        }
    }
}
