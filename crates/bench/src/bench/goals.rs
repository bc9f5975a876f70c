//! Goals: ratios to the systems measured beside brodo, or figures of its own, of brodo as it is by default
//! and with options or for virtual machines. A goal is reached by the median.

use super::Part;
use super::results::{Allocations, Results, StartUp};
use super::workload::{Metric, Workload};
use crate::idle::Idle;
use crate::report::{Spread, Table, number};
use crate::system::System;
use serde_json::{Value, json};
use std::fmt;

/// One figure of a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// Figure of a workload on a link of this MTU.
    Run(Workload, u32, Metric),
    /// Resident memory after start, MiB.
    Resident(u32),
    /// Memory of an idle connection, bytes.
    IdleConnection,
    /// Heap allocations per GiB or operation.
    Allocations(Workload),
    /// A fresh namespace, milliseconds.
    Start(StartUp),
}

impl Figure {
    /// Samples of one system.
    pub fn of(self, results: &Results, system: System) -> Option<Spread> {
        match self {
            Self::Run(workload, mtu, metric) => results.spread(mtu, workload, system, metric),
            Self::Resident(mtu) => {
                let footprints = results.footprints.iter();
                let wanted = footprints.filter(|f| f.mtu == mtu && f.system == system);
                Spread::of(wanted.map(|f| f.rss_start_kib as f64 / 1024.0))
            }
            Self::IdleConnection => {
                let wanted = results.idle.iter().filter(|idle| idle.system == system);
                Spread::of(wanted.map(Idle::bytes_each))
            }
            Self::Allocations(workload) => {
                let found = results.allocations.iter().filter(|_| system == System::Brodo);
                Spread::of(found.filter(|found| found.workload == workload).map(Allocations::each))
            }
            Self::Start(what) => results.start_ms(system, what),
        }
    }

    /// Whether the benchmark was to measure it for this system.
    fn is_wanted(self, results: &Results, system: System) -> bool {
        let link = |mtu: &u32| !results.workloads.is_empty() && results.mtus.contains(mtu);
        let part = |part: Part| results.parts.contains(&part);
        results.systems.contains(&system)
            && match self {
                Self::Run(workload, mtu, _) => {
                    results.workloads.contains(&workload) && link(&mtu) && system.does(workload.kind.name)
                }
                Self::Resident(mtu) => link(&mtu),
                Self::IdleConnection => part(Part::Idle),
                Self::Allocations(_) => part(Part::Allocations),
                Self::Start(_) => part(Part::Start),
            }
    }

    /// Name and unit.
    pub fn words(self) -> String {
        match self {
            Self::Run(_, _, metric) => {
                let (what, unit) = metric.words();
                format!("{self}: {what}, {unit}")
            }
            _ => format!("{self}, {}", self.unit()),
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Run(_, _, metric) => metric.words().1,
            Self::Resident(_) => "MiB",
            Self::IdleConnection => "bytes",
            Self::Allocations(workload) if workload.kind.name == "crr" => "per operation",
            Self::Allocations(_) => "per GiB",
            Self::Start(_) => "ms",
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(workload, mtu, _) => write!(f, "{workload}, MTU {mtu}"),
            Self::Resident(mtu) => write!(f, "resident after start, MTU {mtu}"),
            Self::IdleConnection => f.write_str("an idle connection"),
            Self::Allocations(workload) => write!(f, "heap allocations, {workload}"),
            Self::Start(StartUp::True) => f.write_str("`true` in a fresh namespace"),
            Self::Start(StartUp::FirstByte) => f.write_str("first byte in a fresh namespace"),
        }
    }
}

/// Reference of a bound.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    /// A number in the figure's own unit.
    Absolute(f64),
    /// A multiple of this system's figure.
    Of(System, f64),
    /// The same round by round, where a few per cent count: of the ratios the median.
    OfRounds(System, f64),
    /// A multiple of the system's own figure at this MTU.
    OfMtu(u32, f64),
    /// A multiple of the system's own figure of this workload, on the same link.
    OfWorkload(&'static str, f64),
}

impl Bound {
    /// The number that a value is compared with.
    const fn number(self) -> f64 {
        match self {
            Self::Absolute(number)
            | Self::Of(_, number)
            | Self::OfRounds(_, number)
            | Self::OfMtu(_, number)
            | Self::OfWorkload(_, number) => number,
        }
    }

