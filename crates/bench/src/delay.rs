//! Delay of a request beside bulk over time: one byte there and back every 2 ms, and four bulk flows in the
//! middle third of each run.
//!
//! One run for each system and direction, one after the other. The picture has the median of each 50 ms,
//! which a single slow request does not move; the table has the percentiles of all requests before the bulk,
//! beside it, and after it. The first 100 ms of each part belong to none: flows begin and end there.

use crate::bench::system;
use crate::probe::BulkDirection;
use crate::process::{Context, Failure, Job, Result};
use crate::report::{Block, Document, Machine, Outputs, Table, percentile};
use crate::system::{Guest, Programs, RESPOND_PORT, SERVER_PORT, System};
use crate::world::{HOST_V4, World};
use brodo_plot::{Axis, Chart, Panel, Series, Stroke};
use clap::Args;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// Bulk flows at a time.
const FLOWS: &str = "4";
/// Pause between an answer and the next request.
const PAUSE_US: &str = "2000";
/// Requests of this time are one point of the picture.
const POINT_S: f64 = 0.05;
/// Part of the time at each change that is left out of the table.
const CHANGE_S: f64 = 0.1;
/// Longest time that a run takes beyond its duration.
const LIMIT: Duration = Duration::from_mins(1);

/// Options of `brodo-bench delay`.
#[derive(Debug, Args)]
pub struct Options {
    /// Systems to measure
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = system, default_value = "brodo,brodo-tap,veth")]
    pub against: Vec<System>,
    /// Duration of each third of a run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    pub seconds: f64,
    /// MTU of the guest's link, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub mtu: u32,
    /// Write the picture to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Paths of the programs.
    #[command(flatten)]
    pub programs: Programs,
    /// Outputs of the results.
    #[command(flatten)]
    pub outputs: Outputs,
}

/// One run.
#[derive(Debug)]
struct Run {
    system: System,
    direction: BulkDirection,
    /// Bulk beside the requests.
    gbit: f64,
    /// The requests: time of the answer in seconds after the first request, and its delay in microseconds.
    requests: Vec<(f64, f64)>,
}

/// `brodo-bench delay`.
pub fn run(options: &Options) -> Result<()> {
    let machine = Machine::now();
    eprintln!("{}", machine.text());
    let mut runs = Vec::new();
    for direction in [BulkDirection::Up, BulkDirection::Down] {
        for &system in &options.against {
            let run = measure(options, system, direction).context(|| system.name().into())?;
            eprintln!("{} {}: {:.1} Gbit/s", system.name(), words(direction), run.gbit);
            runs.push(run);
        }
    }
    let chart = chart(&runs);
    if let Some(path) = &options.svg {
        fs::write(path, chart.svg()).context(|| format!("cannot write {}", path.display()))?;
    }
    let machine = machine.at_end();
    let mut document = Document::new("Delay of a request beside bulk");
    let blocks = [Block::Table(table(&runs, options.seconds)), Block::Lines(chart)];
    document.blocks.extend(machine.blocks().chain(blocks));
    let samples: Vec<Value> = runs.iter().map(Run::json).collect();
    options.outputs.write(&document, &document, &json!({ "machine": machine.json(), "runs": samples }))
}

const fn words(direction: BulkDirection) -> &'static str {
    match direction {
        BulkDirection::Up => "up",
        BulkDirection::Down => "down",
    }
}

fn measure(options: &Options, system: System, direction: BulkDirection) -> Result<Run> {
    let world = World::new()?;
    let [probe, name] = world.probe();
    world.serve_probe(&world.host, SERVER_PORT)?;
    let respond = RESPOND_PORT.to_string();
    let server = [&probe, &name, "respond", &respond, "1"].map(str::to_owned);
    world.serve(&world.host, server, RESPOND_PORT)?;
    let guest = Guest::start(&world, system, &options.programs, options.mtu, 1)?;
    let start = |words: &[&str]| {
        let words = [probe.as_str(), &name].into_iter().chain(words.iter().copied());
        world.start(&guest.enter, words)
    };
    let (whole, third) = ((3.0 * options.seconds).to_string(), options.seconds.to_string());
    let mut requests = start(&["rr", HOST_V4, &respond, "1", &whole, "--pause-us", PAUSE_US])?;
    thread::sleep(Duration::from_secs_f64(options.seconds));
    let mut bulk = start(&[words(direction), HOST_V4, &SERVER_PORT.to_string(), FLOWS, &third])?;
    let limit = LIMIT + Duration::from_secs_f64(3.0 * options.seconds);
    let finish = |job: &mut Job| job.wait(limit)?.success()?.json();
    let (bulk, requests) = (finish(&mut bulk)?, finish(&mut requests)?);
    guest.verify()?;
    let list = |name: &str| requests[name].as_array().into_iter().flatten().filter_map(Value::as_u64);
    let pairs = list("at_ns").zip(list("times_ns"));
    let requests: Vec<_> = pairs.map(|(at, time)| (at as f64 / 1e9, time as f64 / 1e3)).collect();
    let gbit = bulk["gbit_per_second"].as_f64();
    let gbit = gbit.ok_or_else(|| Failure(format!("the probe printed {bulk}")))?;
    Ok(Run { system, direction, gbit, requests })
}

