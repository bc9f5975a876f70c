//! DHCPv4 server with one address: the guest's. It is stateless, because every client on this link is the
//! guest, and the answer is always the same; the lease never ends.

use super::{IPV4_PAYLOAD, finish};
use crate::config::{Config, Ipv4Net};
use crate::counters::DropReason;
use crate::egress::headers::{Ip, udp_in_place};
use crate::flow::Endpoint;
use crate::flow::Ends;
use crate::wire::UDP;
use crate::wire::dhcpv4::{
    CLIENT_PORT, LEASE_INFINITE, Network, Reply, ReplyType, Request, RequestType, SERVER_PORT,
};
use crate::wire::ethernet::{EthernetHeader, MacAddr};
use crate::wire::udp::UdpHeader;
use std::net::Ipv4Addr;

#[cfg(test)]
mod tests;

/// Longest answer in bytes.
pub const FRAME_LEN_MAX: usize = IPV4_PAYLOAD + UdpHeader::LEN + Reply::LEN_MAX;

/// Answers the payload of a datagram from `src` to `dst`, port [`SERVER_PORT`], in a frame with header `eth`.
/// Packets for another host's port are not answered.
///
/// # Errors
/// [`DropReason::MalformedDhcpv4`] for a malformed message.
pub fn answer(
    config: &Config,
    eth: &EthernetHeader,
    src: Ipv4Addr,
    dst: Ipv4Addr,
    payload: &[u8],
    out: &mut [u8],
) -> Result<Option<usize>, DropReason> {
    let request = Request::parse(payload)?;
    let Some(net) = &config.v4 else { return Ok(None) };
    // A relay agent would be a second router on a link that has one guest.
    if !request.giaddr.is_unspecified() || !(dst.is_broadcast() || config.is_ours(dst.into())) {
        return Ok(None);
    }
    let Some(kind) = decide(net, &request)? else { return Ok(None) };

    let grants = kind != ReplyType::Nak;
    let lease = grants && request.kind != RequestType::Inform;
    let reply = Reply {
        kind,
        yiaddr: if lease { net.guest } else { Ipv4Addr::UNSPECIFIED },
        server_id: net.gateway,
        lease_s: lease.then_some(LEASE_INFINITE),
        network: grants.then_some(Network {
            prefix_len: net.prefix_len,
            router: net.gateway,
            dns: config.dns_offered_v4(),
            mtu: config.mtu,
            host_name: config.host_name_offered.as_deref(),
            fqdn: config.fqdn_offered.as_deref(),
            search: &config.search,
        }),
    };
    let to = destination(&request, &reply, src);
    let mac = if to.is_broadcast() { MacAddr::BROADCAST } else { eth.src };
    let len = UdpHeader::LEN + reply.emit(&request, &mut out[IPV4_PAYLOAD + UdpHeader::LEN..]);
    let datagram = &mut out[IPV4_PAYLOAD..IPV4_PAYLOAD + len];
    let ends = Ends {
        src: Endpoint::new(net.gateway.into(), SERVER_PORT),
        dst: Endpoint::new(to.into(), CLIENT_PORT),
    };
    udp_in_place(ends, datagram);
    Ok(Some(finish(config, mac, &Ip::new(ends.addresses(), UDP), len, out)))
}

/// Type of the reply, if one is due (RFC 2131 sections 4.3.1 to 4.3.5).
fn decide(net: &Ipv4Net, request: &Request<'_>) -> Result<Option<ReplyType>, DropReason> {
    let meant = |id: Ipv4Addr| id == net.gateway;
    Ok(match request.kind {
        // RFC 4039: no other server can be meant to answer on this link.
        RequestType::Discover if request.rapid_commit => Some(ReplyType::Ack),
        RequestType::Discover => Some(ReplyType::Offer),
        // Request to another server: there is none, but the client believes so.
        RequestType::Request if request.server_id.is_some_and(|id| !meant(id)) => None,
        RequestType::Request => {
            // Selecting and init-reboot name the address in an option, renewing and rebinding in the header.
            let wanted = match (request.requested_ip, request.ciaddr) {
                (Some(wanted), _) => wanted,
                (None, Ipv4Addr::UNSPECIFIED) => return Err(DropReason::MalformedDhcpv4),
                (None, ciaddr) => ciaddr,
            };
            Some(if wanted == net.guest { ReplyType::Ack } else { ReplyType::Nak })
        }
        RequestType::Inform => Some(ReplyType::Ack),
        // No other address to offer, nor a lease to free.
        RequestType::Decline | RequestType::Release => None,
    })
}

/// Destination of an answer (RFC 2131 section 4.1): the address that the client has; broadcast if it
/// requested that or is refused; else the address that it is about to have. `sender` is the request's source;
/// some clients leave their address out of a DHCPINFORM.
fn destination(request: &Request<'_>, reply: &Reply<'_>, sender: Ipv4Addr) -> Ipv4Addr {
    let usable = |a: &Ipv4Addr| !a.is_unspecified() && !a.is_multicast() && !a.is_broadcast();
    let has = Some(request.ciaddr).filter(usable);
    let known = match reply.kind {
        ReplyType::Nak => None,
        ReplyType::Ack if request.kind == RequestType::Inform => has.or(Some(sender).filter(usable)),
        ReplyType::Ack | ReplyType::Offer => has.or(Some(reply.yiaddr).filter(|_| !request.broadcast)),
    };
    known.unwrap_or(Ipv4Addr::BROADCAST)
}
