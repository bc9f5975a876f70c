//! Pauses of service by crashes of the engine and upgrades in place, with many idle connections open.
//!
//! One brodo, one guest. A probe holds the idle connections and proves at the end, by bytes that are echoed,
//! that all of them are alive; another sends single bytes there and back without end, and gives the longest
//! time between two answers: the pause as a program of the guest sees it. The engine is killed and brodo
//! upgraded to its own program in turn, and as often nothing is done, which shows the share of the machine
//! itself in these times.

use crate::idle::LIMIT;
use crate::process::{Context, Failure, Job, Result, wait_until};
use crate::report::{Block, Document, Machine, Outputs, Table, percentile};
use crate::system::{Guest, Programs, SERVER_PORT, System};
use crate::world::{HOST_V4, World};
use clap::Args;
use serde_json::{Value, json};
use std::thread;
use std::time::Duration;

/// Time before and after an event, in which bytes go their way.
const SETTLE: Duration = Duration::from_millis(200);

/// Options of `brodo-bench pauses`.
#[derive(Debug, Args)]
pub struct Options {
    /// Number of idle connections
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub connections: usize,
    /// Number of crashes, of upgrades, and of times without either
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Paths of the programs.
    #[command(flatten)]
    pub programs: Programs,
    /// Outputs of the results.
    #[command(flatten)]
    pub outputs: Outputs,
}

/// Cause of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Nothing,
    Crash,
    Upgrade,
}

impl Event {
    const ALL: [Self; 3] = [Self::Nothing, Self::Crash, Self::Upgrade];

    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Crash => "crash of the engine (SIGKILL)",
            Self::Upgrade => "upgrade in place",
        }
    }

    /// Bound of the 99th percentile, in milliseconds.
    const fn limit_ms(self) -> Option<f64> {
        match self {
            Self::Nothing => None,
            Self::Crash => Some(100.0),
            Self::Upgrade => Some(50.0),
        }
    }

    /// Words of brodo when it is over.
    const fn notice(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Crash => "was started again",
            Self::Upgrade => "after a pause of",
        }
    }

    /// Brings it about; false if brodo is not ready for it.
    fn cause(self, guest: &Guest) -> bool {
        match self {
            Self::Nothing => true,
            Self::Crash => guest.kill_engine(),
            Self::Upgrade => guest.upgrade(),
        }
    }
}

/// Pauses by one kind of event.
#[derive(Debug)]
struct Pauses {
    event: Event,
    /// In milliseconds, ascending.
    sorted: Vec<f64>,
}

impl Pauses {
    fn new(event: Event) -> Self {
        Self { event, sorted: Vec::new() }
    }

    fn add(&mut self, ms: f64) {
        let place = self.sorted.partition_point(|other| *other <= ms);
        self.sorted.insert(place, ms);
    }

    /// The least pause that so many per cent of all do not exceed (nearest rank).
    fn percentile(&self, percent: usize) -> f64 {
        percentile(&self.sorted, percent)
    }

    fn row(&self) -> Vec<String> {
        let figures = [50, 99, 100].map(|percent| format!("{:.1}", self.percentile(percent)));
        [self.event.name().to_owned(), self.sorted.len().to_string()].into_iter().chain(figures).collect()
    }

    fn json(&self) -> Value {
        json!({ "event": self.event.name(), "pauses_ms": self.sorted })
    }

    fn fault(&self) -> Option<String> {
        let (limit, found) = (self.event.limit_ms()?, self.percentile(99));
        (found > limit).then(|| format!("{}: p99 is {found:.1} ms, not {limit} or less", self.event.name()))
    }
}

/// `brodo-bench pauses`. Fails if a connection is lost or a pause is too long.
pub fn run(options: &Options) -> Result<()> {
    let machine = Machine::now();
    eprintln!("{}", machine.text());
    let found = measure(options)?;
    let machine = machine.at_end();
    let mut document = Document::new("Pauses by crashes and upgrades");
    document.blocks.extend(machine.blocks().chain([Block::Table(table(&found, options.connections))]));
    let pauses: Vec<Value> = found.iter().map(Pauses::json).collect();
    let samples = json!({ "machine": machine.json(), "connections": options.connections, "pauses": pauses });
    options.outputs.write(&document, &document, &samples)?;
    let faults: Vec<String> = found.iter().filter_map(Pauses::fault).collect();
    if faults.is_empty() { Ok(()) } else { Err(Failure(faults.join("\n"))) }
}

