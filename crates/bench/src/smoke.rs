//! Smoke test of the benchmark: every workload on every installed system once, as briefly as possible, with
//! all outputs.
//!
//! The figures mean nothing, and no time is judged. The test fails if a workload lacks one of its figures on
//! a system or has moved nothing there, if a part has no result, or if an output is malformed.

use crate::bench::results::{Results, StartUp};
use crate::bench::workload::Metric;
use crate::bench::{self, Depth, Options, Part, Wanted, pages};
use crate::idle;
use crate::process::{Failure, Result};
use crate::system::System;
use crate::wan::measure::Choice;
use serde_json::Value;
use std::time::Duration;

/// Representative rows of long paths: each place, each direction, each kind of queue and loss.
const ROWS: [&str; 5] = ["2c-up", "4-wait-5000", "loss-0.1", "8", "6"];

/// Runs all workloads; only programs and outputs are taken from `options`.
pub fn run(options: Options) -> Result<()> {
    let options =
        Options { workloads: vec![Wanted::All], mtu: vec![1500, 65520], rounds: 1, seconds: 0.05, ..options };
    let depth = Depth {
        answers: 1,
        starts: 1,
        allocations: 0.5,
        idle: idle::Depth { counts: [0, 100, 1000], settle: Duration::from_millis(200) },
        wan: Choice {
            rows: ROWS.map(str::to_owned).to_vec(),
            rounds: 1,
            seconds: Some(1),
            ..Choice::default()
        },
    };
    let results = bench::measure(&options, &depth)?;
    let (full, short, samples) = (pages::full(&results), pages::short(&results), pages::json(&results));
    options.outputs.write(&full, &short, &samples)?;
    let mut faults = missing(&results);
    faults.extend(results.failures.iter().map(|failure| failure.first_line().to_owned()));
    faults.extend(malformed_markdown(&full.markdown()));
    faults.extend(malformed_markdown(&short.markdown()));
    faults.extend(malformed_html(&full.html()));
    faults.extend(malformed_json(&samples.to_string(), &results));
    if faults.is_empty() { Ok(()) } else { Err(Failure(faults.join("\n"))) }
}

/// Figures of workloads and parts that are not there.
fn missing(results: &Results) -> Vec<String> {
    let mut faults = Vec::new();
    for &mtu in &results.mtus {
        for &workload in &results.workloads {
            for &system in results.systems.iter().filter(|system| system.does(workload.kind.name)) {
                let wanted = workload.kind.metrics.iter().copied();
                for metric in wanted.filter(|metric| !metric.is_cpu() || system.has_process()) {
                    let fault = wrong(metric, results.median(mtu, workload, system, metric));
                    faults.extend(fault.map(|fault| {
                        format!("{workload} on {} at MTU {mtu}: {} {fault}", system.name(), metric.key())
                    }));
                }
            }
        }
    }
    for what in StartUp::ALL.into_iter().filter(|_| results.systems.contains(&System::Brodo)) {
        if results.start_ms(System::Brodo, what).is_none() {
            faults.push(format!("no start-up of brodo: {}", what.key()));
        }
    }
    let parts = [
        (Part::Start, results.starts_ms.is_empty()),
        (Part::Allocations, results.allocations.is_empty()),
        (Part::Idle, results.idle.is_empty()),
        (Part::Wan, results.wan.is_none()),
    ];
    faults.extend(
        parts.iter().filter(|(_, empty)| *empty).map(|(part, _)| format!("{} found nothing", part.name())),
    );
    faults
}

/// The fault of a figure.
fn wrong(metric: Metric, median: Option<f64>) -> Option<&'static str> {
    match median {
        None => Some("is missing"),
        Some(median) if !median.is_finite() => Some("is no number"),
        Some(median) if metric.is_rate() && median <= 0.0 => Some("is 0"),
        Some(median) if metric.is_cpu() && median < 0.0 => Some("is negative"),
        Some(_) => None,
    }
}

/// A table whose rows are not all as long as its head.
fn malformed_markdown(text: &str) -> Option<String> {
    let columns = |line: &str| line.replace("\\|", "").matches('|').count();
    let mut head: Option<&str> = None;
    for line in text.lines() {
        if !line.starts_with('|') {
            head = None;
            continue;
        }
        let first = *head.get_or_insert(line);
        if columns(line) != columns(first) {
            return Some(format!("Markdown: {line:?} has not the columns of {first:?}"));
        }
    }
    None
}

/// An element that is not closed, or closed out of turn.
pub(crate) fn malformed_html(text: &str) -> Option<String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        let Some(end) = rest.find('>') else { return Some("HTML: a tag has no end".into()) };
        let (tag, after) = (&rest[..end], &rest[end + 1..]);
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap_or_default();
        if tag.starts_with('/') {
            if open.pop() != Some(name) {
                return Some(format!("HTML: </{name}> closes something else"));
            }
        } else if !tag.ends_with('/') && !tag.starts_with('!') {
            open.push(name);
        }
        rest = after;
    }
    open.pop().map(|name| format!("HTML: <{name}> is not closed"))
}

fn malformed_json(text: &str, results: &Results) -> Option<String> {
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(e) => return Some(format!("JSON: {e}")),
    };
    let samples = value["samples"].as_array().map_or(0, Vec::len);
    (samples != results.samples.len())
        .then(|| format!("JSON has {samples} of {} samples", results.samples.len()))
}

#[cfg(test)]
mod tests {
    //! Tests of the checks of outputs.

    use super::*;

    #[test]
    fn figures_are_there_and_rates_are_not_zero() {
        assert_eq!(wrong(Metric::Throughput, Some(0.1)), None);
        assert_eq!(wrong(Metric::Loss, Some(0.0)), None);
        assert_eq!(wrong(Metric::CpuPerGib, None), Some("is missing"));
        assert_eq!(wrong(Metric::P50, Some(f64::NAN)), Some("is no number"));
        assert_eq!(wrong(Metric::CpuPerGib, Some(-0.1)), Some("is negative"));
        for rate in [Metric::Throughput, Metric::DatagramRate, Metric::OperationRate] {
            assert_eq!(wrong(rate, Some(0.0)), Some("is 0"));
        }
    }

    #[test]
    fn tables_need_rows_of_one_length() {
        assert_eq!(malformed_markdown("| a | b |\n|---|---|\n| 1 \\| 2 | 3 |\n\n| c |\n|---|\n"), None);
        assert!(malformed_markdown("| a | b |\n|---|---|\n| 1 |\n").is_some());
    }

    #[test]
    fn elements_are_closed_in_turn() {
        assert_eq!(malformed_html("<!DOCTYPE html>\n<p class=\"x\">a<br/></p>"), None);
        for wrong in ["<p>", "<p></b></p>", "<p></p", "</p>"] {
            assert!(malformed_html(wrong).is_some(), "{wrong}");
        }
    }
}
