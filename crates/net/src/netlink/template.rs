//! Template: the host's interface with the default route, whose addresses and routes a guest is to have.
//!
//! For each family the interface is that of the default route with the lowest metric, or the only one with
//! any route, or one given by name. Copied are all its addresses but link-local ones, with their prefix
//! lengths, and its unicast routes of the main table: on-link ones and those by a router; of a multipath
//! route the next hop with the greatest weight, the first of several. A route that has more to it (an
//! encapsulation, another interface's next hop) is left out, because it would mean something else in the
//! guest; so is one that cannot be read.
//!
//! System calls: those of [`super::socket`].

use super::socket::serialized;
use super::{Netlink, address_of};
use netlink_packet_core::{NLM_F_DUMP, Parseable};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteNextHop, RouteType, RouteVia,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most routes that are copied: far more than hosts with one uplink have.
const ROUTES_MAX: usize = 1024;
/// Most addresses that are copied.
const ADDRESSES_MAX: usize = 64;

/// An address with the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// Length of the prefix in bits.
    pub prefix_len: u8,
}

/// A unicast route by one interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Address of the destination's network.
    pub destination: IpAddr,
    /// Length of its prefix in bits; 0 for the default route.
    pub prefix_len: u8,
    /// The router; `None` if the destination is on the link.
    pub via: Option<IpAddr>,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// Metric; `None` for the kernel's default.
    pub metric: Option<u32>,
}

impl Route {
    /// The default route by a router.
    pub fn default_via(router: IpAddr) -> Self {
        let destination: IpAddr = match router {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        Self { destination, prefix_len: 0, via: Some(router), source: None, metric: None }
    }

    /// Whether it is a default route.
    pub fn is_default(&self) -> bool {
        self.prefix_len == 0
    }
}

/// Configuration of the host's interface, of each family as far as the host has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Name of the interface: that of IPv4 if the families have different ones. Empty if there is none.
    pub name: String,
    /// Largest IP packet of the interface, in bytes.
    pub mtu: u32,
    /// Index of the interface of IPv6; of that of IPv4 without one, since link-local addresses are on every
    /// link.
    pub scope_id: u32,
    /// Addresses of both families, in the kernel's order.
    pub addresses: Vec<InterfaceAddress>,
    /// Routes of both families.
    pub routes: Vec<Route>,
}

impl Template {
    /// The addresses of a family.
    pub fn addresses_of(&self, ipv6: bool) -> impl Iterator<Item = InterfaceAddress> {
        self.addresses.iter().copied().filter(move |it| it.address.is_ipv6() == ipv6)
    }

    /// The routes of a family.
    pub fn routes_of(&self, ipv6: bool) -> impl Iterator<Item = Route> {
        self.routes.iter().copied().filter(move |route| route.destination.is_ipv6() == ipv6)
    }

    /// The router of a family's default route with the lowest metric.
    pub fn gateway(&self, ipv6: bool) -> Option<IpAddr> {
        let defaults = self.routes_of(ipv6).filter(Route::is_default);
        defaults.min_by_key(|route| route.metric.unwrap_or(0)).and_then(|route| route.via)
    }
}

/// Index of the loopback interface, the first of every network namespace. Where systemd has set `::1` on it,
/// the main table has a route to it.
const LOOPBACK: u32 = 1;

/// A route and the interface it leaves by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    interface: u32,
    route: Route,
}

impl Netlink {
    /// The template of this socket's namespace, or the configuration of the `interface` with this name.
    ///
    /// # Errors
    /// [`Errno::NODEV`] for an interface that does not exist; errors of the kernel.
    pub fn template(&self, interface: Option<&str>) -> Result<Template, Errno> {
        let given = interface.map(|name| self.index_of(name)).transpose()?;
        let routes = self.all_routes()?;
        let chosen = [false, true].map(|ipv6| given.or_else(|| choose(&routes, ipv6)));
        let scope_id = chosen[1].or(chosen[0]).unwrap_or(0);
        let mut template = Template { scope_id, ..Template::default() };
        if let Some(index) = chosen[0].or(chosen[1]) {
            (template.name, template.mtu) = self.name_and_mtu(index)?;
        }
        let addresses = self.all_addresses()?;
        for (ipv6, index) in [(false, chosen[0]), (true, chosen[1])] {
            let Some(index) = index else { continue };
            let own = addresses.iter().filter(|(of, it)| *of == index && it.address.is_ipv6() == ipv6);
            template.addresses.extend(own.map(|(_, it)| *it).filter(|it| !is_bound_to_link(it.address)));
            let own = routes.iter().filter(|found| {
                found.interface == index
                    && found.route.destination.is_ipv6() == ipv6
                    && !is_bound_to_link(found.route.destination)
            });
            template.routes.extend(own.map(|found| found.route));
        }
        template.addresses.truncate(ADDRESSES_MAX);
        template.routes.truncate(ROUTES_MAX);
        Ok(template)
    }

