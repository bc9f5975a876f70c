//! The benchmark: every workload on every system, interleaved, so that other load of the machine hits all of
//! them.
//!
//! Workloads are data ([`workload`]), beside four parts that are more than one run of a probe ([`Part`]). All
//! systems stand ready in one world while one after the other is measured ([`matrix`]); idle they cost
//! nothing. [`start`] times fresh namespaces, [`allocations`] counts brodo's heap allocations; idle
//! connections and long paths have modules of their own ([`crate::idle`], [`crate::wan`]). Results
//! ([`results`]) become a document ([`pages`]) and are compared with the [`goals`].

pub mod allocations;
pub mod goals;
mod matrix;
pub mod pages;
pub mod results;
mod start;
pub mod workload;

use crate::idle;
use crate::process::{Failure, Result};
use crate::progress::Progress;
use crate::report::{Machine, Outputs};
use crate::system::{Programs, System};
use crate::wan;
use clap::Args;
use results::Results;
use std::str::FromStr;
use std::time::Duration;
use workload::Workload;

/// Fewest answers of a run whose latencies are figures.
const ANSWERS_MIN: u64 = 20;

/// Measurements other than a probe's run on every system in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Start-up: a fresh namespace, to a command's end and to the first byte.
    Start,
    /// Heap allocations.
    Allocations,
    /// Memory of idle connections.
    Idle,
    /// Long paths.
    Wan,
}

impl Part {
    /// All, in order.
    pub const ALL: [Self; 4] = [Self::Start, Self::Allocations, Self::Idle, Self::Wan];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Allocations => "alloc",
            Self::Idle => "idle",
            Self::Wan => "wan",
        }
    }
}

/// One item of the list of workloads and parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// All of the others.
    All,
    /// A workload.
    Workload(Workload),
    /// A part.
    Part(Part),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let part = Part::ALL.into_iter().find(|part| part.name() == text).map(Self::Part);
        match part {
            _ if text == "all" => Ok(Self::All),
            Some(part) => Ok(part),
            None => text
                .parse()
                .map(Self::Workload)
                .map_err(|e: String| format!("{e}; and all, start, alloc, idle, wan")),
        }
    }
}

/// Options of the benchmark.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Workloads: upN, downN (TCP bulk, N flows), crrN (connect, request, response), rrN, uup, udown,
    /// uup64, udown64, uup-half, udown-half (UDP), mix-none, mix-up, mix-down (sparse beside bulk),
    /// start, alloc, idle, wan, or all; and on request httpN (as crrN, with requests of HTTP)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all")]
    pub workloads: Vec<Wanted>,
    /// MTUs of the guest's link, in bytes
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1500,65520",
        value_parser = clap::value_parser!(u32).range(1280..=65520))]
    pub mtu: Vec<u32>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Duration of one run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    pub seconds: f64,
    /// Systems to measure; those not installed are named and left out. Also relay, which copies between veth
    /// and the server, brodo-calm, with --busy-poll 0, brodo-tap, with --bulk tap, brodo-rules-10 and
    /// brodo-rules-16384, with a policy that allows the server by its name, brodo-gate, with one that reads
    /// the name in requests of HTTP (workload http1 alone), and for virtual machines brodo-stream,
    /// brodo-vhost-user, passt's and bridge's, which moves frames alone
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = system,
        default_value = "host-direct,veth,pasta,slirp4netns,brodo")]
    pub against: Vec<System>,
    /// Paths of the programs.
    #[command(flatten)]
    pub programs: Programs,
    /// Outputs of the results.
    #[command(flatten)]
    pub outputs: Outputs,
}

/// A system by its name, as options have it.
pub(crate) fn system(name: &str) -> std::result::Result<System, String> {
    System::from_name(name).ok_or_else(|| format!("not one of {}", System::ALL.map(System::name).join(", ")))
}

/// Effort of the parts whose length `--seconds` does not set, and bounds that it does not scale.
#[derive(Debug, Clone)]
pub struct Depth {
    /// Fewest answers of a run whose latencies are figures, 1 or more.
    pub answers: u64,
    /// Number of fresh namespaces.
    pub starts: usize,
    /// Seconds of each run in which allocations are counted.
    pub allocations: f64,
    /// Open connections when memory is read, and the time for it to settle before.
    pub idle: idle::Depth,
    /// The rows of long paths.
    pub wan: wan::measure::Choice,
}

