//! rtnetlink: the few requests of interface set-up, each sent alone and acknowledged by the kernel, and the
//! lists of addresses and default routes.
//!
//! A [`Netlink`] acts in the network namespace its socket was made in. Messages are typed by
//! `netlink-packet-route`, sockets and their answers are [`socket`]'s; this file adds the choice of
//! attributes. It is used a dozen times at start and when the host's network changes, so requests are neither
//! pipelined nor batched.

pub(crate) mod default_routes;
pub mod nftables;
pub(crate) mod queue_state;
pub mod side;
pub(crate) mod socket;
pub mod template;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NlasIterator};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute, LinkFlags, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
    RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use queue_state::QueueState;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use socket::{NetlinkSocket, serialized};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use template::{InterfaceAddress, Route};

/// Bytes of `struct ifaddrmsg`, which attributes follow.
const ADDRESS_HEADER_LEN: usize = 8;

/// A route socket in the namespace it was opened in.
#[derive(Debug)]
pub struct Netlink {
    socket: NetlinkSocket,
}

/// Properties that [`Netlink::set_link`] changes; `None` keeps a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkSettings {
    /// MAC address.
    pub mac: Option<[u8; 6]>,
    /// Largest IP packet, in bytes.
    pub mtu: Option<u32>,
    /// Length of the transmit queue, in frames.
    pub tx_queue_len: Option<u32>,
    /// Whether the kernel makes an IPv6 link-local address when the link comes up.
    pub automatic_link_local: Option<bool>,
}

impl Netlink {
    /// Opens a socket in the caller's network namespace.
    pub fn open() -> Result<Self, Errno> {
        Ok(Self { socket: NetlinkSocket::route()? })
    }

    /// Takes a socket of [`Netlink::open`].
    pub fn adopt(socket: OwnedFd) -> Self {
        Self { socket: NetlinkSocket::adopt(socket) }
    }

    /// Frames that the interface has dropped since it was made: those that found its transmit queue full.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn dropped(&self, index: u32) -> Result<u64, Errno> {
        QueueState::of(&self.socket, index).map(|state| state.dropped)
    }

    /// The index of the interface called `name`; `ENODEV` if there is none.
    pub fn index_of(&self, name: &str) -> Result<u32, Errno> {
        self.socket.index_of(name)
    }

    /// Changes properties of a link that is down.
    pub fn set_link(&self, index: u32, settings: &LinkSettings) -> Result<(), Errno> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let attributes = &mut message.attributes;
        attributes.extend(settings.mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
        attributes.extend(settings.mtu.map(LinkAttribute::Mtu));
        attributes.extend(settings.tx_queue_len.map(LinkAttribute::TxQueueLen));
        attributes.extend(settings.automatic_link_local.map(|automatic| {
            let mode = if automatic { In6AddrGenMode::Eui64 } else { In6AddrGenMode::None };
            LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(mode)])])
        }));
        self.request(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Brings a link up.
    pub fn set_up(&self, index: u32) -> Result<(), Errno> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.request(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Adds an address that is usable at once, without duplicate address detection (RFC 4862): the link has
    /// no other hosts.
    pub fn add_address(&self, index: u32, address: IpAddr, prefix_len: u8) -> Result<(), Errno> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix_len;
        message.header.index = index;
        message.attributes.push(AddressAttribute::Address(address));
        match address {
            IpAddr::V4(v4) => {
                message.attributes.push(AddressAttribute::Local(address));
                if prefix_len < 31 {
                    message.attributes.push(AddressAttribute::Broadcast(broadcast(v4, prefix_len)));
                }
            }
            IpAddr::V6(_) => message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad)),
        }
        self.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds a route by this interface; `EEXIST` if there is one already. `on_link` states that the router
    /// can be reached on the link, wherever its address leads otherwise.
    pub fn add_route(&self, index: u32, route: &Route, on_link: bool) -> Result<(), Errno> {
        let mut message = RouteMessage::default();
        let header = &mut message.header;
        header.address_family = family(route.destination);
        header.table = RouteHeader::RT_TABLE_MAIN;
        header.protocol = RouteProtocol::Boot;
        header.kind = RouteType::Unicast;
        header.destination_prefix_length = route.prefix_len;
        header.scope = if route.via.is_some() { RouteScope::Universe } else { RouteScope::Link };
        if on_link {
            header.flags = RouteFlags::Onlink;
        }
        let attributes = &mut message.attributes;
        attributes.push(RouteAttribute::Oif(index));
        if !route.is_default() {
            attributes.push(RouteAttribute::Destination(route.destination.into()));
        }
        attributes.extend(route.via.map(|via| match (via, route.destination) {
            (IpAddr::V6(via), IpAddr::V4(_)) => RouteAttribute::Via(RouteVia::Inet6(via)),
            _ => RouteAttribute::Gateway(RouteAddress::from(via)),
        }));
        attributes.extend(route.source.map(|source| RouteAttribute::PrefSource(source.into())));
        attributes.extend(route.metric.map(RouteAttribute::Priority));
        self.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Every address of the namespace, of both families, in no order.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, Errno> {
        let request = |sequence| {
            let body = RouteNetlinkMessage::GetAddress(AddressMessage::default());
            serialized(body, NLM_F_DUMP, sequence)
        };
        self.socket.dump(request, usize::MAX, |kind, payload| {
            (kind == libc::RTM_NEWADDR).then(|| own_address(payload))?
        })
    }

    /// Sends one request and waits for its acknowledgement.
    fn request(&self, body: RouteNetlinkMessage, flags: u16) -> Result<(), Errno> {
        self.socket.request(body, NLM_F_ACK | flags)
    }
}

/// The interface and the address of an address message, with the length of its prefix.
fn address_of(payload: &[u8]) -> Option<(u32, InterfaceAddress)> {
    // `struct ifaddrmsg`: family, length of the prefix, flags, scope, index of the interface.
    let header = payload.first_chunk::<ADDRESS_HEADER_LEN>()?;
    let index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    Some((index, InterfaceAddress { address: own_address(payload)?, prefix_len: header[1] }))
}

/// The address of an address message: on a point-to-point link the local end's.
fn own_address(payload: &[u8]) -> Option<IpAddr> {
    let attributes = payload.get(ADDRESS_HEADER_LEN..)?;
    let (mut address, mut local) = (None, None);
    for attribute in NlasIterator::new(attributes) {
        let Ok(attribute) = attribute else { break };
        let value = attribute.value();
        let read = || match value.len() {
            4 => value.first_chunk::<4>().map(|b| Ipv4Addr::from(*b).into()),
            16 => value.first_chunk::<16>().map(|b| Ipv6Addr::from(*b).into()),
            _ => None,
        };
        match attribute.kind() {
            libc::IFA_ADDRESS => address = read(),
            libc::IFA_LOCAL => local = read(),
            _ => {}
        }
    }
    local.or(address)
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn broadcast(address: Ipv4Addr, prefix_len: u8) -> Ipv4Addr {
    let host_bits = u32::MAX.checked_shr(u32::from(prefix_len)).unwrap_or(0);
    Ipv4Addr::from_bits(address.to_bits() | host_bits)
}

impl From<Netlink> for OwnedFd {
    fn from(netlink: Netlink) -> Self {
        netlink.socket.into_descriptor()
    }
}

#[cfg(test)]
mod tests;
