//! rtnetlink requests for a way beside the guest's interface: a veth pair between two namespaces, frames that
//! arrive on one interface and count as received on another, and a namespace whose sockets have every
//! address.
//!
//! The last takes three things: a rule that sends what comes in by one interface to a table of its own, a
//! route in that table which makes every destination local, and, for the way back, a host route to the guest
//! with a permanent neighbour entry, because no ARP or neighbour discovery is answered there.
//!
//! The redirection is a filter of the traffic control (`clsact` with `u32`, which older kernels and small
//! configurations have, and not `matchall`).

use super::{Netlink, family};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::tc::{
    TcAction, TcActionAttribute, TcActionGeneric, TcActionMirror, TcActionMirrorOption, TcActionOption,
    TcActionType, TcAttribute, TcFilterU32, TcFilterU32Option, TcHandle, TcHeader, TcMessage, TcMirror,
    TcMirrorActionType, TcOption, TcU32Key, TcU32Selector, TcU32SelectorFlags,
};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Flags of a request for something that does not exist yet.
const NEW: u16 = NLM_F_CREATE | NLM_F_EXCL;
/// Ethernet protocol of a filter for all of them, `ETH_P_ALL`.
const ALL_PROTOCOLS: u16 = 0x0003;
/// Preference of the filter among those of its interface; there is no other.
const FILTER_PREFERENCE: u32 = 1;

/// An interface by its name, and the namespace it is made in.
#[derive(Debug, Clone, Copy)]
pub struct Far<'a> {
    /// Name of the interface.
    pub name: &'a str,
    /// Its network namespace.
    pub namespace: BorrowedFd<'a>,
}

impl Netlink {
    /// Makes a veth pair: `near` in the namespace of this socket and the other end in its own, both down.
    ///
    /// # Errors
    /// The kernel's refusal; `EEXIST` if there is an interface of one of the names.
    pub fn add_veth(&self, near: &str, far: Far<'_>, mtu: u32) -> Result<(), Errno> {
        let mut peer = LinkMessage::default();
        peer.attributes = vec![
            LinkAttribute::IfName(far.name.to_owned()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::NetNsFd(far.namespace.as_raw_fd()),
        ];
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(near.to_owned()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
            ]),
        ];
        self.request(RouteNetlinkMessage::NewLink(message), NEW)
    }

    /// Removes an interface; the other end of a veth pair goes with it.
    ///
    /// # Errors
    /// The kernel's refusal; `ENODEV` if there is none of this name.
    pub fn remove_link(&self, name: &str) -> Result<(), Errno> {
        let mut message = LinkMessage::default();
        message.header.index = self.index_of(name)?;
        self.request(RouteNetlinkMessage::DelLink(message), 0)
    }

    /// Makes every frame that arrives on the interface `from` one that the interface `to` has received.
    ///
    /// # Errors
    /// The kernel's refusal; `ENOENT` if it lacks the filter or its action.
    pub fn redirect_ingress(&self, from: u32, to: u32) -> Result<(), Errno> {
        let header = |parent| TcHeader { index: from.cast_signed(), parent, ..TcHeader::default() };
        let mut qdisc = TcMessage::default();
        qdisc.header =
            TcHeader { handle: TcHandle { major: u16::MAX, minor: 0 }, ..header(TcHandle::CLSACT) };
        qdisc.attributes = vec![TcAttribute::Kind("clsact".to_owned())];
        self.request(RouteNetlinkMessage::NewQueueDiscipline(qdisc), NEW)?;

        let mut filter = TcMessage::default();
        filter.header = TcHeader {
            info: FILTER_PREFERENCE << 16 | u32::from(ALL_PROTOCOLS.to_be()),
            ..header(TcHandle { minor: TcHandle::MIN_INGRESS, ..TcHandle::CLSACT })
        };
        filter.attributes = vec![
            TcAttribute::Kind(TcFilterU32::KIND.to_owned()),
            TcAttribute::Options(vec![
                TcOption::U32(TcFilterU32Option::Selector(everything())),
                TcOption::U32(TcFilterU32Option::Action(vec![received_by(to)])),
            ]),
        ];
        self.request(RouteNetlinkMessage::NewTrafficFilter(filter), NEW)
    }

    /// Makes every packet of a family that comes in by the interface called `name` one for this namespace,
    /// whatever its destination, by way of a routing table of that number.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn take_all_from(&self, name: &str, ipv6: bool, table: u8) -> Result<(), Errno> {
        let any: IpAddr = if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let mut rule = RuleMessage::default();
        rule.header.family = family(any);
        rule.header.table = table;
        rule.header.action = RuleAction::ToTable;
        rule.attributes = vec![RuleAttribute::Iifname(name.to_owned())];
        self.request(RouteNetlinkMessage::NewRule(rule), NEW)?;

        let mut route = RouteMessage::default();
        route.header.address_family = family(any);
        route.header.table = table;
        route.header.protocol = RouteProtocol::Boot;
        route.header.kind = RouteType::Local;
        route.header.scope = if ipv6 { RouteScope::Universe } else { RouteScope::Host };
        route.attributes = vec![RouteAttribute::Oif(self.index_of("lo")?)];
        self.request(RouteNetlinkMessage::NewRoute(route), NEW)
    }

    /// Adds a route to one address by an interface, with its MAC address.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn add_neighbour(&self, index: u32, address: IpAddr, mac: [u8; 6]) -> Result<(), Errno> {
        let mut route = RouteMessage::default();
        route.header.address_family = family(address);
        route.header.destination_prefix_length = if address.is_ipv6() { 128 } else { 32 };
        route.header.table = RouteHeader::RT_TABLE_MAIN;
        route.header.protocol = RouteProtocol::Boot;
        route.header.kind = RouteType::Unicast;
        route.header.scope = if address.is_ipv6() { RouteScope::Universe } else { RouteScope::Link };
        route.attributes =
            vec![RouteAttribute::Destination(RouteAddress::from(address)), RouteAttribute::Oif(index)];
        self.request(RouteNetlinkMessage::NewRoute(route), NEW)?;

        let mut neighbour = NeighbourMessage::default();
        neighbour.header.family = family(address);
        neighbour.header.ifindex = index;
        neighbour.header.state = NeighbourState::Permanent;
        neighbour.attributes = vec![
            NeighbourAttribute::Destination(address.into()),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        self.request(RouteNetlinkMessage::NewNeighbour(neighbour), NEW)
    }
}

/// The selector of a filter that matches every packet.
fn everything() -> TcU32Selector {
    let mut selector = TcU32Selector::default();
    selector.flags = TcU32SelectorFlags::Terminal;
    selector.nkeys = 1;
    selector.keys = vec![TcU32Key::default()];
    selector
}

/// The action that passes a packet to an interface as if it had been received there.
fn received_by(index: u32) -> TcAction {
    let mut generic = TcActionGeneric::default();
    generic.action = TcActionType::Stolen;
    let mut mirror = TcMirror::default();
    mirror.generic = generic;
    mirror.eaction = TcMirrorActionType::IngressRedir;
    mirror.ifindex = index;
    let mut action = TcAction::default();
    action.tab = 1;
    action.attributes = vec![
        TcActionAttribute::Kind(TcActionMirror::KIND.to_owned()),
        TcActionAttribute::Options(vec![TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror))]),
    ];
    action
}
