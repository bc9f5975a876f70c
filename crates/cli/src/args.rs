//! The command line as types: every option with its unit, range and default. Help, completions and manual
//! pages are made from this file alone.

mod carrier;
mod examples;
pub(crate) mod joined;
mod limits;
mod machine;

use crate::clients::args::{
    BulkOptions, CAPTURE_EXAMPLES, CaptureOptions, EventsOptions, FLOWS_EXAMPLES, FlowsOptions,
    ForwardOptions, InstanceOptions, StatusOptions, TopOptions, UpgradeOptions,
};
use crate::flow_report::ReportOptions;
use crate::guest_network::Family;
use crate::log::Format;
use crate::metrics::Address;
use crate::option_values::{
    self as value, BulkOption, Cidr, ClosedPortsOption, Confine, HostLoopback, Isolate, LocalPeers,
    MaybeAddress, MonitorSocket, MulticastOption, OutboundOption, PolicyMode, ReadyFd, SourcePortsOption,
};
use crate::policy_command::PolicyOptions;
use crate::policy_fail;
use crate::policy_option::{self, Denied};
use crate::run_as::RunAs;
use brodo_core::config::BufferBounds;
use brodo_core::left_out::Part;
use brodo_core::policy::Rule;
use brodo_core::wire::ethernet::MacAddr;
use brodo_net::forward::spec::Spec;
use brodo_netns::setup::TX_QUEUE_LEN_MAX;
use clap::{ArgAction, ArgGroup, Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use examples::{ATTACH_EXAMPLES, EXAMPLES, RUN_EXAMPLES, VM_EXAMPLES};
use limits::LimitOptions;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// A fast, complete network for a command or namespace, without root and without touching the host's.
///
/// brodo gives a network namespace an interface, answers on it as router and DNS server, and carries its
/// traffic over ordinary sockets of the host: TCP, UDP and ping, IPv4 and IPv6.
#[derive(Debug, Parser)]
#[command(name = "brodo", version, after_help = EXAMPLES, max_term_width = 110, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command (or a shell) with a network of its own
    ///
    /// Makes fresh user, network and mount namespaces and runs COMMAND in them, as root of those namespaces
    /// but with no rights it did not have. Terminal, signals and exit status are those of the command.
    #[command(after_help = RUN_EXAMPLES)]
    Run(Run),
    /// Give a network to an existing namespace, until it is gone
    ///
    /// Makes an interface in the network namespace of a process, or of a path, and serves it in the
    /// foreground. The namespace must have been made by the same user, unless brodo runs as root.
    #[command(after_help = ATTACH_EXAMPLES)]
    Attach(Attach),
    /// Give a network to a virtual machine, by a socket of its monitor
    ///
    /// Serves the Ethernet frames that QEMU, libkrun, UML or another monitor sends and takes on a Unix
    /// socket, until brodo is asked to end. Neither root nor an interface on the host is needed.
    #[command(after_help = VM_EXAMPLES)]
    Vm(Vm),
    /// Show the state of running instances
    Status(StatusOptions),
    /// List connections and other flows with their limiting factors
    #[command(after_help = FLOWS_EXAMPLES)]
    Flows(FlowsOptions),
    /// Print counters, drops by reason, and refusals by rule
    Counters(InstanceOptions),
    /// Print events as they occur: flows opened and ended, notices
    Events(EventsOptions),
    /// List forwarded ports, or change them
    Forward(ForwardOptions),
    /// Capture frames on the guest's link to a file, while brodo runs
    #[command(after_help = CAPTURE_EXAMPLES)]
    Capture(CaptureOptions),
    /// Show the carrier of bulk connections, or change it
    ///
    /// `brodo bulk tap` takes every connection back that a kernel socket has. To change to `kernel`, brodo
    /// must have been started without --bulk tap.
    Bulk(BulkOptions),
    /// Live view of the flows of a running instance
    ///
    /// Flows by rate: peer, rate, round trip, buffer limit, limiting factor, retransmissions; Enter shows one
    /// flow in detail. Keys: ? lists them, q quits. The view takes less than 1 % of a processor.
    Top(TopOptions),
    /// Replace a running brodo by another version in place
    ///
    /// The command, connections, forwarded ports and captures go on. If the other version cannot go on, the
    /// running one does. SIGUSR2 to brodo does the same with the program at its own path.
    Upgrade(UpgradeOptions),
    /// Check a policy file, or show and change the policy of a running brodo
    ///
    /// `check`, `test`, `presets`, and `learn` with logs, need no running brodo; `learn` without logs asks
    /// one that was started with --learn. Exit status: 0, or 1 if a destination is denied, a test of the
    /// file fails or a running brodo is missing or refuses, or 2 if the file or the command line is invalid.
    Policy(PolicyOptions),
    /// Make a page of flow logs: what was reached, when, and what was refused
    ///
    /// One file of HTML that needs no network: destinations by bytes on a timeline, refusals with the rule
    /// that would allow them, sortable and searchable. The logs are those of --flow-log and --audit.
    Report(ReportOptions),
    /// Take the place of another program, by its own command line: pasta, passt, pesto, slirp4netns, cni,
    /// netavark
    ///
    /// brodo as pasta OPTIONS, or a copy of brodo or a link to it that is called pasta. Options are those of
    /// the other program, which `brodo as pasta --help` lists, and brodo's own, which `brodo attach --help`
    /// lists (of passt: `brodo vm --help`), by --brodo-OPTION[=VALUE] or in the environment variable
    /// BRODO_ARGS. cni and netavark are network plugins, which container runtimes execute.
    As {
        /// The program
        #[arg(value_name = "NAME", value_parser = ["pasta", "passt", "pesto", "slirp4netns", "cni", "netavark"])]
        program: String,
        /// Its words
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Print completions for a shell
    ///
    /// For bash: brodo completions bash > ~/.local/share/bash-completion/completions/brodo
    Completions {
        /// The shell
        shell: Shell,
        /// The program in whose place brodo runs; without, brodo itself
        #[arg(long = "as", value_name = "NAME", value_parser = ["pasta", "passt", "pesto", "slirp4netns"])]
        program: Option<String>,
    },
    /// Print a manual page
    ///
    /// To read it: brodo man run | man -l -
    Man {
        /// The command, or the program or plugin in whose place brodo runs; without, brodo itself
        #[arg(value_parser = ["run", "attach", "vm", "top", "status", "flows", "counters", "events", "forward", "capture", "bulk", "upgrade", "policy", "report", "as", "completions", "man", "pasta", "passt", "pesto", "slirp4netns", "cni", "netavark"])]
        page: Option<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) network: NetworkOptions,

    /// Keep user and group ids instead of becoming root in the namespace
    ///
    /// An ordinary user sees its own name and files as outside, but may then not change the namespace's
    /// network. When root runs brodo all ids are kept in any case.
    #[arg(long)]
    pub(crate) keep_user: bool,

    /// PID, IPC and UTS namespaces of the command's own as well, or all but the first
    ///
    /// The command is process 1, sees no other processes, and takes its own along when it ends.
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    pub(crate) isolate: Option<Isolate>,

    /// The command's host name, with --isolate
    #[arg(long, value_name = "NAME", requires = "isolate", value_parser = value::host_label)]
    pub(crate) hostname: Option<String>,

    /// The command and its arguments [default: $SHELL, or /bin/sh]
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("target").required(true).multiple(true).args(["pid", "netns", "tap_fd"])))]
pub(crate) struct Attach {
    #[command(flatten)]
    pub(crate) network: NetworkOptions,

