//! pasta's options: names, meanings, help, and the text of `--version`.

use super::super::getopt::{Opt, switch, valued};
use brodo_core::left_out::Part;

/// Meaning of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Is {
    Debug,
    Trace,
    Quiet,
    Foreground,
    /// Without effect here.
    Nothing,
    Help,
    Version,
    ConfigNet,
    Ipv4,
    Ipv6,
    Address,
    Netmask,
    Gateway,
    RouterMac,
    GuestMac,
    Mtu,
    Interface,
    Ifname,
    Dns,
    DnsForward,
    DnsHost,
    Search,
    OfferDns,
    OfferSearch,
    NoMapGateway,
    HostLoopback,
    GuestAddress,
    /// Ports: 0 `-t`, 1 `-u`, 2 `-T`, 3 `-U`.
    Ports(usize),
    LocalToLocal,
    NoSplice,
    Netns,
    Userns,
    Outlive,
    Pid,
    Pcap,
    PestoSocket,
    Runas,
    HostName,
    NoPidns,
    SpliceOnly,
    Outbound,
    /// With the unspecified address of the family.
    OutboundIf(&'static str),
    Without(Part),
    Freebind,
    LogFile,
    LogSize,
    /// brodo has nothing of the kind.
    Absent(&'static str),
}

const fn absent(long: &'static str, short: Option<char>, value: Option<&'static str>) -> Opt<Is> {
    Opt { long, short, value, is: Is::Absent(long), help: "Not in brodo: refused" }
}

/// All options.
pub(in super::super) const TABLE: &[Opt<Is>] = &[
    switch("debug", Some('d'), Is::Debug, "Log set-up steps, and all counters at the end"),
    switch("trace", None, Is::Trace, "Log details"),
    switch("quiet", Some('q'), Is::Quiet, "Log warnings and errors only"),
    switch("foreground", Some('f'), Is::Foreground, "Stay in the foreground"),
    switch("stderr", Some('e'), Is::Nothing, "No effect"),
    switch("help", Some('h'), Is::Help, "Print help"),
    switch("version", None, Is::Version, "Print the version"),
    valued(
        "conf-path",
        Some('c'),
        "PATH",
        Is::PestoSocket,
        "Socket for pesto, which changes ports at run time",
    ),
    valued("pcap", Some('p'), "FILE", Is::Pcap, "Capture every frame to a file, in pcapng format"),
    valued("pid", Some('P'), "FILE", Is::Pid, "Write the process id to a file once the network is up"),
    valued(
        "mtu",
        Some('m'),
        "BYTES",
        Is::Mtu,
        "Largest IP packet, 88 to 65521, or 0 for 1500; below 1280 without IPv6 [default: 65520]",
    ),
    valued("address", Some('a'), "IP[/LENGTH]", Is::Address, "The guest's address [default: the host's]"),
    valued("netmask", Some('n'), "MASK", Is::Netmask, "The prefix of an IPv4 address, as length or dotted"),
    valued("mac-addr", Some('M'), "MAC", Is::RouterMac, "The router's MAC address"),
    valued("gateway", Some('g'), "IP", Is::Gateway, "The router's address [default: the host's]"),
    valued(
        "interface",
        Some('i'),
        "NAME",
        Is::Interface,
        "The host's interface to copy [default: of the default route]",
    ),
    valued("dns", Some('D'), "IP", Is::Dns, "DNS server to offer by DHCP, or none; needs --dhcp-dns"),
    valued("dns-forward", None, "IP", Is::DnsForward, "Address at which brodo answers DNS queries"),
    valued("dns-host", None, "IP", Is::DnsHost, "Upstream resolver [default: all of the host's]"),
    valued(
        "search",
        Some('S'),
        "NAMES",
        Is::Search,
        "Search domains to offer by DHCP, or none; needs --dhcp-search",
    ),
    switch("dhcp-dns", None, Is::OfferDns, "Offer DNS servers by DHCP, DHCPv6 and router advertisements"),
    switch("dhcp-search", None, Is::OfferSearch, "Offer search domains likewise"),
    valued("hostname", Some('H'), "NAME", Is::HostName, "The command's host name [default: pasta-HOST]"),
    valued("fqdn", None, "NAME", Is::Nothing, "No effect"),
    valued(
        "map-host-loopback",
        None,
        "IP",
        Is::HostLoopback,
        "Address that stands for the host's loopback, or none [default: the router's]",
    ),
    switch(
        "no-map-gw",
        None,
        Is::NoMapGateway,
        "The router's address does not stand for the host's loopback",
    ),
    valued(
        "map-guest-addr",
        None,
        "IP",
        Is::GuestAddress,
        "Address that stands for the host's own one, or none",
    ),
    switch("ipv4-only", Some('4'), Is::Ipv4, "IPv4 only"),
    switch("ipv6-only", Some('6'), Is::Ipv6, "IPv6 only"),
    valued(
        "tcp-ports",
        Some('t'),
        "SPEC",
        Is::Ports(0),
        "TCP ports of the guest to publish on the host [default: auto]",
    ),
    valued("udp-ports", Some('u'), "SPEC", Is::Ports(1), "UDP ports likewise [default: auto]"),
    valued(
        "tcp-ns",
        Some('T'),
        "SPEC",
        Is::Ports(2),
        "TCP ports of the host's loopback on the guest's [default: auto]",
    ),
    valued("udp-ns", Some('U'), "SPEC", Is::Ports(3), "UDP ports likewise [default: auto]"),
    switch(
        "host-lo-to-ns-lo",
        None,
        Is::LocalToLocal,
        "Connections from the host's loopback lead to the guest's",
    ),
    switch(
        "no-splice",
        None,
        Is::NoSplice,
        "Connections from the host's loopback take the guest's interface",
    ),
    valued("ns-ifname", Some('I'), "NAME", Is::Ifname, "The interface's name [default: that of the host's]"),
    valued("userns", None, "PATH", Is::Userns, "The user namespace to join first"),
    valued("netns", None, "PATH|NAME", Is::Netns, "The network namespace"),
    switch("netns-only", None, Is::Nothing, "No effect: the user namespace is found by itself"),
    switch("no-netns-quit", None, Is::Outlive, "Go on when the namespace is gone"),
    switch("config-net", None, Is::ConfigNet, "Configure the interface and bring it up"),
    valued("ns-mac-addr", None, "MAC", Is::GuestMac, "The interface's MAC address"),
    switch("chroot-fallback", None, Is::Nothing, "No effect"),
    valued("runas", None, "USER", Is::Runas, "No effect: the engine is confined in any case"),
    switch("no-pidns", None, Is::NoPidns, "Leave the command in the PID namespace it was started in"),
    switch("splice-only", None, Is::SpliceOnly, "Ports between the loopbacks, and no other network"),
    switch("no-copy-routes", None, Is::Nothing, "No effect: routes are copied unless --gateway is given"),
    switch("no-copy-addrs", None, Is::Nothing, "No effect: addresses are copied unless --address is given"),
    valued("outbound", Some('o'), "IP", Is::Outbound, "Source address of what leaves the host"),
    valued(
        "outbound-if4",
        None,
        "NAME",
        Is::OutboundIf("0.0.0.0"),
        "Interface by which IPv4 leaves the host",
    ),
    valued("outbound-if6", None, "NAME", Is::OutboundIf("::"), "Interface by which IPv6 leaves the host"),
    absent("stats", None, Some("SECONDS")),
    valued("log-file", Some('l'), "FILE", Is::LogFile, "Log to a file instead of standard error"),
    valued("log-size", None, "BYTES", Is::LogSize, "Size at which it becomes FILE.1 [default: 1 MiB]"),
    switch("no-tcp", None, Is::Without(Part::Tcp), "No TCP: its packets are dropped in silence"),
    switch("no-udp", None, Is::Without(Part::Udp), "No UDP likewise, but DHCP"),
    switch("no-icmp", None, Is::Without(Part::Ping), "No ping likewise, and no neighbour discovery"),
    switch("no-dhcp", None, Is::Without(Part::Dhcp), "No DHCP server for IPv4"),
    switch("no-ndp", None, Is::Without(Part::Ndp), "No neighbour discovery, no router advertisements"),
    switch("no-dhcpv6", None, Is::Without(Part::Dhcpv6), "No DHCP server for IPv6"),
    switch("no-ra", None, Is::Without(Part::Ra), "No router advertisements"),
    switch("freebind", None, Is::Freebind, "Listen also at addresses that the host does not have"),
    absent("fd", Some('F'), Some("N")),
];

/// Forms of a command line.
pub(in super::super) const USAGE: &str = "pasta [OPTION]... [COMMAND] [ARGS]...\n       pasta [OPTION]... PID\n       \
                                pasta [OPTION]... --netns PATH|NAME";

/// Text of `--version`: it names brodo, so that no report about it reaches the authors of pasta.
pub(super) fn version() -> String {
    format!(
        "pasta {0} (brodo)\nbrodo {0} in the place of pasta; its own options: brodo --help\n",
        env!("CARGO_PKG_VERSION")
    )
}
