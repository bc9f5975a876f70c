//! DHCP for IPv6 (RFC 8415), as a server for one guest reads and writes it: clients' messages are only
//! parsed, servers' are only emitted. Messages are the payload of UDP between ports 546 and 547.

use super::client_fqdn::ClientFqdn;
use super::ethernet::MacAddr;
use super::{Writer, dns, ipv6_at, u16_at, u32_at};
use crate::counters::DropReason;
use std::net::Ipv6Addr;

#[cfg(test)]
mod tests;

/// UDP port of servers.
pub const SERVER_PORT: u16 = 547;
/// UDP port of clients.
pub const CLIENT_PORT: u16 = 546;
/// All relay agents and servers on the link.
pub const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// A lifetime that never ends, in seconds.
pub const LIFETIME_INFINITE: u32 = u32::MAX;
/// Longest identifier of a client or server (RFC 8415 section 11.1).
pub const DUID_LEN_MAX: usize = 130;
/// Identity associations answered in one message; more make it malformed. With [`ADDRESSES_MAX`], this keeps
/// the longest answer within the least MTU of IPv6, but for a long domain name.
pub const ASSOCIATIONS_MAX: usize = 4;
/// Most addresses of one identity association that are read; further ones are ignored.
pub const ADDRESSES_MAX: usize = 4;

/// Message type of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientMessageType {
    /// Search for servers.
    Solicit = 1,
    /// Request of addresses from the chosen server.
    Request = 3,
    /// Question whether the client's addresses belong on this link.
    Confirm = 4,
    /// Extension of lifetimes by the same server.
    Renew = 5,
    /// Extension of lifetimes by any server.
    Rebind = 6,
    /// Return of addresses.
    Release = 8,
    /// Report of addresses that another host uses.
    Decline = 9,
    /// A request for configuration other than addresses.
    InformationRequest = 11,
}

/// Message type of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerMessageType {
    /// Offer of a server.
    Advertise = 2,
    /// Reply to a message other than a search.
    Reply = 7,
}

/// Outcome of a request or of a part of it (RFC 8415 section 21.13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusCode {
    /// The request succeeded.
    Success = 0,
    /// No addresses available.
    NoAddrsAvail = 2,
    /// The addresses do not belong on this link.
    NotOnLink = 4,
    /// No prefixes available.
    NoPrefixAvail = 6,
}

const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const IA_NA: u16 = 3;
const IA_ADDRESS: u16 = 5;
const OPTION_REQUEST: u16 = 6;
const STATUS_CODE: u16 = 13;
const RAPID_COMMIT: u16 = 14;
const DNS_SERVERS: u16 = 23;
const DOMAIN_LIST: u16 = 24;
const IA_PD: u16 = 25;
const CLIENT_FQDN: u16 = 39;

/// Kind of an identity association.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssociationType {
    /// Addresses (IA_NA).
    Addresses,
    /// Prefixes to delegate (IA_PD).
    Prefixes,
}

/// An identity association of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Association<'a> {
    /// Kind of association.
    pub kind: AssociationType,
    /// Its identifier, chosen by the client.
    pub iaid: u32,
    /// The options in it, well-formed.
    options: &'a [u8],
}

impl<'a> Association<'a> {
    /// The addresses in it, at most [`ADDRESSES_MAX`].
    pub fn addresses(&self) -> impl Iterator<Item = Ipv6Addr> + use<'a> {
        Options(self.options)
            .map_while(Result::ok)
            .filter(|(code, _)| *code == IA_ADDRESS)
            .filter_map(|(_, value)| ipv6_at(value, 0))
            .take(ADDRESSES_MAX)
    }
}

/// A client's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientMessage<'a> {
    /// Message type.
    pub kind: ClientMessageType,
    /// Transaction, chosen by the client; 24 bits.
    pub transaction: [u8; 3],
    /// The client's identifier.
    pub client_id: Option<&'a [u8]>,
    /// Identifier of the server that the client means.
    pub server_id: Option<&'a [u8]>,
    /// The client takes a reply at once, without choosing among servers.
    pub rapid_commit: bool,
    /// Client FQDN (RFC 4704), if the client sent one.
    pub fqdn: Option<ClientFqdn>,
    /// The list of requested options names that one.
    pub lists_fqdn: bool,
    /// All options, well-formed.
    options: &'a [u8],
}

