//! The benchmark: every workload on every system, interleaved, so that what else the machine does hits all of them.
//!
//! All systems stand ready in one world while one after the other is measured; idle they cost nothing. The server is in
//! the host namespace, so that the path is host-direct's loopback plus exactly what the system under test adds.
//! Throughput is counted where bytes arrive, retransmissions by the kernel that sends (the guest's for uploads, the
//! host's for downloads, as iperf3 does), the forwarder's CPU by the scheduler.

use crate::facts;
use crate::probe::round_trip_ports;
use crate::process::{Context, Failure, Result};
use crate::report;
use crate::system::{Guest, Programs, System};
use crate::world::{HOST_V4, World};
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// TCP port of the probe's server.
const SERVER_PORT: u16 = 7000;
/// First TCP port of the server for single bytes.
const RESPOND_PORT: u16 = 10_000;
/// How often `-- true` is run for the start-up time.
const STARTS: usize = 10;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bulk from guest to host.
    Up,
    /// Bulk from host to guest.
    Down,
    /// Connect, one byte, one byte back, close.
    Crr,
    /// One byte, one byte back on an open connection.
    Rr,
}

/// A kind and a number of flows, written as in "up4".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// What is done.
    pub kind: Kind,
    /// By how many flows at once, 1 to 64.
    pub flows: usize,
}

impl Workload {
    /// Whether the figure is a throughput (more is better) and not a latency.
    pub const fn is_bulk(self) -> bool {
        matches!(self.kind, Kind::Up | Kind::Down)
    }

    const fn probe(self) -> &'static str {
        match self.kind {
            Kind::Up => "up",
            Kind::Down => "down",
            Kind::Crr => "crr",
            Kind::Rr => "rr",
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong =
            || format!("{text:?} is not a workload: up, down, crr or rr and a number of flows, as in up4");
        let digits = text.find(|c: char| c.is_ascii_digit()).ok_or_else(wrong)?;
        let (kind, flows) = text.split_at(digits);
        let kind = match kind {
            "up" => Kind::Up,
            "down" => Kind::Down,
            "crr" => Kind::Crr,
            "rr" => Kind::Rr,
            _ => return Err(wrong()),
        };
        let flows = flows.parse().ok().filter(|flows| (1..=64).contains(flows)).ok_or_else(wrong)?;
        Ok(Self { kind, flows })
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.probe(), self.flows)
    }
}

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// What is measured.
    pub workloads: Vec<Workload>,
    /// On links of which MTU.
    pub mtus: Vec<u32>,
    /// How often; figures are medians over the rounds.
    pub rounds: usize,
    /// How long each, in seconds.
    pub seconds: f64,
    /// On which systems.
    pub systems: Vec<System>,
    /// Where their programs are.
    pub programs: Programs,
    /// Where to write all samples as JSON.
    pub json: Option<PathBuf>,
}

/// One run of one workload on one system.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The link's MTU.
    pub mtu: u32,
    /// What was measured.
    pub workload: Workload,
    /// On what.
    pub system: System,
    /// Gbit/s for bulk, median latency in microseconds otherwise.
    pub value: f64,
    /// 99th percentile of the latency in microseconds; not for bulk.
    pub p99_us: Option<f64>,
    /// Operations per second over all flows; not for bulk.
    pub per_second: Option<f64>,
    /// The forwarder's process time: milliseconds per GiB for bulk, microseconds per operation otherwise.
    pub cpu: Option<f64>,
    /// TCP segments that the sending kernel sent again; for bulk only.
    pub retransmissions: Option<u64>,
}

/// What a forwarder takes before and after work.
#[derive(Debug, Clone)]
pub struct Footprint {
    /// The link's MTU.
    pub mtu: u32,
    /// Whose.
    pub system: System,
    /// Resident KiB after start.
    pub rss_start_kib: u64,
    /// Of these, its share of shared pages and its own.
    pub pss_start_kib: u64,
    /// Resident KiB after all rounds.
    pub rss_end_kib: u64,
}

/// Everything that was found out.
#[derive(Debug, Default)]
pub struct Results {
    /// One entry per run.
    pub samples: Vec<Sample>,
    /// One entry per forwarder and MTU.
    pub footprints: Vec<Footprint>,
    /// Milliseconds that `-- true` takes, one entry per start; host-direct is the harness's own share.
    pub starts_ms: Vec<(System, f64)>,
    /// What could not be measured, and why.
    pub remarks: Vec<String>,
}

