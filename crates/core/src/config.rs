//! Configuration of a stack: addresses, bounds, time-outs. Every field has its unit and default.

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
    /// The guest's own address, the only source accepted.
    pub guest: Ipv4Addr,
    /// Length of the network prefix, 0 to 30.
    pub prefix_len: u8,
    /// The address brodo answers to as router.
    pub gateway: Ipv4Addr,
    /// The address brodo answers to as DNS server.
    pub dns: Ipv4Addr,
    /// An address that stands for the host's 127.0.0.1; off by default.
    pub host_loopback: Option<Ipv4Addr>,
}

/// The guest's IPv6 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Net {
    /// The guest's own address. Accepted sources are the addresses of its prefix (a guest may configure
    /// itself from our router advertisement) and link-local ones.
    pub guest: Ipv6Addr,
    /// Length of the network prefix; router advertisements offer it for autoconfiguration if it is 64.
    pub prefix_len: u8,
    /// The address brodo answers to as router, inside the prefix.
    pub gateway: Ipv6Addr,
    /// The link-local address brodo sends router advertisements from and also answers to.
    pub gateway_link_local: Ipv6Addr,
    /// The address brodo answers to as DNS server.
    pub dns: Ipv6Addr,
    /// An address that stands for the host's ::1; off by default.
    pub host_loopback: Option<Ipv6Addr>,
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
    /// Largest IP packet on the link, in bytes, 1280 to 65521.
    pub mtu: u16,
    /// IPv4, unless switched off.
    pub v4: Option<Ipv4Net>,
    /// IPv6, unless switched off.
    pub v6: Option<Ipv6Net>,
    /// DNS search names, offered by DHCP and router advertisements.
    pub search: Vec<String>,
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
                dns: Ipv4Addr::new(10, 0, 2, 3),
                host_loopback: None,
            }),
            v6: Some(Ipv6Net {
                guest: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x15),
                prefix_len: 64,
                gateway: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
                gateway_link_local: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2),
                dns: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3),
                host_loopback: None,
            }),
            search: Vec::new(),
            resolvers: Vec::new(),
            dns_cache: 512 << 10,
            host_names: Vec::new(),
            tcp_rx: BufferBounds::receiving(256 << 20),
            tcp_tx: BufferBounds { initial: 64 << 10, max: 4 << 20 },
            tcp_tuning: Tuning::default(),
            memory: 256 << 20,
            max_flows: 65_536,
            max_udp_flows: 65_536,
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
            IpAddr::V4(a) => {
                self.v4.is_some_and(|n| a == n.gateway || a == n.dns || Some(a) == n.host_loopback)
            }
            IpAddr::V6(a) => self.v6.is_some_and(|n| {
                a == n.gateway || a == n.gateway_link_local || a == n.dns || Some(a) == n.host_loopback
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
