//! The pictures of the guide: limits, bytes in flight and throughput over time, measured in virtual time.
//!
//! The transfers are those of the tables: a picture has the data behind a row's figures.

use crate::tables::Progress;
use crate::tables::guest_link::{self, QUEUES, Runs};
use crate::wan::bulk_host::SlowReader;
use crate::wan::record::{Sample, Transfer};
use crate::wan::tun::WhenFull;
use brodo_core::time::Duration;
use brodo_plot::{Axis, Chart, Panel, Series, Stroke};

/// Points of a line, at most.
const POINTS: usize = 400;

/// A picture.
pub struct Picture {
    /// Its name without the folder.
    pub file: &'static str,
    /// Title of the picture.
    pub title: &'static str,
    /// Runs the transfers; returns the x axis and the panels.
    panels: fn(&mut Progress) -> (Axis, Vec<Panel>),
}

/// All pictures.
pub const PICTURES: [Picture; 4] = [
    Picture {
        file: "tcp-gigabit-17ms.svg",
        title: "Upload at 1 Gbit/s, 17 ms: window from 64 KiB to 16 MiB",
        panels: gigabit,
    },
    Picture {
        file: "tcp-10-gigabit-388us.svg",
        title: "Upload at 9.94 Gbit/s, 388 us: window from 256 KiB to 4 MiB",
        panels: ten_gigabit,
    },
    Picture {
        file: "tcp-tun-queue.svg",
        title: "Upload at 120 ms through a TUN queue of Q frames",
        panels: tun_queue,
    },
    Picture {
        file: "tcp-slow-reader.svg",
        title: "Upload at 1 Gbit/s, 17 ms: from 2 to 4 s the host reads only 2 MB/s",
        panels: slow_reader,
    },
];

impl Picture {
    /// Runs the transfers and draws the picture.
    pub fn svg(&self, progress: &mut Progress) -> String {
        let (x, panels) = (self.panels)(progress);
        Chart { title: self.title.to_owned(), x, panels }.svg()
    }
}

/// Quantity drawn of a run, with its unit.
#[derive(Clone, Copy)]
enum Quantity {
    /// Bytes per second over this time, times a factor.
    Rate(Duration, f64),
    /// Bytes at a time, in MB.
    Level(fn(&Sample) -> u64),
}

impl Quantity {
    /// Its values, one for each sample.
    fn of(self, samples: &[Sample]) -> Vec<f64> {
        match self {
            Self::Level(of) => samples.iter().map(|s| of(s) as f64 / 1e6).collect(),
            Self::Rate(over, factor) => {
                let bytes: Vec<f64> = samples.iter().map(|s| s.bytes as f64 * factor).collect();
                let spacing = samples.last().map_or(0.0, |s| s.at.as_secs_f64()) / (samples.len() - 1) as f64;
                let width = ((over.as_secs_f64() / spacing).round() as usize).max(1);
                let rate = |i: usize| (bytes[i] - bytes[i.saturating_sub(width)]) / (width as f64 * spacing);
                let rates: Vec<f64> = (0..bytes.len()).map(rate).collect();
                trailing_means(&rates, width)
            }
        }
    }
}

/// The mean of each value and those before it, `width` in all. A window that crosses the path as one burst
/// shows as a level line if its rate over a round trip is averaged over another one.
fn trailing_means(values: &[f64], width: usize) -> Vec<f64> {
    let mut sums = vec![0.0];
    for value in values {
        sums.push(sums[sums.len() - 1] + value);
    }
    (1..sums.len()).map(|i| (sums[i] - sums[i.saturating_sub(width)]) / width as f64).collect()
}

/// MB/s and Gbit/s of a byte per second.
const MB_PER_S: f64 = 1e-6;
const GBIT_PER_S: f64 = 8e-9;

const LIMIT: Quantity = Quantity::Level(|s| s.limit.into());
const IN_FLIGHT: Quantity = Quantity::Level(|s| s.in_flight);
const HELD: Quantity = Quantity::Level(|s| s.held.into());

