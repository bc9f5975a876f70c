//! Configuration of a stack: addresses, bounds, time-outs. Every field has its unit and default.

use crate::host::IcmpCause;
use crate::left_out::Parts;
use crate::policy::Rules;
pub use crate::promotion::{Bulk, BulkBounds};
use crate::time::Duration;
use crate::wire::ethernet::MacAddr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Most upstream resolvers in use; the C library uses three.
pub const RESOLVERS_MAX: usize = 8;

/// The guest's IPv4 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Net {
    /// The guest's own address; accepted as source, as are those of [`Config::more_addresses`].
    pub guest: Ipv4Addr,
    /// Length of the network prefix, 0 to 32.
    pub prefix_len: u8,
    /// The address brodo answers to as router, inside the prefix or not.
    pub gateway: Ipv4Addr,
    /// The address brodo answers to as DNS server, if it does.
    pub dns: Option<Ipv4Addr>,
    /// An address that stands for the host's 127.0.0.1; off by default.
    pub host_loopback: Option<Ipv4Addr>,
    /// Whether the DNS server has the DNS ports of that address too.
    pub dns_at_loopback: bool,
    /// An address that stands for the host's own one that is also the guest's; off by default.
    pub host_address: Option<Ipv4Addr>,
}

/// The guest's IPv6 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Net {
    /// The guest's own address. Accepted sources are the addresses of its prefix (a guest may configure
    /// itself from our router advertisement) and link-local ones.
    pub guest: Ipv6Addr,
    /// Length of the network prefix; router advertisements offer it for autoconfiguration if it is 64.
    pub prefix_len: u8,
    /// The address brodo answers to as router, inside the prefix or not; it may be link-local.
    pub gateway: Ipv6Addr,
    /// The link-local address brodo sends router advertisements from and also answers to.
    pub gateway_link_local: Ipv6Addr,
    /// The address brodo answers to as DNS server, if it does.
    pub dns: Option<Ipv6Addr>,
    /// An address that stands for the host's ::1; off by default.
    pub host_loopback: Option<Ipv6Addr>,
    /// Whether the DNS server has the DNS ports of that address too.
    pub dns_at_loopback: bool,
    /// An address that stands for the host's own one that is also the guest's; off by default.
    pub host_address: Option<Ipv6Addr>,
}

impl Ipv4Net {
    /// The addresses at which the DNS server answers.
    pub fn dns_addresses(&self) -> [Option<Ipv4Addr>; 2] {
        [self.dns, self.host_loopback.filter(|_| self.dns_at_loopback)]
    }
}

impl Ipv6Net {
    /// The addresses at which the DNS server answers.
    pub fn dns_addresses(&self) -> [Option<Ipv6Addr>; 3] {
        let [first, other] = self.loopback_addresses().map(|it| it.filter(|_| self.dns_at_loopback));
        [self.dns, first, other]
    }

    /// The addresses that stand for the host's ::1: if the router's does, so does its link-local one, which
    /// the guest's routes may name.
    pub fn loopback_addresses(&self) -> [Option<Ipv6Addr>; 2] {
        let is_router = self.host_loopback == Some(self.gateway) && self.gateway != self.gateway_link_local;
        [self.host_loopback, is_router.then_some(self.gateway_link_local)]
    }
}

/// The network of the host that a guest's is a copy of: the same addresses, prefixes and routers.
///
/// The hosts of that network are then neighbours of the guest. brodo answers ARP and neighbour discovery for
/// all of them, they see no other addresses than the host's, and the guest sees theirs. The router's address
/// leads to the router, not to brodo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostLink {
    /// Index of the host's interface, the scope of link-local addresses (RFC 4007); 0 if there is none.
    pub scope_id: u32,
}

/// Bounds of one direction's automatic buffer, in bytes. Equal bounds mean a fixed size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferBounds {
    /// The limit a connection starts with.
    pub initial: u32,
    /// The limit it may grow to.
    pub max: u32,
}

impl BufferBounds {
    /// Default bounds of the receive limit for connections that share `memory` bytes: 64 KiB to 4 MiB. With
    /// less memory than by default it starts lower, at a 4096th of `memory`, so that idle connections do not
    /// count.
    pub fn receiving(memory: usize) -> Self {
        Self { initial: crate::memory::chunk::first_window(memory), max: 4 << 20 }
    }
}

/// Rule that sizes the buffer limits between their bounds. The first is brodo's own; the others are the
/// field's, for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tuning {
    /// From measured bytes per round trip: see `tcp::autosize`.
    #[default]
    Rtt,
    /// FreeBSD's rule: this many bytes more per round trip in which the limit was nearly filled; never less.
    Step(u32),
    /// Consomme's rule: doubled whenever the buffer is full; never less.
    Pressure,
    /// No tuning: `initial` for the connection's life.
    Fixed,
}

/// Answer to a new flow to an address of brodo's own at which nothing is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClosedPorts {
    /// As a host with a closed port: a reset, or ICMP "port unreachable".
    #[default]
    Refuse,
    /// As a router without a route: ICMP "network unreachable". libslirp's answer.
    Unreachable,
}

