//! The source of metrics: copies of the state of each worker, taken on its own thread, and properties of the
//! process.

use crate::control::ask::{FLOWS_PER_COMMAND, ask, ask_all};
use crate::flow_messages;
use brodo_control::rpc::Error;
use brodo_core::counters::Counters;
use brodo_core::stack::FlowDetail;
use brodo_core::tcp::limiting_factor::LimitingFactor;
use brodo_net::command::{Activity, Command, FlowFilter, WorkerReport};
use brodo_net::txqueuelen::TxQueueLenWatch;
use brodo_net::workers::Workers;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Numbers by two labels.
type Tally = BTreeMap<(&'static str, &'static str), u64>;
/// Protocol, direction and carrier of flows.
pub(super) type FlowKind = (&'static str, &'static str, &'static str);

/// One worker.
#[derive(Debug, Clone, Default)]
pub(super) struct WorkerMetrics {
    pub(super) counters: Counters,
    pub(super) activity: Activity,
    /// Flows open now, by protocol, direction and carrier.
    pub(super) flows: BTreeMap<FlowKind, u64>,
    /// TCP connections by direction and limiting factor.
    pub(super) limited: Tally,
    /// Refused flows by rule.
    pub(super) rules: BTreeMap<String, u64>,
    /// Numbers of forwards and of their listening sockets, of the worker that owns them.
    pub(super) forwards: Option<(u64, u64)>,
    /// Counters of the forwards.
    pub(super) forwarded: Vec<(&'static str, u64)>,
}

impl WorkerMetrics {
    fn of(report: WorkerReport) -> Self {
        let forwards = report.forwards.as_ref();
        Self {
            counters: report.counters,
            activity: report.activity,
            flows: BTreeMap::new(),
            limited: every_limit(),
            rules: report.rules.into_iter().collect(),
            forwards: forwards.map(|forwards| (forwards.entries as u64, forwards.listeners as u64)),
            forwarded: forwards.map_or(Vec::new(), |forwards| forwards.counters.named().into()),
        }
    }

    /// Adds the flows of `worker`, some at a time.
    fn count_flows(&mut self, workers: &Workers, worker: u32) -> Result<(), Error> {
        let (most, filter, mut from) = (FLOWS_PER_COMMAND, FlowFilter::default(), 0);
        loop {
            let command = |reply| Command::Flows { from, most, filter, round_trips: false, reply };
            let page = ask(workers, worker, command)?;
            page.flows.iter().for_each(|report| self.count_flow(&report.detail));
            match page.last {
                Some(last) => from = last.index.saturating_add(1),
                None => return Ok(()),
            }
        }
    }

    fn count_flow(&mut self, detail: &FlowDetail) {
        let info = &detail.info;
        let kind = (
            flow_messages::protocol(info.key.protocol).name(),
            flow_messages::direction(info.initiator).name(),
            info.carrier.name(),
        );
        *self.flows.entry(kind).or_default() += 1;
        let halves = detail.tcp.iter().flat_map(|tcp| [("from_guest", &tcp.rx), ("to_guest", &tcp.tx)]);
        for (direction, half) in halves {
            *self.limited.entry((direction, half.limiting.current.name())).or_default() += 1;
        }
    }
}

/// Every limiting factor in both directions, with number zero.
fn every_limit() -> Tally {
    let both = |by: LimitingFactor| ["from_guest", "to_guest"].map(|direction| ((direction, by.name()), 0));
    LimitingFactor::ALL.into_iter().flat_map(both).collect()
}

/// All workers, and what they share.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    pub(super) workers: Vec<WorkerMetrics>,
    pub(super) memory_used: u64,
    pub(super) memory_reserved: u64,
    pub(super) memory_budget: u64,
    pub(super) ring_dropped: u64,
    pub(super) ring_frames: u32,
}

/// Collects from all workers; `None` if they have ended, or one does not reply.
pub(super) fn look(workers: &Workers, ring: &Arc<TxQueueLenWatch>) -> Option<View> {
    // A task of the first worker.
    ask(workers, 0, |reply| Command::ReadTxQueue { reply }).ok()?;
    let reports = ask_all(workers, |reply| Command::Report { reply }).ok()?;
    // Shared figures: the last worker's are the newest.
    let memory = reports.last().map(|report| report.memory).unwrap_or_default();
    let mut metrics: Vec<WorkerMetrics> = reports.into_iter().map(WorkerMetrics::of).collect();
    for (number, worker) in (0..).zip(&mut metrics) {
        worker.count_flows(workers, number).ok()?;
    }
    let (ring_dropped, ring_frames) = (ring.dropped(), ring.frames().unwrap_or(0));
    Some(View {
        workers: metrics,
        memory_used: memory.used as u64,
        memory_reserved: memory.reserved as u64,
        memory_budget: memory.budget as u64,
        ring_dropped,
        ring_frames,
    })
}

/// This process as the kernel sees it. Unreadable figures are zero.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Process {
    pub(super) cpu_seconds: f64,
    pub(super) resident_bytes: u64,
    pub(super) virtual_bytes: u64,
    pub(super) start_seconds: f64,
    pub(super) open_fds: u64,
    pub(super) max_fds: u64,
    pub(super) threads: u64,
}

impl Process {
    pub(super) fn look() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let pages: Vec<u64> = fs::read_to_string("/proc/self/statm")
            .map(|text| text.split_whitespace().map_while(|word| word.parse().ok()).collect())
            .unwrap_or_default();
        let bytes = |index: usize| pages.get(index).copied().unwrap_or(0) * rustix::param::page_size() as u64;
        let entries = |path: &str| fs::read_dir(path).map_or(0, |entries| entries.count() as u64);
        Self {
            cpu_seconds: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
            resident_bytes: bytes(1),
            virtual_bytes: bytes(0),
            start_seconds: start_seconds().unwrap_or(0.0),
            // Less the descriptor of the directory being read.
            open_fds: entries("/proc/self/fd").saturating_sub(1),
            max_fds: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
            threads: entries("/proc/self/task"),
        }
    }
}

/// When this process started, in seconds since 1970: now, less its age.
fn start_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Fields behind the name, which may contain anything, start with the third; the start time is the 22nd.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let boot = clock_gettime(ClockId::Boottime);
    let age = boot.tv_sec as f64 + boot.tv_nsec as f64 / 1e9
        - ticks / rustix::param::clock_ticks_per_second() as f64;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(now.as_secs_f64() - age)
}
