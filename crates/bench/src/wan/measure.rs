//! `brodo-bench wan`: each row through brodo and directly over the same path, in turn, round after round.
//!
//! Delay and rate are emulated on the machine that runs everything, so the figures beside each other are what counts: a
//! machine that is busy with something else is late for both.

use super::place::{Place, Way};
use super::rows::{self, Direction, Row};
use super::tap_queue;
use crate::process::{Context, Failure, Result};
use crate::report::{Spread, machine};
use crate::system::{Programs, System};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// The row that is not on an emulated path ([`tap_queue`]).
const TAP_QUEUE: &str = "6";

/// What to run.
#[derive(Debug, Args)]
pub struct Options {
    /// Rows by the beginning of their names; default: all
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    rows: Vec<String>,
    /// How often each is run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// How long each run lasts, in seconds; default: as the row says
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
    /// MTU of the path and of brodo's link, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500,
        value_parser = clap::value_parser!(u32).range(1280..=65520))]
    mtu: u32,
    /// More options for brodo, separated by spaces
    #[arg(long = "options", value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    more: String,
    /// Write every run to this file, with the bytes of every round trip
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print what brodo counted in each row
    #[arg(long)]
    counters: bool,
    /// The brodo to measure; default: the one beside this program
    #[arg(long, value_name = "FILE")]
    brodo: Option<PathBuf>,
}

/// One transfer.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Payload over the whole time, from the first byte on.
    pub mbit: f64,
    /// Payload of the median round trip of the second half, in Mbit/s: where it settled.
    pub level_mbit: f64,
    /// When a round trip first carried 95 % of that, in milliseconds.
    pub reached_ms: Option<f64>,
    /// Segments that the path lost.
    pub path_losses: u64,
    /// Bytes of every interval of about one round trip.
    pub series: Vec<u64>,
}

