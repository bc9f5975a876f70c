//! Fragments of the guest: a reassembled packet is handled like any other.
//!
//! UDP and echo only: TCP has segments, and DHCP and neighbour discovery are never fragmented (RFC 6980). On
//! its way out the host's kernel fragments it anew, to the MTU of the path it takes.

use super::{
    DropReason, EthernetHeader, ICMP, ICMPV6, IcmpCause, Io, IpAddr, Packet, Platform, Stack, UDP, icmp,
};
use crate::fragments::{IpHeader, Reassembled};
use crate::wire::fragment::Fragment;

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
        let (src, dst, protocol): (IpAddr, IpAddr, u8) = match header {
            IpHeader::V4(ip) => (ip.src.into(), ip.dst.into(), ip.protocol),
            IpHeader::V6(ip) => (ip.src.into(), ip.dst.into(), ip.next_header),
        };
        let echo = if src.is_ipv4() { ICMP } else { ICMPV6 };
        if !self.is_guest(src) {
            return Err(DropReason::SpoofedSource);
        }
        if dst.is_multicast() || (protocol != UDP && protocol != echo) {
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
