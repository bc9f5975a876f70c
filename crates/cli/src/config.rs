//! Options to the configuration of stack and namespace, checked before namespaces and interfaces are made.

use crate::args::NetworkOptions;
use crate::guest_network::{Family, Given, Network};
use crate::option_values::Cidr;
use brodo_core::config::{BufferBounds, Config};
use brodo_core::policy::Rules;
use brodo_core::wire::ethernet::MacAddr;
use brodo_link::tap::Wanted;
use brodo_net::driver::busy_poll_default;
use brodo_net::forward::spec::{self, Ports};
use brodo_net::forward::{Forward, ForwardDirection, Transport, option};
use brodo_net::host_network::HostNetFollow;
use brodo_net::resolv::ResolvConf;
use brodo_netns::namespace::Plan;
use brodo_netns::setup::{Addressing, Interface, TX_QUEUE_LEN_DEFAULT};
use std::net::IpAddr;
use std::time::Duration;

/// Properties of the host that complete the options.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostFacts {
    /// Whether the kernel supports IPv6.
    pub(crate) ipv6: bool,
    /// Resolvers and search names.
    pub(crate) resolv_conf: ResolvConf,
}

/// Settings that follow from the options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Configuration of the stack.
    pub(crate) stack: Config,
    /// Plan of the namespace.
    pub(crate) plan: Plan,
    /// The DNS server's addresses in the guest.
    pub(crate) dns: Vec<IpAddr>,
    /// Whether resolvers and search names are the host's, so that changes are followed.
    pub(crate) follow: HostNetFollow,
    /// Busy polling before sleep.
    pub(crate) busy_poll: Duration,
    /// Forwarded ports.
    pub(crate) forwards: Vec<Forward>,
}

impl Settings {
    /// Completes and checks `options`; the error is one sentence.
    pub(crate) fn new(options: &NetworkOptions, host: &HostFacts) -> Result<Self, String> {
        let defaults = Config::default();
        let default_v4 =
            defaults.v4.map(|net| Cidr { address: net.guest.into(), prefix_len: net.prefix_len });
        let default_v6 =
            defaults.v6.map(|net| Cidr { address: net.guest.into(), prefix_len: net.prefix_len });
        let v4 = network(options, Family::V4, default_v4, true)?.map(|network| network.v4());
        let v6 = match (network(options, Family::V6, default_v6, host.ipv6)?, defaults.v6) {
            (Some(network), Some(default)) => Some(network.v6(default.gateway_link_local)),
            _ => None,
        };

        let guest_mac = options.mac.unwrap_or_else(|| {
            let low_v6 = || v6.map_or([0; 4], |net| low_octets(net.guest.octets()));
            mac_from(v4.map_or_else(low_v6, |net| net.guest.octets()))
        });
        let mut stack = Config {
            mac: other_than(guest_mac, v4.map_or(defaults.mac, |net| mac_from(net.gateway.octets()))),
            guest_mac: Some(guest_mac),
            v4,
            v6,
            search: search(&options.search, &host.resolv_conf.search),
            resolvers: options.resolver.clone(),
            ..defaults
        };
        let follow =
            HostNetFollow { resolvers: stack.resolvers.is_empty(), search: options.search.is_empty() };
        if follow.resolvers {
            stack.resolvers.clone_from(&host.resolv_conf.resolvers);
        }
        stack.dns_cache = options.dns_cache.unwrap_or(stack.dns_cache);
        stack.host_names.clone_from(&options.host_name);
        stack.mtu = options.mtu.unwrap_or(stack.mtu);
        stack.memory = options.memory.unwrap_or(stack.memory);
        stack.tcp_rx = options.tcp_rx_buffer.unwrap_or(BufferBounds::receiving(stack.memory));
        stack.tcp_tx = options.tcp_tx_buffer.unwrap_or(stack.tcp_tx);
        stack.max_flows = options.max_flows.map_or(stack.max_flows, |flows| flows as usize);
        stack.rules = rules(options);
        check_memory(&stack)?;

        let interface = Interface {
            name: options.ifname.clone(),
            mac: guest_mac.0,
            mtu: stack.mtu,
            tx_queue_len: options.tx_queue_len.unwrap_or(TX_QUEUE_LEN_DEFAULT),
            v4: v4.map(|net| Addressing {
                address: net.guest,
                prefix_len: net.prefix_len,
                gateway: net.gateway,
            }),
            v6: v6.map(|net| Addressing {
                address: net.guest,
                prefix_len: net.prefix_len,
                gateway: net.gateway,
            }),
        };
        let offload = if options.no_offload { Wanted::NoOffload } else { Wanted::Everything };
        let dns = v4.map(|net| net.dns.into()).into_iter().chain(v6.map(|net| net.dns.into())).collect();
        let queues = options.workers.unwrap_or(1);
        let busy_poll = options
            .busy_poll
            .map_or_else(|| busy_poll_default(queues), |us| Duration::from_micros(us.into()));
        let forwards = forwards(options)?;
        Ok(Self { stack, plan: Plan { interface, offload, queues }, dns, follow, busy_poll, forwards })
    }
}