/// Measures and prints a table.
pub fn run(options: &Options) -> Result<()> {
    eprintln!("{}", machine());
    let programs = Programs { brodo: options.brodo.clone(), peers: None };
    let program = programs.find(System::Brodo)?;
    let chosen = |name: &str| {
        options.rows.is_empty() || options.rows.iter().any(|wanted| name.starts_with(wanted.as_str()))
    };
    let mut rows: Vec<Row> = rows::all().into_iter().filter(|row| chosen(&row.name)).collect();
    if rows.is_empty() && !chosen(TAP_QUEUE) {
        let names: Vec<String> = rows::all().into_iter().map(|row| row.name).collect();
        return Err(Failure(format!("no row begins so; there are {}, {TAP_QUEUE}", names.join(", "))));
    }
    let mut table = String::from(
        "| row | expected, Mbit/s | brodo | direct | brodo / direct | brodo in the end | direct | 95 % of that after, ms | direct \
         | lost on the path | direct |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut all = Vec::new();
    for row in &mut rows {
        row.seconds = options.seconds.unwrap_or(row.seconds);
        let more: Vec<&str> = row.options.iter().copied().chain(options.more.split_whitespace()).collect();
        let place = Place::new(row.placement, &program, &more, options.mtu, row.paths())?;
        let (mut through, mut direct) = (Vec::new(), Vec::new());
        for round in 1..=options.rounds {
            for (name, way, samples) in
                [("brodo", &place.through, &mut through), ("direct", &place.direct, &mut direct)]
            {
                let sample = transfer(row, &place, way)?;
                eprintln!("{}, round {round}/{}, {name}: {}", row.name, options.rounds, sample.line());
                samples.push(sample);
            }
        }
        let line = line(row, &through, &direct);
        table.push_str(&line);
        for (name, samples) in [("brodo", &through), ("direct", &direct)] {
            all.extend(samples.iter().map(|sample| sample.json(&row.name, name)));
        }
        let counted = place.finish()?;
        if options.counters {
            eprintln!("{counted}");
        }
    }
    println!("{}\n", machine());
    if !rows.is_empty() {
        println!("{table}");
    }
    if chosen(TAP_QUEUE) {
        println!("{}", tap_queue::table(&program, options.rounds, options.seconds.unwrap_or(2))?);
    }
    if let Some(path) = &options.json {
        let text = json!({ "machine": machine(), "runs": all }).to_string();
        std::fs::write(path, text).context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// One transfer of a row.
pub fn transfer(row: &Row, place: &Place, way: &Way) -> Result<Sample> {
    let before = place.wan.losses();
    let [duration, bucket, dwell] = [row.seconds * 1000, row.rtt_ms, row.dwell_ms].map(|n| n.to_string());
    let limit = Duration::from_secs(row.seconds + 60);
    let found = match row.direction {
        Direction::Up => place.probe(way, "timed-up", &[&duration, &bucket], limit),
        Direction::Down => place.probe(way, "timed-down", &[&duration, &bucket, &dwell], limit),
    }?;
    let mbit = found["mbit_per_second"].as_f64();
    let mbit = mbit.ok_or_else(|| Failure(format!("row {}: the probe printed {found}", row.name)))?;
    let series: Vec<u64> =
        found["buckets"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    let path_losses = place.wan.losses() - before;
    let level = level(&series);
    let first = series.iter().position(|&bytes| bytes as f64 >= 0.95 * level);
    let reached_ms = first.map(|first| ((first + 1) as u64 * row.rtt_ms) as f64);
    let level_mbit = level * 8.0 / row.rtt_ms as f64 / 1e3;
    Ok(Sample { mbit, level_mbit, reached_ms, path_losses, series })
}

/// The median of the second half, in bytes.
fn level(series: &[u64]) -> f64 {
    let half = &series[series.len() / 2..];
    Spread::of(half.iter().map(|&bytes| bytes as f64)).map_or(0.0, |spread| spread.median)
}

impl Sample {
    fn line(&self) -> String {
        let reached = self.reached_ms.map_or_else(|| "never".into(), |ms| format!("after {ms:.0} ms"));
        let (mbit, level, lost) = (self.mbit, self.level_mbit, self.path_losses);
        format!("{mbit:8.2} Mbit/s, {level:.2} in the end, 95 % of that {reached}, {lost} lost on the path")
    }

    fn json(&self, row: &str, way: &str) -> Value {
        json!({
            "row": row, "way": way, "mbit_per_second": self.mbit, "level_mbit_per_second": self.level_mbit,
            "reached_ms": self.reached_ms,
            "path_losses": self.path_losses, "bytes_per_round_trip": self.series,
        })
    }
}

/// A row of the table.
fn line(row: &Row, through: &[Sample], direct: &[Sample]) -> String {
    let text = |samples: &[Sample], of: &dyn Fn(&Sample) -> Option<f64>| {
        Spread::of(samples.iter().filter_map(of)).map_or_else(String::new, Spread::text)
    };
    let mbit = |sample: &Sample| Some(sample.mbit);
    let level = |sample: &Sample| Some(sample.level_mbit);
    let reached = |sample: &Sample| sample.reached_ms;
    let losses = |sample: &Sample| Some(sample.path_losses as f64);
    let median = |samples: &[Sample]| Spread::of(samples.iter().map(|s| s.mbit)).map_or(0.0, |s| s.median);
    let expected = match row.expected_mbit {
        Some(mbit) => format!("{mbit}: {}", row.expected),
        None => row.expected.to_owned(),
    };
    format!(
        "| {} | {expected} | {} | {} | {:.3} | {} | {} | {} | {} | {} | {} |\n",
        row.name,
        text(through, &mbit),
        text(direct, &mbit),
        median(through) / median(direct),
        text(through, &level),
        text(direct, &level),
        text(through, &reached),
        text(direct, &reached),
        text(through, &losses),
        text(direct, &losses),
    )
}