impl ClosedPorts {
    /// Cause of the ICMP error; TCP is reset for "port unreachable".
    pub(crate) fn cause(self) -> IcmpCause {
        match self {
            Self::Refuse => IcmpCause::PortUnreachable,
            Self::Unreachable => IcmpCause::NetUnreachable,
        }
    }
}

/// Time-outs, by default those of RFC 5382, RFC 4787 and Linux as far as these state one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// UDP flow with traffic both ways (default 180 s).
    pub udp_stream: Duration,
    /// UDP flow without a reply (default 30 s; RFC 4787 REQ-5 wants at least 2 min for streams).
    pub udp_single: Duration,
    /// DNS query without an answer, until the guest gets SERVFAIL (default 5 s).
    pub dns: Duration,
    /// Echo flow (default 30 s).
    pub echo: Duration,
    /// TIME-WAIT: twice the lifetime of a segment on the guest link (default 2 s; the link is one hop).
    pub time_wait: Duration,
    /// Idle time before keep-alive probes to the guest (default 2 h, as Linux).
    pub keep_alive_idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            udp_stream: Duration::from_secs(180),
            udp_single: Duration::from_secs(30),
            dns: Duration::from_secs(5),
            echo: Duration::from_secs(30),
            time_wait: Duration::from_secs(2),
            keep_alive_idle: Duration::from_secs(7200),
        }
    }
}

/// Complete configuration of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// MAC address of brodo on the link.
    pub mac: MacAddr,
    /// MAC address of the guest, so that brodo can send first; learned from the guest's frames if absent.
    pub guest_mac: Option<MacAddr>,
    /// Largest IP packet on the link, in bytes, 88 to 65521; at least 1280 with IPv6 (RFC 8200, 5).
    pub mtu: u16,
    /// IPv4, unless switched off.
    pub v4: Option<Ipv4Net>,
    /// IPv6, unless switched off.
    pub v6: Option<Ipv6Net>,
    /// Further addresses of the guest, of both families.
    pub more_addresses: Vec<IpAddr>,
    /// Whether the guest chooses its addresses of these and of its IPv6 prefix by itself (default: no).
    /// Inbound flows then lead to the one that it has used last.
    pub self_configured: bool,
    /// The host's network, if the guest's is a copy of it.
    pub host_link: Option<HostLink>,
    /// DNS servers offered by DHCP and router advertisements, the first of each family; by default brodo's
    /// own.
    pub dns_offered: Option<Vec<IpAddr>>,
    /// DNS search names, offered by DHCP and router advertisements.
    pub search: Vec<String>,
    /// Host name offered by DHCP for IPv4 (option 12).
    pub host_name_offered: Option<String>,
    /// Fully qualified domain name offered by DHCP (client FQDN, RFC 4702 and RFC 4704).
    pub fqdn_offered: Option<String>,
    /// Upstream resolvers in order of preference; the first [`RESOLVERS_MAX`] are used.
    pub resolvers: Vec<SocketAddr>,
    /// Size of the cache of DNS answers, in bytes (default 512 KiB); 0 for none.
    pub dns_cache: usize,
    /// Host entries: names that brodo answers itself, each with one address; a name or an address may occur
    /// several times.
    pub host_names: Vec<(String, IpAddr)>,
    /// Receive limit (guest to host), default [`BufferBounds::receiving`]: 64 KiB to 4 MiB.
    pub tcp_rx: BufferBounds,
    /// Send limit (host to guest), default 64 KiB to 4 MiB.
    pub tcp_tx: BufferBounds,
    /// Rule by which both limits are sized.
    pub tcp_tuning: Tuning,
    /// Memory for the payload of all connections, in bytes (default 256 MiB).
    pub memory: usize,
    /// Most flows at a time (default 65,536; the driver lowers it to what RLIMIT_NOFILE allows).
    pub max_flows: usize,
    /// Most UDP flows begun by the guest at a time, at least one. Each holds a port of the host (default
    /// 65,536; the driver lowers it to a quarter of the host's ephemeral ports).
    pub max_udp_flows: usize,
    /// Whether the guest's UDP to multicast groups and broadcast addresses leaves the host (default: no).
    pub multicast: bool,
    /// Protocols and services that are left out; by default none.
    pub without: Parts,
    /// Answer to new flows to addresses of brodo's own where nothing is served (default: refused).
    pub closed_ports: ClosedPorts,
    /// Policy for new flows: destinations and numbers; see [`crate::policy`].
    pub rules: Rules,
    /// Time-outs of flows.
    pub timeouts: Timeouts,
    /// Carrier of bulk flows on the guest's side (default: the link).
    pub bulk: Bulk,
    /// Bounds of promotion ([`crate::promotion`]).
    pub bulk_bounds: BulkBounds,
}

