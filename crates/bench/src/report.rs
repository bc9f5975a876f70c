//! Tables of what was measured: medians with minimum and maximum, and ratios to the references, in Markdown; and JSON.

use crate::bench::{Options, Results, Sample, Workload};
use crate::system::System;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;

/// Systems that others are compared with.
const REFERENCES: [System; 3] = [System::HostDirect, System::Veth, System::Pasta];

/// Median, minimum and maximum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// Of at least one value.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { median, min, max })
    }

    pub(crate) fn text(self) -> String {
        let number = |value: f64| match value {
            v if v >= 100.0 || v.fract() == 0.0 => format!("{v:.0}"),
            v if v >= 10.0 => format!("{v:.1}"),
            v => format!("{v:.2}"),
        };
        format!("{} ({}–{})", number(self.median), number(self.min), number(self.max))
    }
}

/// What the figures were measured on.
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let memory_kib: u64 =
        read("/proc/meminfo").split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0);
    let load = read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned();
    format!(
        "{cpus} × {}, {} GiB, Linux {}, cubic, load {load} at the start",
        model.unwrap_or("unknown processor"),
        memory_kib >> 20,
        read("/proc/sys/kernel/osrelease").trim(),
    )
}

/// One sample for people who watch.
pub fn line(sample: &Sample) -> String {
    let mut text = format!("{:6} {:12}", sample.workload.to_string(), sample.system.name());
    let unit = if sample.workload.is_bulk() { "Gbit/s" } else { "us" };
    let _ = write!(text, "{:9.2} {unit}", sample.value);
    if let (Some(p99), Some(rate)) = (sample.p99_us, sample.per_second) {
        let _ = write!(text, " (p99 {p99:.0} us), {rate:.0}/s");
    }
    if let Some(count) = sample.retransmissions {
        let _ = write!(text, ", {count} retransmissions");
    }
    if let Some(cpu) = sample.cpu {
        let unit = if sample.workload.is_bulk() { "ms of CPU per GiB" } else { "us of CPU each" };
        let _ = write!(text, ", {cpu:.0} {unit}");
    }
    text
}

/// All tables.
pub fn markdown(options: &Options, systems: &[System], results: &Results) -> String {
    let mut text = format!(
        "## brodo-bench\n\n{}. Medians of {} interleaved rounds of {} s, minimum and maximum in parentheses.\n",
        machine(),
        options.rounds,
        options.seconds
    );
    let versions: Vec<String> =
        systems.iter().filter_map(|system| options.programs.version(*system)).collect();
    let _ = writeln!(text, "\nForwarders: {}.", versions.join("; "));
    for &mtu in &options.mtus {
        let table = Table { options, systems, results, mtu };
        let _ = write!(text, "\n### MTU {mtu}\n\n");
        table.write(
            &mut text,
            |workload| if workload.is_bulk() { "Gbit/s" } else { "p50, us" },
            |s| Some(s.value),
        );
        table.write(&mut text, |_| "p99, us", |s| s.p99_us);
        table.write(&mut text, |_| "per second", |s| s.per_second);
        table.write(&mut text, |_| "retransmissions", |s| s.retransmissions.map(|count| count as f64));
        let cpu_unit = |workload: Workload| {
            if workload.is_bulk() { "forwarder CPU, ms per GiB" } else { "forwarder CPU, us per operation" }
        };
        table.write(&mut text, cpu_unit, |s| s.cpu);
        table.ratios(&mut text);
    }
    footprints(&mut text, results);
    for remark in &results.remarks {
        let _ = writeln!(text, "\n{remark}");
    }
    text
}

struct Table<'a> {
    options: &'a Options,
    systems: &'a [System],
    results: &'a Results,
    mtu: u32,
}

