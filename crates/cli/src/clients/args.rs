//! Options of the commands that talk to running instances.

use brodo_control::event::Topic;
use brodo_control::flow::{FlowRef, Protocol};
use brodo_control::instance::Which;
use clap::{ArgGroup, Args, Subcommand, ValueEnum, ValueHint};
use std::net::IpAddr;
use std::path::PathBuf;

/// What `brodo flows --help` ends with.
pub(crate) const FLOWS_EXAMPLES: &str = "\
Examples:
  brodo flows --sort bytes                    those that have moved most, first
  brodo flows --protocol tcp --port 443
  brodo flows 0:12.3                          one of them, and what became of its buffers
  brodo flows --json | jq .remote

`limited by` says what holds a connection back: the application (nobody has anything to send), the guest-window, our-limit \
(brodo's buffer, which grows), the host-socket (the peer takes no more), the link, memory, or loss. `out` is from the guest, `in` \
is to it.";

/// What `brodo capture --help` ends with.
pub(crate) const CAPTURE_EXAMPLES: &str = "\
Examples:
  brodo capture start trace.pcapng
  brodo capture start dns.pcapng udp port 53
  brodo capture start web.pcapng tcp and host 192.0.2.7 and not port 22
  brodo capture stop

The words of a filter are tcp, udp, icmp, arp, ip, ip6, host ADDRESS, net ADDRESS/LENGTH and port NUMBER, each with `not` \
before it if need be; all must be true of a frame.";

/// Which instance, and for whom the answer is.
#[derive(Debug, Args)]
pub(crate) struct InstanceOptions {
    /// The brodo that is meant, by process id or by the path of its control socket [default: the only one]
    #[arg(long, global = true, value_name = "PID|PATH", value_parser = which)]
    pub(crate) instance: Option<Which>,

    /// JSON for programs, an object on each line, as the control socket gives it
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

fn which(word: &str) -> Result<Which, String> {
    word.parse()
}

#[derive(Debug, Args)]
pub(crate) struct StatusOptions {
    #[command(flatten)]
    pub(crate) instance: InstanceOptions,
}

/// What flows are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// The newest last
    Age,
    /// Those used last, first
    Idle,
    /// Those that have moved most both ways, first
    Bytes,
    /// Those that have sent most, first
    Out,
    /// Those that have received most, first
    In,
    /// The farthest peers first
    Rtt,
    /// By address and port of the peer
    Remote,
}

#[derive(Debug, Args)]
pub(crate) struct FlowsOptions {
    #[command(flatten)]
    pub(crate) instance: InstanceOptions,

    /// Only this flow, with all that is known of it
    #[arg(conflicts_with_all = ["sort", "protocol", "address", "port"])]
    pub(crate) id: Option<FlowRef>,

    /// What comes first
    #[arg(long, value_enum, default_value = "age")]
    pub(crate) sort: Sort,

    /// Only those of this protocol: tcp, udp or echo
    #[arg(long, short)]
    pub(crate) protocol: Option<Protocol>,

    /// Only those with this address at either end
    #[arg(long, short, value_name = "IP")]
    pub(crate) address: Option<IpAddr>,

    /// Only those with this port at either end
    #[arg(long, value_name = "N")]
    pub(crate) port: Option<u16>,
}

#[derive(Debug, Args)]
pub(crate) struct EventsOptions {
    #[command(flatten)]
    pub(crate) instance: InstanceOptions,

    /// What to print: flow_opened, flow_ended, notice [default: all]
    #[arg(value_name = "TOPIC")]
    pub(crate) topics: Vec<Topic>,
}

#[derive(Debug, Args)]
pub(crate) struct ForwardOptions {
    #[command(flatten)]
    pub(crate) instance: InstanceOptions,

    #[command(subcommand)]
    pub(crate) what: Option<ForwardCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ForwardCommand {
    /// List forwarded ports
    List,
    /// Forward more ports, in the syntax of the options of the same names
    Add(ForwardAdd),
    /// Forward some no more; connections that are open stay
    Remove {
        /// The number that `brodo forward list` shows
        id: u64,
    },
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).multiple(false)))]
pub(crate) struct ForwardAdd {
    /// TCP ports of the guest, published on the host
    #[arg(short = 't', long = "tcp-ports", value_name = "SPEC", group = "what")]
    pub(crate) tcp: Option<String>,

    /// UDP ports of the guest, published on the host
    #[arg(short = 'u', long = "udp-ports", value_name = "SPEC", group = "what")]
    pub(crate) udp: Option<String>,

    /// TCP ports of the host's loopback, on the guest's own loopback
    #[arg(short = 'T', long = "tcp-ns", value_name = "SPEC", group = "what")]
    pub(crate) tcp_guest: Option<String>,

    /// UDP ports of the host's loopback, on the guest's own loopback
    #[arg(short = 'U', long = "udp-ns", value_name = "SPEC", group = "what")]
    pub(crate) udp_guest: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CaptureOptions {
    #[command(flatten)]
    pub(crate) instance: InstanceOptions,

    #[command(subcommand)]
    pub(crate) what: Option<CaptureCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CaptureCommand {
    /// Say which capture is under way
    Status,
    /// Begin to write frames to a file
    Start {
        /// The file, in pcapng format; what is there is replaced
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,

        /// Which frames, such as `tcp and port 443` [default: all]
        filter: Vec<String>,
    },
    /// End the capture
    Stop,
}