    fn all_routes(&self) -> Result<Vec<Found>, Errno> {
        let request = |sequence| {
            let body = RouteNetlinkMessage::GetRoute(RouteMessage::default());
            serialized(body, NLM_F_DUMP, sequence)
        };
        self.socket.dump(request, usize::MAX, |kind, payload| {
            (kind == libc::RTM_NEWROUTE).then(|| RouteMessage::parse(payload).ok())?.and_then(|it| read(&it))
        })
    }

    fn all_addresses(&self) -> Result<Vec<(u32, InterfaceAddress)>, Errno> {
        let request = |sequence| {
            let body = RouteNetlinkMessage::GetAddress(AddressMessage::default());
            serialized(body, NLM_F_DUMP, sequence)
        };
        self.socket.dump(request, usize::MAX, |kind, payload| {
            (kind == libc::RTM_NEWADDR).then(|| address_of(payload))?
        })
    }

    fn name_and_mtu(&self, index: u32) -> Result<(String, u32), Errno> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.socket.query(RouteNetlinkMessage::GetLink(message), |_, payload| {
            let link = LinkMessage::parse(payload).map_err(|_| Errno::BADMSG)?;
            let (mut name, mut mtu) = (String::new(), 0);
            for attribute in link.attributes {
                match attribute {
                    LinkAttribute::IfName(it) => name = it,
                    LinkAttribute::Mtu(it) => mtu = it,
                    _ => {}
                }
            }
            Ok((name, mtu))
        })
    }
}

/// The interface of a family: that of the best default route, or the only one that has routes; never the
/// loopback.
fn choose(routes: &[Found], ipv6: bool) -> Option<u32> {
    let of_family = || {
        routes.iter().filter(move |found| {
            let destination = found.route.destination;
            found.interface != LOOPBACK && destination.is_ipv6() == ipv6 && !is_bound_to_link(destination)
        })
    };
    let defaults = of_family().filter(|found| found.route.is_default());
    if let Some(best) = defaults.min_by_key(|found| found.route.metric.unwrap_or(0)) {
        return Some(best.interface);
    }
    let first = of_family().next()?.interface;
    of_family().all(|found| found.interface == first).then_some(first)
}

/// A unicast route of the main table, if the guest could have the same.
fn read(message: &RouteMessage) -> Option<Found> {
    let header = &message.header;
    let ipv6 = match header.address_family {
        netlink_packet_route::AddressFamily::Inet => false,
        netlink_packet_route::AddressFamily::Inet6 => true,
        _ => return None,
    };
    let cloned = header.flags.contains(netlink_packet_route::route::RouteFlags::Cloned);
    if header.table != RouteHeader::RT_TABLE_MAIN || header.kind != RouteType::Unicast || cloned {
        return None;
    }
    let destination: IpAddr = if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let prefix_len = header.destination_prefix_length;
    let mut route = Route { destination, prefix_len, via: None, source: None, metric: None };
    let mut interface = None;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(it) => route.destination = ip(it)?,
            RouteAttribute::PrefSource(it) => route.source = ip(it),
            RouteAttribute::Priority(it) => route.metric = Some(*it),
            RouteAttribute::Encap(_) | RouteAttribute::EncapType(_) => return None,
            RouteAttribute::MultiPath(hops) => {
                // max_by_key gives the last of equal weights.
                let best = hops.iter().rev().max_by_key(|hop: &&RouteNextHop| hop.hops)?;
                interface = Some(best.interface_index);
                hop(&best.attributes, &mut route);
            }
            RouteAttribute::Oif(it) => interface = Some(*it),
            _ => {}
        }
    }
    hop(&message.attributes, &mut route);
    Some(Found { interface: interface.filter(|&index| index != 0)?, route })
}

/// Takes the router of a route or of a next hop.
fn hop(attributes: &[RouteAttribute], route: &mut Route) {
    for attribute in attributes {
        match attribute {
            RouteAttribute::Gateway(it) => route.via = ip(it).or(route.via),
            RouteAttribute::Via(RouteVia::Inet(it)) => route.via = Some((*it).into()),
            RouteAttribute::Via(RouteVia::Inet6(it)) => route.via = Some((*it).into()),
            _ => {}
        }
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(it) => Some((*it).into()),
        RouteAddress::Inet6(it) => Some((*it).into()),
        _ => None,
    }
}

/// Whether an address, or what a route leads to, means something else on the guest's link: the loopback, and
/// link-local addresses. Those of IPv4 are configured on purpose, and may be all that there is.
fn is_bound_to_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast() || ip.is_loopback(),
    }
}

#[cfg(test)]
mod tests;
