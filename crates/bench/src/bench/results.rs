//! Results of a whole benchmark as measured: the source of tables, goals and JSON.

use super::workload::{Metric, Workload};
use super::{Options, Part};
use crate::idle::Idle;
use crate::process::Failure;
use crate::report::{Machine, Spread};
use crate::system::System;
use crate::wan::measure::Found;
use serde_json::{Value, json};

/// One run of one workload on one system.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The link's MTU.
    pub mtu: u32,
    /// The workload measured.
    pub workload: Workload,
    /// The machine.
    pub system: System,
    /// Round, from 1.
    pub round: u32,
    /// The figures.
    pub figures: Vec<(Metric, f64)>,
}

impl Sample {
    /// One figure of the run.
    pub fn figure(&self, metric: Metric) -> Option<f64> {
        self.figures.iter().find(|(found, _)| *found == metric).map(|(_, value)| *value)
    }
}

/// Resident memory of a forwarder before and after work.
#[derive(Debug, Clone)]
pub struct Footprint {
    /// The link's MTU.
    pub mtu: u32,
    /// The system measured.
    pub system: System,
    /// Resident KiB after start.
    pub rss_start_kib: u64,
    /// Proportional set size at the start, KiB: its own pages and its share of shared ones. `None` where
    /// another system with the same program ran already, so that its share depends on the order.
    pub pss_start_kib: Option<u64>,
    /// Resident KiB after all rounds.
    pub rss_end_kib: u64,
}

/// End of a start-up time in a fresh namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartUp {
    /// A command that does nothing.
    True,
    /// A command that ends with the first byte of a download.
    FirstByte,
}

impl StartUp {
    /// Both ends.
    pub const ALL: [Self; 2] = [Self::True, Self::FirstByte];

    /// Its name in files.
    pub const fn key(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::FirstByte => "first_byte",
        }
    }
}

/// Allocations of one workload.
#[derive(Debug, Clone)]
pub struct Allocations {
    /// The workload that ran.
    pub workload: Workload,
    /// Allocations during it.
    pub count: u64,
    /// GiB moved, or operations.
    pub work: f64,
}

impl Allocations {
    /// The unit of [`Self::each`].
    pub fn unit(&self) -> &'static str {
        if self.workload.kind.name == "crr" { "per operation" } else { "per GiB" }
    }

    /// Allocations per GiB or operation.
    pub fn each(&self) -> f64 {
        self.count as f64 / self.work
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "workload": self.workload.to_string(), "allocations": self.count, "work": self.work,
            "unit": self.unit(), "each": self.each(),
        })
    }
}

/// Results of a whole benchmark.
#[derive(Debug)]
pub struct Results {
    /// The machine.
    pub machine: Machine,
    /// Number of rounds.
    pub rounds: u32,
    /// Duration of one run, in seconds.
    pub seconds: f64,
    /// MTUs of the guest's link.
    pub mtus: Vec<u32>,
    /// Workloads in the order of the tables.
    pub workloads: Vec<Workload>,
    /// Parts other than workloads.
    pub parts: Vec<Part>,
    /// Systems in the order of the tables.
    pub systems: Vec<System>,
    /// Versions of the forwarders, in their own words.
    pub versions: Vec<String>,
    /// One entry per run.
    pub samples: Vec<Sample>,
    /// One entry per forwarder and MTU.
    pub footprints: Vec<Footprint>,
    /// Milliseconds, one entry per start; host-direct is the harness's own share.
    pub starts_ms: Vec<(System, StartUp, f64)>,
    /// Heap allocations of brodo.
    pub allocations: Vec<Allocations>,
    /// One entry per forwarder.
    pub idle: Vec<Idle>,
    /// Long paths.
    pub wan: Option<Found>,
    /// Measurements that failed, and why.
    pub remarks: Vec<String>,
    /// Failures for which the program fails once its outputs are written.
    pub failures: Vec<Failure>,
}