    /// The process whose network namespace gets the interface; brodo ends with it
    #[arg(value_parser = clap::value_parser!(i32).range(1..), conflicts_with = "netns")]
    pub(crate) pid: Option<i32>,

    /// The network namespace by path; brodo ends when the path no longer leads to it (checked every second)
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) netns: Option<PathBuf>,

    /// The user namespace to join first [default: the owner of the network namespace]
    #[arg(long, value_name = "PATH", requires = "netns", conflicts_with = "pid", value_hint = ValueHint::FilePath)]
    pub(crate) userns: Option<PathBuf>,

    /// Serve the TAP with this descriptor, which brodo was started with, instead of making an interface
    ///
    /// Its owner configures it. brodo ends with the interface, and with the process or path if one is given
    /// too; without, -T, -U and `auto` are not available.
    #[arg(long, value_name = "N", value_parser = value::descriptor)]
    pub(crate) tap_fd: Option<i32>,

    /// Serve in the background: the command ends once the network is up and all ports are open
    ///
    /// Failures until then go to standard error, with the usual exit status. Inherited descriptors are
    /// closed, and the working directory becomes /.
    #[arg(long)]
    pub(crate) daemon: bool,

    /// Go on when the target is gone; end by a signal only
    #[arg(long)]
    pub(crate) outlive_target: bool,

    /// Become another user once the network is up: names or numbers [default: the user that starts brodo]
    ///
    /// For root. Of root's capabilities CAP_NET_BIND_SERVICE and CAP_KILL stay. Logs in root's folders are
    /// not rotated then and grow, sockets there stay at the end, and there is no upgrade in place.
    #[arg(long, value_name = "USER[:GROUP]")]
    pub(crate) run_as: Option<RunAs>,

    /// End when this descriptor is readable, or closed at its other side
    #[arg(long, value_name = "N", value_parser = value::any_descriptor)]
    pub(crate) exit_fd: Option<i32>,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("monitor").required(true).args(MONITOR_WAYS)))]