impl Table<'_> {
    fn spread(
        &self,
        workload: Workload,
        system: System,
        value: impl Fn(&Sample) -> Option<f64>,
    ) -> Option<Spread> {
        let samples = self.results.samples.iter();
        let wanted = samples.filter(|s| s.mtu == self.mtu && s.workload == workload && s.system == system);
        Spread::of(wanted.filter_map(value))
    }

    /// A table with a row per workload that has such a value.
    fn write(
        &self,
        text: &mut String,
        unit: impl Fn(Workload) -> &'static str,
        value: impl Fn(&Sample) -> Option<f64>,
    ) {
        header(text, "", self.systems.iter().map(|system| system.name()));
        for &workload in &self.options.workloads {
            let cells: Vec<Option<Spread>> =
                self.systems.iter().map(|system| self.spread(workload, *system, &value)).collect();
            if cells.iter().any(Option::is_some) {
                let _ = write!(text, "| {workload}, {} |", unit(workload));
                for cell in cells {
                    let _ = write!(text, " {} |", cell.map_or_else(String::new, Spread::text));
                }
                text.push('\n');
            }
        }
        text.push('\n');
    }

    /// What each forwarder reaches of each reference: of throughput more is better, of latency less.
    fn ratios(&self, text: &mut String) {
        let subjects = || self.systems.iter().copied().filter(|system| system.is_forwarder());
        let pairs: Vec<(System, System)> = REFERENCES
            .into_iter()
            .filter(|reference| self.systems.contains(reference))
            .flat_map(|reference| subjects().filter(move |s| *s != reference).map(move |s| (s, reference)))
            .collect();
        header(
            text,
            "ratio",
            pairs.iter().map(|(s, reference)| format!("{} / {}", s.name(), reference.name())),
        );
        for &workload in &self.options.workloads {
            let _ = write!(text, "| {workload} |");
            for &(system, reference) in &pairs {
                let median =
                    |system| self.spread(workload, system, |s| Some(s.value)).map(|spread| spread.median);
                let ratio =
                    median(system).zip(median(reference)).map(|(own, other)| format!("{:.2}", own / other));
                let _ = write!(text, " {} |", ratio.unwrap_or_default());
            }
            text.push('\n');
        }
    }
}

fn header(text: &mut String, first: &str, columns: impl Iterator<Item = impl AsRef<str>>) {
    let _ = write!(text, "| {first} |");
    let mut rule = String::from("|---|");
    for column in columns {
        let _ = write!(text, " {} |", column.as_ref());
        rule.push_str("---|");
    }
    let _ = write!(text, "\n{rule}\n");
}

fn footprints(text: &mut String, results: &Results) {
    let mib = |kib: u64| kib as f64 / 1024.0;
    text.push_str("\n### Footprint\n\n");
    header(
        text,
        "forwarder",
        ["MTU", "resident after start, MiB", "of these its own share", "after load"].iter(),
    );
    for f in &results.footprints {
        let (rss, pss, end) = (mib(f.rss_start_kib), mib(f.pss_start_kib), mib(f.rss_end_kib));
        let _ = writeln!(text, "| {} | {} | {rss:.1} | {pss:.1} | {end:.1} |", f.system.name(), f.mtu);
    }
    text.push('\n');
    header(text, "time to run `true`", ["ms"].iter());
    for system in System::ALL {
        let times = results.starts_ms.iter().filter(|(s, _)| *s == system).map(|(_, ms)| *ms);
        if let Some(spread) = Spread::of(times) {
            let name =
                if system == System::HostDirect { "without any (the harness itself)" } else { system.name() };
            let _ = writeln!(text, "| {name} | {} |", spread.text());
        }
    }
}

/// All samples.
pub fn json(options: &Options, results: &Results) -> Value {
    let samples: Vec<Value> = results
        .samples
        .iter()
        .map(|s| {
            json!({
                "mtu": s.mtu, "workload": s.workload.to_string(), "system": s.system.name(), "value": s.value,
                "unit": if s.workload.is_bulk() { "gbit_per_second" } else { "p50_us" },
                "p99_us": s.p99_us, "per_second": s.per_second, "retransmissions": s.retransmissions,
                "cpu": s.cpu, "cpu_unit": if s.workload.is_bulk() { "ms_per_gib" } else { "us_per_operation" },
            })
        })
        .collect();
    let footprints: Vec<Value> = results
        .footprints
        .iter()
        .map(|f| {
            json!({
                "mtu": f.mtu, "system": f.system.name(), "rss_start_kib": f.rss_start_kib,
                "pss_start_kib": f.pss_start_kib, "rss_end_kib": f.rss_end_kib,
            })
        })
        .collect();
    let starts: Vec<Value> =
        results.starts_ms.iter().map(|(system, ms)| json!({ "system": system.name(), "ms": ms })).collect();
    json!({
        "machine": machine(), "seconds": options.seconds, "rounds": options.rounds, "samples": samples,
        "footprints": footprints, "starts": starts, "remarks": results.remarks,
    })
}