    /// Words behind a ratio: its reference.
    fn reference(self) -> Option<String> {
        match self {
            Self::Absolute(_) => None,
            Self::Of(system, _) | Self::OfRounds(system, _) => Some(system.name().to_owned()),
            Self::OfMtu(mtu, _) => Some(format!("MTU {mtu}")),
            Self::OfWorkload(name, _) => Some(name.to_owned()),
        }
    }
}

/// Figures that a goal concerns.
#[derive(Debug, Clone, Copy)]
enum Subject {
    Runs(&'static [&'static str], &'static [u32], Metric),
    Resident(&'static [u32]),
    IdleConnection,
    Allocations(&'static [&'static str]),
    Start(StartUp),
}

impl Subject {
    fn figures(self) -> Vec<Figure> {
        let workload = |name: &&str| name.parse::<Workload>().ok();
        match self {
            Self::Runs(names, mtus, metric) => mtus
                .iter()
                .flat_map(|mtu| names.iter().filter_map(workload).map(|w| Figure::Run(w, *mtu, metric)))
                .collect(),
            Self::Resident(mtus) => mtus.iter().map(|mtu| Figure::Resident(*mtu)).collect(),
            Self::IdleConnection => vec![Figure::IdleConnection],
            Self::Allocations(names) => names.iter().filter_map(workload).map(Figure::Allocations).collect(),
            Self::Start(what) => vec![Figure::Start(what)],
        }
    }
}

/// One goal.
#[derive(Debug)]
pub struct Goal {
    /// Subject of the goal, for people.
    pub what: &'static str,
    /// The system whose figures are to reach it.
    system: System,
    subject: Subject,
    /// More is better.
    at_least: bool,
    bound: Bound,
}

const BOTH: &[u32] = &[1500, 65520];
const BULK: &[&str] = &["up1", "down1", "up4", "down4"];
const ONE: &[&str] = &["up1", "down1"];
const MIX: &[&str] = &["mix-up", "mix-down"];
/// Bound of allocations per GiB, which is 16,384 full segments: those of a connection's open and close, none
/// per segment.
const PER_GIB_MAX: f64 = 16.0;

/// A goal of brodo as it is by default.
const fn goal(what: &'static str, subject: Subject, at_least: bool, bound: Bound) -> Goal {
    Goal { what, system: System::Brodo, subject, at_least, bound }
}