pub(crate) struct Vm {
    #[command(flatten)]
    pub(crate) network: NetworkOptions,

    /// A stream on which each frame follows its length: QEMU's -netdev stream, libkrun, whatever passt serves
    ///
    /// A path at which brodo listens, with mode 0600, or fd:N for a connected socket that brodo was started
    /// with. A monitor that speaks vhost-user there is served by that.
    #[arg(long, value_name = "PATH|fd:N", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<MonitorSocket>,

    /// Datagrams of one frame each: QEMU's -netdev dgram, libkrun's unixgram, vfkit
    ///
    /// The monitor is the sender of the first datagram, which must have an address of its own.
    #[arg(long, value_name = "PATH|fd:N", value_hint = ValueHint::FilePath, conflicts_with = "connect")]
    pub(crate) dgram: Option<MonitorSocket>,

    /// Packets of one frame each on a connection: UML's vector transport `bess`
    #[arg(long, value_name = "PATH|fd:N", value_hint = ValueHint::FilePath)]
    pub(crate) seqpacket: Option<MonitorSocket>,

    /// vhost-user: frames in rings of the machine's own memory, the fastest way to QEMU and others
    ///
    /// The machine's memory must be shared (QEMU: a memory backend with share=on).
    #[arg(long, value_name = "PATH|fd:N", value_hint = ValueHint::FilePath, visible_alias = "socket-path")]
    pub(crate) vhost_user: Option<MonitorSocket>,

    /// vhost-user on a connected socket that brodo was started with, by the option of QEMU's conventions
    #[arg(long, value_name = "N", value_parser = value::monitor_descriptor)]
    pub(crate) fd: Option<MonitorSocket>,

    /// Print the capabilities of a vhost-user back end, in the form of QEMU's conventions, and end
    #[arg(long)]
    pub(crate) print_capabilities: bool,

    /// Queue pairs that the machine may use by vhost-user, 1 to 63 [default: 8]
    ///
    /// The monitor decides how many the guest gets (QEMU: queues=N,mq=on). Each worker serves its part of
    /// them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=63))]
    pub(crate) queues: Option<u8>,

    /// Offer by vhost-user what passt offers: no channel for requests of the back end, no configuration space
    ///
    /// QEMU's -netdev passt fails with such a channel (QEMU 11.1). brodo in passt's place has this option.
    #[arg(long, hide_short_help = true)]
    pub(crate) no_backend_channel: bool,

    /// Connect to the monitor, which listens at the path, and again whenever the connection is lost
    #[arg(long)]
    pub(crate) connect: bool,

    /// End with the first monitor's connection
    #[arg(long)]
    pub(crate) one_off: bool,

    /// Serve in the background: the command ends once the socket is there and all ports are open
    ///
    /// Failures until then go to standard error, with the usual exit status. Inherited descriptors are
    /// closed, and the working directory becomes /.
    #[arg(long)]
    pub(crate) daemon: bool,

    /// Become another user once the network is up: names or numbers [default: the user that starts brodo]
    ///
    /// For root. Of root's capabilities CAP_NET_BIND_SERVICE and CAP_KILL stay. Logs in root's folders are
    /// not rotated then and grow, sockets there stay at the end, and there is no upgrade in place.
    #[arg(long, value_name = "USER[:GROUP]")]
    pub(crate) run_as: Option<RunAs>,

    /// End when this descriptor is readable, or closed at its other side
    #[arg(long, value_name = "N", value_parser = value::any_descriptor)]
    pub(crate) exit_fd: Option<i32>,
}