/// Runs everything and prints the tables.
pub fn run(options: &Options) -> Result<()> {
    eprintln!("{}", report::machine());
    let world = World::new()?;
    let server = world.serve_probe(&world.host, SERVER_PORT)?;
    let flows_max = options.workloads.iter().map(|workload| workload.flows).max().unwrap_or(1);
    let ports = round_trip_ports(flows_max);
    let [probe, name] = world.probe();
    let words = [probe, name, "respond".into(), RESPOND_PORT.to_string(), ports.to_string()];
    world.serve(&world.host, words, RESPOND_PORT + ports - 1)?;

    let mut results = Results::default();
    let systems = available(options, &mut results);
    for &mtu in &options.mtus {
        one_mtu(options, &world, &systems, mtu, server, &mut results)?;
    }
    start_up(options, &world, &systems, &mut results);
    println!("{}", report::markdown(options, &systems, &results));
    if let Some(path) = &options.json {
        let json = report::json(options, &results).to_string();
        std::fs::write(path, json).context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The systems whose programs are there; the others are named and skipped.
fn available(options: &Options, results: &mut Results) -> Vec<System> {
    let mut there = Vec::new();
    for &system in &options.systems {
        match options.programs.find(system) {
            Err(e) if system.is_forwarder() => {
                eprintln!("{e}: left out");
                results.remarks.push(format!("{e}: left out"));
            }
            _ => there.push(system),
        }
    }
    there
}

fn one_mtu(
    options: &Options,
    world: &World,
    systems: &[System],
    mtu: u32,
    server: u32,
    results: &mut Results,
) -> Result<()> {
    let mut guests = Vec::new();
    for &system in systems {
        let guest = Guest::start(world, system, &options.programs, mtu)?;
        let footprint = Footprint {
            mtu,
            system,
            rss_start_kib: guest.rss_kib(),
            pss_start_kib: guest.pss_kib(),
            rss_end_kib: 0,
        };
        guests.push((system, guest, footprint));
    }
    for round in 1..=options.rounds {
        for &workload in &options.workloads {
            for (system, guest, _) in &guests {
                let run = Run { world, guest, server, mtu, workload, system: *system };
                match run.measure(options.seconds) {
                    Ok(sample) => {
                        eprintln!("MTU {mtu}, round {round}/{}: {}", options.rounds, report::line(&sample));
                        results.samples.push(sample);
                    }
                    Err(e) => {
                        let remark = format!("{workload} on {} at MTU {mtu} failed", system.name());
                        eprintln!("{remark}: {e}\n{}", guest.describe());
                        results.remarks.push(remark);
                    }
                }
            }
        }
    }
    for (system, guest, mut footprint) in guests {
        footprint.rss_end_kib = guest.rss_kib();
        if system.is_forwarder() {
            results.footprints.push(footprint);
        }
    }
    Ok(())
}

/// One workload on one system, about to run.
struct Run<'a> {
    world: &'a World,
    guest: &'a Guest,
    server: u32,
    mtu: u32,
    workload: Workload,
    system: System,
}

impl Run<'_> {
    fn measure(&self, seconds: f64) -> Result<Sample> {
        let workload = self.workload;
        let port = if workload.is_bulk() { SERVER_PORT } else { RESPOND_PORT };
        let [probe, name] = self.world.probe();
        let words = [
            probe,
            name,
            workload.probe().into(),
            HOST_V4.into(),
            port.to_string(),
            workload.flows.to_string(),
        ];
        let words = words.into_iter().chain([seconds.to_string()]);
        let sender = if workload.kind == Kind::Up { self.guest.pid } else { self.server };
        let resent = || facts::net_counter(sender, "Tcp", "RetransSegs");
        let (resent_before, cpu_before) = (resent(), self.guest.cpu_ms());
        let limit = Duration::from_secs_f64(seconds + 30.0);
        let found = self.world.run(&self.guest.enter, words, limit)?.success()?.json()?;
        let cpu_ms = self.guest.cpu_ms() - cpu_before;
        let number = |name: &str| {
            let value = found.get(name).and_then(Value::as_f64);
            value.ok_or_else(|| Failure(format!("{workload} printed no {name}: {found}")))
        };
        let forwarder = self.system.is_forwarder();
        Ok(if workload.is_bulk() {
            let gib = number("bytes")? / f64::from(1 << 30);
            Sample {
                mtu: self.mtu,
                workload,
                system: self.system,
                value: number("gbit_per_second")?,
                p99_us: None,
                per_second: None,
                cpu: forwarder.then(|| cpu_ms / gib),
                retransmissions: Some(resent().saturating_sub(resent_before)),
            }
        } else {
            let count = number("count")?;
            Sample {
                mtu: self.mtu,
                workload,
                system: self.system,
                value: number("p50_us")?,
                p99_us: Some(number("p99_us")?),
                per_second: Some(number("per_second")?),
                cpu: forwarder.then(|| cpu_ms * 1e3 / count),
                retransmissions: None,
            }
        })
    }
}

/// How long it takes to run `true` as a guest; the entries of host-direct are what the harness's own wrappers take.
fn start_up(options: &Options, world: &World, systems: &[System], results: &mut Results) {
    let mut commands = vec![(System::HostDirect, vec!["true".to_owned()])];
    for &system in systems {
        if let Some(words) = run_true(options, world, system) {
            commands.push((system, words));
        }
    }
    for _ in 0..STARTS {
        for (system, words) in &commands {
            let mut command = world.command(&world.enter_host_as_user(), words);
            let start = Instant::now();
            // The exit is waited for by the kernel, not by polling, so that the time is exact.
            if command.output().is_ok_and(|output| output.status.success()) {
                results.starts_ms.push((*system, start.elapsed().as_secs_f64() * 1e3));
            }
        }
    }
}

fn run_true(options: &Options, world: &World, system: System) -> Option<Vec<String>> {
    let program = options.programs.find(system).ok()?;
    let (program, arguments) = match system {
        System::Pasta => (program, "--config-net --no-map-gw -t none -u none -T none -U none -q -- true"),
        System::Brodo => (world.install_program(&program).ok()?, "run -- true"),
        // slirp4netns cannot start a command, and the others start nothing.
        _ => return None,
    };
    let program = program.to_string_lossy().into_owned();
    Some(std::iter::once(program).chain(arguments.split(' ').map(str::to_owned)).collect())
}
