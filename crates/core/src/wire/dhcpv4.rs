//! DHCP for IPv4 (RFC 2131, options of RFC 2132), as a server for one guest reads and writes it: requests are
//! only parsed, replies are only emitted. Messages are the payload of UDP between ports 68 and 67.

use super::client_fqdn::ClientFqdn;
use super::ethernet::MacAddr;
use super::{Writer, dns, ipv4_at, u16_at, u32_at};
use crate::cidr;
use crate::counters::DropReason;
use std::net::Ipv4Addr;

#[cfg(test)]
mod tests;

/// UDP port of servers.
pub const SERVER_PORT: u16 = 67;
/// UDP port of clients.
pub const CLIENT_PORT: u16 = 68;
/// A lease that never ends, in seconds.
pub const LEASE_INFINITE: u32 = u32::MAX;

/// Message type of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestType {
    /// DHCPDISCOVER: search for servers.
    Discover,
    /// DHCPREQUEST: request or extension of an address.
    Request,
    /// DHCPDECLINE: the address is in use by another host.
    Decline,
    /// DHCPRELEASE: the address is no longer needed.
    Release,
    /// DHCPINFORM: a request for configuration other than an address.
    Inform,
}

/// Message type of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyType {
    /// DHCPOFFER: the server's offer of an address.
    Offer = 2,
    /// DHCPACK: the address is the client's.
    Ack = 5,
    /// DHCPNAK: the client has to start anew.
    Nak = 6,
}

/// A client's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Message type.
    pub kind: RequestType,
    /// Transaction, chosen by the client.
    pub xid: u32,
    /// The client cannot yet receive unicast.
    pub broadcast: bool,
    /// The address that the client has, or unspecified.
    pub ciaddr: Ipv4Addr,
    /// The relay agent that passed this on, or unspecified.
    pub giaddr: Ipv4Addr,
    /// MAC address of the client.
    pub chaddr: MacAddr,
    /// The address that the client wants (option 50).
    pub requested_ip: Option<Ipv4Addr>,
    /// The server that the client has chosen (option 54).
    pub server_id: Option<Ipv4Addr>,
    /// The client's own identifier (option 61), to be returned (RFC 6842).
    pub client_id: Option<&'a [u8]>,
    /// Client FQDN (option 81), if the client sent one.
    pub fqdn: Option<ClientFqdn>,
    /// The list of parameters (option 55) names that option.
    pub lists_fqdn: bool,
    /// The client takes an address at once, without choosing among servers (option 80).
    pub rapid_commit: bool,
    /// The longest IP packet that the client takes, in bytes (option 57); at least the 576 every client must
    /// take.
    pub size_max: u16,
}

/// Network parameters for a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network<'a> {
    /// Length of the network prefix in bits, at most 32.
    pub prefix_len: u8,
    /// Default router.
    pub router: Ipv4Addr,
    /// DNS server, if one is offered.
    pub dns: Option<Ipv4Addr>,
    /// MTU of the link in bytes.
    pub mtu: u16,
    /// Host name of the client, of at most 255 bytes; left out if the message would be too long for the
    /// client.
    pub host_name: Option<&'a str>,
    /// Domain name of the client, likewise; for a client that sent one or asks for it.
    pub fqdn: Option<&'a str>,
    /// DNS search names (RFC 3397); invalid ones and those beyond [`dns::SEARCH_LEN_MAX`] are left out, and
    /// all of them if the message would be too long for the client.
    pub search: &'a [String],
}

/// A server's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply<'a> {
    /// Message type.
    pub kind: ReplyType,
    /// The address for the client, or unspecified.
    pub yiaddr: Ipv4Addr,
    /// The server.
    pub server_id: Ipv4Addr,
    /// Lease time of the address, in seconds.
    pub lease_s: Option<u32>,
    /// The network; none in a refusal.
    pub network: Option<Network<'a>>,
}

const FIXED_LEN: usize = 236;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const BOOT_REQUEST: u8 = 1;
const BOOT_REPLY: u8 = 2;
const ETHERNET: [u8; 2] = [1, 6];
const BROADCAST: u16 = 0x8000;

