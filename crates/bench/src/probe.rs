//! The program at both ends of a connection under test: `PROGRAM probe SUBCOMMAND`.
//!
//! Clients print one line of JSON and exit with 0 if the probe itself ran; the outcome (an errno, a hash, a
//! time) is in the JSON, for the caller to judge. Servers run until they are killed.
//!
//! One server listens on one port, TCP and UDP. Over UDP it echoes. Over TCP it obeys the first line:
//!
//! | Line | Action of the server |
//! |---|---|
//! | `sink` | reads to the end, then sends one line of JSON: bytes, SHA-256, seconds |
//! | `stalled-sink TOKEN` | reads nothing until another connection says `go TOKEN`, then as `sink` |
//! | `source N SEED` | sends N patterned bytes, then waits for the end |
//! | `stalled-source TOKEN N SEED` | the same; `blocked TOKEN` is answered once the sender is stuck |
//! | `fin-first TOKEN N SEED` | sends, ends its half, reads to the end; `result TOKEN` gives the sum |
//! | `witness TOKEN` | reads to the end; `result TOKEN` gives the bytes or the error |
//! | `drain` | reads and discards to the end, then sends the number of bytes |
//! | `drain-for MS BUCKET TOKEN` | reads for that many milliseconds; `result TOKEN` gives bytes by interval |
//! | `flood MS` | sends for that many milliseconds, then the number of bytes, and waits for the end |
//! | `datagram-sink SIZE` | names a port, and counts datagrams on it until the connection's end |
//! | `datagram-source SIZE MS RATE` | names a port, and sends datagrams from it to its peer |
//! | `echo` | sends received bytes back |
//! | `who` | sends the client's address as the server sees it |
//! | `reset` | sends a line, then resets the connection |
//! | `hold` | neither reads nor closes |
//! | `restless-sink SEED` | reads with stalls, then sends whether it was the pattern |
//! | `restless-source N SEED` | sends N patterned bytes with stalls, then waits for the end |
//! | `slow-sink RATE MS SEED` | reads RATE bytes per second for MS, then to the end; sends its figures |
//! | `swift-sink SEED` | reads to the end, then sends whether it was the pattern |
//! | `half-closed-sink SEED TOKEN` | as `swift-sink`, to `result TOKEN`; ends its half at `go TOKEN-end` |
//! | `swift-source SEED` | sends patterned bytes until the client ends its half |

mod bridge;
mod bulk;
mod client;
mod connection;
mod conversations;
mod datagram;
mod flood;
mod forge;
mod frames;
mod gaps;
mod idle;
mod machine;
mod many;
mod mix;
mod path;
mod pattern;
mod relay;
mod ring;
mod round_trip;
mod server;
mod stream;
mod stress;
mod taps;
mod timed;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::{Value, json};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

pub(crate) use idle::clock;
pub use machine::{Hostility, MonitorKind};
pub(crate) use pattern::mix;
pub use relay::Carrier;
pub use round_trip::ports as round_trip_ports;

/// Address and port of the server.
#[derive(Debug, Args)]
struct Peer {
    /// Address of the server
    address: IpAddr,
    /// Its port
    port: u16,
}

impl Peer {
    fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

/// Exchanges of a request and its response, for a time.
#[derive(Debug, Args)]
struct Exchanges {
    #[command(flatten)]
    peer: Peer,
    flows: usize,
    seconds: f64,
    #[arg(long, default_value_t = 0)]
    pause_us: u64,
}

impl Exchanges {
    /// Measures them, each over a connection of its own or all over one.
    fn measure(&self, shape: round_trip::ExchangeShape) -> io::Result<Value> {
        let pause = Duration::from_micros(self.pause_us);
        let duration = Duration::from_secs_f64(self.seconds);
        let exchange = round_trip::Exchange { shape, duration, pause };
        round_trip::measure(self.peer.socket(), self.flows, exchange)
    }
}

/// Direction of bulk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BulkDirection {
    /// From the guest, which runs the probe, to the server.
    Up,
    /// From the server to the guest.
    Down,
}

