//! Default routes of a namespace, of all tables, for comparison with those at another time.
//!
//! Kept are the attributes that decide where packets go. Lifetimes (RTA_CACHEINFO) are left out: router
//! advertisements and DHCP renew the same route again and again.
//!
//! System calls: those of [`super::socket`].

use super::Netlink;
use super::socket::serialized;
use netlink_packet_core::{NLM_F_DUMP, NlasIterator};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteMessage;
use rustix::io::Errno;

/// Bytes of `struct rtmsg`, which attributes follow.
const ROUTE_HEADER_LEN: usize = 12;
/// Most routes kept: hosts have one for each uplink and tunnel.
const ROUTES_MAX: usize = 1024;
/// Attributes kept: table, interface, routers, metric, sources, encapsulation and preference.
const KEPT: [u16; 10] = [
    libc::RTA_TABLE,
    libc::RTA_SRC,
    libc::RTA_OIF,
    libc::RTA_GATEWAY,
    libc::RTA_VIA,
    libc::RTA_MULTIPATH,
    libc::RTA_PRIORITY,
    libc::RTA_PREFSRC,
    libc::RTA_ENCAP,
    libc::RTA_PREF,
];

/// A unicast default route.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DefaultRoute {
    family: u8,
    /// Kinds and values of the attributes kept, by kind.
    attributes: Vec<(u16, Box<[u8]>)>,
}

impl DefaultRoute {
    /// That of a route message; `None` for another kind of route.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        // `struct rtmsg`: family, length of the destination's prefix, and further on the kind of route.
        let (header, attributes) = payload.split_at_checked(ROUTE_HEADER_LEN)?;
        if header[1] != 0 || header[7] != libc::RTN_UNICAST {
            return None;
        }
        let attributes = NlasIterator::new(attributes).map_while(Result::ok);
        let kept = attributes.filter(|it| KEPT.contains(&it.kind()));
        let mut attributes: Vec<_> = kept.map(|it| (it.kind(), it.value().into())).collect();
        attributes.sort_unstable();
        Some(Self { family: header[0], attributes })
    }
}

impl Netlink {
    /// The default routes of both families and all tables, sorted; the first [`ROUTES_MAX`] of them.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn default_routes(&self) -> Result<Vec<DefaultRoute>, Errno> {
        let request = |sequence| {
            let body = RouteNetlinkMessage::GetRoute(RouteMessage::default());
            serialized(body, NLM_F_DUMP, sequence)
        };
        let mut routes = self.socket.dump(request, ROUTES_MAX, |kind, payload| {
            (kind == libc::RTM_NEWROUTE).then(|| DefaultRoute::parse(payload))?
        })?;
        routes.sort_unstable();
        Ok(routes)
    }
}