/// A line for each run, time in units of `unit`.
fn over_time(label: &str, runs: &Runs, unit: Duration, quantity: Quantity) -> Panel {
    let series = runs.iter().map(|(name, record)| {
        let every = (record.samples.len() / POINTS).max(1);
        let at = record.samples.iter().map(|s| s.at.as_secs_f64() / unit.as_secs_f64());
        let points = at.zip(quantity.of(&record.samples)).step_by(every);
        Series { name: name.clone(), stroke: Stroke::Solid, points: points.collect() }
    });
    Panel { y: Axis::linear(label), series: series.collect() }
}

/// Row 2: 1 Gbit/s at 17 ms from 64 KiB.
fn gigabit(progress: &mut Progress) -> (Axis, Vec<Panel>) {
    let transfer = Transfer { lasts: Duration::from_millis(3400), ..guest_link::gigabit(16 << 20) };
    let runs = guest_link::under_every_rule(progress, "1 Gbit/s, 17 ms", &transfer);
    let (second, rtt) = (Duration::from_secs(1), transfer.path.rtt);
    (
        Axis::linear("time, s"),
        vec![
            over_time("throughput, MB/s", &runs, second, Quantity::Rate(rtt, MB_PER_S)),
            over_time("limit, MB", &runs, second, LIMIT),
            over_time("in flight, MB", &runs, second, IN_FLIGHT),
        ],
    )
}

/// Row 3: 9.94 Gbit/s at 388 us from 256 KiB.
fn ten_gigabit(progress: &mut Progress) -> (Axis, Vec<Panel>) {
    let transfer = guest_link::fast(9.94, Duration::from_micros(388), Duration::from_millis(40));
    let runs = guest_link::under_every_rule(progress, "9.94 Gbit/s, 388 us", &transfer);
    let (ms, rtt) = (Duration::from_millis(1), transfer.path.rtt);
    (
        Axis::linear("time, ms"),
        vec![
            over_time("throughput, Gbit/s", &runs, ms, Quantity::Rate(rtt, GBIT_PER_S)),
            over_time("limit, MB", &runs, ms, LIMIT),
            over_time("in flight, MB", &runs, ms, IN_FLIGHT),
        ],
    )
}

/// Row 4: the queue of the guest's TUN device.
fn tun_queue(progress: &mut Progress) -> (Axis, Vec<Panel>) {
    let mut measured = |when_full, seconds, what: &str| -> Vec<(f64, f64)> {
        QUEUES
            .map(|frames| {
                progress.run(&format!("Q = {frames}, {what}"));
                let run = guest_link::behind_queue(frames, when_full, seconds).run();
                (frames as f64, run.mean(0.5, 1.0) * 8e-6)
            })
            .into()
    };
    let drop = measured(WhenFull::Drop, guest_link::TAIL_DROP_LASTS, "tail drop");
    let stop = measured(WhenFull::Stop, guest_link::STOP_WAKE_LASTS, "stop-wake");
    let window = QUEUES.map(|frames| (frames as f64, guest_link::tail_drop_expected(frames) * 8e-6));
    let series = |name: &str, stroke, points| Series { name: name.to_owned(), stroke, points };
    (
        Axis::log("Q, frames"),
        vec![Panel {
            y: Axis::log("throughput, Mbit/s"),
            series: vec![
                series("stop-wake", Stroke::Marked, stop),
                series("tail drop", Stroke::Marked, drop),
                series("Q frames per round trip", Stroke::Dashed, window.into()),
            ],
        }],
    )
}

/// A program that reads fast, then slowly, then fast again.
fn slow_reader(progress: &mut Progress) -> (Axis, Vec<Panel>) {
    let slow = SlowReader { buffer: 256 << 10, bytes_per_s: 2_000_000 };
    let transfer = Transfer {
        slow: Some((Duration::from_secs(2)..Duration::from_secs(4), slow)),
        lasts: Duration::from_secs(6),
        ..guest_link::gigabit(4 << 20)
    };
    let runs = guest_link::under_every_rule(progress, "slow reader", &transfer);
    let (second, rtt) = (Duration::from_secs(1), transfer.path.rtt);
    (
        Axis::linear("time, s"),
        vec![
            over_time("throughput, MB/s", &runs, second, Quantity::Rate(rtt, MB_PER_S)),
            over_time("limit, MB", &runs, second, LIMIT),
            over_time("held by brodo, MB", &runs, second, HELD),
        ],
    )
}
