//! DHCPv6 server (RFC 8415) with one address, the guest's, for ever; and DNS on request. No state: every
//! client on this link is the guest. Temporary addresses are not offered, prefixes are refused.

use super::{IPV6_PAYLOAD, finish};
use crate::config::{Config, Ipv6Net};
use crate::counters::DropReason;
use crate::egress::headers::{Ip, udp_in_place};
use crate::flow::Endpoint;
use crate::flow::Ends;
use crate::wire::UDP;
use crate::wire::client_fqdn::ClientFqdn;
use crate::wire::dhcpv6::{
    AssociationType, CLIENT_PORT, ClientMessage, ClientMessageType, SERVER_PORT, ServerMessage,
    ServerMessageType, StatusCode, server_duid,
};
use crate::wire::ethernet::EthernetHeader;
use crate::wire::udp::UdpHeader;
use std::net::Ipv6Addr;

#[cfg(test)]
mod tests;

/// Longest answer in bytes.
pub const FRAME_LEN_MAX: usize = IPV6_PAYLOAD + UdpHeader::LEN + ServerMessage::LEN_MAX;

/// Answers the payload of a datagram from `src` to `dst`, port [`SERVER_PORT`], in a frame with header `eth`.
/// Clients have to send to the group [`crate::wire::dhcpv6::ALL_SERVERS`]; unicast messages to one of our
/// addresses are ignored (RFC 8415 section 16).
///
/// # Errors
/// [`DropReason::MalformedDhcpv6`], also for a message with identifiers that its type does not allow, or
/// without required ones.
pub fn answer(
    config: &Config,
    eth: &EthernetHeader,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    payload: &[u8],
    out: &mut [u8],
) -> Result<Option<usize>, DropReason> {
    let message = ClientMessage::parse(payload)?;
    check_identifiers(&message)?;
    let for_others = message.server_id.is_some_and(|id| id != server_duid(config.mac));
    let Some(net) = &config.v6 else { return Ok(None) };
    if for_others || !dst.is_multicast() || src.is_unspecified() || src.is_multicast() {
        return Ok(None);
    }
    let body = &mut out[IPV6_PAYLOAD + UdpHeader::LEN..];
    let Some(len) = reply(config, net, &message, body) else { return Ok(None) };
    let len = UdpHeader::LEN + len;
    let datagram = &mut out[IPV6_PAYLOAD..IPV6_PAYLOAD + len];
    let ends = Ends {
        src: Endpoint::new(net.gateway_link_local.into(), SERVER_PORT),
        dst: Endpoint::new(src.into(), CLIENT_PORT),
    };
    udp_in_place(ends, datagram);
    Ok(Some(finish(config, eth.src, &Ip::new(ends.addresses(), UDP), len, out)))
}

/// Checks the identifiers that a message must and must not have (RFC 8415 sections 16.2 to 16.12).
fn check_identifiers(message: &ClientMessage<'_>) -> Result<(), DropReason> {
    use ClientMessageType as Type;
    let (client, server) = (message.client_id.is_some(), message.server_id.is_some());
    let legal = match message.kind {
        Type::Solicit | Type::Confirm | Type::Rebind => client && !server,
        Type::Request | Type::Renew | Type::Release | Type::Decline => client && server,
        Type::InformationRequest => message.associations().next().is_none(),
    };
    if legal { Ok(()) } else { Err(DropReason::MalformedDhcpv6) }
}

/// Writes the answer to `message`, if one is due; returns its length in bytes.
fn reply(config: &Config, net: &Ipv6Net, message: &ClientMessage<'_>, out: &mut [u8]) -> Option<usize> {
    use ClientMessageType as Type;
    let rapid = message.kind == Type::Solicit && message.rapid_commit;
    let kind = match message.kind {
        Type::Solicit if !rapid => ServerMessageType::Advertise,
        _ => ServerMessageType::Reply,
    };
    // Checked before anything is written: a client without an address to confirm is owed no answer (section
    // 18.3.3).
    let mut claimed = message.associations().flat_map(|a| a.addresses()).peekable();
    if message.kind == Type::Confirm {
        claimed.peek()?;
    }
    let mut answer = ServerMessage::new(kind, message, config.mac, out);
    match message.kind {
        Type::Solicit | Type::Request | Type::Renew | Type::Rebind => {
            if rapid {
                answer.rapid_commit();
            }
            grant(net, message, &mut answer);
        }
        Type::Confirm => {
            let on_link = claimed.all(|address| in_prefix(net, address));
            answer.status(if on_link { StatusCode::Success } else { StatusCode::NotOnLink });
        }
        Type::Release | Type::Decline => answer.status(StatusCode::Success),
        Type::InformationRequest => {}
    }
    if !matches!(message.kind, Type::Confirm | Type::Release | Type::Decline) {
        answer.dns(config.dns_offered_v6(), &config.search);
        // RFC 4704 section 6 wants both the name and the request for it; clients that are to be given a name
        // have none to send, so one suffices.
        let asked = message.fqdn.or(message.lists_fqdn.then_some(ClientFqdn::LISTED));
        if let Some((client, name)) = asked.zip(config.fqdn_offered.as_deref()) {
            answer.fqdn(client, name);
        }
    }
    Some(answer.finish())
}

/// Answers each identity association: the first that asks for addresses gets the guest's, unless that is
/// link-local, which the guest makes itself.
fn grant(net: &Ipv6Net, message: &ClientMessage<'_>, answer: &mut ServerMessage<'_>) {
    let mut given = net.guest.is_unicast_link_local();
    for association in message.associations() {
        match association.kind {
            AssociationType::Addresses if !given => {
                given = true;
                answer.addresses(&association, net.guest);
            }
            AssociationType::Addresses => answer.refusal(&association, StatusCode::NoAddrsAvail),
            AssociationType::Prefixes => answer.refusal(&association, StatusCode::NoPrefixAvail),
        }
    }
}

fn in_prefix(net: &Ipv6Net, address: Ipv6Addr) -> bool {
    let differing = net.guest.to_bits() ^ address.to_bits();
    differing.leading_zeros() >= u32::from(net.prefix_len)
}
