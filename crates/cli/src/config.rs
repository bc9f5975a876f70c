//! Options to the configuration of stack and namespace, checked before namespaces and interfaces are made.

use crate::args::NetworkOptions;
use crate::guest_network::{Family, Given, Network, copied};
use crate::option_values::{
    self as value, Cidr, HostLoopback, MaybeAddress, MulticastOption, OutboundOption, PolicyMode,
};
use crate::policy_file::{OnLine, Policy, PolicyFiles};
use crate::policy_option::Denied;
use brodo_core::config::{BufferBounds, Config, HostLink};
use brodo_core::left_out::Part;
use brodo_core::policy::{Rules, Ruleset, SharedPolicy};
use brodo_core::wire::ethernet::MacAddr;
use brodo_link::tap::Wanted;
use brodo_net::driver::busy_poll_default;
use brodo_net::forward::spec::{self, Ports};
use brodo_net::forward::{Forward, ForwardDirection, LocalPeers, Transport, option};
use brodo_net::host_network::HostNetFollow;
use brodo_net::netlink::template::Template;
use brodo_net::resolv::ResolvConf;
use brodo_net::secret::secret;
use brodo_net::sockets::Outbound;
use brodo_netns::namespace::Plan;
use brodo_netns::setup::{Interface, TX_QUEUE_LEN_DEFAULT, is_interface_name};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

mod files;

/// Name of the guest's interface.
const IFNAME_DEFAULT: &str = "eth0";
/// The same, if it is to be the host's and the host has none.
const IFNAME_OF_NONE: &str = "tap0";
/// Smallest MTU with IPv6, and the largest of all, in bytes.
const MTU_MIN: u16 = 1280;
const MTU_MAX: u16 = 65521;

/// Properties of the host that complete the options.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostFacts {
    /// Whether the kernel supports IPv6.
    pub(crate) ipv6: bool,
    /// Resolvers and search names.
    pub(crate) resolv_conf: ResolvConf,
    /// Policy files as they were read.
    pub(crate) policy: PolicyFiles,
    /// The host's network, if the guest's is to be a copy of it.
    pub(crate) template: Option<Template>,
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
    /// Whether they may listen at addresses that the host does not have.
    pub(crate) freebind: bool,
    /// Way of peers on the host's loopback to them.
    pub(crate) local_peers: LocalPeers,
    /// Source of connections and datagrams to the outside.
    pub(crate) outbound: Outbound,
}