impl Run {
    /// Delays of the requests of a third: before (0), beside (1) and after the bulk (2), in ascending order.
    fn part(&self, third: usize, seconds: f64) -> Vec<f64> {
        let from = third as f64 * seconds + CHANGE_S;
        sorted(self.requests.iter().copied().filter(|(at, _)| (from..from + seconds - CHANGE_S).contains(at)))
    }

    /// The medians of the picture.
    fn series(&self) -> Series {
        let point = |at: f64| (at / POINT_S) as u64;
        let points = self.requests.chunk_by(|a, b| point(a.0) == point(b.0)).map(|requests| {
            ((point(requests[0].0) as f64 + 0.5) * POINT_S, percentile(&sorted(requests.iter().copied()), 50))
        });
        Series { name: self.system.name().into(), stroke: Stroke::Solid, points: points.collect() }
    }

    fn json(&self) -> Value {
        json!({
            "system": self.system.name(), "direction": words(self.direction), "gbit_per_second": self.gbit,
            "requests": self.requests,
        })
    }
}

/// Delays of requests in ascending order.
fn sorted(requests: impl Iterator<Item = (f64, f64)>) -> Vec<f64> {
    let mut delays: Vec<_> = requests.map(|(_, delay)| delay).collect();
    delays.sort_by(f64::total_cmp);
    delays
}

fn table(runs: &[Run], seconds: f64) -> Table {
    let head = ["bulk", "p50 before", "p99", "p50 beside", "p99", "p50 after", "p99", "Gbit/s of the bulk"];
    let mut table = Table::new("Delay of a request beside four bulk flows, us", head);
    for run in runs {
        let name = format!("{} {FLOWS} {}", run.system.name(), words(run.direction));
        let parts = (0..3).map(|third| run.part(third, seconds));
        let delays =
            parts.flat_map(|part| [50, 99].map(|percent| format!("{:.0}", percentile(&part, percent))));
        let gbit = format!("{:.1}", run.gbit);
        table.row(std::iter::once(name).chain(delays).chain([gbit]));
    }
    table
}

fn chart(runs: &[Run]) -> Chart {
    let panel = |direction| {
        let label = format!("us, beside {FLOWS} {}", words(direction));
        let of_panel = runs.iter().filter(|run| run.direction == direction);
        Panel { y: Axis::log(&label), series: of_panel.map(Run::series).collect() }
    };
    Chart {
        title: "Delay of a request; four bulk flows in the middle".into(),
        x: Axis::linear("seconds"),
        panels: [BulkDirection::Up, BulkDirection::Down].map(panel).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Run {
        // A request each 10 ms, slow in the second of three seconds.
        let delay = |n: u32| if (100..200).contains(&n) { 500.0 } else { 50.0 };
        let requests = (0..300).map(|n| (f64::from(n) / 100.0, delay(n))).collect();
        Run { system: System::Brodo, direction: BulkDirection::Up, gbit: 1.0, requests }
    }

    #[test]
    fn thirds_are_apart_and_their_ends_left_out() {
        let run = example();
        let [before, beside, after] = [0, 1, 2].map(|third| run.part(third, 1.0));
        assert_eq!([before.len(), beside.len(), after.len()], [90; 3]);
        assert!(before.iter().chain(&after).all(|delay| *delay < 51.0), "{before:?} {after:?}");
        assert!(beside.iter().all(|delay| *delay > 499.0), "{beside:?}");
        assert_eq!([1, 50, 99].map(|percent| percentile(&[1.0, 2.0, 3.0], percent) as u8), [1, 2, 3]);
        assert!(percentile(&[], 50).is_nan());
    }

    #[test]
    fn a_point_is_the_median_of_its_time() {
        let points = example().series().points;
        assert_eq!(points.len(), 60);
        assert_eq!((points[0].1 as u32, points[30].1 as u32), (50, 500));
        let svg = chart(&[example()]).svg();
        assert!(svg.contains("beside 4 up") && svg.contains("brodo"), "{svg}");
    }
}
