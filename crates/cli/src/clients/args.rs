//! Options of the client commands: instance, output format, filters and order.

use crate::option_values::{CarrierOption, interval};
use crate::policy_file;
use brodo_control::event::Topic;
use brodo_control::flow::{Carrier, FlowRef, Protocol};
use brodo_control::instance::Which;
use brodo_control::policy::FOR_S_MAX;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Subcommand, ValueEnum, ValueHint};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Text at the end of `brodo flows --help`.
pub(crate) const FLOWS_EXAMPLES: &str = "\
Examples:
  brodo flows --sort bytes            # most bytes first
  brodo flows --protocol tcp --port 443
  brodo flows --carrier splice        # connections between loopbacks, which bypass the link
  brodo flows --carrier kernel        # bulk connections that a kernel socket has
  brodo flows 0:12.3                  # one flow, with the history of its buffer limits
  brodo flows --json | jq .remote

LIMITED BY is the limiting factor of a connection: application (neither side has data to send), guest-window, our-limit \
(brodo's buffer, which grows), host-socket (the peer takes no more), link, memory, or loss. `out` is from the guest, `in` is \
to it.";

/// Text at the end of `brodo capture --help`.
pub(crate) const CAPTURE_EXAMPLES: &str = "\
Examples:
  brodo capture start trace.pcapng
  brodo capture start dns.pcapng udp port 53
  brodo capture start web.pcapng tcp and host 192.0.2.7 and not port 22
  brodo capture stop

The words of a filter are tcp, udp, icmp, arp, ip, ip6, host ADDRESS, net ADDRESS/LENGTH and port NUMBER, each with `not` \
before it if need be; a frame must match all of them.";

/// The instance, and the form of the output.
#[derive(Debug, Args)]
pub(crate) struct InstanceOptions {
    /// The instance, by process id or path of its control socket [default: the only one]
    #[arg(long, global = true, value_name = "PID|PATH", value_parser = which)]
    pub(crate) instance: Option<Which>,

    /// JSON, one object per line, as on the control socket
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

fn which(word: &str) -> Result<Which, String> {
    word.parse()
}

#[derive(Debug, Args)]
pub(crate) struct TopOptions {
    /// The instance, by process id or path of its control socket [default: the only one of this user]
    #[arg(long, value_name = "PID|PATH", value_hint = ValueHint::FilePath)]
    pub(crate) instance: Option<Which>,

    /// Sampling interval in seconds, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct StatusOptions {
    /// The instance, by process id or path of its control socket [default: all of this user]
    #[arg(long, value_name = "PID|PATH", value_parser = which)]
    pub(crate) instance: Option<Which>,

    /// JSON, one object per line, as on the control socket
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BulkOptions {
    #[command(flatten)]
    pub(crate) instance: InstanceOptions,

    /// The new carrier [default: none, to show the present one]
    #[arg(value_enum)]
    pub(crate) carrier: Option<CarrierOption>,
}

#[derive(Debug, Args)]
pub(crate) struct UpgradeOptions {
    #[command(flatten)]
    pub(crate) instance: InstanceOptions,

    /// The program to go on with [default: the one at the running brodo's own path]
    #[arg(long, value_name = "BINARY", value_hint = ValueHint::ExecutablePath)]
    pub(crate) to: Option<PathBuf>,
}

/// Order of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Oldest first
    Age,
    /// Most recently used first
    Idle,
    /// Most bytes in both directions first
    Bytes,
    /// Most bytes from the guest first
    Out,
    /// Most bytes to the guest first
    In,
    /// Longest round trip first
    Rtt,
    /// Address and port of the peer
    Remote,
}

/// The carriers that flows have, listed for help and completions.
fn carriers() -> impl TypedValueParser<Value = Carrier> {
    let known = [Carrier::Stack, Carrier::Splice, Carrier::Relay, Carrier::Kernel].map(Carrier::name);
    PossibleValuesParser::new(known).try_map(|word| word.parse::<Carrier>())
}

/// The protocols of flows, likewise; ping has other names too.
fn protocols() -> impl TypedValueParser<Value = Protocol> {
    let [tcp, udp, echo] =
        [Protocol::Tcp, Protocol::Udp, Protocol::Echo].map(|protocol| PossibleValue::new(protocol.name()));
    let known = [tcp, udp, echo.aliases(["icmp", "ping"])];
    PossibleValuesParser::new(known).try_map(|word| word.parse::<Protocol>())
}

/// The kinds of events, likewise.
fn topics() -> impl TypedValueParser<Value = Topic> {
    PossibleValuesParser::new(Topic::ALL.map(Topic::name)).try_map(|word| word.parse::<Topic>())
}

#[derive(Debug, Args)]
pub(crate) struct FlowsOptions {
    #[command(flatten)]
    pub(crate) instance: InstanceOptions,

    /// One flow, in detail
    #[arg(conflicts_with_all = ["sort", "protocol", "carrier", "address", "port"])]
    pub(crate) id: Option<FlowRef>,

    /// Order of the list
    #[arg(long, value_enum, default_value = "age")]
    pub(crate) sort: Sort,

    /// Only flows of this protocol
    #[arg(long, short, value_parser = protocols())]
    pub(crate) protocol: Option<Protocol>,

    /// Only flows whose payload this carrier moves
    #[arg(long, short, value_parser = carriers())]
    pub(crate) carrier: Option<Carrier>,

    /// Only flows with this address at either end
    #[arg(long, short, value_name = "IP")]
    pub(crate) address: Option<IpAddr>,

    /// Only flows with this port at either end
    #[arg(long, value_name = "N")]
    pub(crate) port: Option<u16>,
}

#[derive(Debug, Args)]
pub(crate) struct EventsOptions {
    #[command(flatten)]
    pub(crate) instance: InstanceOptions,

    /// Kinds of events, of which decision needs an instance with --audit or --policy-fail [default: all]
    #[arg(value_name = "TOPIC", value_parser = topics())]
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
    /// Stop forwarding; open connections stay
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
    /// Show the current capture
    Status,
    /// Start a capture to a file
    Start {
        /// The file, in pcapng format; an existing file is replaced
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,

        /// Filter, such as `tcp and port 443` [default: all frames]
        filter: Vec<String>,
    },
    /// End the capture
    Stop,
}

/// Commands about the policy of a running instance.
#[derive(Debug, Subcommand)]
pub(crate) enum RunningPolicy {
    /// Show the policy in force
    Show,
    /// Replace all rules by those of policy files, at once
    ///
    /// Open flows that the new rules refuse end. A file with an error changes nothing.
    Set {
        /// The files
        #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,

        /// The generation that is replaced, as `brodo policy show` prints it; another one is an error
        #[arg(long, value_name = "N")]
        expect: Option<u64>,
    },
    /// Add an allow rule, perhaps for a time
    Allow(NewRule),
    /// Add a deny rule, perhaps for a time; open flows that it refuses end
    Deny(NewRule),
    /// Remove a rule that was added
    Remove {
        /// The number that `brodo policy show` prints
        id: u64,
    },
    /// Print the last refusals, and the rules that would allow them
    Explain,
    /// Ask at the terminal about each destination that waits for an answer (`default = "ask"`)
    ///
    /// An answer is y (allow), n (refuse), or a rule to allow instead of the one that is proposed. Input that
    /// was typed at a terminal before its question is dropped. Without an answer a destination is refused
    /// after 30 seconds. With --json the questions are printed, one a line, and nothing is read: a program
    /// answers by `brodo policy allow` or the control socket.
    Ask {
        /// Time for which an allowed rule stays, such as 10m or 2h [default: to the end]
        #[arg(long = "for", value_name = "TIME", value_parser = seconds)]
        for_s: Option<u64>,
    },
    /// Take no change any more, except a lockdown
    Seal,
    /// Refuse everything and end all flows
    Lockdown {
        /// Go back to the rules; a sealed policy does not
        #[arg(long)]
        off: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct NewRule {
    /// The rule, as in a policy file
    pub(crate) rule: String,

    /// Time after which it is removed, such as 10m or 2h [default: none]
    #[arg(long = "for", value_name = "TIME", value_parser = seconds)]
    pub(crate) for_s: Option<u64>,
}

fn seconds(word: &str) -> Result<u64, String> {
    let expected = || format!("expected 1s to {}d, such as 90s, 10m, 2h or 1d", FOR_S_MAX / 86_400);
    let period = policy_file::period(word).map(|period| period.as_secs());
    period.filter(|seconds| (1..=FOR_S_MAX).contains(seconds)).ok_or_else(expected)
}
