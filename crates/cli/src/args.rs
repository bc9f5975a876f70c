//! The command line as types: every option with its unit, range and default. Help, completions and manual
//! pages are made from this file alone.

use crate::clients::args::{
    CAPTURE_EXAMPLES, CaptureOptions, EventsOptions, FLOWS_EXAMPLES, FlowsOptions, ForwardOptions,
    InstanceOptions, StatusOptions, UpgradeOptions,
};
use crate::guest_network::Family;
use crate::log::Format;
use crate::metrics::Address;
use crate::option_values::{self as value, Cidr, Confine};
use brodo_control::instance::Which;
use brodo_core::config::BufferBounds;
use brodo_core::policy::{Deny, FlowRate};
use brodo_core::wire::ethernet::MacAddr;
use brodo_net::forward::spec::Spec;
use brodo_netns::setup::TX_QUEUE_LEN_MAX;
use clap::{ArgAction, ArgGroup, Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Text of `brodo --help` below the list of commands.
const EXAMPLES: &str = "\
Examples:
  brodo run -- curl https://example.org      one command with a network of its own
  brodo run                                  a shell with a network of its own
  brodo run --pcap trace.pcapng -- ./test    and every frame in a file for Wireshark
  brodo attach 4711                          a network for process 4711, as long as it lives
  brodo attach --netns /run/netns/blue       the same for a namespace with a name

The guest's network: an interface eth0 with the addresses 10.0.2.15 and fd00::15, a router at 10.0.2.2 and fd00::2, a \
DNS server at 10.0.2.3 and fd00::3. Its traffic leaves the host from ordinary sockets of the user that started brodo, and \
has that user's reachability, except the host's own loopback (see --map-host-loopback).";

const RUN_EXAMPLES: &str = "\
Examples:
  brodo run -- curl https://example.org
  brodo run -4 --mtu 1500 -- ping -c1 1.1.1.1
  brodo run --address 192.168.7.5/24 -- ip addr       router 192.168.7.2, DNS 192.168.7.3
  brodo run --map-host-loopback 10.0.2.2 -- curl 10.0.2.2:8080      the host's own 127.0.0.1:8080
  brodo run --resolver 9.9.9.9 -v -- ./build.sh
  brodo run -t 8080:80 -- ./server                    the guest's port 80 at the host's 8080

Exit status: the command's own, or 128 and the signal's number if a signal killed it; 126 if it cannot be executed, \
127 if it is not found; 125 if brodo itself fails; 2 if the command line is invalid.";

const ATTACH_EXAMPLES: &str = "\
Examples:
  unshare -r -n sleep 1000 & brodo attach $!
  sudo brodo attach --netns /run/netns/blue --ifname up0
  brodo attach 4711 --ready-fd 3 3>ready         a line appears in `ready` once the network is there

Only the network is set up: the target keeps its mounts, hence its /etc/resolv.conf (name the --dns address there).

Exit status: 0 when the target is gone or brodo was asked to end (SIGTERM, SIGINT, SIGHUP), 125 if brodo fails, \
2 if the command line is invalid.";

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
    /// Show the state of running instances
    ///
    /// Without --instance, of all instances of this user.
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
    /// Live view of the flows of a running instance
    ///
    /// Flows by rate: peer, rate, round trip, buffer limit, limiting factor, retransmissions; Enter shows one
    /// flow in detail. Keys: ? lists them, q quits. The view takes less than 1 % of a processor.
    Top(Top),
    /// Replace a running brodo by another version in place
    ///
    /// The command, connections, forwarded ports and captures go on. If the other version cannot go on, the
    /// running one does. SIGUSR2 to brodo does the same with the program at its own path.
    Upgrade(UpgradeOptions),
    /// Print completions for a shell
    ///
    /// For bash: brodo completions bash > ~/.local/share/bash-completion/completions/brodo
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print a manual page
    ///
    /// To read it: brodo man run | man -l -
    Man {
        /// The command that the page describes; without, brodo itself
        #[arg(value_parser = ["run", "attach", "top", "status", "flows", "counters", "events", "forward", "capture", "upgrade", "completions", "man"])]
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

    /// The command and its arguments [default: $SHELL, or /bin/sh]
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("target").required(true).args(["pid", "netns"])))]
pub(crate) struct Attach {
    #[command(flatten)]
    pub(crate) network: NetworkOptions,

    /// The process whose network namespace gets the interface; brodo ends with it
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Option<i32>,