const PAD: u8 = 0;
const SUBNET_MASK: u8 = 1;
const ROUTER: u8 = 3;
const DNS_SERVER: u8 = 6;
const HOST_NAME: u8 = 12;
const INTERFACE_MTU: u8 = 26;
const REQUESTED_IP: u8 = 50;
const LEASE_TIME: u8 = 51;
const MESSAGE_TYPE: u8 = 53;
const SERVER_ID: u8 = 54;
const PARAMETER_LIST: u8 = 55;
const SIZE_MAX: u8 = 57;
const CLIENT_ID: u8 = 61;
const RAPID_COMMIT: u8 = 80;
const CLIENT_FQDN: u8 = 81;
const SEARCH: u8 = 119;
const END: u8 = 255;

/// Bytes of the headers of IP and UDP.
const IP_AND_UDP: usize = 20 + 8;

/// Size that every client accepts, in bytes with IP and UDP headers (RFC 2131 section 2).
const SIZE_MIN: u16 = 576;

impl<'a> Request<'a> {
    /// The message. Of an option given twice the last counts; options in the fields for file and server
    /// names are not looked for.
    ///
    /// # Errors
    /// [`DropReason::MalformedDhcpv4`], also for plain BOOTP, replies, and links other than Ethernet.
    pub fn parse(message: &'a [u8]) -> Result<Self, DropReason> {
        Self::try_parse(message).ok_or(DropReason::MalformedDhcpv4)
    }

    fn try_parse(message: &'a [u8]) -> Option<Self> {
        let (fixed, rest) = message.split_at_checked(FIXED_LEN)?;
        let mut rest = rest.strip_prefix(&COOKIE)?;
        if fixed[0] != BOOT_REQUEST || fixed[1..3] != ETHERNET {
            return None;
        }
        let mut kind = None;
        let mut request = Self {
            kind: RequestType::Discover,
            xid: u32_at(fixed, 4)?,
            broadcast: u16_at(fixed, 10)? & BROADCAST != 0,
            ciaddr: ipv4_at(fixed, 12)?,
            giaddr: ipv4_at(fixed, 24)?,
            chaddr: MacAddr(*fixed[28..].first_chunk()?),
            requested_ip: None,
            server_id: None,
            client_id: None,
            fqdn: None,
            lists_fqdn: false,
            rapid_commit: false,
            size_max: SIZE_MIN,
        };
        // Some clients leave out the end option, so that the end of the message does as well.
        while let [code, after @ ..] = rest {
            if *code == PAD {
                rest = after;
                continue;
            }
            if *code == END {
                break;
            }
            let (&len, after) = after.split_first()?;
            let (value, after) = after.split_at_checked(usize::from(len))?;
            rest = after;
            match *code {
                MESSAGE_TYPE => kind = Some(request_type(value)?),
                REQUESTED_IP => request.requested_ip = Some(exact_ipv4(value)?),
                SERVER_ID => request.server_id = Some(exact_ipv4(value)?),
                CLIENT_ID => request.client_id = Some(value),
                CLIENT_FQDN => request.fqdn = ClientFqdn::from_v4(value),
                PARAMETER_LIST => request.lists_fqdn |= value.contains(&CLIENT_FQDN),
                RAPID_COMMIT => request.rapid_commit = true,
                SIZE_MAX => request.size_max = u16_at(value, 0)?.max(SIZE_MIN),
                _ => {}
            }
        }
        Some(Self { kind: kind?, ..request })
    }
}

fn request_type(value: &[u8]) -> Option<RequestType> {
    Some(match value {
        [1] => RequestType::Discover,
        [3] => RequestType::Request,
        [4] => RequestType::Decline,
        [7] => RequestType::Release,
        [8] => RequestType::Inform,
        _ => return None,
    })
}

fn exact_ipv4(value: &[u8]) -> Option<Ipv4Addr> {
    if value.len() == 4 { ipv4_at(value, 0) } else { None }
}

