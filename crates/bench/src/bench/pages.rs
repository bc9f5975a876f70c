//! Results as a document: in full, and as the short table of the README.

use super::goals::{self, Figure, Verdict};
use super::results::{Allocations, Results, StartUp};
use super::workload::{KINDS, Metric, Workload};
use crate::idle::{self, Idle};
use crate::report::{Block, Document, Table, number};
use crate::system::System;
use crate::wan::measure::Found;
use brodo_plot::bars::{Bar, Bars, Group};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Systems that others are compared with.
const REFERENCES: [System; 4] = [System::HostDirect, System::Veth, System::Relay, System::Pasta];

/// The document in full.
pub fn full(results: &Results) -> Document {
    let mut document = Document::new("brodo-bench");
    let blocks = &mut document.blocks;
    blocks.push(Block::Text(opening(results)));
    blocks.extend(results.machine.warning().map(Block::Warning));
    let verdicts = goals::verdicts(results);
    if !verdicts.is_empty() {
        blocks.push(Block::Heading(2, "Goals".into()));
        blocks.push(Block::Table(goals::table(&verdicts)));
    }
    for &mtu in &results.mtus {
        if !results.workloads.is_empty() {
            matrix(blocks, results, mtu);
        }
    }
    if !results.workloads.is_empty() {
        blocks.push(Block::Table(legend(results)));
    }
    others(blocks, results);
    if !results.remarks.is_empty() {
        blocks.push(Block::Heading(2, "Remarks".into()));
        blocks.extend(results.remarks.iter().cloned().map(Block::Text));
    }
    document
}

/// The results for programs, with every sample.
pub fn json(results: &Results) -> Value {
    let samples = results.samples.iter().map(|s| {
        let figures: Map<String, Value> =
            s.figures.iter().map(|(metric, value)| (metric.key().to_owned(), json!(value))).collect();
        json!({
            "mtu": s.mtu, "workload": s.workload.to_string(), "system": s.system.name(), "round": s.round,
            "figures": figures,
        })
    });
    let footprints = results.footprints.iter().map(|f| {
        json!({
            "mtu": f.mtu, "system": f.system.name(), "rss_start_kib": f.rss_start_kib,
            "pss_start_kib": f.pss_start_kib, "rss_end_kib": f.rss_end_kib,
        })
    });
    let starts = results
        .starts_ms
        .iter()
        .map(|(system, what, ms)| json!({ "system": system.name(), "command": what.key(), "ms": ms }));
    let goals = goals::verdicts(results);
    json!({
        "machine": results.machine.json(), "seconds": results.seconds, "rounds": results.rounds,
        "forwarders": results.versions,
        "samples": samples.collect::<Vec<_>>(),
        "footprints": footprints.collect::<Vec<_>>(),
        "starts": starts.collect::<Vec<_>>(),
        "allocations": results.allocations.iter().map(Allocations::json).collect::<Vec<_>>(),
        "idle": results.idle.iter().map(Idle::json).collect::<Vec<_>>(),
        "wan": results.wan.as_ref().map(Found::json),
        "goals": goals.iter().map(Verdict::json).collect::<Vec<_>>(),
        "remarks": results.remarks,
    })
}

/// Method: machine, rounds, seconds.
fn opening(results: &Results) -> String {
    let mut text = format!(
        "{}. Medians of {} interleaved rounds of {} s, minimum and maximum in parentheses.",
        results.machine.text(),
        results.rounds,
        results.seconds
    );
    if !results.versions.is_empty() {
        let _ = write!(text, " Forwarders: {}.", results.versions.join("; "));
    }
    text
}

/// Charts and tables of one MTU.
fn matrix(blocks: &mut Vec<Block>, results: &Results, mtu: u32) {
    blocks.push(Block::Heading(2, format!("MTU {mtu}")));
    for metric in Metric::ALL {
        let compared = |workload: &&Workload| workload.main_metric() == metric;
        let workloads: Vec<Workload> = results.workloads.iter().filter(compared).copied().collect();
        if !workloads.is_empty() {
            blocks.push(Block::Bars(bars(results, mtu, metric, &workloads)));
        }
    }
    for metric in Metric::ALL {
        let has = |workload: &&Workload| workload.kind.metrics.contains(&metric);
        let workloads: Vec<Workload> = results.workloads.iter().filter(has).copied().collect();
        let (what, unit) = metric.words();
        let mut table = columns(format!("MTU {mtu}: {what}, {unit}"), "workload", &results.systems);
        for workload in workloads {
            figures(&mut table, &workload.to_string(), Figure::Run(workload, mtu, metric), results);
        }
        if !table.rows.is_empty() {
            blocks.push(Block::Table(table));
            blocks.extend(note(metric).map(|text| Block::Text(text.to_owned())));
        }
    }
    blocks.push(Block::Table(ratios(results, mtu)));
}

