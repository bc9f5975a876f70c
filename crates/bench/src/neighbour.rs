//! A virtual machine beside a hostile one: each has a brodo of its own, by vhost-user, on one host.
//!
//! The neighbour sends single bytes to the host and back every two milliseconds, first alone and then beside
//! a machine that harasses its back end ([`Hostility`]). As *control* it stands beside one and two programs
//! that do nothing but compute, as any machine's processors may: the host's processors are shared in either
//! case.
//!
//! It fails if a hostile machine's brodo has died, or has grown by more than [`GROWTH_MAX`]; and if a hostile
//! machine has ended, as the neighbour was then measured beside nothing.

use crate::idle::LIMIT;
use crate::probe::{Hostility, MonitorKind};
use crate::process::{Failure, Job, Result};
use crate::procfs;
use crate::report::{Block, Document, Machine as Host, Outputs, Spread, Table, number};
use crate::system::machine::Machine;
use crate::system::{Guest, Programs, RESPOND_PORT, System};
use crate::world::{HOST_V4, World};
use clap::Args;
use serde_json::{Value, json};
use std::thread;
use std::time::Duration;

/// Time from the beginning of the harassment to that of the measurement.
const MARGIN: Duration = Duration::from_millis(500);
/// MTU of both machines.
const MTU: u32 = 1500;
/// Most resident memory by which a harassed brodo may grow, KiB: buffers that are touched for the first time.
const GROWTH_MAX: u64 = 8 << 10;

/// Options of `brodo-bench neighbour`.
#[derive(Debug, Args)]
pub struct Options {
    /// Rounds, of which the medians count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Duration of each measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    pub seconds: f64,
    /// Paths of the programs.
    #[command(flatten)]
    pub programs: Programs,
    /// Outputs of the results.
    #[command(flatten)]
    pub outputs: Outputs,
}

/// Company of the neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// So many programs that compute, 1 or 2.
    Spinners(usize),
    /// A hostile machine.
    Hostile(Hostility),
}

impl Beside {
    fn all() -> impl Iterator<Item = Self> {
        [Self::Nothing, Self::Spinners(1), Self::Spinners(2)]
            .into_iter()
            .chain(Hostility::ALL.map(Self::Hostile))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Spinners(1) => "a program that computes",
            Self::Spinners(_) => "two programs that compute",
            Self::Hostile(Hostility::Kicks) => "kicks without frames",
            Self::Hostile(Hostility::Frames) => "frames of an unknown protocol",
            Self::Hostile(Hostility::Indices) => "impossible indices and new set-ups",
            Self::Hostile(Hostility::Empty) => "chains without frames",
            Self::Hostile(Hostility::Descriptors) => "descriptors that change",
            Self::Hostile(Hostility::Stalled) => "downloads without buffers",
        }
    }
}

/// Round trips in microseconds, and the harassed brodo's processor time in milliseconds per second and growth
/// in KiB.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    p50: f64,
    p99: f64,
    cpu: f64,
    growth: u64,
}