impl Default for Config {
    /// The network of libslirp: 10.0.2.0/24 and fd00::/64 with the guest at .15, the gateway at .2 and DNS at
    /// .3.
    fn default() -> Self {
        Self {
            mac: MacAddr([0x52, 0x55, 10, 0, 2, 2]),
            guest_mac: None,
            mtu: 65520,
            v4: Some(Ipv4Net {
                guest: Ipv4Addr::new(10, 0, 2, 15),
                prefix_len: 24,
                gateway: Ipv4Addr::new(10, 0, 2, 2),
                dns: Some(Ipv4Addr::new(10, 0, 2, 3)),
                host_loopback: None,
                dns_at_loopback: false,
                host_address: None,
            }),
            v6: Some(Ipv6Net {
                guest: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x15),
                prefix_len: 64,
                gateway: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
                gateway_link_local: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2),
                dns: Some(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3)),
                host_loopback: None,
                dns_at_loopback: false,
                host_address: None,
            }),
            more_addresses: Vec::new(),
            self_configured: false,
            host_link: None,
            dns_offered: None,
            search: Vec::new(),
            host_name_offered: None,
            fqdn_offered: None,
            resolvers: Vec::new(),
            dns_cache: 512 << 10,
            host_names: Vec::new(),
            tcp_rx: BufferBounds::receiving(256 << 20),
            tcp_tx: BufferBounds { initial: 64 << 10, max: 4 << 20 },
            tcp_tuning: Tuning::default(),
            memory: 256 << 20,
            max_flows: 65_536,
            max_udp_flows: 65_536,
            without: Parts::default(),
            multicast: false,
            closed_ports: ClosedPorts::default(),
            rules: Rules::default(),
            timeouts: Timeouts::default(),
            bulk: Bulk::default(),
            bulk_bounds: BulkBounds::default(),
        }
    }
}

impl Config {
    /// Whether `address` is one of brodo's own on the link.
    pub fn is_ours(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(a) => self.v4.is_some_and(|n| a == n.gateway) || self.is_service(address),
            IpAddr::V6(a) => {
                let is_gateway = self.v6.is_some_and(|n| a == n.gateway || a == n.gateway_link_local);
                is_gateway || self.is_service(address)
            }
        }
    }

    /// Whether `address` is that of the DNS server, or stands for one of the host's.
    fn is_service(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(a) => {
                self.v4.is_some_and(|n| [n.dns, n.host_loopback, n.host_address].contains(&Some(a)))
            }
            IpAddr::V6(a) => {
                self.v6.is_some_and(|n| [n.dns, n.host_loopback, n.host_address].contains(&Some(a)))
            }
        }
    }

    /// Whether packets to `address` have arrived with brodo: in a copy of the host's network those to the
    /// router have not.
    pub fn ends_at_brodo(&self, address: IpAddr) -> bool {
        if self.host_link.is_some() { self.is_service(address) } else { self.is_ours(address) }
    }

    /// Whether `address` is configured as one of the guest's.
    pub fn is_guests(&self, address: IpAddr) -> bool {
        let first = match address {
            IpAddr::V4(a) => self.v4.is_some_and(|n| n.guest == a),
            IpAddr::V6(a) => self.v6.is_some_and(|n| n.guest == a),
        };
        first || self.more_addresses.contains(&address)
    }

    /// Whether brodo answers for `address` on the link in the place of a host of the copied network.
    pub fn is_neighbour(&self, address: IpAddr) -> bool {
        let unicast = match address {
            IpAddr::V4(a) => !(a.is_unspecified() || a.is_multicast() || a.is_broadcast() || a.is_loopback()),
            IpAddr::V6(a) => !(a.is_unspecified() || a.is_multicast() || a.is_loopback()),
        };
        self.host_link.is_some() && unicast && !self.is_guests(address)
    }

    /// The addresses at which the DNS server answers, of both families.
    pub fn dns_addresses(&self) -> Vec<IpAddr> {
        let v4 = self.v4.into_iter().flat_map(|n| n.dns_addresses()).flatten().map(IpAddr::from);
        let v6 = self.v6.into_iter().flat_map(|n| n.dns_addresses()).flatten().map(IpAddr::from);
        v4.chain(v6).collect()
    }

    /// The DNS server of IPv4 to offer.
    pub fn dns_offered_v4(&self) -> Option<Ipv4Addr> {
        match &self.dns_offered {
            None => self.v4.and_then(|n| n.dns),
            Some(servers) => servers.iter().find_map(|server| match server {
                IpAddr::V4(server) => Some(*server),
                IpAddr::V6(_) => None,
            }),
        }
    }

    /// The DNS server of IPv6 to offer.
    pub fn dns_offered_v6(&self) -> Option<Ipv6Addr> {
        match &self.dns_offered {
            None => self.v6.and_then(|n| n.dns),
            Some(servers) => servers.iter().find_map(|server| match server {
                IpAddr::V6(server) => Some(*server),
                IpAddr::V4(_) => None,
            }),
        }
    }
}

/// Entropy, given once.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// Key of the flow table's hash.
    pub table: [u8; 16],
    /// Key of TCP initial sequence numbers (RFC 6528).
    pub isn: [u8; 16],
    /// Key of the identifiers and letter case of DNS queries (RFC 5452).
    pub dns: [u8; 16],
}