/// Explanation beneath the table of a quantity.
const fn note(metric: Metric) -> Option<&'static str> {
    match metric {
        Metric::Retransmissions => Some(
            "Downloads: the host's kernel, on the hop from the server to the forwarder. A forwarder's own TCP \
             toward the guest is not counted; that of a relay is: its sockets are in the host's kernel.",
        ),
        _ => None,
    }
}

fn columns(caption: impl Into<String>, first: &str, systems: &[System]) -> Table {
    Table::new(caption, std::iter::once(first).chain(systems.iter().map(|system| system.name())))
}

/// A row with one figure of every system, with the number of rounds that have it unless all do; none if no
/// system has it.
fn figures(table: &mut Table, name: &str, figure: Figure, results: &Results) {
    let cell = |system: &System| {
        figure.of(results, *system).map_or_else(String::new, |spread| {
            let text = if spread.min < spread.max { spread.text() } else { number(spread.median) };
            match figure {
                Figure::Run(workload, mtu, metric) => {
                    let rounds = results.rounds_with(mtu, workload, *system, metric);
                    let all = results.rounds as usize;
                    if rounds < all { format!("{text}, {rounds} of {all} rounds") } else { text }
                }
                _ => text,
            }
        })
    };
    let cells: Vec<String> = results.systems.iter().map(cell).collect();
    if cells.iter().any(|cell| !cell.is_empty()) {
        table.row(std::iter::once(name.to_owned()).chain(cells));
    }
}

/// The systems side by side, with their ratio to veth, which takes root.
fn bars(results: &Results, mtu: u32, metric: Metric, workloads: &[Workload]) -> Bars {
    let (what, unit) = metric.words();
    let group = |workload: &Workload| {
        let reference = results.median(mtu, *workload, System::Veth, metric).filter(|median| *median > 0.0);
        let bar = |system: &System| {
            let spread = results.spread(mtu, *workload, *system, metric)?;
            let ratio = reference.filter(|_| *system != System::Veth).map_or_else(String::new, |reference| {
                format!(" · {} × veth", number(spread.median / reference))
            });
            let text = format!("{} {unit}{ratio}", number(spread.median));
            let range = (spread.min, spread.max);
            Some(Bar { name: system.name().into(), value: spread.median, range, text })
        };
        let name = format!("{workload}: {what}, {unit} ({})", workload.kind.what);
        Group { name, bars: results.systems.iter().filter_map(bar).collect() }
    };
    let title = format!("MTU {mtu}: {what}, {unit}; medians, the thin line from least to greatest");
    Bars { title, groups: workloads.iter().map(group).collect() }
}

/// Ratios of each forwarder to each reference: of throughput more is better, of latency and loss less. brodo
/// with other options is compared with brodo too, round by round, as the difference may be a few per cent.
fn ratios(results: &Results, mtu: u32) -> Table {
    let subjects = || results.systems.iter().copied().filter(|system| system.is_forwarder());
    let pairs: Vec<(System, System)> = REFERENCES
        .into_iter()
        .filter(|reference| results.systems.contains(reference))
        .flat_map(|reference| subjects().filter(move |s| *s != reference).map(move |s| (s, reference)))
        .collect();
    let variants = subjects().filter(|s| s.is_variant() && results.systems.contains(&System::Brodo));
    let pairs: Vec<_> = pairs.into_iter().chain(variants.map(|s| (s, System::Brodo))).collect();
    let names = pairs.iter().map(|(s, reference)| format!("{} / {}", s.name(), reference.name()));
    let head = std::iter::once("workload".to_owned()).chain(names);
    let by_round = pairs.iter().any(|(_, reference)| *reference == System::Brodo);
    let how = if by_round { "; to brodo the median of the ratios of the rounds" } else { "" };
    let mut table = Table::new(format!("MTU {mtu}: ratio of the first figure of each workload{how}"), head);
    for &workload in &results.workloads {
        let metric = workload.main_metric();
        let ratio = |(system, reference): &(System, System)| {
            if *reference == System::Brodo {
                let ratio = results.ratio_of_rounds(mtu, workload, [*system, *reference], metric)?;
                return Some(format!("{ratio:.2}"));
            }
            let own = results.median(mtu, workload, *system, metric)?;
            let other = results.median(mtu, workload, *reference, metric).filter(|other| *other > 0.0)?;
            Some(format!("{:.2}", own / other))
        };
        let cells = pairs.iter().map(|pair| ratio(pair).unwrap_or_default());
        table.row(std::iter::once(format!("{workload}, {}", metric.words().0)).chain(cells));
    }
    table
}

/// Legend of the systems' names.
fn legend(results: &Results) -> Table {
    let mut table = Table::new("Workloads", ["name", "what"]);
    for kind in &KINDS {
        if results.workloads.iter().any(|workload| workload.kind == kind) {
            let number = if kind.flows.is_empty() { "" } else { "N" };
            table.row([format!("{}{number}", kind.name), kind.what.to_owned()]);
        }
    }
    table
}