#[rustfmt::skip]
static GOALS: [Goal; 44] = {
    use Bound::{Absolute, Of, OfMtu, OfRounds, OfWorkload};
    use Metric::{CpuPerGib, CpuPerOperation, Loss, OperationRate, P50, P99, Retransmissions, Throughput};
    use Subject::Runs;
    use System::{BridgeVhostUser, PasstStream, PasstVhostUser};
    use System::{Brodo, BrodoGate, BrodoRules10, BrodoRules16384, BrodoStream, BrodoTap, BrodoVhostUser};
    use System::{HostDirect, Pasta, Slirp4netns, Veth};
    [
        goal("TCP bulk", Runs(BULK, BOTH, Throughput), true, Of(Veth, 0.9)),
        goal("TCP bulk", Runs(BULK, BOTH, Throughput), true, Of(HostDirect, 0.8)),
        goal("TCP bulk at MTU 1500", Runs(BULK, &[1500], Throughput), true, OfMtu(65520, 0.9)),
        goal("TCP upload", Runs(&["up1"], BOTH, Throughput), true, Of(Pasta, 20.0)),
        goal("TCP download, MTU 1500", Runs(&["down1"], &[1500], Throughput), true, Of(Pasta, 20.0)),
        goal("TCP download, MTU 65520", Runs(&["down1"], &[65520], Throughput), true, Of(Pasta, 1.4)),
        // Uploads alone: the kernel that sends a download sees the hop to brodo, not that to the guest.
        goal("retransmissions of uploads", Runs(&["up1", "up4"], BOTH, Retransmissions), false, Absolute(0.0)),
        goal("CPU of bulk", Runs(&["up1", "down1"], BOTH, CpuPerGib), false, Absolute(250.0)),
        goal("connect-request-response (CRR)", Runs(&["crr1"], BOTH, P50), false, Of(HostDirect, 2.2)),
        goal("CRR where brodo looks for answers", Runs(&["crr1"], BOTH, P50), false, Of(HostDirect, 1.6)),
        goal("CRR of 8 flows", Runs(&["crr8"], BOTH, OperationRate), true, Of(HostDirect, 0.5)),
        goal("CRR of 8 flows", Runs(&["crr8"], BOTH, OperationRate), true, Of(Pasta, 1.9)),
        goal("CRR of 8 flows", Runs(&["crr8"], BOTH, OperationRate), true, Of(Slirp4netns, 1.3)),
        goal("CPU of CRR", Runs(&["crr1", "crr8"], BOTH, CpuPerOperation), false, Absolute(80.0)),
        goal("request-response (RR)", Runs(&["rr1"], BOTH, P50), false, Of(HostDirect, 1.2)),
        goal("UDP as fast as it goes", Runs(&["uup", "udown"], BOTH, Throughput), true, Of(Veth, 0.8)),
        goal("UDP at half of veth's rate", Runs(&["uup-half", "udown-half"], BOTH, Loss), false, Absolute(0.1)),
        goal("memory after start", Subject::Resident(BOTH), false, Absolute(4.0)),
        goal("memory of an idle connection", Subject::IdleConnection, false, Absolute(1024.0)),
        goal("heap allocations: none per segment", Subject::Allocations(&["up1", "down1"]), false, Absolute(PER_GIB_MAX)),
        goal("a fresh namespace for `true`", Subject::Start(StartUp::True), false, Absolute(30.0)),
        // Bulk in the kernel: its share of what the interface costs, and nothing taken from short flows.
        goal("CPU of bulk in the kernel", Runs(BULK, BOTH, CpuPerGib), false, Of(BrodoTap, 0.35)),
        goal("bulk in the kernel, one flow", Runs(ONE, BOTH, Throughput), true, Of(Veth, 0.75)),
        goal("bulk in the kernel, four flows", Runs(&["up4", "down4"], BOTH, Throughput), true, Of(Veth, 0.6)),
        goal("CRR where bulk is in the kernel", Runs(&["crr1"], BOTH, P50), false, OfRounds(BrodoTap, 1.03)),
        goal("RR where bulk is in the kernel", Runs(&["rr1"], BOTH, P50), false, OfRounds(BrodoTap, 1.03)),
        goal("delay beside bulk", Runs(MIX, BOTH, P50), false, OfWorkload("mix-none", 4.0)),
        goal("delay beside bulk", Runs(MIX, BOTH, P99), false, OfWorkload("mix-none", 20.0)),
        goal("delay beside bulk", Runs(MIX, BOTH, P50), false, OfWorkload("mix-none", 8.0)).of(BrodoTap),
        goal("delay beside bulk", Runs(MIX, BOTH, P99), false, OfWorkload("mix-none", 40.0)).of(BrodoTap),
        // Policies: a new flow by a pin, and one behind a gate.
        goal("CRR under a policy", Runs(&["crr1"], BOTH, P50), false, OfRounds(Brodo, 1.03)).of(BrodoRules10),
        goal("CRR under a policy", Runs(&["crr1"], BOTH, P50), false, OfRounds(Brodo, 1.03)).of(BrodoRules16384),
        goal("HTTP behind a gate", Runs(&["http1"], BOTH, P50), false, OfRounds(Brodo, 1.03)).of(BrodoGate),
        // Virtual machines.
        goal("TCP bulk at MTU 1500", Runs(ONE, &[1500], Throughput), true, Of(BridgeVhostUser, 0.8)).of(BrodoVhostUser),
        goal("TCP upload, MTU 1500", Runs(&["up1"], &[1500], Throughput), true, Of(PasstVhostUser, 30.0)).of(BrodoVhostUser),
        goal("TCP download, MTU 1500", Runs(&["down1"], &[1500], Throughput), true, Of(PasstVhostUser, 4.0)).of(BrodoVhostUser),
        goal("TCP upload, MTU 65520", Runs(&["up1"], &[65520], Throughput), true, Of(PasstVhostUser, 2.0)).of(BrodoVhostUser),
        goal("TCP download, MTU 65520", Runs(&["down1"], &[65520], Throughput), true, Of(PasstVhostUser, 1.0)).of(BrodoVhostUser),
        goal("request-response (RR)", Runs(&["rr1"], BOTH, P50), false, Of(PasstVhostUser, 0.6)).of(BrodoVhostUser),
        goal("connect-request-response (CRR)", Runs(&["crr1"], BOTH, P50), false, Of(PasstVhostUser, 0.5)).of(BrodoVhostUser),
        goal("CPU of bulk", Runs(ONE, BOTH, CpuPerGib), false, Absolute(250.0)).of(BrodoVhostUser),
        goal("retransmissions of uploads", Runs(&["up1"], BOTH, Retransmissions), false, Absolute(0.0)).of(BrodoVhostUser),
        goal("TCP bulk, MTU 1500", Runs(ONE, &[1500], Throughput), true, Of(PasstStream, 1.3)).of(BrodoStream),
        goal("TCP bulk, MTU 65520", Runs(ONE, &[65520], Throughput), true, Of(PasstStream, 1.3)).of(BrodoStream),
    ]
};