/// Round trips of a neighbour that sends single bytes to the host and back every two milliseconds, in
/// microseconds.
pub(crate) struct RoundTrips {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl RoundTrips {
    /// Those of a program of the guest's, in so many seconds.
    pub(crate) fn measure(world: &World, guest: &Guest, seconds: f64) -> Result<Self> {
        let [probe, name] = world.probe();
        let (respond, length) = (RESPOND_PORT.to_string(), seconds.to_string());
        let words = [&*probe, &*name, "rr", HOST_V4, &*respond, "1", &*length, "--pause-us", "2000"];
        let limit = LIMIT + Duration::from_secs_f64(seconds);
        let found = world.run(&guest.enter, words, limit)?.success()?.json()?;
        let figure = |name: &str| found[name].as_f64().unwrap_or(f64::NAN);
        Ok(Self { p50: figure("p50_us"), p99: figure("p99_us") })
    }
}

/// `brodo-bench neighbour`.
pub fn run(options: &Options) -> Result<()> {
    let host = Host::now();
    eprintln!("{}", host.text());
    let found = measure(options)?;
    let host = host.at_end();
    let mut document = Document::new("A virtual machine beside a hostile one");
    document.blocks.extend(host.blocks().chain([Block::Table(table(&found))]));
    let samples: Value = found
        .iter()
        .map(|(beside, all)| {
            (beside.name(), all.iter().map(|it| json!([it.p50, it.p99, it.cpu])).collect::<Value>())
        })
        .collect();
    let samples = json!({ "machine": host.json(), "p50_us, p99_us, cpu_ms_per_s": samples });
    options.outputs.write(&document, &document, &samples)?;
    let grown = found.iter().flat_map(|(_, all)| all).map(|it| it.growth).max().unwrap_or(0);
    if grown > GROWTH_MAX {
        return Err(Failure(format!("a harassed brodo has grown by {grown} KiB")));
    }
    Ok(())
}

fn table(found: &[(Beside, Vec<Sample>)]) -> Table {
    let caption = "Round trips of the neighbour, us, and the harassed brodo's processor time, ms per second";
    let head = ["beside", "p50", "p99", "p99 / alone", "processor time"];
    let mut table = Table::new(caption, head);
    let median = |all: &[Sample], of: fn(&Sample) -> f64| {
        Spread::of(all.iter().map(of)).map_or(f64::NAN, |spread| spread.median)
    };
    let alone = found.first().map_or(f64::NAN, |(_, all)| median(all, |it| it.p99));
    for (beside, all) in found {
        let p99 = median(all, |it| it.p99);
        let figures = [median(all, |it| it.p50), p99, p99 / alone, median(all, |it| it.cpu)];
        table.row([beside.name().to_owned()].into_iter().chain(figures.map(number)));
    }
    table
}

fn measure(options: &Options) -> Result<Vec<(Beside, Vec<Sample>)>> {
    let world = World::new()?;
    let [probe, name] = world.probe();
    let respond = RESPOND_PORT.to_string();
    let words: Vec<&str> = vec![&probe, &name, "respond", &respond, "1"];
    world.serve(&world.host, words, RESPOND_PORT)?;
    world.serve_probe(&world.host, Hostility::SERVER_PORT)?;
    let neighbour = machine(&world, &options.programs, &[])?;
    let mut found: Vec<_> = Beside::all().map(|beside| (beside, Vec::new())).collect();
    for round in 1..=options.rounds {
        for (beside, samples) in &mut found {
            let sample = sample(&world, &neighbour, *beside, options)?;
            eprintln!("round {round}, beside {}: {sample:?}", beside.name());
            samples.push(sample);
        }
    }
    Ok(found)
}

fn machine(world: &World, programs: &Programs, words: &'static [&'static str]) -> Result<Guest> {
    let program = world.install_program(&programs.find(System::Brodo)?)?;
    let (program, mtu) = (program.to_string_lossy(), MTU.to_string());
    let kind = MonitorKind::VhostUser;
    let all = [&*program, "vm", "--mtu", &mtu].into_iter().chain(programs.options()).chain([kind.option()]);
    let all: Vec<_> = all.map(str::to_owned).collect();
    Machine { kind, mtu: MTU, offload: true, words }.start(world, &world.enter_host_as_user(), &all)
}

/// The neighbour's company, for as long as it is measured.
enum Company {
    None,
    Spinners { jobs: Vec<Job> },
    Hostile(Guest),
}

impl Company {
    fn start(world: &World, programs: &Programs, beside: Beside) -> Result<Self> {
        Ok(match beside {
            Beside::Nothing => Self::None,
            Beside::Spinners(count) => {
                let start = |_| world.start(&world.enter_host_as_user(), ["sh", "-c", "while :; do :; done"]);
                Self::Spinners { jobs: (0..count).map(start).collect::<Result<_>>()? }
            }
            Beside::Hostile(way) => Self::Hostile(machine(world, programs, way.words())?),
        })
    }

    /// Whether all of it is still there.
    fn is_running(&mut self) -> bool {
        match self {
            Self::None => true,
            Self::Spinners { jobs } => jobs.iter_mut().all(Job::is_running),
            Self::Hostile(guest) => guest.is_running(),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Spinners { jobs } => jobs.iter().map(Job::describe).collect::<Vec<_>>().join("\n"),
            Self::Hostile(guest) => guest.describe(),
        }
    }

    /// Processes of the harassed brodo.
    fn brodo(&self) -> &[u32] {
        if let Self::Hostile(guest) = self { &guest.forwarder } else { &[] }
    }
}

/// One measurement.
fn sample(world: &World, neighbour: &Guest, beside: Beside, options: &Options) -> Result<Sample> {
    let mut company = Company::start(world, &options.programs, beside)?;
    thread::sleep(MARGIN);
    let cpu = |company: &Company| company.brodo().iter().map(|pid| procfs::cpu_ms(*pid)).sum::<f64>();
    let (cpu_before, rss_before) = (cpu(&company), procfs::rss_kib(company.brodo()));
    let RoundTrips { p50, p99 } = RoundTrips::measure(world, neighbour, options.seconds)?;
    neighbour.verify()?;
    if let Some(died) = company.brodo().iter().find(|pid| !procfs::is_alive(**pid)) {
        return Err(Failure(format!("process {died} of the harassed brodo has died")));
    }
    if !company.is_running() {
        let what = company.describe();
        return Err(Failure(format!("{} did not stand beside the neighbour: {what}", beside.name())));
    }
    Ok(Sample {
        p50,
        p99,
        cpu: (cpu(&company) - cpu_before) / options.seconds,
        growth: procfs::rss_kib(company.brodo()).saturating_sub(rss_before),
    })
}