fn table(found: &[Pauses], connections: usize) -> Table {
    let caption = format!("Longest time between two answers, with {connections} idle connections, ms");
    let mut table = Table::new(caption, ["event", "times", "p50", "p99", "max"]);
    for pauses in found {
        table.row(pauses.row());
    }
    table
}

fn measure(options: &Options) -> Result<[Pauses; 3]> {
    let world = World::new()?;
    world.serve_probe(&world.host, SERVER_PORT)?;
    let program = world.install_program(&options.programs.find(System::Brodo)?)?;
    let program = program.to_string_lossy();
    let mut words = vec![&*program, "run", "-v"];
    words.extend(options.programs.options());
    words.push("--");
    let guest = Guest::forwarder(&world, &world.enter_host_as_user(), &words)?;
    let (port, count) = (SERVER_PORT.to_string(), options.connections.to_string());
    let [probe, name] = world.probe();
    let probe = |words: &[&str]| {
        let words = [probe.as_str(), &name].into_iter().chain(words.iter().copied());
        world.start(&guest.enter, words)
    };
    let mut idle = probe(&["many", HOST_V4, &port, &count, "--silent"])?;
    let open = wait_until(LIMIT, || (idle.stderr().contains("open") || !idle.is_running()).then_some(()));
    if open.is_none() || !idle.is_running() {
        return Err(Failure(format!("{count} connections were not opened: {}", idle.describe())));
    }
    let mut meter = Meter { answers: 0, job: probe(&["gaps", HOST_V4, &port])? };
    let mut found = Event::ALL.map(Pauses::new);
    for round in 1..=options.rounds {
        for pauses in &mut found {
            let event = pauses.event;
            let longest = meter.around(&guest, event).context(|| format!("round {round}, {event:?}"))?;
            pauses.add(longest);
        }
    }
    idle.close_stdin();
    let echoed = idle.wait(LIMIT)?.success()?.json()?;
    if echoed["equal"] != true {
        return Err(Failure(format!("of {count} connections not all are alive: {echoed}")));
    }
    eprintln!("All {} connections are alive.", echoed["connections"]);
    Ok(found)
}

/// The probe that measures the gaps.
struct Meter {
    job: Job,
    answers: usize,
}

impl Meter {
    /// The longest gap around an event, in milliseconds.
    fn around(&mut self, guest: &Guest, event: Event) -> Result<f64> {
        thread::sleep(SETTLE);
        self.longest()?;
        let notices = || guest.stderr().matches(event.notice()).count();
        let before = notices();
        wait_until(LIMIT, || event.cause(guest).then_some(()))
            .ok_or_else(|| Failure(format!("brodo was not ready: {}", guest.describe())))?;
        if event != Event::Nothing {
            wait_until(LIMIT, || (notices() > before).then_some(()))
                .ok_or_else(|| Failure(format!("it did not happen: {}", guest.describe())))?;
        }
        thread::sleep(SETTLE);
        self.longest()
    }

    /// The longest gap since the last call.
    fn longest(&mut self) -> Result<f64> {
        self.job.write_line("")?;
        let answer = |job: &Job| {
            let said = job.stdout();
            let whole = said.rsplit_once('\n')?.0;
            whole.lines().nth(self.answers)?.parse::<f64>().ok()
        };
        let us = wait_until(LIMIT, || match answer(&self.job) {
            Some(us) => Some(Some(us)),
            None => (!self.job.is_running()).then_some(None),
        });
        self.answers += 1;
        let us = us.flatten().ok_or_else(|| Failure(format!("no answer: {}", self.job.describe())))?;
        Ok(us / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the percentiles.

    use super::*;

    #[test]
    fn percentiles_are_pauses_that_were_measured() {
        let mut pauses = Pauses::new(Event::Upgrade);
        for ms in [3.0, 1.0, 2.0] {
            pauses.add(ms);
        }
        let figures = |of: &Pauses| [1, 50, 99, 100].map(|percent| of.percentile(percent) as u32);
        assert_eq!(figures(&pauses), [1, 2, 3, 3]);
        assert_eq!(pauses.fault(), None);
        (4..=99).for_each(|_| pauses.add(50.0));
        pauses.add(70.0);
        assert_eq!(figures(&pauses), [1, 50, 50, 70]);
        pauses.add(60.0);
        pauses.add(80.0);
        assert!(pauses.fault().is_some_and(|fault| fault.contains("p99 is 70.0 ms")));
    }
}