/// Commands of the probe; the module's documentation has the server's side.
#[derive(Debug, Subcommand)]
enum Probe {
    /// Wait for the end of standard input
    Wait { token: String },
    /// Serve TCP and UDP on a port
    Serve { port: u16 },
    /// Relay connections that arrive by a device for some ports of a server to that server
    Relay {
        device: String,
        #[command(flatten)]
        peer: Peer,
        ports: u16,
        threads: u16,
        carrier: Carrier,
    },
    /// Move frames between an interface of this namespace and the guest's
    Taps(taps::Taps),
    /// Answer single bytes and requests of HTTP: the server of connect-request-response and request-response
    Respond { port: u16, ports: u16 },
    /// Send patterned bytes and shut down; with --stall the server reads only once the probe is stuck
    Upload {
        #[command(flatten)]
        peer: Peer,
        bytes: u64,
        #[arg(long)]
        stall: Option<String>,
    },
    /// Receive patterned bytes; with --stall the probe reads only once the server is stuck
    Download {
        #[command(flatten)]
        peer: Peer,
        bytes: u64,
        #[arg(long)]
        stall: Option<String>,
    },
    /// Send after the server has ended its half
    FinFirst {
        #[command(flatten)]
        peer: Peer,
        bytes: u64,
        token: String,
    },
    /// Connect, and print the outcome
    Connect {
        #[command(flatten)]
        peer: Peer,
    },
    /// Ask the server for the probe's address as it sees it
    Who {
        #[command(flatten)]
        peer: Peer,
    },
    /// Have the server reset the connection, and print the outcome
    Reset {
        #[command(flatten)]
        peer: Peer,
    },
    /// Reset the connection, and print the outcome at the server
    Abort {
        #[command(flatten)]
        peer: Peer,
        token: String,
    },
    /// Send until nothing moves any more, then hold the connection until standard input ends
    Stuff {
        #[command(flatten)]
        peer: Peer,
    },
    /// Request a flood and never read it; hold the connection until standard input ends
    Ignore {
        #[command(flatten)]
        peer: Peer,
    },
    /// Accept connections on a port and keep them idle
    Accept { port: u16 },
    /// Open connections and keep them idle until standard input ends
    Open {
        #[command(flatten)]
        peer: Peer,
        count: usize,
    },
    /// Open connections, and wait until something else has ended them; the times of the first and last end
    Ends {
        #[command(flatten)]
        peer: Peer,
        count: usize,
    },
    /// Open connections and reset them all at once; the time that this takes
    Resets {
        #[command(flatten)]
        peer: Peer,
        count: usize,
    },
    /// Hold many connections open at once, each echoing its own bytes
    Many {
        #[command(flatten)]
        peer: Peer,
        count: usize,
        /// Say `open` once all are open, and send nothing until the end of input
        #[arg(long)]
        silent: bool,
    },
    /// Exchange single bytes until standard input ends; each line of it is answered by the longest gap
    /// between two answers since the line before, in microseconds
    Gaps {
        #[command(flatten)]
        peer: Peer,
    },
    /// Connect, echo a byte and close, many times
    Short {
        #[command(flatten)]
        peer: Peer,
        ports: u16,
        count: usize,
        threads: usize,
    },
    /// Echo datagrams of the given sizes
    Datagrams {
        #[command(flatten)]
        peer: Peer,
        #[arg(value_delimiter = ',')]
        sizes: Vec<usize>,
    },
    /// Send a datagram of SIZE bytes with TTL hops to live (0: default), and print its outcome
    Path {
        #[command(flatten)]
        peer: Peer,
        ttl: u8,
        size: usize,
    },
    /// Send a datagram to a closed port, and print the outcome
    DatagramRefused {
        #[command(flatten)]
        peer: Peer,
    },
    /// Measure bulk throughput from here to the server
    Up {
        #[command(flatten)]
        peer: Peer,
        flows: usize,
        seconds: f64,
    },
    /// Measure bulk throughput from the server to here
    Down {
        #[command(flatten)]
        peer: Peer,
        flows: usize,
        seconds: f64,
    },
    /// Send for a time; bytes by interval as the server saw them
    TimedUp {
        #[command(flatten)]
        peer: Peer,
        duration_ms: u64,
        bucket_ms: u64,
    },
    /// Receive for a time; bytes by interval. Each reading waits for a while first
    TimedDown {
        #[command(flatten)]
        peer: Peer,
        duration_ms: u64,
        bucket_ms: u64,
        #[arg(default_value_t = 0)]
        dwell_ms: u64,
    },
    /// Measure connect-request-response
    Crr(Exchanges),
    /// Measure request-response
    Rr(Exchanges),
    /// Measure connect-request-response with a request of HTTP
    Http(Exchanges),
    /// Measure sparse request-response beside bulk, up or down
    Mix {
        direction: BulkDirection,
        #[command(flatten)]
        peer: Peer,
        /// Port of the server for single bytes
        respond: u16,
        flows: usize,
        seconds: f64,
    },
    /// Measure one bulk flow beside datagrams that go the other way as fast as they can
    BesideDatagrams {
        direction: BulkDirection,
        #[command(flatten)]
        peer: Peer,
        size: usize,
        seconds: f64,
    },
    /// Send datagrams to the server for a time, at a rate or as fast as they go
    DatagramsUp {
        #[command(flatten)]
        peer: Peer,
        size: usize,
        seconds: f64,
        #[arg(default_value_t = 0)]
        rate: u64,
    },
    /// Receive datagrams from the server for a time, sent at a rate or as fast as they go
    DatagramsDown {
        #[command(flatten)]
        peer: Peer,
        size: usize,
        seconds: f64,
        #[arg(default_value_t = 0)]
        rate: u64,
    },
    /// Send one small datagram on a socket of its own and await the answer, as a DNS query, repeatedly
    Queries {
        #[command(flatten)]
        peer: Peer,
        seconds: f64,
        pause_us: u64,
    },
    /// Send a flood at a steady rate
    Flood {
        kind: flood::Flood,
        #[command(flatten)]
        peer: Peer,
        count: u64,
        seconds: f64,
    },
    /// Answer every question to DNS with one address
    Resolve { port: u16 },
    /// Wait for the first byte of a download
    FirstByte {
        #[command(flatten)]
        peer: Peer,
    },
    /// Make uploads and downloads of any size, with stalls at both ends, several at a time
    Transfers {
        #[command(flatten)]
        peer: Peer,
        count: usize,
        at_once: usize,
        bytes_max: u64,
        seed: u64,
    },
    /// Open many connections whose readers, the server's or the probe's, are slow for a time
    Slow {
        direction: BulkDirection,
        #[command(flatten)]
        peer: Peer,
        count: usize,
        bytes: u64,
        rate: u64,
        duration_ms: u64,
    },
    /// Run flows in one direction until standard input ends; a line for every round that all have completed
    Watch {
        direction: BulkDirection,
        #[command(flatten)]
        peer: Peer,
        flows: usize,
        /// After a line of standard input the server ends its half of each upload
        #[arg(long)]
        half_closed: bool,
    },
    /// Connect an interface in this namespace to a socket of brodo vm, until standard input ends
    Machine(machine::Machine),
    /// Move frames between the monitor of a virtual machine and an interface in this namespace
    Bridge(bridge::Bridge),
    /// Send datagrams back, each after MS milliseconds
    Late { port: u16, ms: u64 },
    /// Print each datagram that arrives at a port, one line each
    Collect { port: u16 },
    /// Send mutated frames through the guest's interface
    HostileFrames { count: u64, seed: u64 },
    /// Open connections without the kernel's TCP and violate the protocol on them
    HostileConversations { count: u64, seed: u64 },
    /// Send a datagram with any source address through the guest's interface
    ForgedDatagram {
        #[command(flatten)]
        peer: Peer,
        source: IpAddr,
        text: String,
    },
}