impl Goal {
    /// The same of another system than brodo as it is by default.
    const fn of(self, system: System) -> Self {
        Self { system, ..self }
    }

    /// Its subject, for people, with the system if that is another one than brodo as it is by default.
    fn subject_words(&self) -> String {
        match self.system {
            System::Brodo => self.what.to_owned(),
            other => format!("{}, {}", self.what, other.name()),
        }
    }

    /// The bound, for people: "≥ 0.9 of veth".
    pub fn words(&self) -> String {
        let sign = if self.at_least { "≥" } else { "≤" };
        let number = self.bound.number();
        match (self.bound, self.bound.reference()) {
            (Bound::Of(..) | Bound::OfRounds(..) | Bound::OfWorkload(..), Some(other)) if number >= 1.0 => {
                format!("{sign} {number} × {other}")
            }
            (_, Some(other)) => format!("{sign} {number} of {other}"),
            (_, None) => {
                let unit = self.subject.figures().first().map_or("", |figure| figure.unit());
                if number == 0.0 { format!("0 {unit}") } else { format!("{sign} {number} {unit}") }
            }
        }
    }

    /// The value compared with the bound; `None` where a part of it was not measured.
    fn value(&self, results: &Results, figure: Figure) -> Option<f64> {
        let own = figure.of(results, self.system)?.median;
        let other = match (self.bound, figure) {
            (Bound::Absolute(_), _) => return Some(own),
            (Bound::Of(system, _), _) => figure.of(results, system)?,
            (Bound::OfRounds(system, _), Figure::Run(workload, mtu, metric)) => {
                return results.ratio_of_rounds(mtu, workload, [self.system, system], metric);
            }
            (Bound::OfMtu(mtu, _), Figure::Run(workload, _, metric)) => {
                Figure::Run(workload, mtu, metric).of(results, self.system)?
            }
            (Bound::OfWorkload(name, _), Figure::Run(_, mtu, metric)) => {
                Figure::Run(name.parse().ok()?, mtu, metric).of(results, self.system)?
            }
            (Bound::OfRounds(..) | Bound::OfMtu(..) | Bound::OfWorkload(..), _) => return None,
        };
        Some(own / other.median)
    }

    /// Whether the benchmark was to compare this figure with the bound.
    fn is_wanted(&self, results: &Results, figure: Figure) -> bool {
        let has_bound = match self.bound {
            Bound::Absolute(_) => true,
            Bound::Of(system, _) | Bound::OfRounds(system, _) => results.systems.contains(&system),
            Bound::OfMtu(mtu, _) => results.mtus.contains(&mtu),
            Bound::OfWorkload(name, _) => {
                name.parse::<Workload>().is_ok_and(|other| results.workloads.contains(&other))
            }
        };
        has_bound && figure.is_wanted(results, self.system)
    }

    fn is_reached_by(&self, value: f64) -> bool {
        let bound = self.bound.number();
        if self.at_least { value >= bound } else { value <= bound }
    }
}

/// A goal and the measured values.
#[derive(Debug)]
pub struct Verdict {
    /// The goal.
    pub goal: &'static Goal,
    /// Values compared with the goal, by figure.
    pub values: Vec<(Figure, f64)>,
    /// Figures that were to be compared with the goal and have no value.
    pub missing: Vec<Figure>,
}

