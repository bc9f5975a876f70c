//! A neighbour's round trips beside floods that a policy refuses: a million datagrams, 65,536 connections
//! that say half a name, 5,000 names of one zone, each in ten seconds.
//!
//! The neighbour sends single bytes there and back every two milliseconds, first alone and then beside each
//! flood. It is a program of the same guest, by turns for two brodos: one with a policy and an audit log, and
//! as *control* one that refuses the same destinations by `--deny CIDR`. The control has the cost of the
//! flood itself, which the guest's own processors pay for. At a third turn it is in a guest *apart*, with a
//! brodo of its own, beside a flood in the guest with the policy.
//!
//! In the same three ways one bulk flow is measured alone and beside the refused datagrams ([`bulk`]).
//!
//! It fails if a flood fell short ([`Kind::verify`]), if a process of brodo's has ended, or if the audit log
//! lacks a decision.

mod bulk;

use crate::idle::LIMIT;
use crate::neighbour::RoundTrips;
use crate::process::{Failure, Result};
use crate::report::{Block, Document, Machine, Outputs, Spread, Table, number};
use crate::system::{Guest, Programs, RESPOND_PORT, SERVER_PORT, System};
use crate::world::{HOST_V4, World};
use bulk::BulkShares;
use clap::Args;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

/// Port of the server for the bulk flow.
const BULK_PORT: u16 = 7001;
/// Port of the resolver on the host.
const RESOLVER_PORT: u16 = 5300;
/// Time from the beginning of a flood to that of the neighbour, and from the neighbour's end to its own.
const MARGIN: f64 = 0.25;
/// Longer than a gate stays closed.
const QUIET: Duration = Duration::from_secs(6);

/// Options of `brodo-bench floods`.
#[derive(Debug, Args)]
pub struct Options {
    /// Rounds, of which the medians count
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Duration of each flood, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub seconds: f64,
    /// Paths of the programs.
    #[command(flatten)]
    pub programs: Programs,
    /// Outputs of the results.
    #[command(flatten)]
    pub outputs: Outputs,
}