/// The probe's command line, behind the word `probe`.
#[derive(Debug, Parser)]
#[command(name = "probe")]
struct CommandLine {
    #[command(subcommand)]
    probe: Probe,
}

/// Runs the probe if this program was started as one: the first thing in the `main` of every program that
/// makes a [`World`](crate::world::World).
pub fn main() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.peek().is_none_or(|first| first != "probe") {
        return None;
    }
    Some(match run(CommandLine::parse_from(arguments).probe) {
        Ok(Value::Null) => ExitCode::SUCCESS,
        Ok(value) => {
            println!("{value}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("probe: {e} ({})", errno_name(&e));
            ExitCode::FAILURE
        }
    })
}

fn run(probe: Probe) -> io::Result<Value> {
    match probe {
        Probe::Wait { .. } => wait_for_end_of_input().map(|()| Value::Null),
        Probe::Serve { port } => server::serve(port).map(|()| Value::Null),
        Probe::Relay { device, peer, ports, threads, carrier } => {
            relay::relay(&device, peer.socket(), ports, threads, carrier).map(|()| Value::Null)
        }
        Probe::Taps(taps) => taps::run(&taps).map(|()| Value::Null),
        Probe::Respond { port, ports } => round_trip::respond(port, ports).map(|()| Value::Null),
        Probe::Upload { peer, bytes, stall } => client::upload(peer.socket(), bytes, stall.as_deref()),
        Probe::Download { peer, bytes, stall } => client::download(peer.socket(), bytes, stall.as_deref()),
        Probe::FinFirst { peer, bytes, token } => client::fin_first(peer.socket(), bytes, &token),
        Probe::Connect { peer } => Ok(client::connect(peer.socket())),
        Probe::Who { peer } => client::who(peer.socket()),
        Probe::Reset { peer } => client::reset(peer.socket()),
        Probe::Abort { peer, token } => client::abort(peer.socket(), &token),
        Probe::Stuff { peer } => client::stuff(peer.socket()),
        Probe::Ignore { peer } => client::ignore(peer.socket()),
        Probe::Accept { port } => idle::accept(port).map(|()| Value::Null),
        Probe::Open { peer, count } => idle::open(peer.socket(), count),
        Probe::Ends { peer, count } => idle::ends(peer.socket(), count),
        Probe::Resets { peer, count } => idle::resets(peer.socket(), count),
        Probe::Many { peer, count, silent } => many::hold(peer.socket(), count, silent),
        Probe::Flood { kind, peer, count, seconds } => {
            flood::flood(kind, peer.socket(), count, Duration::from_secs_f64(seconds))
        }
        Probe::Resolve { port } => flood::resolve(port).map(|()| Value::Null),
        Probe::Gaps { peer } => gaps::measure(peer.socket()),
        Probe::Short { peer, ports, count, threads } => Ok(many::short(peer.socket(), ports, count, threads)),
        Probe::Datagrams { peer, sizes } => datagram::echo(peer.socket(), &sizes),
        Probe::Path { peer, ttl, size } => path::probe(peer.socket(), ttl, size),
        Probe::DatagramRefused { peer } => datagram::refused(peer.socket()),
        Probe::Up { peer, flows, seconds } => {
            bulk::up(peer.socket(), flows, Duration::from_secs_f64(seconds))
        }
        Probe::Down { peer, flows, seconds } => {
            bulk::down(peer.socket(), flows, Duration::from_secs_f64(seconds))
        }
        Probe::TimedUp { peer, duration_ms, bucket_ms } => {
            timed::up(peer.socket(), timed::Span::from_ms(duration_ms, bucket_ms))
        }
        Probe::TimedDown { peer, duration_ms, bucket_ms, dwell_ms } => {
            let span = timed::Span::from_ms(duration_ms, bucket_ms);
            timed::down(peer.socket(), span, Duration::from_millis(dwell_ms))
        }
        Probe::Crr(exchanges) => exchanges.measure(round_trip::ExchangeShape::Crr),
        Probe::Rr(exchanges) => exchanges.measure(round_trip::ExchangeShape::Rr),
        Probe::Http(exchanges) => exchanges.measure(round_trip::ExchangeShape::Http),
        Probe::Transfers { peer, count, at_once, bytes_max, seed } => {
            Ok(stress::transfers(peer.socket(), count, at_once, bytes_max, seed))
        }
        Probe::Slow { direction, peer, count, bytes, rate, duration_ms } => {
            let slow = stress::Slow { count, bytes, rate, time: Duration::from_millis(duration_ms) };
            stress::slow(peer.socket(), direction == BulkDirection::Up, slow)
        }
        Probe::Watch { direction, peer, flows, half_closed } => {
            stress::watch(peer.socket(), direction == BulkDirection::Up, flows, half_closed)
        }
        Probe::Mix { direction, peer, respond, flows, seconds } => {
            mix::measure(direction, peer.socket(), respond, flows, Duration::from_secs_f64(seconds))
        }
        Probe::BesideDatagrams { direction, peer, size, seconds } => {
            mix::beside_datagrams(direction, peer.socket(), size, Duration::from_secs_f64(seconds))
        }
        Probe::DatagramsUp { peer, size, seconds, rate } => {
            stream::up(peer.socket(), datagrams(size, seconds, rate))
        }
        Probe::DatagramsDown { peer, size, seconds, rate } => {
            stream::down(peer.socket(), datagrams(size, seconds, rate))
        }
        Probe::Queries { peer, seconds, pause_us } => {
            let duration = Duration::from_secs_f64(seconds);
            datagram::queries(peer.socket(), duration, Duration::from_micros(pause_us))
        }
        Probe::FirstByte { peer } => client::first_byte(peer.socket()).map(|()| Value::Null),
        Probe::Machine(machine) => machine::run(&machine).map(|()| Value::Null),
        Probe::Bridge(bridge) => bridge::run(&bridge).map(|()| Value::Null),
        Probe::Late { port, ms } => datagram::late(port, Duration::from_millis(ms)).map(|()| Value::Null),
        Probe::Collect { port } => datagram::collect(port).map(|()| Value::Null),
        Probe::HostileFrames { count, seed } => frames::hostile(count, seed),
        Probe::HostileConversations { count, seed } => conversations::hostile(count, seed),
        Probe::ForgedDatagram { peer, source, text } => frames::forged(source, peer.socket(), &text),
    }
}

fn datagrams(size: usize, seconds: f64, rate: u64) -> stream::Stream {
    stream::Stream { size, duration: Duration::from_secs_f64(seconds), rate }
}

fn wait_for_end_of_input() -> io::Result<()> {
    io::copy(&mut io::stdin().lock(), &mut io::sink()).map(drop)
}

/// Symbolic name of an errno: "ECONNREFUSED".
fn errno_name(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => format!("{:?}", nix::errno::Errno::from_raw(number)),
        None => format!("{:?}", error.kind()),
    }
}

/// `{"outcome": "ok"}` or the name of the error.
fn outcome<T>(result: &io::Result<T>) -> Value {
    json!({ "outcome": result.as_ref().map_or_else(errno_name, |_| "ok".to_owned()) })
}