impl Options {
    /// Effort behind the guide's figures.
    fn depth(&self) -> Depth {
        Depth {
            answers: ANSWERS_MIN,
            starts: 10,
            allocations: allocations::SECONDS,
            idle: idle::DEPTH,
            wan: wan::measure::Choice { rounds: self.rounds, ..wan::measure::Choice::default() },
        }
    }

    /// Chosen workloads and parts in the order of the tables, and the workloads that pace others.
    fn chosen(&self) -> (Vec<Workload>, Vec<Part>) {
        let all = self.workloads.contains(&Wanted::All);
        let mut workloads = if all { Workload::all() } else { Vec::new() };
        workloads.extend(self.workloads.iter().filter_map(|wanted| match wanted {
            Wanted::Workload(workload) => Some(*workload),
            _ => None,
        }));
        let pacers = workloads.iter().filter_map(|workload| workload.kind.half_of);
        let pacers: Vec<Workload> = pacers.filter_map(|name| name.parse().ok()).collect();
        workloads.extend(pacers);
        let place = |workload: &Workload| {
            (workload::KINDS.iter().position(|kind| kind == workload.kind), workload.flows)
        };
        workloads.sort_by_key(place);
        workloads.dedup();
        let wanted = |part: &Part| all || self.workloads.contains(&Wanted::Part(*part));
        (workloads, Part::ALL.into_iter().filter(wanted).collect())
    }
}

/// Runs everything and reports it; then fails if a part of it has failed.
pub fn run(options: &Options) -> Result<()> {
    let results = measure(options, &options.depth())?;
    options.outputs.write(&pages::full(&results), &pages::short(&results), &pages::json(&results))?;
    Failure::of_all(&results.failures)
}

/// Runs everything. A part that fails does not void the others, but for the beginning, before anything is
/// measured.
pub fn measure(options: &Options, depth: &Depth) -> Result<Results> {
    let machine = Machine::now();
    eprintln!("{}", machine.text());
    if let Some(warning) = machine.warning() {
        eprintln!("{warning}");
    }
    let (workloads, parts) = options.chosen();
    let mut results = Results::new(machine, options, workloads, parts.clone());
    let rows = if parts.contains(&Part::Wan) { depth.wan.rows()? } else { Vec::new() };
    let planned = matrix::planned(options, &results)
        + parts.iter().map(|part| planned(*part, depth, &rows, &results)).sum::<Duration>();
    let mut progress = Progress::new(planned);
    if !results.workloads.is_empty() {
        matrix::run(options, depth.answers, &mut results, &mut progress)?;
    }
    for part in parts {
        match part {
            Part::Start => {
                if let Err(e) = start::run(options, depth.starts, &mut results, &mut progress) {
                    results.fail(e.of(part.name()));
                }
            }
            Part::Allocations => allocations::run(options, depth.allocations, &mut results, &mut progress),
            Part::Idle => idle(options, depth, &mut results, &mut progress),
            Part::Wan if results.systems.contains(&System::Brodo) => {
                match depth.wan.measure(rows.clone(), &options.programs, &mut progress) {
                    Ok(found) => {
                        found.failures.iter().for_each(|failure| results.fail(failure.clone()));
                        results.wan = Some(found);
                    }
                    Err(e) => results.fail(e.of(part.name())),
                }
            }
            Part::Wan => results.remarks.push("brodo is left out, and with it the long paths".into()),
        }
    }
    results.machine = results.machine.at_end();
    Ok(results)
}

/// Memory of idle connections. The program fails for brodo alone: others may not hold so many.
fn idle(options: &Options, depth: &Depth, results: &mut Results, progress: &mut Progress) {
    let systems = results.systems.iter().copied().filter(|system| system.is_forwarder());
    let systems: Vec<System> = systems.collect();
    let (found, failures) = idle::measure(&systems, &options.programs, depth.idle, progress);
    results.idle = found;
    for failed in failures {
        results.fail_of(failed.system, failed.why);
    }
}

/// Estimated duration of a part.
fn planned(part: Part, depth: &Depth, rows: &[wan::rows::Row], results: &Results) -> Duration {
    let forwarders = results.systems.iter().filter(|system| system.is_forwarder()).count() as u32;
    match part {
        Part::Start => start::PLANNED * depth.starts as u32,
        Part::Allocations => allocations::planned(depth.allocations),
        Part::Idle => idle::planned(depth.idle) * forwarders,
        Part::Wan => depth.wan.planned(rows),
    }
}