    /// The network namespace by path; brodo ends when the path no longer leads to it (checked every second)
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) netns: Option<PathBuf>,

    /// The user namespace to join first [default: the owner of the network namespace]
    #[arg(long, value_name = "PATH", requires = "netns", conflicts_with = "pid", value_hint = ValueHint::FilePath)]
    pub(crate) userns: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The instance, by process id or path of its control socket [default: the only one of this user]
    #[arg(long, value_name = "PID|PATH", value_hint = ValueHint::FilePath)]
    pub(crate) instance: Option<Which>,

    /// Sampling interval in seconds, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = value::interval)]
    pub(crate) interval: Duration,
}

/// Options of both `run` and `attach`.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct NetworkOptions {
    /// Options from a TOML file, under their long names; the command line has precedence [default: none]
    ///
    /// For example `mtu = 1500`, `no-offload = true`, `resolver = ["9.9.9.9", "1.1.1.1"]`. Tables `[run]` and
    /// `[attach]` are for that command alone. An option on the command line replaces all its values in the
    /// file, and options of the file that conflict with it. There is no default file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,

    /// IPv4 only
    #[arg(short = '4', long, conflicts_with = "ipv6_only", help_heading = "Network")]
    pub(crate) ipv4_only: bool,

    /// IPv6 only
    #[arg(short = '6', long, help_heading = "Network")]
    pub(crate) ipv6_only: bool,

    /// The guest's address and prefix length [default: 10.0.2.15/24 and fd00::15/64]
    ///
    /// Once per family; the other family keeps its default. Prefix length 1 to 30 for IPv4, 1 to 126 for
    /// IPv6. Unless --gateway and --dns are given, the router has the first free address of the prefix's 2, 3
    /// and 1, the DNS server the first free of 3, 4, 2 and 1.
    #[arg(long, value_name = "CIDR", help_heading = "Network")]
    pub(crate) address: Vec<Cidr>,

    /// The router's address, inside the guest's prefix [default: 10.0.2.2 and fd00::2]
    ///
    /// Once per family.
    #[arg(long, value_name = "IP", help_heading = "Network")]
    pub(crate) gateway: Vec<IpAddr>,

    /// The interface's name, 1 to 15 characters
    #[arg(long, value_name = "NAME", default_value = "eth0", value_parser = value::interface_name, help_heading = "Network")]
    pub(crate) ifname: String,

    /// The interface's MAC address [default: 52:55 and the guest's IPv4 address, 52:55:0a:00:02:0f]
    #[arg(long, value_name = "MAC", value_parser = value::mac, help_heading = "Network")]
    pub(crate) mac: Option<MacAddr>,

    /// Largest IP packet on the link in bytes, 1280 to 65521 [default: 65520]
    ///
    /// Of this link only: packets that leave the host have the MTU of the host's links.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1280..=65521), help_heading = "Network")]
    pub(crate) mtu: Option<u16>,

    /// Length of the interface's transmit queue in frames, 1 to 65536 [default: 4096]
    ///
    /// The queue holds frames of the guest until brodo reads them; a full queue drops. TCP windows are
    /// advertised within it, so TCP loses nothing there. A short queue keeps delay low and, below about 100,
    /// costs throughput. `ip link set eth0 txqueuelen` in the guest changes it while brodo runs.
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..=i64::from(TX_QUEUE_LEN_MAX)), help_heading = "Network")]
    pub(crate) tx_queue_len: Option<u32>,

    /// An address in the guest that maps to the host's 127.0.0.1 or ::1 [default: none]
    ///
    /// Once per family. Every service on the host's loopback becomes reachable there. The router's address is
    /// allowed.
    #[arg(long, value_name = "IP", help_heading = "Network")]
    pub(crate) map_host_loopback: Vec<IpAddr>,

    /// Publish TCP ports of the guest on the host: none, auto, all, or a list such as 8080:80 [default: none]
    ///
    /// `[ADDRESS][%INTERFACE]/` is the address to listen on (default: all), followed by a comma-separated
    /// list of PORT[-PORT], each with its destination if that is another port: :[ADDRESS/]PORT[-PORT].
    /// ~PORT[-PORT] excludes ports. auto follows the guest's listening ports, all is every port that is not
    /// ephemeral. May be repeated. The guest sees the peer's own address; connections from the host's
    /// loopback arrive on the guest's.
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

    /// The DNS server's address in the guest [default: 10.0.2.3 and fd00::3]
    ///
    /// Once per family; it need not be inside the guest's prefix.
    #[arg(long, value_name = "IP", help_heading = "Names")]
    pub(crate) dns: Vec<IpAddr>,

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

    /// Concurrent flows (connections, UDP, ping), 1 to 1048576 [default: 65536]
    ///
    /// Each takes a descriptor, so the limit on open files (ulimit -Hn) is a further bound.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20), help_heading = "Limits")]
    pub(crate) max_flows: Option<u32>,

    /// New flows per second, 1 to 1048576, and the burst after a pause [default: no limit]
    ///
    /// Flows beyond are refused at once: TCP by a reset, UDP and ping by an ICMP error. BURST defaults to the
    /// rate.
    #[arg(long, value_name = "N/s[:BURST]", value_parser = value::flow_rate, help_heading = "Limits")]
    pub(crate) max_new_flows: Option<FlowRate>,

    /// Concurrent flows to one address, 1 to 1048576 [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20), help_heading = "Limits")]
    pub(crate) max_flows_per_destination: Option<u32>,

    /// Deny flows of the guest to a network or to the host itself, or to a range of ports there
    ///
    /// May be repeated. 10.0.0.0/8, 192.0.2.1:25, 0.0.0.0/0:1-1023, 2001:db8::/32, `[2001:db8::]/32:443`,
    /// host, host:22. `host` is every address that the host has at the time, except its loopback. A rule for
    /// IPv4 also matches IPv6 forms of its addresses (NAT64, 6to4, Teredo, ISATAP). A rule with ports applies
    /// to TCP and UDP, a rule without also to ping. Denied at once: TCP by a reset, all else by ICMP
    /// "administratively prohibited". The first rule that matches is counted, see -v. Queries to the DNS
    /// address are exempt.
    #[arg(long, value_name = "CIDR[:PORT]", value_parser = value::deny, help_heading = "Limits")]
    pub(crate) deny: Vec<Deny>,

    /// Busy polling before sleep, in microseconds, 0 to 1000 [default: 50, or 0 with fewer than two
    /// processors or more workers than processors]
    ///
    /// Lower latency for processor time: brodo keeps a processor busy while requests follow one another
    /// faster than this, and sleeps at once otherwise.
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u16).range(0..=1000), help_heading = "Limits")]
    pub(crate) busy_poll: Option<u16>,

    /// Worker threads, each with a queue of the interface, 1 to 64 [default: 1]
    ///
    /// A connection belongs to one worker, so more workers make several connections faster, not one, if the
    /// guest and its peers leave processors idle. On two processors one worker is best. --memory is shared by
    /// all; --max-flows and the other limits on flows are divided among them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), help_heading = "Limits")]
    pub(crate) workers: Option<u32>,

    /// Capture every frame on the guest's link to a file, in pcapng format
    ///
    /// A new file has mode 0600.
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
    /// mode 0600; see
    /// --flow-log-size.
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

    /// No segmentation or checksum offload: frames of at most the MTU with complete checksums; slower
    #[arg(long, help_heading = "Diagnosis")]
    pub(crate) no_offload: bool,

    /// Confinement of the engine, the process that parses what guest and network send
    ///
    /// An engine without files, capabilities or processes, in namespaces of its own, with a list of system
    /// calls. `brodo status` shows what is in force, and why something is not.
    #[arg(long, value_name = "MODE", value_enum, default_value = "on", help_heading = "Diagnosis")]
    pub(crate) confine: Confine,

    /// Readiness: write a line to this descriptor and close it once the network is up
    #[arg(long, value_name = "N", value_parser = value::descriptor, help_heading = "Diagnosis")]
    pub(crate) ready_fd: Option<i32>,

    /// Log set-up steps and listening addresses to standard error, and all counters at the end
    ///
    /// Twice for details.
    #[arg(short, long, action = ArgAction::Count, help_heading = "Diagnosis")]
    pub(crate) verbose: u8,

    /// Log only errors that end brodo
    #[arg(short, long, conflicts_with = "verbose", help_heading = "Diagnosis")]
    pub(crate) quiet: bool,

    /// Format of the log on standard error
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text", help_heading = "Diagnosis")]
    pub(crate) log: Format,
}

impl NetworkOptions {
    /// Size in bytes at which the flow log is rotated.
    pub(crate) fn flow_log_size(&self) -> u64 {
        self.flow_log_size.unwrap_or(64 << 20)
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