impl Reply<'_> {
    /// Most bytes of a reply: a packet of the least MTU of IPv6, which every link here carries.
    pub const LEN_MAX: usize = 1280 - IP_AND_UDP;

    /// Most bytes without names: fixed part, cookie, every other option at its longest, end.
    const NAMELESS_LEN_MAX: usize = FIXED_LEN + 4 + 3 + 6 + 6 + 6 + 6 + 6 + 4 + 2 + 257 + 1;

    /// Least bytes of a reply, because BOOTP messages had this length and some relays and clients insist
    /// (RFC 1542 section 2.1).
    const LEN_MIN: usize = 300;

    /// Writes the reply to `request` to the start of `out` and returns its length in bytes.
    ///
    /// # Panics
    /// If `out` is shorter than that; [`Reply::LEN_MAX`] always suffices.
    pub fn emit(&self, request: &Request<'_>, out: &mut [u8]) -> usize {
        let mut out = Writer::new(out);
        out.bytes(&[BOOT_REPLY, ETHERNET[0], ETHERNET[1], 0]);
        out.u32(request.xid);
        out.u16(0);
        out.u16(if request.broadcast { BROADCAST } else { 0 });
        // RFC 2131 table 3: an offer and a refusal name no address that the client has.
        let ciaddr = if self.kind == ReplyType::Ack { request.ciaddr } else { Ipv4Addr::UNSPECIFIED };
        for address in [ciaddr, self.yiaddr, Ipv4Addr::UNSPECIFIED, request.giaddr] {
            out.bytes(&address.octets());
        }
        out.bytes(&request.chaddr.0);
        out.zeros(FIXED_LEN - out.len());
        out.bytes(&COOKIE);

        out.bytes(&[MESSAGE_TYPE, 1, self.kind as u8]);
        let address = |out: &mut Writer<'_>, code, address: Ipv4Addr| {
            out.bytes(&[code, 4]);
            out.bytes(&address.octets());
        };
        address(&mut out, SERVER_ID, self.server_id);
        if self.kind == ReplyType::Ack && request.kind == RequestType::Discover {
            out.bytes(&[RAPID_COMMIT, 0]);
        }
        if let Some(lease_s) = self.lease_s {
            out.bytes(&[LEASE_TIME, 4]);
            out.u32(lease_s);
        }
        // An option holds at most 255 bytes, and so did the one this came from.
        if let Some(id) = request.client_id.filter(|id| id.len() <= 255) {
            out.bytes(&[CLIENT_ID, id.len() as u8]);
            out.bytes(id);
        }
        if let Some(network) = &self.network {
            address(&mut out, SUBNET_MASK, cidr::mask_v4(network.prefix_len).into());
            address(&mut out, ROUTER, network.router);
            if let Some(dns) = network.dns {
                address(&mut out, DNS_SERVER, dns);
            }
            out.bytes(&[INTERFACE_MTU, 2]);
            out.u16(network.mtu);
            network.names(request, &mut out);
        }
        out.u8(END);
        out.zeros(Self::LEN_MIN.saturating_sub(out.len()));
        out.len()
    }
}

const _: () = assert!(Reply::NAMELESS_LEN_MAX <= Reply::LEN_MAX);

impl Network<'_> {
    /// Writes the names, each if the message stays as short as the client needs it.
    fn names(&self, request: &Request<'_>, out: &mut Writer<'_>) {
        let room = (usize::from(request.size_max) - IP_AND_UDP).min(Reply::LEN_MAX) - 1;
        let mut option = |code, value: &[u8]| {
            if !value.is_empty() && value.len() <= 255 && out.len() + 2 + value.len() <= room {
                out.bytes(&[code, value.len() as u8]);
                out.bytes(value);
            }
        };
        option(HOST_NAME, self.host_name.unwrap_or_default().as_bytes());
        let asked = request.fqdn.or(request.lists_fqdn.then_some(ClientFqdn::LISTED));
        if let Some((asked, name)) = asked.zip(self.fqdn) {
            // The two codes are obsolete, 255 from a server (RFC 4702 section 2.2).
            let mut value = [255; 3 + dns::NAME_LEN_MAX];
            value[0] = asked.reply_v4();
            if let Some(mut len) = dns::encode_name(name, &mut value[3..]) {
                if !asked.is_encoded {
                    len = name.len();
                    value[3..3 + len].copy_from_slice(name.as_bytes());
                }
                option(CLIENT_FQDN, &value[..3 + len]);
            }
        }
        let mut names = [0; dns::SEARCH_LEN_MAX];
        let len = dns::encode_search(self.search, &mut names);
        option(SEARCH, &names[..len]);
    }
}
