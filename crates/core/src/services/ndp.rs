//! Neighbour discovery: resolves brodo's IPv6 addresses to its MAC address, in a copy of the host's network
//! those of all other hosts too (RFC 4389), and advertises brodo as the router.
//!
//! The prefix is offered for autoconfiguration if it is 64 bits long, as RFC 4862 needs it; otherwise the
//! advertisement sends guests to DHCPv6 for their address. Other configuration is offered in any case.
//! Lifetimes are the longest possible (RFC 8319 for the router's), so that a guest that was stopped for hours
//! still has its network; an advertisement every [`ADVERTISE_EVERY`] renews them.

use super::{IPV6_PAYLOAD, finish_ndp};
use crate::config::{Config, Ipv6Net};
use crate::counters::DropReason;
use crate::egress::headers::HOP_LIMIT;
use crate::flow::Addresses;
use crate::time::Duration;
use crate::wire::ethernet::MacAddr;
use crate::wire::icmpv6;
use crate::wire::ipv6::Ipv6Header;
use crate::wire::ndp::{
    ALL_NODES, NdpMessage, NeighborAdvertisement, PrefixInformation, RouterAdvertisement, solicited_node,
};
use std::net::Ipv6Addr;

#[cfg(test)]
mod tests;

/// Longest answer in bytes: a router advertisement.
pub const FRAME_LEN_MAX: usize = IPV6_PAYLOAD + RouterAdvertisement::LEN_MAX;

/// Interval of unsolicited advertisements ([`advertise`]): the longest of RFC 4861 section 6.2.1.
pub const ADVERTISE_EVERY: Duration = Duration::from_secs(30 * 60);

/// Lifetime as default router, in seconds (RFC 8319 section 4).
const ROUTER_LIFETIME_S: u16 = u16::MAX;
/// Valid and preferred lifetime of the prefix: infinity.
const PREFIX_LIFETIME_S: u32 = u32::MAX;

/// The address for which a message that was answered by [`answer`] looks for duplicates: its sender's soon.
pub(crate) fn claimed(ip: &Ipv6Header, message: &[u8]) -> Option<Ipv6Addr> {
    match NdpMessage::parse(message) {
        Ok(NdpMessage::NeighborSolicitation { target, .. }) if ip.src.is_unspecified() => Some(target),
        _ => None,
    }
}

/// Answers the neighbour discovery message `message`, from the MAC address `eth_src`, in a packet with header
/// `ip`. A router advertisement withdraws the search names `withdrawn`.
///
/// # Errors
/// [`DropReason::MalformedNdp`], [`DropReason::MalformedIcmpv6`], [`DropReason::IcmpChecksum`] or
/// [`DropReason::UnknownIcmp`].
pub fn answer(
    config: &Config,
    eth_src: MacAddr,
    ip: &Ipv6Header,
    message: &[u8],
    withdrawn: &[String],
    out: &mut [u8],
) -> Result<Option<usize>, DropReason> {
    icmpv6::verify_checksum(ip.src, ip.dst, message)?;
    let parsed = NdpMessage::parse(message)?;
    if ip.hop_limit != 255 || ip.src.is_multicast() {
        return Err(DropReason::MalformedNdp);
    }
    let Some(net) = &config.v6 else { return Ok(None) };
    let mac_or_source = |lladdr: Option<MacAddr>| match lladdr {
        // Without a source address there is nothing that the sender's MAC address could belong to.
        Some(_) if ip.src.is_unspecified() => Err(DropReason::MalformedNdp),
        Some(mac) if mac.is_multicast() => Err(DropReason::MalformedNdp),
        lladdr => Ok(lladdr.unwrap_or(eth_src)),
    };
    match parsed {
        NdpMessage::RouterSolicitation { source_lladdr } => {
            let mac = mac_or_source(source_lladdr)?;
            let to = if ip.src.is_unspecified() { Node::ALL } else { Node { mac, ip: ip.src } };
            Ok(Some(emit_advertisement(config, net, to, withdrawn, out)))
        }
        NdpMessage::NeighborSolicitation { target, source_lladdr } => {
            let mac = mac_or_source(source_lladdr)?;
            // RFC 4861 section 7.1.1: a probe for duplicates goes to the solicited-node group.
            if ip.src.is_unspecified() && ip.dst != solicited_node(target) {
                return Err(DropReason::MalformedNdp);
            }
            // A probe for duplicates is for the guest's own address, known here or not.
            let probe = ip.src.is_unspecified() || ip.src == target;
            if !(config.is_ours(target.into()) || (!probe && config.is_neighbour(target.into()))) {
                return Ok(None);
            }
            Ok(Some(emit_neighbor(config, target, Node { mac, ip: ip.src }, out)))
        }
        NdpMessage::NeighborAdvertisement(_) => Ok(None),
    }
}