impl Results {
    /// Empty results for the installed systems; the missing ones are remarks.
    pub(super) fn new(
        machine: Machine,
        options: &Options,
        workloads: Vec<Workload>,
        parts: Vec<Part>,
    ) -> Self {
        let mut remarks = Vec::new();
        let mut systems = Vec::new();
        for system in System::ALL.into_iter().filter(|system| options.against.contains(system)) {
            match options.programs.find(system) {
                Err(e) if system.is_forwarder() => {
                    eprintln!("{e}: left out");
                    remarks.push(format!("{e}: left out"));
                }
                _ => systems.push(system),
            }
        }
        let programs = systems.iter().filter(|system| !system.is_variant());
        let versions = programs.filter_map(|system| options.programs.version(*system)).collect();
        Self {
            machine,
            rounds: options.rounds,
            seconds: options.seconds,
            mtus: options.mtu.clone(),
            workloads,
            parts,
            systems,
            versions,
            samples: Vec::new(),
            footprints: Vec::new(),
            starts_ms: Vec::new(),
            allocations: Vec::new(),
            idle: Vec::new(),
            wan: None,
            remarks,
            failures: Vec::new(),
        }
    }

    /// A failure that ends neither the benchmark nor its outputs: a remark, for which the program fails once
    /// all is written.
    pub(super) fn fail(&mut self, why: Failure) {
        self.remarks.push(why.first_line().to_owned());
        self.failures.push(why);
    }

    /// A failure of a system, once however often it happens: for brodo's the program fails, others' are
    /// remarks.
    pub(super) fn fail_of(&mut self, system: System, why: Failure) {
        if self.remarks.iter().any(|remark| remark == why.first_line()) {
            return;
        }
        if system.is_brodo() {
            self.fail(why);
        } else {
            self.remarks.push(why.first_line().to_owned());
        }
    }

    /// A figure in each round that has it, with the round's number.
    fn figures(
        &self,
        mtu: u32,
        workload: Workload,
        system: System,
        metric: Metric,
    ) -> impl Iterator<Item = (u32, f64)> {
        let samples = self.samples.iter();
        let wanted = samples.filter(move |s| s.mtu == mtu && s.workload == workload && s.system == system);
        wanted.filter_map(move |sample| Some((sample.round, sample.figure(metric)?)))
    }

    /// A figure over all rounds.
    pub fn spread(&self, mtu: u32, workload: Workload, system: System, metric: Metric) -> Option<Spread> {
        Spread::of(self.figures(mtu, workload, system, metric).map(|(_, figure)| figure))
    }

    /// Number of rounds that have a figure.
    pub fn rounds_with(&self, mtu: u32, workload: Workload, system: System, metric: Metric) -> usize {
        self.figures(mtu, workload, system, metric).count()
    }

    /// Median of a figure.
    pub fn median(&self, mtu: u32, workload: Workload, system: System, metric: Metric) -> Option<f64> {
        self.spread(mtu, workload, system, metric).map(|spread| spread.median)
    }

    /// Median of the ratios of a system's figure to another's in the same round: what changes from one round
    /// to the next, such as the speed of the machine, is in neither. `None` without a round that has both.
    pub fn ratio_of_rounds(
        &self,
        mtu: u32,
        workload: Workload,
        [system, reference]: [System; 2],
        metric: Metric,
    ) -> Option<f64> {
        let of = |system: System| self.figures(mtu, workload, system, metric);
        let ratios = of(system).filter_map(|(round, own)| {
            let other = of(reference).find(|(other, value)| *other == round && *value > 0.0)?.1;
            Some(own / other)
        });
        Spread::of(ratios).map(|spread| spread.median)
    }

    /// Start-up time of a fresh namespace, in milliseconds.
    pub fn start_ms(&self, system: System, what: StartUp) -> Option<Spread> {
        let wanted = self.starts_ms.iter().filter(|(s, w, _)| *s == system && *w == what);
        Spread::of(wanted.map(|(_, _, ms)| *ms))
    }
}
