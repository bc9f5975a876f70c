//! slirp4netns' options: names, meanings, help, and the text of `--version`.

use super::super::getopt::{Opt, switch, valued};

/// Meaning of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Is {
    Configure,
    ExitFd,
    ReadyFd,
    Mtu,
    Ipv6,
    ApiSocket,
    Cidr,
    NoLoopback,
    NetnsType,
    Userns,
    /// Without effect here.
    Nothing,
    NoDns,
    Sandbox,
    Mac,
    TargetType,
    Outbound,
    Outbound6,
    Help,
    Version,
}

/// All options. Two have an older name too.
pub(in super::super) const TABLE: &[Opt<Is>] = &[
    switch("configure", Some('c'), Is::Configure, "Configure the interface and bring it up"),
    valued(
        "exit-fd",
        Some('e'),
        "N",
        Is::ExitFd,
        "End when this descriptor is readable or closed at its other side",
    ),
    valued("ready-fd", Some('r'), "N", Is::ReadyFd, "Write 1 to this descriptor once the network is up"),
    valued(
        "mtu",
        Some('m'),
        "BYTES",
        Is::Mtu,
        "Largest IP packet, 88 to 65521; below 1280 without IPv6 [default: 1500]",
    ),
    switch("enable-ipv6", Some('6'), Is::Ipv6, "IPv6 too"),
    valued("api-socket", Some('a'), "PATH", Is::ApiSocket, "Socket of the API that publishes ports"),
    valued("cidr", None, "CIDR", Is::Cidr, "The guest's network [default: 10.0.2.0/24]"),
    switch("disable-host-loopback", None, Is::NoLoopback, "Keep the host's 127.0.0.1 from the guest"),
    switch("no-host-loopback", None, Is::NoLoopback, "Old name of --disable-host-loopback"),
    valued(
        "netns-type",
        None,
        "TYPE",
        Is::NetnsType,
        "Form of the target: path, pid or tapfd [default: pid]",
    ),
    valued("userns-path", None, "PATH", Is::Userns, "The user namespace to join first"),
    switch("enable-sandbox", None, Is::Sandbox, "Confine this process too: /etc, /run and /proc alone"),
    switch("create-sandbox", None, Is::Sandbox, "Old name of --enable-sandbox"),
    switch("enable-seccomp", None, Is::Nothing, "No effect: the engine is confined in any case"),
    switch("disable-dns", None, Is::NoDns, "No DNS server in the guest"),
    valued(
        "outbound-addr",
        None,
        "IP|NAME",
        Is::Outbound,
        "Source address or interface of IPv4 that leaves the host",
    ),
    valued(
        "outbound-addr6",
        None,
        "IP|NAME",
        Is::Outbound6,
        "Source address or interface of IPv6 that leaves the host",
    ),
    valued("macaddress", None, "MAC", Is::Mac, "The interface's MAC address, with --configure"),
    valued(
        "target-type",
        None,
        "TYPE",
        Is::TargetType,
        "Kind of the target: netns, or bess: a socket for User-Mode Linux [default: netns]",
    ),
    switch("help", Some('h'), Is::Help, "Print help"),
    switch("version", Some('v'), Is::Version, "Print the version"),
];

/// Forms of a command line.
pub(in super::super) const USAGE: &str = "slirp4netns [OPTION]... PID|PATH|FD|SOCKET [TAPNAME]";

/// Text of `--version`: it names brodo, so that no report about it reaches the authors of slirp4netns. The
/// lines are those that callers look for; the last one stands for the options that a newer libslirp brought:
/// 2 `--outbound-addr`, 3 `--disable-dns`. libslirp 4.9 has 6, without further options.
pub(super) fn version() -> String {
    format!(
        "slirp4netns version {0} (brodo)\ncommit: brodo-{0}\nlibslirp: none, brodo {0}\nSLIRP_CONFIG_VERSION_MAX: 3\n",
        env!("CARGO_PKG_VERSION")
    )
}