/// Destination of an answer on the link.
#[derive(Debug, Clone, Copy)]
struct Node {
    mac: MacAddr,
    ip: Ipv6Addr,
}

impl Node {
    /// The group of all nodes.
    const ALL: Self = Self { mac: MacAddr::from_ipv6_multicast(ALL_NODES), ip: ALL_NODES };
}

/// Writes a router advertisement to all nodes into `out`, which withdraws the search names `withdrawn`;
/// returns the frame's length in bytes. None if the link has no IPv6.
pub fn advertise(config: &Config, withdrawn: &[String], out: &mut [u8]) -> Option<usize> {
    config.v6.as_ref().map(|net| emit_advertisement(config, net, Node::ALL, withdrawn, out))
}

/// Writes a solicitation of the guest's MAC address into `out`; returns the frame's length in bytes. None if
/// the link has no IPv6.
pub fn solicit(config: &Config, out: &mut [u8]) -> Option<usize> {
    let net = config.v6.as_ref()?;
    let group = solicited_node(net.guest);
    let message = NdpMessage::NeighborSolicitation { target: net.guest, source_lladdr: Some(config.mac) };
    let len = message.emit(net.gateway_link_local, group, &mut out[IPV6_PAYLOAD..]);
    let addresses = Addresses::new(net.gateway_link_local, group);
    Some(finish_ndp(config, MacAddr::from_ipv6_multicast(group), addresses, len, out))
}

fn emit_advertisement(
    config: &Config,
    net: &Ipv6Net,
    to: Node,
    withdrawn: &[String],
    out: &mut [u8],
) -> usize {
    let autonomous = net.prefix_len == 64;
    let advertisement = RouterAdvertisement {
        hop_limit: HOP_LIMIT,
        managed: !autonomous,
        other: true,
        lifetime_s: ROUTER_LIFETIME_S,
        source_lladdr: config.mac,
        mtu: u32::from(config.mtu),
        prefix: (!net.guest.is_unicast_link_local()).then_some(PrefixInformation {
            prefix: net.guest,
            prefix_len: net.prefix_len,
            on_link: true,
            autonomous,
            lifetime_s: PREFIX_LIFETIME_S,
        }),
        dns: config.dns_offered_v6(),
        search: &config.search,
        withdrawn,
    };
    let len = advertisement.emit(net.gateway_link_local, to.ip, &mut out[IPV6_PAYLOAD..]);
    finish_ndp(config, to.mac, Addresses::new(net.gateway_link_local, to.ip), len, out)
}

/// Writes the advertisement of `target` as brodo's address, to the MAC and IP address of the solicitation.
fn emit_neighbor(config: &Config, target: Ipv6Addr, to: Node, out: &mut [u8]) -> usize {
    // RFC 4861 section 7.2.4: a probe for duplicates is answered to all nodes.
    let solicited = !to.ip.is_unspecified();
    let to = if solicited { to } else { Node::ALL };
    let advertisement = NdpMessage::NeighborAdvertisement(NeighborAdvertisement {
        // A neighbour of the copied network is no router.
        router: config.is_ours(target.into()),
        solicited,
        override_entry: true,
        target,
        target_lladdr: Some(config.mac),
    });
    let len = advertisement.emit(target, to.ip, &mut out[IPV6_PAYLOAD..]);
    finish_ndp(config, to.mac, Addresses::new(target, to.ip), len, out)
}