impl Verdict {
    /// Number of figures that reach the goal.
    pub fn reached(&self) -> usize {
        self.values.iter().filter(|(_, value)| self.goal.is_reached_by(*value)).count()
    }

    /// The figure farthest from the goal.
    fn worst(&self) -> Option<(Figure, f64)> {
        let order = |a: &&(Figure, f64), b: &&(Figure, f64)| {
            if self.goal.at_least { a.1.total_cmp(&b.1) } else { b.1.total_cmp(&a.1) }
        };
        self.values.iter().min_by(order).copied()
    }

    pub(super) fn json(&self) -> Value {
        let values: Vec<Value> = self
            .values
            .iter()
            .map(|(figure, value)| {
                json!({
                    "figure": figure.words(), "value": value, "reached": self.goal.is_reached_by(*value),
                })
            })
            .collect();
        let missing: Vec<String> = self.missing.iter().map(|figure| figure.words()).collect();
        json!({
            "what": self.goal.what, "system": self.goal.system.name(), "goal": self.goal.words(), "values": values,
            "not_measured": missing,
        })
    }
}

/// All goals with at least one value that was measured, or was to be.
pub fn verdicts(results: &Results) -> Vec<Verdict> {
    let verdict = |goal: &'static Goal| {
        let (mut values, mut missing) = (Vec::new(), Vec::new());
        for figure in goal.subject.figures() {
            match goal.value(results, figure) {
                Some(value) => values.push((figure, value)),
                None if goal.is_wanted(results, figure) => missing.push(figure),
                None => {}
            }
        }
        Verdict { goal, values, missing }
    };
    let is_judged = |verdict: &Verdict| !(verdict.values.is_empty() && verdict.missing.is_empty());
    GOALS.iter().map(verdict).filter(is_judged).collect()
}

/// The goals, and of each the figure that is farthest from it.
pub(super) fn table(verdicts: &[Verdict]) -> Table {
    let mut table = Table::new(
        "Goals, and of each the figure that is farthest from it",
        ["what", "goal", "worst", "where", "reached"],
    );
    for verdict in verdicts {
        let reached = match (verdict.reached(), verdict.values.len(), verdict.missing.len()) {
            (_, 0, _) => "not measured".to_owned(),
            (reached, all, 0) if reached == all => "yes".to_owned(),
            (0, _, 0) => "no".to_owned(),
            (reached, all, 0) => format!("{reached} of {all}"),
            (reached, all, missing) => format!("{reached} of {all}, {missing} not measured"),
        };
        let (worst, place) = match (verdict.worst(), verdict.missing.first()) {
            (Some((figure, value)), _) => (number(value), figure.to_string()),
            (None, missing) => (String::new(), missing.map_or_else(String::new, Figure::to_string)),
        };
        table.row([verdict.goal.subject_words(), verdict.goal.words(), worst, place, reached]);
    }
    table
}

/// Bounds of the goals for one figure of brodo as it is by default, and whether it reaches them.
pub(super) fn about(verdicts: &[Verdict], figure: Figure) -> (String, String) {
    let mut goals = Vec::new();
    let mut missed = Vec::new();
    let mut is_measured = true;
    for verdict in verdicts.iter().filter(|verdict| verdict.goal.system == System::Brodo) {
        if verdict.missing.contains(&figure) {
            goals.push(verdict.goal.words());
            is_measured = false;
        }
        for (_, value) in verdict.values.iter().filter(|(of, _)| *of == figure) {
            goals.push(verdict.goal.words());
            if !verdict.goal.is_reached_by(*value) {
                let value = number(*value);
                let reference = verdict.goal.bound.reference();
                missed.push(reference.map_or_else(|| value.clone(), |other| format!("{value} of {other}")));
            }
        }
    }
    let reached = match (goals.is_empty(), missed.is_empty()) {
        (true, _) => String::new(),
        (false, true) if is_measured => "yes".to_owned(),
        (false, true) => "not measured".to_owned(),
        (false, false) => format!("no: {}", missed.join(", ")),
    };
    (goals.join(", "), reached)
}

#[cfg(test)]
mod tests;