/// Options of `run`, `attach` and `vm`.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct NetworkOptions {
    /// Options from a TOML file, under their long names; the command line has precedence [default: none]
    ///
    /// For example `mtu = 1500`, `no-offload = true`, `resolver = ["9.9.9.9", "1.1.1.1"]`. Tables `[run]`,
    /// `[attach]` and `[vm]` are for that command alone. An option on the command line replaces all its
    /// values in the file, and options of the file that conflict with it. There is no default file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,

    /// IPv4 only
    #[arg(short = '4', long, conflicts_with = "ipv6_only", help_heading = "Network")]
    pub(crate) ipv4_only: bool,

    /// IPv6 only
    #[arg(short = '6', long, help_heading = "Network")]
    pub(crate) ipv6_only: bool,

    /// The guest's network as a copy of the host's: addresses, routes, interface name, MTU
    ///
    /// Of the interface with the default route, or the given one. The guest has the host's addresses and
    /// router and sees the hosts of its network, and they it, by their own addresses; in a family that the
    /// host does not have it has a link-local one. --address, --gateway, --ifname and --mtu replace parts of
    /// the copy. The DNS server is at 169.254.1.1 and fd62:726f:646f::3.
    #[arg(long, value_name = "INTERFACE", num_args = 0..=1, require_equals = true, default_missing_value = "", help_heading = "Network")]
    pub(crate) copy_host: Option<String>,

    /// The guest's address and prefix length [default: 10.0.2.15/24 and fd00::15/64]
    ///
    /// May be repeated; the first of each family is the one that published ports lead to. A family without
    /// one keeps its default. Unless --gateway and --dns are given, the router has the first free address of
    /// the prefix's 2, 3 and 1, the DNS server the first free of 3, 4, 2 and 1.
    #[arg(long, value_name = "CIDR", help_heading = "Network")]
    pub(crate) address: Vec<Cidr>,

    /// The router's address [default: 10.0.2.2 and fd00::2]
    ///
    /// Once per family. It may be outside the guest's prefix, or link-local.
    #[arg(long, value_name = "IP", help_heading = "Network")]
    pub(crate) gateway: Vec<IpAddr>,

    /// Make the interface, but leave it down and without addresses, for a DHCP client in the guest
    #[arg(long, help_heading = "Network")]
    pub(crate) no_configure: bool,

    /// The interface's name, 1 to 15 characters [default: eth0, or the host's with --copy-host]
    #[arg(long, value_name = "NAME", value_parser = value::interface_name, help_heading = "Network")]
    pub(crate) ifname: Option<String>,

    /// The interface's MAC address [default: 52:55 and the guest's IPv4 address, 52:55:0a:00:02:0f]
    #[arg(long, value_name = "MAC", value_parser = value::mac, help_heading = "Network")]
    pub(crate) mac: Option<MacAddr>,

    /// The router's MAC address [default: 52:55 and the router's IPv4 address]
    #[arg(long, value_name = "MAC", value_parser = value::mac, help_heading = "Network")]
    pub(crate) router_mac: Option<MacAddr>,

    /// Largest IP packet on the link in bytes, 88 to 65521 [default: 65520]
    ///
    /// Of this link only: packets that leave the host have the MTU of the host's links. Below 1280 the guest
    /// has IPv4 alone; below 88 Linux would send TCP in fragments.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(88..=65521), help_heading = "Network")]
    pub(crate) mtu: Option<u16>,

    /// Length of the interface's transmit queue in frames, 1 to 65536 [default: 4096]
    ///
    /// The queue holds frames of the guest until brodo reads them; a full queue drops. TCP windows are
    /// advertised within it, so TCP loses nothing there. A short queue keeps delay low and, below about 100,
    /// costs throughput. `ip link set eth0 txqueuelen` in the guest changes it while brodo runs.
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..=i64::from(TX_QUEUE_LEN_MAX)), help_heading = "Network")]
    pub(crate) tx_queue_len: Option<u32>,

    /// An address in the guest that maps to the host's 127.0.0.1 or ::1, or `gateway` [default: none]
    ///
    /// Once per family. Every service on the host's loopback becomes reachable there. The router's address is
    /// allowed; `gateway` is that address of both families, with `--copy-host` only where the host has one.
    #[arg(long, value_name = "IP", help_heading = "Network")]
    pub(crate) map_host_loopback: Vec<HostLoopback>,

    /// An address in the guest that maps to the host's address that is also the guest's [default: none]
    ///
    /// Once per family, for --copy-host: the guest cannot reach the host by the address that both have. Peers
    /// that connect from that address to published ports appear under this one.
    #[arg(long, value_name = "IP", help_heading = "Network")]
    pub(crate) map_host_address: Vec<IpAddr>,

    /// Source of what leaves the host: an address, %INTERFACE, or both [default: the kernel's choice]
    ///
    /// Of TCP, UDP, ping and DNS. 192.0.2.5, %wg0, 192.0.2.5%eth1, 0.0.0.0%wg0 for an interface of IPv4
    /// alone. Once per family. An interface keeps traffic off all others, but not from the host's loopback.
    #[arg(long, value_name = "SOURCE", help_heading = "Network")]
    pub(crate) outbound: Vec<OutboundOption>,

    /// Source ports of the guest's UDP on the host
    ///
    /// One for each of the guest's, for all destinations, and of the same number where that is free, as
    /// WireGuard, STUN and torrents need; or any port for each flow.
    #[arg(long, value_name = "PORTS", value_enum, default_value = "guest", help_heading = "Network")]
    pub(crate) udp_source_ports: SourcePortsOption,

    /// Whether UDP to multicast groups and broadcast addresses leaves the host
    ///
    /// As from a program of the host's, with the guest's time to live, for discovery (SSDP, DNS-SD,
    /// wake-on-LAN). The guest hears the hosts that answer, but no group. For --policy the groups are private
    /// addresses.
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto", help_heading = "Network")]
    pub(crate) multicast: MulticastOption,

    /// Leave out protocols or services [default: none]
    ///
    /// Packets for them are dropped without an answer, where --deny refuses. udp is also DNS, but not DHCP;
    /// dns is brodo's own server; ndp is also ra, router advertisements. May be repeated, or a list with
    /// commas.
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = value::parts(), help_heading = "Network")]
    pub(crate) without: Vec<Part>,

    /// Answer to new flows to brodo's own addresses where nothing is served
    ///
    /// A reset and ICMP "port unreachable", or ICMP "network unreachable" for all, as slirp4netns has it.
    #[arg(long, value_name = "ANSWER", value_enum, default_value = "refuse", help_heading = "Network")]
    pub(crate) closed_ports: ClosedPortsOption,

    /// Publish TCP ports of the guest on the host: none, auto, all, or a list such as 8080:80 [default: none]
    ///
    /// `[ADDRESS][%INTERFACE]/` is the address to listen on (default: all), followed by a comma-separated
    /// list of PORT[-PORT], each with its destination if that is another port: :[ADDRESS/]PORT[-PORT].
    /// ~PORT[-PORT] excludes ports. auto follows the guest's listening ports, all is every port that is not
    /// ephemeral. May be repeated. The guest sees the peer's own address; connections from the host's
    /// loopback arrive on the guest's (--local-peers).
    #[arg(short = 't', long = "tcp-ports", value_name = "SPEC", help_heading = "Ports")]
    pub(crate) tcp_ports: Vec<Spec>,

    /// Publish UDP ports of the guest on the host, as -t [default: none]
    #[arg(short = 'u', long = "udp-ports", value_name = "SPEC", help_heading = "Ports")]
    pub(crate) udp_ports: Vec<Spec>,

    /// Make TCP ports of the host's loopback reachable on the guest's own loopback, written as for -t
    /// [default: none]
    ///
    /// PORT:ADDRESS/PORT leads to another address that the host can reach.
    #[arg(short = 'T', long = "tcp-ns", value_name = "SPEC", help_heading = "Ports")]
    pub(crate) tcp_ns: Vec<Spec>,

    /// UDP ports of the host's loopback on the guest's own, as -T [default: none]
    #[arg(short = 'U', long = "udp-ns", value_name = "SPEC", help_heading = "Ports")]
    pub(crate) udp_ns: Vec<Spec>,

    /// Destination in the guest of peers on the host's loopback from published ports
    ///
    /// By default also TCP services that listen on the guest's loopback alone are reached.
    #[arg(long, value_name = "WHERE", value_enum, default_value = "mixed", help_heading = "Ports")]
    pub(crate) local_peers: LocalPeers,

    /// Listen for published ports also at addresses that the host does not have
    ///
    /// For one that comes later, such as an address that moves between hosts.
    #[arg(long, help_heading = "Ports")]
    pub(crate) freebind: bool,

    /// The DNS server's address in the guest, or `none` [default: 10.0.2.3 and fd00::3]
    ///
    /// Once per family; it need not be inside the guest's prefix. With `none` brodo is no DNS server, and the
    /// command keeps the host's resolv.conf.
    #[arg(long, value_name = "IP", help_heading = "Names")]
    pub(crate) dns: Vec<MaybeAddress>,

    /// Answer DNS at the address of --map-host-loopback too, where that hides the host's resolver
    ///
    /// In these families: ports 53 and 853 there are those of brodo's DNS server if a resolver of the host's
    /// resolv.conf has this address itself, as a router may, or is on the host's loopback.
    #[arg(long, value_name = "FAMILY", value_parser = clap::value_parser!(Family), value_delimiter = ',', requires = "map_host_loopback", help_heading = "Names")]
    pub(crate) dns_at_loopback: Vec<Family>,

    /// A DNS server to offer by DHCP and router advertisements, or `none` [default: brodo's own]
    ///
    /// Once per family. It is offered and no more: queries to it go to that server.
    #[arg(long, value_name = "IP", help_heading = "Names")]
    pub(crate) offer_dns: Vec<MaybeAddress>,

    /// An upstream resolver, by default at port 53 [default: the resolvers of the host's /etc/resolv.conf]
    ///
    /// May be repeated, in order of preference; up to eight are used. Changes of the host's file are
    /// followed; a resolver on the host's loopback is allowed.
    #[arg(long, value_name = "IP[:PORT]", value_parser = value::resolver, help_heading = "Names")]
    pub(crate) resolver: Vec<SocketAddr>,

    /// A search domain for short names [default: the search domains of the host's /etc/resolv.conf]
    ///
    /// May be repeated; a dot alone means none.
    #[arg(long, value_name = "NAME", value_parser = value::search_name, help_heading = "Names")]
    pub(crate) search: Vec<String>,

    /// A host name to offer by DHCP for IPv4
    ///
    /// For guests that take theirs from there; brodo answers no queries for it.
    #[arg(long, value_name = "NAME", value_parser = value::offered_name, help_heading = "Names")]
    pub(crate) offer_hostname: Option<String>,

    /// A fully qualified domain name to offer by DHCP and DHCPv6, to clients that ask for one
    ///
    /// RFC 4702, RFC 4704. brodo answers no queries for it and updates no DNS.
    #[arg(long, value_name = "NAME", value_parser = value::offered_name, help_heading = "Names")]
    pub(crate) offer_fqdn: Option<String>,

    /// A host entry: a name and its address, answered by brodo itself
    ///
    /// May be repeated, also with the same name or address. With --map-host-loopback the name
    /// host.brodo.internal has the mapped address.
    #[arg(long, value_name = "NAME=IP", value_parser = value::host_name, help_heading = "Names")]
    pub(crate) host_name: Vec<(String, IpAddr)>,

    /// Size of the DNS cache in bytes, 0 for none [default: 512K]
    ///
    /// 0 or 4K to 64M.
    #[arg(long, value_name = "SIZE", value_parser = value::dns_cache, help_heading = "Names")]
    pub(crate) dns_cache: Option<usize>,

    /// Receive buffer per TCP connection (guest to host): initial and maximum limit [default: 64K..4M]
    ///
    /// In bytes, 4K to 1048560K (the largest TCP window), with K, M or G for powers of 1024. A single size is
    /// a buffer that does not grow. Memory is taken for bytes held, not for limits.
    #[arg(long, value_name = "INITIAL..MAX", value_parser = value::bounds, help_heading = "Limits")]
    pub(crate) tcp_rx_buffer: Option<BufferBounds>,

    /// Send buffer per TCP connection (host to guest), as --tcp-rx-buffer [default: 64K..4M]
    #[arg(long, value_name = "INITIAL..MAX", value_parser = value::bounds, help_heading = "Limits")]
    pub(crate) tcp_tx_buffer: Option<BufferBounds>,

    /// Memory for the payload of all connections in bytes, at least 1M [default: 256M]
    ///
    /// Below the default, receive buffers start lower than 64K: at a 4096th of it, at least at 2K.
    #[arg(long, value_name = "SIZE", value_parser = value::memory, help_heading = "Limits")]
    pub(crate) memory: Option<usize>,

    #[command(flatten)]
    pub(crate) limits: LimitOptions,

    /// Policy: a file with rules by name and address; everything else is denied
    ///
    /// May be repeated: all files hold together. Read once, before the namespace is made. `brodo policy check
    /// FILE` checks it. @NAME is a preset: `brodo policy presets`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Policy")]
    pub(crate) policy: Vec<PathBuf>,

    /// Allow flows of the guest to a destination; everything that no rule allows is denied
    ///
    /// May be repeated. example.com or `https://*.example.com` (TLS at port 443, whose ClientHello names the
    /// server), `http://` (port 80, every request), `quic://` (UDP port 443), `tls://db.example:5432`,
    /// `tcp://github.com:22`, `udp://stun.example:3478`, `ping://example.com`, 10.20.0.0/16:5432,
    /// `[2001:db8::]/32:443`, host:631. A name is allowed at the addresses that brodo's DNS gave the guest
    /// for it.
    #[arg(long, value_name = "RULE", value_parser = policy_option::allow, help_heading = "Policy")]
    pub(crate) allow: Vec<Rule>,

    /// Deny flows of the guest to a network or to the host itself, to a range of ports there, or to a name
    ///
    /// May be repeated. 10.0.0.0/8, 192.0.2.1:25, 0.0.0.0/0:1-1023, 2001:db8::/32, `[2001:db8::]/32:443`,
    /// host, host:22, private. `host` is every address that the host has at the time, except its loopback;
    /// `private` is those and all private networks. A rule for IPv4 also matches IPv6 forms of its addresses
    /// (NAT64, 6to4, Teredo, ISATAP). A rule with ports applies to TCP and UDP, a rule without also to ping.
    /// Denied at once: TCP by a reset, all else by ICMP "administratively prohibited". The first rule that
    /// matches is counted, see -v. Queries to the DNS address are exempt while anything is left. A name
    /// (example.com, `*.example.com`) does not exist for the guest any more, and `https://example.com` denies
    /// one protocol. Without --policy or --allow that is advice, not a boundary.
    #[arg(long, value_name = "RULE", value_parser = policy_option::deny, help_heading = "Policy")]
    pub(crate) deny: Vec<Denied>,

    /// Mode of the policy
    ///
    /// `observe` lets everything pass but the floor, and notes what would be refused: `brodo policy explain`.
    #[arg(long, value_enum, value_name = "MODE", default_value_t, help_heading = "Policy")]
    pub(crate) policy_mode: PolicyMode,

    /// Audit log: a line of JSON for each decision of the policy, equal ones of a second as one
    ///
    /// Questions, openings and names, allowed and refused. It is rotated as the flow log is, with the same
    /// options.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Policy")]
    pub(crate) audit: Option<PathBuf>,

    /// Refuse everything, until the end, if the audit log cannot be written any more
    ///
    /// Open flows end too, as by `brodo policy lockdown`.
    #[arg(long, requires = "audit", help_heading = "Policy")]
    pub(crate) audit_required: bool,

    /// Exit with STATUS if the policy has refused what no rule is about [default STATUS: 122]
    ///
    /// For CI jobs: at the end the refusals are listed on standard error, with the rule that would allow
    /// each. The command's own status is replaced. Refusals by a deny rule of the policy do not count, those
    /// of the floor do. With --policy-mode observe it is what would have been refused.
    #[arg(long, value_name = "STATUS", num_args = 0..=1, require_equals = true, default_missing_value = policy_fail::STATUS, value_parser = clap::value_parser!(u8).range(1..), help_heading = "Policy")]
    pub(crate) policy_fail: Option<u8>,

    /// Write a policy that allows what the guest has reached to a file, at the end
    ///
    /// As `brodo policy learn` does from a flow log: the narrowest rule for each destination, by name where
    /// the guest asked for one. Without a policy, or with --policy-mode observe, the guest reaches all but
    /// the floor meanwhile.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Policy")]
    pub(crate) learn: Option<PathBuf>,

    /// Let the guest reach link-local addresses and metadata services of clouds, as the host does
    ///
    /// By default, and under a policy whatever its rules, they are refused: they give credentials of the host
    /// to any program that asks.
    #[arg(long, help_heading = "Limits")]
    pub(crate) allow_link_local: bool,

    /// Busy polling before sleep, in microseconds, 0 to 1000 [default: 50, or 0 with fewer than two
    /// processors or more workers than processors]
    ///
    /// Lower latency for processor time: brodo keeps a processor busy while requests follow one another
    /// faster than this, and sleeps at once otherwise.
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u16).range(0..=1000), overrides_with = "busy_poll", help_heading = "Limits")]
    pub(crate) busy_poll: Option<u16>,

    /// Worker threads, each with queues of the interface or of the virtual machine, 1 to 64 [default: 1]
    ///
    /// A connection belongs to one worker: several get faster, not one, if processors are idle. On two
    /// processors a second worker helps several bulk flows, and costs short connections and, at an MTU of
    /// 1500, single flows. --memory is shared; limits on flows and --dns-cache are divided.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), help_heading = "Limits")]
    pub(crate) workers: Option<u32>,

    /// Carrier of bulk TCP connections: brodo's own TCP on the guest's interface, or a kernel socket
    ///
    /// With `kernel`, a connection that moves more than 32 MiB per second gets a kernel socket in the place
    /// of brodo's TCP, beside the guest's interface, and its bytes are spliced instead of copied. Where the
    /// kernel lacks what that takes, everything stays with the interface, and `brodo status` says why.
    /// `auto` is the same without a warning, and `tap` for virtual machines and --tap-fd. `brodo bulk`
    /// changes it at run time. The last --bulk counts.
    #[arg(
        long,
        value_name = "CARRIER",
        value_enum,
        default_value = "auto",
        overrides_with = "bulk",
        help_heading = "Limits"
    )]
    pub(crate) bulk: BulkOption,

    /// Capture every frame on the guest's link to a file, in pcapng format
    ///
    /// An existing file is replaced; a new one has mode 0600.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Diagnosis")]
    pub(crate) pcap: Option<PathBuf>,

    /// Metrics for Prometheus at IP:PORT, :PORT for 127.0.0.1, or unix:PATH [default: none]
    ///
    /// Over HTTP at /metrics, for example --metrics :9100. Metrics are sums, without addresses of the guest's
    /// peers; every client that reaches the address can read them. A Unix socket admits the same user alone.
    #[arg(long, value_name = "ADDR", help_heading = "Diagnosis")]
    pub(crate) metrics: Option<Address>,

    /// Flow log: a line of JSON for each flow that ends
    ///
    /// Addresses, bytes, duration, cause of the end; denied flows too. The file is appended to and made with
    /// mode 0600; see --flow-log-size.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Diagnosis")]
    pub(crate) flow_log: Option<PathBuf>,

    /// Size in bytes at which the flow log is rotated to FILE.1, at least 4K [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = value::log_size, help_heading = "Diagnosis")]
    pub(crate) flow_log_size: Option<u64>,

    /// Rotated flow logs to keep, FILE.1 being the newest, 0 to 99 [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=99), help_heading = "Diagnosis")]
    pub(crate) flow_log_keep: Option<u32>,

    /// The control socket, or `none` [default: PID.sock in $XDG_RUNTIME_DIR/brodo]
    ///
    /// For brodo status, flows, forward, capture and others. It admits the user that started brodo, and root,
    /// but not the command that brodo runs. Without $XDG_RUNTIME_DIR it is in /run/user/UID/brodo or
    /// /tmp/brodo-UID.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, help_heading = "Diagnosis")]
    pub(crate) control: Option<PathBuf>,

    /// A socket for slirp4netns' API: programs that speak it list and change published ports there
    ///
    /// One request of JSON for each connection: add_hostfwd, remove_hostfwd, list_hostfwd. Mode and clients
    /// as of the control socket.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, help_heading = "Ports")]
    pub(crate) slirp_socket: Option<PathBuf>,

    /// A socket for pesto, passt's client that lists and changes forwarded ports
    ///
    /// Mode and clients as of the control socket.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, help_heading = "Ports")]
    pub(crate) pesto_socket: Option<PathBuf>,

    /// No segmentation or checksum offload: frames of at most the MTU with complete checksums; slower
    #[arg(long, help_heading = "Diagnosis")]
    pub(crate) no_offload: bool,

    /// Confinement of the engine, the process that parses what guest and network send
    ///
    /// An engine without files, capabilities or processes, in namespaces of its own, with a list of system
    /// calls, as its keeper and the processes in the guest's namespace have one. `brodo status` shows what is
    /// in force, and why something is not.
    #[arg(long, value_name = "MODE", value_enum, default_value = "on", help_heading = "Diagnosis")]
    pub(crate) confine: Confine,

    /// Confinement of the process that starts brodo's others too: few folders and capabilities
    ///
    /// It keeps /etc, /run, /proc and the folders of its sockets, and of its capabilities
    /// CAP_NET_BIND_SERVICE and CAP_KILL. Logs elsewhere are not rotated and grow, and there is no upgrade in
    /// place.
    #[arg(long, help_heading = "Diagnosis")]
    pub(crate) sandbox: bool,

    /// Write brodo's process id to a file once the network is up
    ///
    /// With --daemon the id of the process in the background. A new file has mode 0600; it stays at the end.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Diagnosis")]
    pub(crate) pid_file: Option<PathBuf>,

    /// Readiness: write an empty line, or TEXT, to this descriptor and close it once the network is up
    #[arg(long, value_name = "N[:TEXT]", value_parser = value::ready_fd, help_heading = "Diagnosis")]
    pub(crate) ready_fd: Option<ReadyFd>,

    /// Log set-up steps and listening addresses to standard error, and all counters at the end
    ///
    /// Twice for details.
    #[arg(short, long, action = ArgAction::Count, help_heading = "Diagnosis")]
    pub(crate) verbose: u8,

    /// Log the counters that have changed every so many seconds, 0.1 to 3600 [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = value::interval, help_heading = "Diagnosis")]
    pub(crate) stats: Option<Duration>,

    /// Log only errors that end brodo
    #[arg(short, long, conflicts_with = "verbose", help_heading = "Diagnosis")]
    pub(crate) quiet: bool,

    /// Log to a file instead of standard error
    ///
    /// Each line with its time. The file is appended to and made with mode 0600; the error that ends brodo
    /// goes to standard error too.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Diagnosis")]
    pub(crate) log_file: Option<PathBuf>,

    /// Empty the file of --log-file at the start; its first line has the program, its path and its process id
    #[arg(long, requires = "log_file", help_heading = "Diagnosis")]
    pub(crate) log_file_new: bool,

    /// Size in bytes at which the file of --log-file is renamed to FILE.1, at least 4K [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = value::log_size, help_heading = "Diagnosis")]
    pub(crate) log_file_size: Option<u64>,

    /// Log to the system's log too: /dev/log, facility daemon
    #[arg(long, help_heading = "Diagnosis")]
    pub(crate) syslog: bool,

    /// Format of the log
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text", help_heading = "Diagnosis")]
    pub(crate) log: Format,
}

/// Options of which a command line of `vm` has one.
const MONITOR_WAYS: [&str; 6] = ["socket", "dgram", "seqpacket", "vhost_user", "fd", "print_capabilities"];

impl NetworkOptions {
    /// Size in bytes at which the flow log is rotated.
    pub(crate) fn flow_log_size(&self) -> u64 {
        self.flow_log_size.unwrap_or(64 << 20)
    }

    /// Size in bytes at which the log's file is rotated.
    pub(crate) fn log_file_size(&self) -> u64 {
        self.log_file_size.unwrap_or(1 << 20)
    }

    /// Rotated flow logs to keep.
    pub(crate) fn flow_log_keep(&self) -> u32 {
        self.flow_log_keep.unwrap_or(3)
    }

    /// Whether the options leave the guest this family.
    pub(crate) fn wants(&self, family: Family) -> bool {
        match family {
            Family::V4 => !self.ipv6_only,
            Family::V6 => !self.ipv4_only,
        }
    }
}