impl Settings {
    /// Completes and checks `options`; the error is one sentence.
    pub(crate) fn new(options: &NetworkOptions, host: &HostFacts) -> Result<Self, String> {
        files::check_distinct(options)?;
        let defaults = Config::default();
        let networks = networks(options, host, &defaults)?;
        let v4 = networks.v4.as_ref().map(Network::v4);
        let v6 = networks.v6.as_ref().zip(defaults.v6);
        let v6 = v6.map(|(network, default)| network.v6(default.gateway_link_local));
        let own: Vec<&Network> = networks.v4.iter().chain(&networks.v6).collect();
        if own.is_empty() {
            return Err("the guest would have no address: give one with --address".to_owned());
        }

        let guest_mac = options.mac.unwrap_or_else(|| {
            let low_v6 = || v6.map_or([0; 4], |net| low_octets(net.guest.octets()));
            mac_from(v4.map_or_else(low_v6, |net| net.guest.octets()))
        });
        let mut stack = Config {
            mac: router_mac(
                options,
                guest_mac,
                v4.map_or(defaults.mac, |net| mac_from(net.gateway.octets())),
            ),
            guest_mac: Some(guest_mac),
            v4,
            v6,
            more_addresses: own
                .iter()
                .flat_map(|net| net.addresses().into_iter().skip(1))
                .map(|it| it.address)
                .collect(),
            host_link: host.template.as_ref().map(|template| HostLink { scope_id: template.scope_id }),
            dns_offered: (!options.offer_dns.is_empty())
                .then(|| options.offer_dns.iter().filter_map(|server| server.address()).collect()),
            search: search(&options.search, &host.resolv_conf.search),
            host_name_offered: options.offer_hostname.clone(),
            fqdn_offered: options.offer_fqdn.clone(),
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
        stack.without = options.without.iter().copied().collect();
        stack.multicast = match options.multicast {
            MulticastOption::Auto => stack.host_link.is_some() && options.deny.is_empty(),
            MulticastOption::On => true,
            MulticastOption::Off => false,
        };
        stack.closed_ports = options.closed_ports.into();
        stack.mtu = options.mtu.or(template_mtu(host)).unwrap_or(stack.mtu);
        stack.memory = options.memory.unwrap_or(stack.memory);
        stack.tcp_rx = options.tcp_rx_buffer.unwrap_or(BufferBounds::receiving(stack.memory));
        stack.tcp_tx = options.tcp_tx_buffer.unwrap_or(stack.tcp_tx);
        stack.max_flows = options.limits.flows.map_or(stack.max_flows, |flows| flows as usize);
        stack.rules = rules(options, &host.policy, &stack)?;
        stack.bulk = options.bulk.into();
        check_memory(&stack)?;

        let interface = Interface {
            name: ifname(options, host),
            mac: guest_mac.0,
            mtu: stack.mtu,
            tx_queue_len: options.tx_queue_len.unwrap_or(TX_QUEUE_LEN_DEFAULT),
            addresses: own.iter().flat_map(|net| net.addresses()).collect(),
            routes: own.iter().flat_map(|net| net.routes.iter().copied()).collect(),
            configured: !options.no_configure,
            best_effort: host.template.is_some(),
        };
        let offload = if options.no_offload { Wanted::NoOffload } else { Wanted::Everything };
        let dns = v4.and_then(|net| net.dns).map(IpAddr::from);
        let dns = dns.into_iter().chain(v6.and_then(|net| net.dns).map(IpAddr::from)).collect();
        let queues = options.workers.unwrap_or(1);
        let busy_poll = options
            .busy_poll
            .map_or_else(|| busy_poll_default(queues), |us| Duration::from_micros(us.into()));
        let forwards = forwards(options)?;
        let local_peers = match options.local_peers {
            value::LocalPeers::Mixed => LocalPeers::Mixed,
            value::LocalPeers::Loopback => LocalPeers::Loopback,
            value::LocalPeers::Address => LocalPeers::Address,
            value::LocalPeers::Link => LocalPeers::Link,
        };
        let plan = Plan { interface, offload, queues };
        let outbound = Outbound { ports: options.udp_source_ports.into(), ..outbound(&options.outbound)? };
        let freebind = options.freebind;
        Ok(Self { stack, plan, dns, follow, busy_poll, forwards, freebind, local_peers, outbound })
    }
}

/// The sources of both families; each part at most once for each.
fn outbound(given: &[OutboundOption]) -> Result<Outbound, String> {
    let mut outbound = Outbound::default();
    for OutboundOption { address, interface } in given {
        let families = [(true, &mut outbound.v4), (false, &mut outbound.v6)];
        for (_, source) in families.into_iter().filter(|(v4, _)| address.is_none_or(|it| it.is_ipv4() == *v4))
        {
            let address = address.filter(|it| !it.is_unspecified());
            let both = |old: bool, new: bool| old && new;
            if both(source.address.is_some(), address.is_some())
                || both(source.interface.is_some(), interface.is_some())
            {
                return Err("--outbound is given twice for a family".to_owned());
            }
            source.address = source.address.or(address);
            source.interface = source.interface.take().or_else(|| interface.clone());
        }
    }
    Ok(outbound)
}

/// The forwarded ports, checked as far as possible without the host.
fn forwards(options: &NetworkOptions) -> Result<Vec<Forward>, String> {
    let mut forwards = Vec::new();
    let left_out = |transport| match transport {
        Transport::Tcp => options.without.contains(&Part::Tcp),
        Transport::Udp => options.without.contains(&Part::Udp),
    };
    for (direction, transport, specs) in [
        (ForwardDirection::In, Transport::Tcp, &options.tcp_ports),
        (ForwardDirection::In, Transport::Udp, &options.udp_ports),
        (ForwardDirection::Out, Transport::Tcp, &options.tcp_ns),
        (ForwardDirection::Out, Transport::Udp, &options.udp_ns),
    ] {
        spec::check(specs).map_err(|why| format!("{}: {why}", option(direction, transport)))?;
        let mut given = specs.iter().filter(|spec| spec.ports != Ports::None).peekable();
        if left_out(transport) && given.peek().is_some() {
            return Err(format!("{}: --without leaves its protocol out", option(direction, transport)));
        }
        forwards.extend(given.map(|spec| Forward { direction, transport, spec: spec.clone() }));
    }
    Ok(forwards)
}

/// Networks of both families.
struct Networks {
    v4: Option<Network>,
    v6: Option<Network>,
}

fn networks(options: &NetworkOptions, host: &HostFacts, defaults: &Config) -> Result<Networks, String> {
    let default_v4 = defaults.v4.map(|net| Cidr { address: net.guest.into(), prefix_len: net.prefix_len });
    let default_v6 = defaults.v6.map(|net| Cidr { address: net.guest.into(), prefix_len: net.prefix_len });
    Ok(Networks {
        v4: network(options, Family::V4, default_v4, host)?,
        v6: network(options, Family::V6, default_v6, host)?,
    })
}

/// The network of one family, if the guest has it.
fn network(
    options: &NetworkOptions,
    family: Family,
    default: Option<Cidr>,
    host: &HostFacts,
) -> Result<Option<Network>, String> {
    let given = given(options, family)?;
    if !options.wants(family) {
        return Ok(None);
    }
    let small = options.mtu.is_some_and(|mtu| mtu < MTU_MIN);
    if family == Family::V6 && (!host.ipv6 || small) {
        // A family not requested by name is left out, as on the host.
        let Given { guest, gateway, dns, host_loopback, host_address } = given;
        let named = !guest.is_empty()
            || gateway.is_some()
            || dns.is_some_and(|dns| dns.address().is_some())
            || matches!(host_loopback, Some(HostLoopback::Address(_)))
            || host_address.is_some();
        return if options.ipv6_only || named {
            Err(if host.ipv6 {
                format!("IPv6 needs an MTU of {MTU_MIN} at least: give a larger --mtu, or -4")
            } else {
                "this kernel runs without IPv6, so the guest cannot have it".to_owned()
            })
        } else {
            Ok(None)
        };
    }
    let network = if let Some(template) = &host.template {
        copied::network(family, template, &given)?
    } else {
        let guest = if given.guest.is_empty() { default.into_iter().collect() } else { given.guest.clone() };
        Network::new(&Given { guest, ..given })?
    };
    let unhides = options.dns_at_loopback.contains(&family);
    let resolvers = if unhides { &host.resolv_conf.resolvers[..] } else { &[] };
    Ok(Some(network.with_hidden_resolver(resolvers)))
}

/// The options of one family.
fn given(options: &NetworkOptions, family: Family) -> Result<Given, String> {
    let check = |option: &str, address: IpAddr| {
        if options.wants(family) {
            return Ok(());
        }
        let (name, switch) = (family.name(), if family == Family::V4 { "-6" } else { "-4" });
        Err(format!("{option} {address} is {name}, which {switch} switches off"))
    };
    let of_family = |option: &str, values: &[IpAddr]| -> Result<Option<IpAddr>, String> {
        let mut values = values.iter().copied().filter(|&address| Family::of(address) == family);
        let first = values.next();
        if let (Some(first), Some(second)) = (first, values.next()) {
            return Err(format!("{option} is given twice for {}: {first} and {second}", family.name()));
        }
        first.map_or(Ok(()), |address| check(option, address))?;
        Ok(first)
    };
    let guest: Vec<Cidr> =
        options.address.iter().copied().filter(|cidr| Family::of(cidr.address) == family).collect();
    guest.first().map_or(Ok(()), |cidr| check("--address", cidr.address))?;
    let addresses = |values: &[MaybeAddress]| values.iter().filter_map(|it| it.address()).collect::<Vec<_>>();
    let dns = match of_family("--dns", &addresses(&options.dns))? {
        Some(address) => Some(MaybeAddress::Address(address)),
        None => options.dns.contains(&MaybeAddress::None).then_some(MaybeAddress::None),
    };
    let loopbacks = options.map_host_loopback.iter().filter_map(|it| match it {
        HostLoopback::Address(address) => Some(*address),
        HostLoopback::Gateway => None,
    });
    let loopback = of_family("--map-host-loopback", &loopbacks.collect::<Vec<_>>())?;
    let gateway_wanted = options.map_host_loopback.contains(&HostLoopback::Gateway);
    let host_loopback =
        loopback.map(HostLoopback::Address).or(gateway_wanted.then_some(HostLoopback::Gateway));
    Ok(Given {
        guest,
        gateway: of_family("--gateway", &options.gateway)?,
        dns,
        host_loopback,
        host_address: of_family("--map-host-address", &options.map_host_address)?,
    })
}

/// The name of the guest's interface.
fn ifname(options: &NetworkOptions, host: &HostFacts) -> String {
    let copied = host.template.as_ref().map(|template| match template.name.as_str() {
        "" => IFNAME_OF_NONE.to_owned(),
        name if is_interface_name(name) => name.to_owned(),
        // A name that only the kernel takes.
        _ => IFNAME_DEFAULT.to_owned(),
    });
    options.ifname.clone().or(copied).unwrap_or_else(|| IFNAME_DEFAULT.to_owned())
}

/// The MTU of the copied interface, as far as the guest's can have it.
fn template_mtu(host: &HostFacts) -> Option<u16> {
    let mtu = host.template.as_ref().map(|template| template.mtu).filter(|&mtu| mtu > 0)?;
    Some(mtu.clamp(MTU_MIN.into(), MTU_MAX.into()) as u16)
}

/// Rules for flows of the guest.
fn rules(options: &NetworkOptions, files: &PolicyFiles, stack: &Config) -> Result<Rules, String> {
    let (mut addresses, mut deny) = (Vec::new(), Vec::new());
    for denied in &options.deny {
        match denied {
            Denied::Address(rule) => addresses.push(*rule),
            Denied::Rule(rule) => deny.push(rule.clone()),
        }
    }
    let on_line = OnLine { allow: &options.allow, deny: &deny };
    if let Some(error) = on_line.too_many(files) {
        return Err(error);
    }
    let united = Policy::unite(&files.policies, &on_line);
    let shared = united.map(|rules| {
        let rules = Ruleset::new(rules).map_err(|error| error.to_string())?;
        let secret = secret().map_err(|error| format!("draw random bytes: {error}"))?;
        let policy = SharedPolicy::new(rules, &stack.host_names, secret);
        policy.set_observing(options.policy_mode == PolicyMode::Observe);
        if options.audit.is_some() || options.policy_fail.is_some() {
            policy.keep_trail();
        }
        Ok::<_, String>(Arc::new(policy))
    });
    let needing = [
        ("--policy-fail", options.policy_fail.is_some()),
        ("--audit", options.audit.is_some()),
        ("--policy-mode observe", options.policy_mode == PolicyMode::Observe),
    ];
    if let Some((option, _)) = needing.iter().find(|(_, given)| *given && shared.is_none()) {
        return Err(format!(
            "{option} needs a policy: --policy FILE, --allow RULE or --deny RULE (a --deny of addresses alone is none)"
        ));
    }
    let shared = shared.transpose()?;
    let defaults = Rules::default();
    Ok(Rules {
        // Under a policy the floor holds: in other programs' place the option is given unasked.
        link_local: options.allow_link_local && shared.is_none(),
        deny: addresses,
        shared,
        new_flows: options.limits.new_flows,
        flows_per_destination: options.limits.flows_per_destination,
        questions: options.limits.questions.unwrap_or(defaults.questions),
        ..defaults
    })
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

/// The router's MAC address: the given one, or `derived` if the guest has another.
fn router_mac(options: &NetworkOptions, guest: MacAddr, derived: MacAddr) -> MacAddr {
    options.router_mac.unwrap_or_else(|| other_than(guest, derived))
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