impl<'a> ClientMessage<'a> {
    /// The message.
    ///
    /// # Errors
    /// [`DropReason::MalformedDhcpv6`], also for servers' and relay agents' messages, identifiers that are
    /// empty or longer than [`DUID_LEN_MAX`], and more than [`ASSOCIATIONS_MAX`] identity associations.
    pub fn parse(message: &'a [u8]) -> Result<Self, DropReason> {
        Self::try_parse(message).ok_or(DropReason::MalformedDhcpv6)
    }

    fn try_parse(message: &'a [u8]) -> Option<Self> {
        let (&[kind, t0, t1, t2], options) = message.split_first_chunk()?;
        let kind = match kind {
            1 => ClientMessageType::Solicit,
            3 => ClientMessageType::Request,
            4 => ClientMessageType::Confirm,
            5 => ClientMessageType::Renew,
            6 => ClientMessageType::Rebind,
            8 => ClientMessageType::Release,
            9 => ClientMessageType::Decline,
            11 => ClientMessageType::InformationRequest,
            _ => return None,
        };
        let mut parsed = Self {
            kind,
            transaction: [t0, t1, t2],
            client_id: None,
            server_id: None,
            rapid_commit: false,
            fqdn: None,
            lists_fqdn: false,
            options,
        };
        let mut associations = 0;
        for option in Options(options) {
            let (code, value) = option.ok()?;
            match code {
                CLIENT_ID => parsed.client_id = Some(duid(value)?),
                SERVER_ID => parsed.server_id = Some(duid(value)?),
                RAPID_COMMIT => parsed.rapid_commit = true,
                CLIENT_FQDN => parsed.fqdn = ClientFqdn::from_v6(value),
                OPTION_REQUEST => {
                    parsed.lists_fqdn |= value.chunks_exact(2).any(|code| code == CLIENT_FQDN.to_be_bytes());
                }
                IA_NA | IA_PD => {
                    associations += 1;
                    association(code, value)?;
                }
                _ => {}
            }
        }
        (associations <= ASSOCIATIONS_MAX).then_some(parsed)
    }

    /// The identity associations, at most [`ASSOCIATIONS_MAX`]. Temporary ones (IA_TA) are left out, as
    /// servers do not offer them.
    pub fn associations(&self) -> impl Iterator<Item = Association<'a>> + use<'a> {
        Options(self.options).map_while(Result::ok).filter_map(|(code, value)| association(code, value))
    }
}

fn duid(value: &[u8]) -> Option<&[u8]> {
    (1..=DUID_LEN_MAX).contains(&value.len()).then_some(value)
}

/// The association in an option, if it is one and well-formed.
fn association(code: u16, value: &[u8]) -> Option<Association<'_>> {
    let kind = match code {
        IA_NA => AssociationType::Addresses,
        IA_PD => AssociationType::Prefixes,
        _ => return None,
    };
    // Identifier, and two times that mean nothing from a client.
    let options = value.get(12..)?;
    for option in Options(options) {
        match option {
            Ok((IA_ADDRESS, address)) if address.len() < 24 => return None,
            Ok(_) => {}
            Err(Truncated) => return None,
        }
    }
    Some(Association { kind, iaid: u32_at(value, 0)?, options })
}

/// An option longer than the rest of the message.
struct Truncated;

/// A walk over options: code and value. Ends after the first error.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Result<(u16, &'a [u8]), Truncated>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let rest = core::mem::take(&mut self.0);
        let option = u16_at(rest, 0).zip(u16_at(rest, 2)).and_then(|(code, len)| {
            let (value, after) = rest[4..].split_at_checked(usize::from(len))?;
            self.0 = after;
            Some((code, value))
        });
        Some(option.ok_or(Truncated))
    }
}

/// A server's message under construction, in a buffer that the caller has made big enough: every method
/// panics if it was not. [`ServerMessage::LEN_MAX`] suffices for one of each option and the associations of
/// one client message, each with [`ADDRESSES_MAX`] withdrawn addresses.
pub struct ServerMessage<'a>(Writer<'a>);

/// Length in bytes of an option with an address and lifetimes.
const IA_ADDRESS_LEN: usize = 4 + 24;

impl<'a> ServerMessage<'a> {
    /// Most bytes of a message: a packet of the least MTU of IPv6.
    pub const LEN_MAX: usize = 1280 - 40 - 8;