/// A flood.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    /// Words of the probe: kind, address, port.
    words: [&'static str; 3],
    /// Number of its datagrams, connections or questions.
    count: u64,
    /// Least shares of `count` that the probe's figures of these names have together, 0 to 1.
    at_least: &'static [(&'static [&'static str], f64)],
    /// Greatest shares in the same way.
    at_most: &'static [(&'static [&'static str], f64)],
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "1,000,000 refused datagrams",
        words: ["datagrams", "203.0.113.1", "1024"],
        count: 1_000_000,
        at_least: &[(&["sent"], 0.95)],
        at_most: &[],
    },
    Kind {
        name: "65,536 connections with half a ClientHello",
        words: ["half-hellos", HOST_V4, "7000"],
        count: 65_536,
        at_least: &[(&["held", "refused"], 0.9)],
        at_most: &[(&["failed"], 0.05)],
    },
    Kind {
        name: "5,000 names of a wildcard",
        words: ["questions", "10.0.2.3", "53"],
        count: 5000,
        at_least: &[(&["answered"], 0.9)],
        at_most: &[],
    },
];

impl Kind {
    /// Fails if the flood was not what its name says: the neighbour was then measured beside less.
    fn verify(&self, found: &Value) -> Result<()> {
        let share = |names: &[&str]| {
            let numbers = names.iter().filter_map(|name| found[name].as_u64());
            numbers.sum::<u64>() as f64 / self.count as f64
        };
        let is_short = self.at_least.iter().any(|(names, least)| share(names) < *least);
        if is_short || self.at_most.iter().any(|(names, most)| share(names) > *most) {
            return Err(Failure(format!("the flood of {} was none: {found}", self.name)));
        }
        Ok(())
    }
}

/// The policy: the servers of neighbour and bulk by address, the gates' by name, and a zone.
fn policy() -> String {
    format!(
        "version = 1\nallow = [\"{HOST_V4}:{RESPOND_PORT}\", \"{HOST_V4}:{BULK_PORT}\", \"*.zone.example\"]\n\
         [[rule]]\nto = [\"tls://gate.example:{SERVER_PORT}\"]\nprivate = true\n"
    )
}

/// Round trips of the neighbour in one round, in microseconds, and the flood's own figures.
#[derive(Debug)]
struct Sample {
    p50: f64,
    p99: f64,
    flood: Value,
}

/// Samples of one brodo: alone, and beside each flood.
#[derive(Debug, Default)]
struct Samples([Vec<Sample>; KINDS.len() + 1]);

impl Samples {
    fn median(&self, place: usize, of: fn(&Sample) -> f64) -> f64 {
        Spread::of(self.0[place].iter().map(of)).map_or(f64::NAN, |spread| spread.median)
    }

    fn json(&self) -> Value {
        let sample = |it: &Sample| json!({ "p50_us": it.p50, "p99_us": it.p99, "flood": it.flood });
        let names = ["alone"].into_iter().chain(KINDS.map(|kind| kind.name));
        names.zip(&self.0).map(|(name, all)| (name, all.iter().map(sample).collect::<Value>())).collect()
    }
}

/// `brodo-bench floods`.
pub fn run(options: &Options) -> Result<()> {
    let machine = Machine::now();
    eprintln!("{}", machine.text());
    let found = measure(options)?;
    let machine = machine.at_end();
    let Found { control, ruled, apart, bulk, audit } = &found;
    let mut document = Document::new("A neighbour beside floods");
    let audited = format!(
        "Audit log: {} decisions in {} lines and {} lost, of {} that were counted.",
        audit.decisions, audit.lines, audit.lost, audit.counted
    );
    let tables = [table(&found), bulk.table()].map(Block::Table);
    document.blocks.extend(machine.blocks().chain(tables).chain([Block::Text(audited)]));
    let samples = json!({
        "machine": machine.json(), "control": control.json(), "policy": ruled.json(), "apart": apart.json(),
        "bulk": bulk.json(),
        "audit": { "decisions": audit.decisions, "lines": audit.lines, "lost": audit.lost, "counted": audit.counted,
        },
    });
    options.outputs.write(&document, &document, &samples)?;
    if audit.decisions + audit.lost == audit.counted {
        Ok(())
    } else {
        Err(Failure("the audit log has not every decision, in a line or counted as lost".into()))
    }
}

fn table(Found { control, ruled, apart, .. }: &Found) -> Table {
    let caption = "Round trips of the neighbour, us, and ratios of their p99";
    let head = [
        "beside",
        "p50, control",
        "p99",
        "p50, policy",
        "p99",
        "policy / control",
        "policy / alone",
        "p50, apart",
        "p99",
        "apart / alone",
    ];
    let mut table = Table::new(caption, head);
    for (place, name) in ["nothing"].into_iter().chain(KINDS.map(|kind| kind.name)).enumerate() {
        let of = |samples: &Samples| [samples.median(place, |it| it.p50), samples.median(place, |it| it.p99)];
        let to_alone =
            |samples: &Samples| samples.median(place, |it| it.p99) / samples.median(0, |it| it.p99);
        let ([p50, p99], [ruled_p50, ruled_p99], [apart_p50, apart_p99]) =
            (of(control), of(ruled), of(apart));
        let (ruled_to_alone, apart_to_alone) = (to_alone(ruled), to_alone(apart));
        let ruled = [ruled_p50, ruled_p99, ruled_p99 / p99, ruled_to_alone];
        let figures = [p50, p99].into_iter().chain(ruled).chain([apart_p50, apart_p99, apart_to_alone]);
        table.row([name.to_owned()].into_iter().chain(figures.map(number)));
    }
    table
}

/// Sums of an audit log.
#[derive(Debug, Default)]
struct Audit {
    lines: u64,
    decisions: u64,
    lost: u64,
    /// Decisions by the counters of the engine.
    counted: u64,
}

impl Audit {
    /// Sums of the log, beside what the engine has counted.
    fn read(path: &Path, counted: u64) -> Result<Self> {
        let file = fs::File::open(path).map_err(|error| Failure(format!("{}: {error}", path.display())))?;
        let mut audit = Self { counted, ..Self::default() };
        for line in BufReader::new(file).lines().map_while(std::io::Result::ok) {
            let line: Value = serde_json::from_str(&line).unwrap_or_default();
            audit.lines += 1;
            audit.decisions += line["count"].as_u64().unwrap_or_default();
            audit.lost += line["lost"].as_u64().unwrap_or_default();
        }
        Ok(audit)
    }
}

/// Samples of the neighbour in the control's guest, in the guest with a policy, and in a guest apart; and
/// those of bulk in all three.
struct Found {
    control: Samples,
    ruled: Samples,
    apart: Samples,
    bulk: BulkShares,
    audit: Audit,
}

fn measure(options: &Options) -> Result<Found> {
    let world = World::new()?;
    for port in [SERVER_PORT, BULK_PORT] {
        world.serve_probe(&world.host, port)?;
    }
    let [probe, name] = world.probe();
    let serve = |words: &[&str]| -> Vec<String> {
        [&[probe.as_str(), &name], words].concat().into_iter().map(str::to_owned).collect()
    };
    let (respond, resolver) = (RESPOND_PORT.to_string(), RESOLVER_PORT.to_string());
    world.serve(&world.host, serve(&["respond", &respond, "1"]), RESPOND_PORT)?;
    // UDP: nothing tells that it has begun but an answer.
    let _resolver = world.start(&world.host.enter(), serve(&["resolve", &resolver]))?;
    let file = world.folder().join("floods.toml");
    fs::write(&file, policy()).map_err(|error| Failure(format!("{}: {error}", file.display())))?;
    let audit = world.home().join("audit");
    let metrics = world.home().join("metrics");
    let metrics_option = format!("unix:{}", metrics.display());
    let (file, audit_path) = (file.to_string_lossy(), audit.to_string_lossy());
    let upstream = format!("{HOST_V4}:{RESOLVER_PORT}");
    let host_name = format!("gate.example={HOST_V4}");
    let rules =
        ["--policy", &file, "--host-name", &host_name, "--audit", &audit_path, "--metrics", &metrics_option];
    let deny = format!("{HOST_V4}:{SERVER_PORT}");
    let denied = ["--deny", "203.0.113.0/24", "--deny", &deny];
    let program = world.install_program(&options.programs.find(System::Brodo)?)?;
    let program = program.to_string_lossy();
    let start = |words: &[&str]| {
        let mut all = vec![&*program, "run", "--resolver", &upstream];
        all.extend(words);
        all.extend(options.programs.options());
        all.push("--");
        Guest::forwarder(&world, &world.enter_host_as_user(), &all)
    };
    let (control, ruled, apart) = (start(&denied)?, start(&rules)?, start(&[])?);
    let mut found = [Samples::default(), Samples::default(), Samples::default()];
    let mut bulk = BulkShares::default();
    // The neighbour's guest, and the flood's.
    let guests = [(&control, &control), (&ruled, &ruled), (&apart, &ruled)];
    for round in 1..=options.rounds {
        for place in 0..=KINDS.len() {
            for (samples, (guest, flooded)) in found.iter_mut().zip(guests) {
                let kind = place.checked_sub(1).map(|place| &KINDS[place]);
                let flood = kind.map(|kind| (flooded, kind));
                let sample = sample(&world, guest, flood, options.seconds)?;
                eprintln!("round {round}, {}: {sample:?}", kind.map_or("alone", |kind| kind.name));
                samples.0[place].push(sample);
            }
        }
        bulk.round(&world, guests, options.seconds)?;
    }
    let counted = settled(&metrics)?;
    drop((control, ruled, apart));
    let [control, ruled, apart] = found;
    Ok(Found { control, ruled, apart, bulk, audit: Audit::read(&audit, counted)? })
}

/// Decisions that the engine has counted, once there are no further ones: gates still open are closed within
/// [`QUIET`].
fn settled(metrics: &Path) -> Result<u64> {
    let mut last = None;
    loop {
        let counted = decisions(metrics)?;
        if last.replace(counted) == Some(counted) {
            return Ok(counted);
        }
        thread::sleep(QUIET);
    }
}

/// Sum of all kinds of decisions, from the metrics.
fn decisions(metrics: &Path) -> Result<u64> {
    let failed = |error: std::io::Error| Failure(format!("{}: {error}", metrics.display()));
    let mut stream = UnixStream::connect(metrics).map_err(failed)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: brodo\r\nConnection: close\r\n\r\n").map_err(failed)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(failed)?;
    let of_decisions = text.lines().filter(|line| line.starts_with("brodo_policy_decisions_total{"));
    Ok(of_decisions.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
}

/// One measurement of the neighbour in `guest`, beside a flood in its guest or alone.
fn sample(world: &World, guest: &Guest, flood: Option<(&Guest, &Kind)>, seconds: f64) -> Result<Sample> {
    let measure = |seconds| RoundTrips::measure(world, guest, seconds);
    let (RoundTrips { p50, p99 }, flood) = beside(world, guest, flood, seconds, measure)?;
    Ok(Sample { p50, p99, flood })
}

/// Something measured in `guest` for most of `seconds`, beside a flood for all of them or alone; and the
/// flood's own figures.
fn beside<T>(
    world: &World,
    guest: &Guest,
    flood: Option<(&Guest, &Kind)>,
    seconds: f64,
    measure: impl FnOnce(f64) -> Result<T>,
) -> Result<(T, Value)> {
    let [probe, name] = world.probe();
    let length = seconds.to_string();
    let start = |(guest, kind): (&Guest, &Kind)| {
        let count = kind.count.to_string();
        let words = [&[probe.as_str(), &name, "flood"], &kind.words[..], &[&count, &length]].concat();
        world.start(&guest.enter, words)
    };
    let job = flood.map(start).transpose()?;
    thread::sleep(Duration::from_secs_f64(MARGIN));
    let measured = measure((seconds - 2.0 * MARGIN).max(MARGIN))?;
    let limit = LIMIT + Duration::from_secs_f64(seconds);
    let found = job.map(|mut job| job.wait(limit)?.success()?.json()).transpose()?;
    guest.verify()?;
    let found = found.unwrap_or_default();
    if let Some((flooded, kind)) = flood {
        flooded.verify()?;
        kind.verify(&found)?;
    }
    Ok((measured, found))
}

#[cfg(test)]
mod tests {
    //! Floods that are whole, and floods that fell short.

    use super::*;

    #[test]
    fn a_flood_that_fell_short_is_a_failure() {
        let [datagrams, half_hellos, questions] = &KINDS;
        let hellos = |held: u64, refused: u64, failed: u64| json!({ "held": held, "refused": refused, "failed": failed });
        for (kind, whole) in [
            (datagrams, json!({ "sent": 1_000_000 })),
            (datagrams, json!({ "sent": 950_000 })),
            (half_hellos, hellos(0, 65_536, 0)),
            (half_hellos, hellos(1024, 60_000, 3000)),
            (questions, json!({ "answered": 5000, "with_address": 256 })),
        ] {
            assert!(kind.verify(&whole).is_ok(), "{whole}");
        }
        for (kind, short) in [
            (datagrams, json!({ "sent": 0 })),
            (datagrams, json!({ "sent": 949_999 })),
            (half_hellos, hellos(1024, 20_000, 0)),
            (half_hellos, hellos(1024, 60_000, 4000)),
            (questions, json!({ "answered": 4499, "with_address": 256 })),
            (questions, Value::Null),
        ] {
            assert!(kind.verify(&short).is_err(), "{short}");
        }
    }
}
