//! `brodo-bench wan`: each row through brodo and directly over the same path, in turn, round after round.
//!
//! Delay and rate are emulated on the measuring machine itself, so only the ratio of brodo to the direct path
//! counts: other load delays both.

use super::rows::{self, Row};
use super::tap_queue::{self, TapQueue};
use super::testbed::{Testbed, Way};
use crate::probe::BulkDirection;
use crate::process::{Failure, Result};
use crate::progress::Progress;
use crate::report::{Block, Document, Machine, Outputs, Spread, Table};
use crate::system::{Programs, System};
use brodo_plot::{Axis, Chart, Panel, Series, Stroke};
use clap::Args;
use serde_json::{Value, json};
use std::path::Path as FilePath;
use std::time::Duration;

/// The row without an emulated path ([`tap_queue`]).
const TAP_QUEUE: &str = "6";
/// Time to build and remove the world of a row.
const AROUND: Duration = Duration::from_secs(1);

/// Which rows, how often and how long.
#[derive(Debug, Clone, Args)]
pub struct Choice {
    /// Rows by prefix of their names; default: all
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub rows: Vec<String>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Duration of one run, in seconds; default: the row's own
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: Option<u64>,
    /// MTU of the path and of brodo's link, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500,
        value_parser = clap::value_parser!(u32).range(1280..=65520))]
    pub mtu: u32,
    /// Print brodo's counters after each row
    #[arg(long)]
    pub counters: bool,
}

impl Default for Choice {
    fn default() -> Self {
        Self { rows: Vec::new(), rounds: 3, seconds: None, mtu: 1500, counters: false }
    }
}

/// Options of `brodo-bench wan`.
#[derive(Debug, Args)]
pub struct Options {
    /// Which rows, how often and how long.
    #[command(flatten)]
    choice: Choice,
    /// Path of brodo.
    #[command(flatten)]
    programs: Programs,
    /// Outputs of the results.
    #[command(flatten)]
    outputs: Outputs,
}

/// One transfer.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Payload over the whole time, from the first byte on.
    pub mbit: f64,
    /// Settled rate: payload of the median round trip of the second half, in Mbit/s.
    pub level_mbit: f64,
    /// Time until a round trip first carried 95 % of that, in milliseconds.
    pub reached_ms: Option<f64>,
    /// Segments that the path lost.
    pub path_losses: u64,
    /// Bytes of every interval of about one round trip.
    pub series: Vec<u64>,
}

/// The transfers of one row, through brodo and directly.
#[derive(Debug)]
struct Measured {
    row: Row,
    through: Vec<Sample>,
    direct: Vec<Sample>,
}

/// Results of all rows.
#[derive(Debug)]
pub struct Found {
    rows: Vec<Measured>,
    tap_queue: Option<Table>,
    /// Rows without figures, and why.
    pub failures: Vec<Failure>,
}

/// `brodo-bench wan`.
pub fn run(options: &Options) -> Result<()> {
    let machine = Machine::now();
    eprintln!("{}", machine.text());
    let rows = options.choice.rows()?;
    let mut progress = Progress::new(options.choice.planned(&rows));
    let found = options.choice.measure(rows, &options.programs, &mut progress)?;
    drop(progress);
    let machine = machine.at_end();
    let mut document = Document::new("Long paths");
    document.blocks.extend(machine.blocks().chain(found.blocks()));
    document.blocks.extend(found.failures.iter().map(|failure| Block::Text(failure.first_line().into())));
    let samples = json!({ "machine": machine.json(), "wan": found.json() });
    options.outputs.write(&document, &document, &samples)?;
    Failure::of_all(&found.failures)
}

