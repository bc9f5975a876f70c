//! Neighbour discovery (RFC 4861) with the options a router on one link offers: prefix and MTU, and DNS
//! servers and search names (RFC 8106).
//!
//! A message is the whole of an ICMPv6 message, type first. The checksum belongs to [`super::icmpv6`]; that
//! the hop limit was 255 is for the caller to check. Router advertisements are only sent: no other router may
//! speak on the link, so one from the guest is an unknown message.

use super::ethernet::MacAddr;
use super::{Writer, dns, icmpv6, ipv6_at};
use crate::cidr;
use crate::counters::DropReason;
use std::net::Ipv6Addr;

#[cfg(test)]
mod tests;

/// ICMPv6 type of a router solicitation.
pub const ROUTER_SOLICITATION: u8 = 133;
/// ICMPv6 type of a router advertisement.
pub const ROUTER_ADVERTISEMENT: u8 = 134;
/// ICMPv6 type of a neighbour solicitation.
pub const NEIGHBOR_SOLICITATION: u8 = 135;
/// ICMPv6 type of a neighbour advertisement.
pub const NEIGHBOR_ADVERTISEMENT: u8 = 136;
/// ICMPv6 type of a redirect.
pub const REDIRECT: u8 = 137;

/// All nodes on the link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// All routers on the link.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

const SOURCE_LLADDR: u8 = 1;
const TARGET_LLADDR: u8 = 2;
const PREFIX_INFORMATION: u8 = 3;
const MTU: u8 = 5;
const RDNSS: u8 = 25;
const DNSSL: u8 = 31;

/// The group to which solicitations for `address` are sent (RFC 4291 section 2.7.1).
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., six, seven] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (six & 0xff), seven)
}

/// A neighbour advertisement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeighborAdvertisement {
    /// The sender is a router.
    pub router: bool,
    /// This answers a solicitation.
    pub solicited: bool,
    /// Override flag: the entry replaces an existing one.
    pub override_entry: bool,
    /// The advertised address.
    pub target: Ipv6Addr,
    /// MAC address of the target.
    pub target_lladdr: Option<MacAddr>,
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NdpMessage {
    /// Request for router advertisements.
    RouterSolicitation {
        /// MAC address of the sender.
        source_lladdr: Option<MacAddr>,
    },
    /// Request for the MAC address of the target.
    NeighborSolicitation {
        /// The address asked for.
        target: Ipv6Addr,
        /// MAC address of the sender; none in a probe for duplicates.
        source_lladdr: Option<MacAddr>,
    },
    /// The sender has the target address.
    NeighborAdvertisement(NeighborAdvertisement),
}

impl NdpMessage {
    /// Most bytes of a message that [`NdpMessage::emit`] writes.
    pub const LEN_MAX: usize = 24 + 8;

    /// The message, checked as RFC 4861 sections 6.1.1, 7.1.1 and 7.1.2 require, except for fields of the
    /// IPv6 header. Unknown options are skipped.
    ///
    /// # Errors
    /// [`DropReason::MalformedNdp`], or [`DropReason::UnknownIcmp`] for advertisements of routers, redirects,
    /// and all other types.
    pub fn parse(message: &[u8]) -> Result<Self, DropReason> {
        const BAD: DropReason = DropReason::MalformedNdp;
        let &[kind, code, ..] = message else { return Err(BAD) };
        let target_at = |at| ipv6_at(message, at).filter(|target| !target.is_multicast()).ok_or(BAD);
        let parsed = match kind {
            ROUTER_SOLICITATION => Self::RouterSolicitation {
                source_lladdr: lladdr(message.get(8..).ok_or(BAD)?, SOURCE_LLADDR)?,
            },
            NEIGHBOR_SOLICITATION => Self::NeighborSolicitation {
                target: target_at(8)?,
                source_lladdr: lladdr(&message[24..], SOURCE_LLADDR)?,
            },
            NEIGHBOR_ADVERTISEMENT => Self::NeighborAdvertisement(NeighborAdvertisement {
                target: target_at(8)?,
                router: message[4] & 0x80 != 0,
                solicited: message[4] & 0x40 != 0,
                override_entry: message[4] & 0x20 != 0,
                target_lladdr: lladdr(&message[24..], TARGET_LLADDR)?,
            }),
            _ => return Err(DropReason::UnknownIcmp),
        };
        if code == 0 { Ok(parsed) } else { Err(BAD) }
    }

    /// Writes the message to the start of `out`, its checksum computed; returns its length in bytes.
    ///
    /// # Panics
    /// If `out` is shorter than that; [`NdpMessage::LEN_MAX`] always suffices.
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr, out: &mut [u8]) -> usize {
        let mut out = Writer::new(out);
        match self {
            Self::RouterSolicitation { source_lladdr } => {
                out.bytes(&[ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0]);
                put_lladdr(&mut out, SOURCE_LLADDR, *source_lladdr);
            }
            Self::NeighborSolicitation { target, source_lladdr } => {
                out.bytes(&[NEIGHBOR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0]);
                out.bytes(&target.octets());
                put_lladdr(&mut out, SOURCE_LLADDR, *source_lladdr);
            }
            Self::NeighborAdvertisement(a) => {
                let flags =
                    u8::from(a.router) << 7 | u8::from(a.solicited) << 6 | u8::from(a.override_entry) << 5;
                out.bytes(&[NEIGHBOR_ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0]);
                out.bytes(&a.target.octets());
                put_lladdr(&mut out, TARGET_LLADDR, a.target_lladdr);
            }
        }
        icmpv6::fill_checksum(src, dst, out.written());
        out.len()
    }
}