/// The forwarded ports, checked as far as possible without the host.
fn forwards(options: &NetworkOptions) -> Result<Vec<Forward>, String> {
    let mut forwards = Vec::new();
    for (direction, transport, specs) in [
        (ForwardDirection::In, Transport::Tcp, &options.tcp_ports),
        (ForwardDirection::In, Transport::Udp, &options.udp_ports),
        (ForwardDirection::Out, Transport::Tcp, &options.tcp_ns),
        (ForwardDirection::Out, Transport::Udp, &options.udp_ns),
    ] {
        spec::check(specs).map_err(|why| format!("{}: {why}", option(direction, transport)))?;
        let given = specs.iter().filter(|spec| spec.ports != Ports::None);
        forwards.extend(given.map(|spec| Forward { direction, transport, spec: spec.clone() }));
    }
    Ok(forwards)
}

/// The network of one family, if the guest has it.
fn network(
    options: &NetworkOptions,
    family: Family,
    default: Option<Cidr>,
    available: bool,
) -> Result<Option<Network>, String> {
    let name = family.name();
    let of_family = |option: &str, values: &[IpAddr]| -> Result<Option<IpAddr>, String> {
        let mut values = values.iter().copied().filter(|&address| Family::of(address) == family);
        let first = values.next();
        if let (Some(first), Some(second)) = (first, values.next()) {
            return Err(format!("{option} is given twice for {name}: {first} and {second}"));
        }
        if let Some(address) = first.filter(|_| !options.wants(family)) {
            let switch = if family == Family::V4 { "-6" } else { "-4" };
            return Err(format!("{option} {address} is {name}, which {switch} switches off"));
        }
        Ok(first)
    };
    let addresses: Vec<IpAddr> = options.address.iter().map(|cidr| cidr.address).collect();
    let guest = of_family("--address", &addresses)?;
    let gateway = of_family("--gateway", &options.gateway)?;
    let dns = of_family("--dns", &options.dns)?;
    let host_loopback = of_family("--map-host-loopback", &options.map_host_loopback)?;
    if !options.wants(family) {
        return Ok(None);
    }
    if !available {
        // A family not requested by name is left out, as on the host.
        let asked = options.ipv6_only || guest.or(gateway).or(dns).or(host_loopback).is_some();
        return if asked {
            Err(format!("this kernel runs without {name}, so the guest cannot have it"))
        } else {
            Ok(None)
        };
    }
    let given = options.address.iter().copied().find(|cidr| Some(cidr.address) == guest);
    match given.or(default) {
        Some(guest) => Network::new(&Given { guest, gateway, dns, host_loopback }).map(Some),
        None => Ok(None),
    }
}

/// Rules for flows of the guest.
fn rules(options: &NetworkOptions) -> Rules {
    Rules {
        deny: options.deny.clone(),
        new_flows: options.max_new_flows,
        flows_per_destination: options.max_flows_per_destination,
        ..Rules::default()
    }
}

/// Least memory: a connection without room for its initial limits would never move.
fn check_memory(stack: &Config) -> Result<(), String> {
    let initial = stack.tcp_rx.initial.max(stack.tcp_tx.initial) as usize;
    if stack.memory < initial {
        return Err(format!(
            "--memory {} is less than one connection's initial buffer, {initial}",
            stack.memory
        ));
    }
    Ok(())
}

/// The search names in force: the given ones, of which an empty one means none at all, or the host's.
fn search(given: &[String], host: &[String]) -> Vec<String> {
    let names = if given.is_empty() { host } else { given };
    names.iter().filter(|name| !name.is_empty()).cloned().collect()
}

/// A locally administered MAC address that is the same at every start, for the sake of neighbour caches and
/// of addresses derived from it.
fn mac_from(octets: [u8; 4]) -> MacAddr {
    let [a, b, c, d] = octets;
    MacAddr([0x52, 0x55, a, b, c, d])
}

/// `wanted`, changed if it is the guest's.
fn other_than(guest: MacAddr, mut wanted: MacAddr) -> MacAddr {
    if wanted == guest {
        wanted.0[5] ^= 0x80;
    }
    wanted
}

fn low_octets(address: [u8; 16]) -> [u8; 4] {
    let [.., a, b, c, d] = address;
    [a, b, c, d]
}

#[cfg(test)]
mod tests;