impl Choice {
    fn has(&self, name: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|wanted| name.starts_with(wanted.as_str()))
    }

    /// The chosen rows, each with its duration.
    pub fn rows(&self) -> Result<Vec<Row>> {
        let mut rows: Vec<Row> = rows::all().into_iter().filter(|row| self.has(&row.name)).collect();
        if rows.is_empty() && !self.has(TAP_QUEUE) {
            let names: Vec<String> = rows::all().into_iter().map(|row| row.name).collect();
            return Err(Failure(format!("no row begins so; there are {}, {TAP_QUEUE}", names.join(", "))));
        }
        for row in &mut rows {
            row.seconds = self.seconds.unwrap_or(row.seconds);
        }
        Ok(rows)
    }

    /// Estimated duration of `rows`.
    pub fn planned(&self, rows: &[Row]) -> Duration {
        let transfers: Duration = rows.iter().map(|row| 2 * transfer_planned(row)).sum();
        let tap_queue =
            if self.has(TAP_QUEUE) { tap_queue::planned(self.tap_seconds()) } else { Duration::ZERO };
        (transfers + tap_queue) * self.rounds + AROUND * rows.len() as u32
    }

    fn tap_seconds(&self) -> u64 {
        self.seconds.unwrap_or(2)
    }

    /// Measures `rows`, and row 6, which has no path, if chosen.
    pub fn measure(&self, rows: Vec<Row>, programs: &Programs, progress: &mut Progress) -> Result<Found> {
        let program = programs.find(System::Brodo)?;
        let mut found = Found { rows: Vec::new(), tap_queue: None, failures: Vec::new() };
        for row in rows {
            let name = row.name.clone();
            match self.row(row, &program, programs, progress) {
                Ok(measured) => found.rows.push(measured),
                Err(e) => found.fail(&name, e, progress),
            }
        }
        if self.has(TAP_QUEUE) {
            let options: Vec<&str> = programs.options().collect();
            let bed = TapQueue::new(&program, &options, self.mtu);
            match bed.and_then(|bed| tap_queue::table(&bed, self.rounds, self.tap_seconds(), progress)) {
                Ok(table) => found.tap_queue = Some(table),
                Err(e) => found.fail(TAP_QUEUE, e, progress),
            }
        }
        Ok(found)
    }

    /// One row, both ways in turn.
    fn row(
        &self,
        row: Row,
        program: &FilePath,
        programs: &Programs,
        progress: &mut Progress,
    ) -> Result<Measured> {
        let options: Vec<&str> = row.options.iter().copied().chain(programs.options()).collect();
        let testbed = Testbed::new(row.placement, program, &options, self.mtu, row.paths())?;
        let (mut through, mut direct) = (Vec::new(), Vec::new());
        for round in 1..=self.rounds {
            for (name, way, samples) in
                [("brodo", &testbed.through, &mut through), ("direct", &testbed.direct, &mut direct)]
            {
                let what = format!("wan {}, round {round}/{}, {name}", row.name, self.rounds);
                progress.begin(&what);
                let sample = transfer(&row, &testbed, way)?;
                progress.done(transfer_planned(&row), &format!("{what}: {}", sample.line()));
                samples.push(sample);
            }
        }
        let counted = testbed.finish()?;
        if self.counters {
            progress.remark(&counted);
        }
        progress.done(AROUND, "");
        Ok(Measured { row, through, direct })
    }
}

fn transfer_planned(row: &Row) -> Duration {
    // The connection is made and ended over the path.
    Duration::from_secs(row.seconds) + Duration::from_millis(200 + 3 * row.rtt_ms)
}

impl Found {
    /// A row that failed: the others go on.
    fn fail(&mut self, row: &str, why: Failure, progress: &Progress) {
        let failure = why.of(&format!("wan {row}"));
        progress.remark(&failure.0);
        self.failures.push(failure);
    }