/// The MAC address in the first option of type `wanted`. All options are walked, because one without length
/// invalidates the message (RFC 4861 section 4.6).
fn lladdr(mut rest: &[u8], wanted: u8) -> Result<Option<MacAddr>, DropReason> {
    let mut found = None;
    while let [kind, units, ..] = *rest {
        // Length in units of 8 bytes, these two included.
        let (option, after) =
            rest.split_at_checked(usize::from(units) * 8).ok_or(DropReason::MalformedNdp)?;
        rest = after;
        match option {
            [] => return Err(DropReason::MalformedNdp),
            [_, _, mac @ ..] if kind == wanted && found.is_none() => {
                found = mac.first_chunk().map(|mac| MacAddr(*mac)).filter(|_| mac.len() == 6);
            }
            _ => {}
        }
    }
    if rest.is_empty() { Ok(found) } else { Err(DropReason::MalformedNdp) }
}

fn put_lladdr(out: &mut Writer<'_>, kind: u8, lladdr: Option<MacAddr>) {
    if let Some(mac) = lladdr {
        out.bytes(&[kind, 1]);
        out.bytes(&mac.0);
    }
}

/// A prefix that a router advertises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixInformation {
    /// The prefix; bits beyond its length are sent as 0.
    pub prefix: Ipv6Addr,
    /// Its length in bits, at most 128.
    pub prefix_len: u8,
    /// L: addresses in it are on the link.
    pub on_link: bool,
    /// A: guests may make themselves an address in it (RFC 4862).
    pub autonomous: bool,
    /// Valid and preferred lifetime of addresses in it, in seconds; `u32::MAX` means for ever.
    pub lifetime_s: u32,
}

/// A router advertisement, to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouterAdvertisement<'a> {
    /// Hop limit that guests are to use; 0 means that the router has no opinion.
    pub hop_limit: u8,
    /// M: addresses are available by DHCPv6.
    pub managed: bool,
    /// O: other configuration is available by DHCPv6.
    pub other: bool,
    /// Lifetime as a default router, and of its DNS servers and names, in seconds.
    pub lifetime_s: u16,
    /// MAC address of the router.
    pub source_lladdr: MacAddr,
    /// MTU of the link in bytes.
    pub mtu: u32,
    /// The prefix; none of link-local addresses (RFC 4861, 4.6.2).
    pub prefix: Option<PrefixInformation>,
    /// DNS server, if one is offered.
    pub dns: Option<Ipv6Addr>,
    /// DNS search names; invalid ones and those beyond [`dns::SEARCH_LEN_MAX`] are left out.
    pub search: &'a [String],
    /// Search names that hold no more, likewise: they get a lifetime of 0 (RFC 8106, 5.2).
    pub withdrawn: &'a [String],
}

impl RouterAdvertisement<'_> {
    /// Most bytes of an advertisement: fixed part, MAC address, MTU, prefix, server, and twice padded names.
    pub const LEN_MAX: usize = 16 + 8 + 8 + 32 + 24 + 2 * (8 + dns::SEARCH_LEN_MAX.next_multiple_of(8));

    /// Writes the message to the start of `out`, its checksum computed; returns its length in bytes.
    ///
    /// # Panics
    /// If `out` is shorter than that; [`RouterAdvertisement::LEN_MAX`] always suffices.
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr, out: &mut [u8]) -> usize {
        let mut out = Writer::new(out);
        let flags = u8::from(self.managed) << 7 | u8::from(self.other) << 6;
        out.bytes(&[ROUTER_ADVERTISEMENT, 0, 0, 0, self.hop_limit, flags]);
        out.u16(self.lifetime_s);
        // Reachable and retransmission time: no opinion.
        out.zeros(8);
        put_lladdr(&mut out, SOURCE_LLADDR, Some(self.source_lladdr));
        out.bytes(&[MTU, 1, 0, 0]);
        out.u32(self.mtu);

        if let Some(prefix) = &self.prefix {
            let flags = u8::from(prefix.on_link) << 7 | u8::from(prefix.autonomous) << 6;
            out.bytes(&[PREFIX_INFORMATION, 4, prefix.prefix_len, flags]);
            out.u32(prefix.lifetime_s);
            out.u32(prefix.lifetime_s);
            out.zeros(4);
            let mask = cidr::mask_v6(prefix.prefix_len);
            out.bytes(&(prefix.prefix.to_bits() & mask).to_be_bytes());
        }

        if let Some(server) = self.dns {
            out.bytes(&[RDNSS, 3, 0, 0]);
            out.u32(u32::from(self.lifetime_s));
            out.bytes(&server.octets());
        }

        put_search(&mut out, self.search, self.lifetime_s);
        put_search(&mut out, self.withdrawn, 0);
        icmpv6::fill_checksum(src, dst, out.written());
        out.len()
    }
}

/// Writes an option with search names, if there are any.
fn put_search(out: &mut Writer<'_>, search: &[String], lifetime_s: u16) {
    let mut names = [0; dns::SEARCH_LEN_MAX];
    let len = dns::encode_search(search, &mut names);
    if len > 0 {
        let padded = len.next_multiple_of(8);
        out.bytes(&[DNSSL, 1 + (padded / 8) as u8, 0, 0]);
        out.u32(u32::from(lifetime_s));
        out.bytes(&names[..len]);
        out.zeros(padded - len);
    }
}