/// Parts other than workloads: start-up, allocations, idle connections, long paths.
fn others(blocks: &mut Vec<Block>, results: &Results) {
    let forwarders = &results.systems;
    if !results.footprints.is_empty() {
        let head = ["forwarder", "MTU", "after start, RSS", "PSS", "after load, RSS"];
        let mut table = Table::new("Resident memory, MiB", head);
        for f in &results.footprints {
            let [rss, pss, end] = [Some(f.rss_start_kib), f.pss_start_kib, Some(f.rss_end_kib)]
                .map(|kib| kib.map_or_else(String::new, |kib| format!("{:.1}", kib as f64 / 1024.0)));
            table.row([f.system.name().to_owned(), f.mtu.to_string(), rss, pss, end]);
        }
        blocks.push(Block::Heading(2, "Memory".into()));
        blocks.push(Block::Table(table));
    }
    if !results.idle.is_empty() {
        blocks.push(Block::Heading(2, "Idle connections".into()));
        blocks.push(Block::Table(idle::table(&results.idle)));
    }
    if !results.allocations.is_empty() {
        let mut table =
            Table::new("Heap allocations of brodo, second run", ["workload", "allocations", "each"]);
        for found in &results.allocations {
            let each = format!("{} {}", number(found.each()), found.unit());
            table.row([found.workload.to_string(), found.count.to_string(), each]);
        }
        blocks.push(Block::Heading(2, "Heap allocations".into()));
        blocks.push(Block::Table(table));
    }
    if !results.starts_ms.is_empty() {
        let caption = "Time in a fresh namespace, ms; host-direct is what the harness itself takes";
        let mut table = columns(caption, "command", forwarders);
        for what in StartUp::ALL {
            figures(&mut table, &Figure::Start(what).to_string(), Figure::Start(what), results);
        }
        blocks.push(Block::Heading(2, "Start".into()));
        blocks.push(Block::Table(table));
    }
    if let Some(wan) = &results.wan {
        blocks.push(Block::Heading(2, "Long paths".into()));
        blocks.extend(wan.blocks());
    }
}

/// The main figures, and whether the goals are reached.
pub fn short(results: &Results) -> Document {
    let mut document = Document::default();
    let verdicts = goals::verdicts(results);
    let systems: Vec<System> = results.systems.clone();
    let mut table = columns("", "", &systems);
    table.head.extend(["goal".to_owned(), "reached".to_owned()]);
    for figure in main_figures() {
        let mut row = columns("", "", &systems);
        figures(&mut row, &figure.words(), figure, results);
        if let Some(mut cells) = row.rows.pop() {
            add_goals(&mut cells, &verdicts, figure);
            table.row(cells);
        }
    }
    document.blocks.push(Block::Text(opening(results)));
    document.blocks.extend(results.machine.warning().map(Block::Warning));
    document.blocks.push(Block::Table(table));
    document
}

fn add_goals(cells: &mut Vec<String>, verdicts: &[Verdict], figure: Figure) {
    let (goal, reached) = goals::about(verdicts, figure);
    cells.extend([goal, reached]);
}

/// Figures of the short table, in order.
fn main_figures() -> Vec<Figure> {
    use Metric::{CpuPerGib, CpuPerOperation, Loss, OperationRate, P50, Retransmissions, Throughput};
    let runs: [(&str, Metric, &[u32]); 17] = [
        ("up1", Throughput, &[65520, 1500]),
        ("down1", Throughput, &[65520, 1500]),
        ("up4", Throughput, &[65520, 1500]),
        ("down4", Throughput, &[65520, 1500]),
        ("up1", Retransmissions, &[1500]),
        ("down1", Retransmissions, &[1500]),
        ("up1", CpuPerGib, &[65520, 1500]),
        ("down1", CpuPerGib, &[65520, 1500]),
        ("crr1", P50, &[65520]),
        ("crr8", OperationRate, &[65520]),
        ("crr1", CpuPerOperation, &[65520]),
        ("rr1", P50, &[65520]),
        ("uup", Throughput, &[1500]),
        ("udown", Throughput, &[1500]),
        ("uup-half", Loss, &[1500]),
        ("udown-half", Loss, &[1500]),
        ("mix-down", P50, &[1500]),
    ];
    let mut figures = Vec::new();
    for (name, metric, mtus) in runs {
        let workload = name.parse::<Workload>().ok();
        figures.extend(
            mtus.iter().filter_map(|mtu| workload.map(|workload| Figure::Run(workload, *mtu, metric))),
        );
    }
    figures.extend([
        Figure::Resident(65520),
        Figure::IdleConnection,
        Figure::Start(StartUp::True),
        Figure::Start(StartUp::FirstByte),
    ]);
    figures
}

#[cfg(test)]
mod tests;