    /// Tables, and a chart for each row.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        if !self.rows.is_empty() {
            blocks.push(Block::Table(self.table()));
        }
        blocks.extend(self.tap_queue.clone().map(Block::Table));
        blocks.extend(self.rows.iter().filter_map(Measured::chart).map(Block::Lines));
        blocks
    }

    fn table(&self) -> Table {
        let head = [
            "row",
            "expected, Mbit/s",
            "brodo",
            "direct",
            "brodo / direct",
            "brodo in the end",
            "direct",
            "95 % of that after, ms",
            "direct",
            "lost on the path, segments",
            "direct",
        ];
        let mut table = Table::new("Bulk over long paths, Mbit/s", head);
        for row in &self.rows {
            table.row(row.cells());
        }
        table
    }

    /// The results as JSON.
    pub fn json(&self) -> Value {
        let runs = self.rows.iter().flat_map(|measured| {
            let name = &measured.row.name;
            let of = |way: &'static str| move |sample: &Sample| sample.json(name, way);
            measured.through.iter().map(of("brodo")).chain(measured.direct.iter().map(of("direct")))
        });
        let tap_queue =
            self.tap_queue.as_ref().map(|table| json!({ "head": table.head, "rows": table.rows }));
        json!({ "runs": runs.collect::<Vec<_>>(), "tap_queue": tap_queue })
    }
}

/// One transfer of a row.
pub fn transfer(row: &Row, testbed: &Testbed, way: &Way) -> Result<Sample> {
    let before = testbed.wan.losses();
    let [duration, bucket, dwell] = [row.seconds * 1000, row.rtt_ms, row.dwell_ms].map(|n| n.to_string());
    let limit = Duration::from_secs(row.seconds + 60);
    let found = match row.direction {
        BulkDirection::Up => testbed.probe(way, "timed-up", &[&duration, &bucket], limit),
        BulkDirection::Down => testbed.probe(way, "timed-down", &[&duration, &bucket, &dwell], limit),
    }?;
    let mbit = found["mbit_per_second"].as_f64();
    let mbit = mbit.ok_or_else(|| Failure(format!("row {}: the probe printed {found}", row.name)))?;
    let series: Vec<u64> =
        found["buckets"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    let path_losses = testbed.wan.losses() - before;
    let level = level(&series);
    // Nothing is reached by a transfer that has stalled.
    let first = series.iter().position(|&bytes| level > 0.0 && bytes as f64 >= 0.95 * level);
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

impl Measured {
    fn cells(&self) -> Vec<String> {
        let text = |samples: &[Sample], of: fn(&Sample) -> Option<f64>| {
            Spread::of(samples.iter().filter_map(of)).map_or_else(String::new, Spread::text)
        };
        let median =
            |samples: &[Sample]| Spread::of(samples.iter().map(|s| s.mbit)).map_or(0.0, |s| s.median);
        let expected = match self.row.expected_mbit {
            Some(mbit) => format!("{mbit}: {}", self.row.expected),
            None => self.row.expected.to_owned(),
        };
        let both = |of: fn(&Sample) -> Option<f64>| [text(&self.through, of), text(&self.direct, of)];
        let mut cells = vec![self.row.name.clone(), expected];
        cells.extend(both(|sample| Some(sample.mbit)));
        cells.push(format!("{:.3}", median(&self.through) / median(&self.direct)));
        cells.extend(both(|sample| Some(sample.level_mbit)));
        cells.extend(both(|sample| sample.reached_ms));
        cells.extend(both(|sample| Some(sample.path_losses as f64)));
        cells
    }

    /// The last transfer of either way over time.
    fn chart(&self) -> Option<Chart> {
        let rtt_s = self.row.rtt_ms as f64 / 1e3;
        let series = |name: &str, sample: &Sample, stroke| Series {
            name: name.to_owned(),
            stroke,
            points: (1..)
                .zip(&sample.series)
                .map(|(i, bytes)| (f64::from(i) * rtt_s, *bytes as f64 * 8.0 / rtt_s / 1e6))
                .collect(),
        };
        let (through, direct) = (self.through.last()?, self.direct.last()?);
        let series = vec![series("brodo", through, Stroke::Solid), series("direct", direct, Stroke::Dashed)];
        Some(Chart {
            title: format!(
                "Row {}: throughput, a round trip of {} ms at a time",
                self.row.name, self.row.rtt_ms
            ),
            x: Axis::linear("time, s"),
            panels: vec![Panel { y: Axis::linear("Mbit/s"), series }],
        })
    }
}