    /// Most bytes without a domain name.
    const NAMELESS_LEN_MAX: usize = 4
        + (4 + 10)
        + (4 + DUID_LEN_MAX)
        + 4
        + 6
        + (4 + 16)
        + (4 + dns::SEARCH_LEN_MAX)
        + ASSOCIATIONS_MAX * (4 + 12 + 6 + (1 + ADDRESSES_MAX) * IA_ADDRESS_LEN);

    /// Starts the answer of the server with MAC address `server` to a client's message.
    pub fn new(kind: ServerMessageType, to: &ClientMessage<'_>, server: MacAddr, out: &'a mut [u8]) -> Self {
        let mut out = Writer::new(out);
        out.u8(kind as u8);
        out.bytes(&to.transaction);
        let mut message = Self(out);
        message.option(SERVER_ID, &server_duid(server));
        if let Some(id) = to.client_id {
            message.option(CLIENT_ID, id);
        }
        message
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.0.u16(code);
        self.0.u16(value.len() as u16);
        self.0.bytes(value);
    }

    /// The answer comes at once, because the client allowed it.
    pub fn rapid_commit(&mut self) {
        self.option(RAPID_COMMIT, &[]);
    }

    /// Status code of the whole message.
    pub fn status(&mut self, status: StatusCode) {
        self.option(STATUS_CODE, &(status as u16).to_be_bytes());
    }

    /// DNS server, if one is offered, and search names; invalid names and those beyond
    /// [`dns::SEARCH_LEN_MAX`] are left out.
    pub fn dns(&mut self, server: Option<Ipv6Addr>, search: &[String]) {
        if let Some(server) = server {
            self.option(DNS_SERVERS, &server.octets());
        }
        let mut names = [0; dns::SEARCH_LEN_MAX];
        let len = dns::encode_search(search, &mut names);
        if len > 0 {
            self.option(DOMAIN_LIST, &names[..len]);
        }
    }

    /// Domain name of the client, without updates of DNS by this server; `client` is its request. A
    /// name that is invalid, or makes the message longer than [`ServerMessage::LEN_MAX`], is left out.
    pub fn fqdn(&mut self, client: ClientFqdn, name: &str) {
        let mut encoded = [0; dns::NAME_LEN_MAX];
        let Some(len) = dns::encode_name(name, &mut encoded) else { return };
        if self.0.len() + 4 + 1 + len <= Self::LEN_MAX {
            self.0.u16(CLIENT_FQDN);
            self.0.u16(1 + len as u16);
            self.0.u8(client.reply_v6());
            self.0.bytes(&encoded[..len]);
        }
    }

    fn association_header(&mut self, kind: AssociationType, iaid: u32, content_len: usize) {
        self.0.u16(match kind {
            AssociationType::Addresses => IA_NA,
            AssociationType::Prefixes => IA_PD,
        });
        self.0.u16((12 + content_len) as u16);
        self.0.u32(iaid);
        // T1 and T2 of 0: times of renewal and rebinding are the client's choice.
        self.0.zeros(8);
    }

    /// An association that gets nothing, and why.
    pub fn refusal(&mut self, to: &Association<'_>, status: StatusCode) {
        self.association_header(to.kind, to.iaid, 6);
        self.status(status);
    }

    /// An association that gets `address` for ever, and loses all others that it asked for (RFC 8415
    /// section 18.3.4: a lifetime of 0).
    pub fn addresses(&mut self, to: &Association<'_>, address: Ipv6Addr) {
        let withdrawn = || to.addresses().filter(|a| *a != address);
        self.association_header(
            AssociationType::Addresses,
            to.iaid,
            (1 + withdrawn().count()) * IA_ADDRESS_LEN,
        );
        self.address(address, LIFETIME_INFINITE);
        for address in withdrawn() {
            self.address(address, 0);
        }
    }

    fn address(&mut self, address: Ipv6Addr, lifetime_s: u32) {
        self.0.u16(IA_ADDRESS);
        self.0.u16(24);
        self.0.bytes(&address.octets());
        self.0.u32(lifetime_s);
        self.0.u32(lifetime_s);
    }

    /// Length of the message in bytes.
    pub fn finish(self) -> usize {
        self.0.len()
    }
}

const _: () = assert!(ServerMessage::NAMELESS_LEN_MAX <= ServerMessage::LEN_MAX);

/// The identifier of the server with this MAC address: DUID-LL (RFC 8415 section 11.4).
pub const fn server_duid(server: MacAddr) -> [u8; 10] {
    let mac = server.0;
    [0, 3, 0, 1, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]]
}
