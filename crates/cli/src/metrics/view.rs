//! The source of metrics: copies of the state of each worker, taken on its own thread, and properties of the
//! process.

use crate::control::visits::{self, VISIT_FLOWS};
use crate::flow_messages;
use brodo_control::rpc::Error;
use brodo_core::counters::Counters;
use brodo_core::tcp::limited::LimitedBy;
use brodo_net::driver::{Activity, WorkerView};
use brodo_net::txqueuelen::TxQueueLenWatch;
use brodo_net::workers::Workers;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Counts by two words.
type Tally = BTreeMap<(&'static str, &'static str), u64>;

/// One worker.
#[derive(Debug, Clone, Default)]
pub(super) struct WorkerMetrics {
    pub(super) counters: Counters,
    pub(super) activity: Activity,
    /// Flows open now, by protocol and direction.
    pub(super) flows: Tally,
    /// TCP connections by direction and limiting factor.
    pub(super) limited: Tally,
    /// Flows that rules have refused, by the rule.
    pub(super) rules: BTreeMap<String, u64>,
    /// Forwards, and sockets that listen for them; of the worker that has them.
    pub(super) forwards: Option<(u64, u64)>,
    /// What was counted of them.
    pub(super) forwarded: Vec<(&'static str, u64)>,
}

impl WorkerMetrics {
    fn of(inside: &WorkerView<'_>) -> Self {
        let stack = &*inside.stack;
        let rules = stack.rules().map(|(rule, count)| (rule.to_owned(), count)).collect();
        let ports = inside.forwards.as_deref();
        let forwards = ports.map(|ports| {
            let list = ports.list();
            (list.len() as u64, list.iter().map(|forward| forward.listeners as u64).sum())
        });
        let forwarded = ports.map_or(Vec::new(), |ports| ports.counters().named().into());
        Self {
            counters: stack.counters().clone(),
            activity: inside.activity,
            flows: Tally::new(),
            limited: every_limit(),
            rules,
            forwards,
            forwarded,
        }
    }

    /// Adds what flows there are on `worker`, some at a time.
    fn count_flows(&mut self, workers: &Workers, worker: u32) -> Result<(), Error> {
        let mut from = Some(0);
        while let Some(first) = from {
            let (flows, limited, next) =
                visits::ask(workers, worker, move |inside| some_flows(inside, first))?;
            add(&mut self.flows, flows);
            add(&mut self.limited, limited);
            from = next;
        }
        Ok(())
    }
}

/// Every limit in both directions, none of them in force.
fn every_limit() -> Tally {
    let both = |by: LimitedBy| ["from_guest", "to_guest"].map(|direction| ((direction, by.name()), 0));
    LimitedBy::ALL.into_iter().flat_map(both).collect()
}

fn add(sum: &mut Tally, some: Tally) {
    for (key, count) in some {
        *sum.entry(key).or_default() += count;
    }
}

/// What flows there are from a slot on and what limits them, and the slot to go on with if there are more.
fn some_flows(inside: &WorkerView<'_>, from: u32) -> (Tally, Tally, Option<u32>) {
    let (mut flows, mut limited, mut next) = (Tally::new(), Tally::new(), None);
    for (looked, detail) in (1..).zip(inside.stack.flow_details(from, inside.now).take(VISIT_FLOWS)) {
        let info = detail.info;
        next = (looked == VISIT_FLOWS).then_some(info.flow.index.saturating_add(1));
        let kind = (
            flow_messages::protocol(info.key.protocol).name(),
            flow_messages::direction(info.initiator).name(),
        );
        *flows.entry(kind).or_default() += 1;
        let halves = detail.tcp.iter().flat_map(|tcp| [("from_guest", &tcp.rx), ("to_guest", &tcp.tx)]);
        for (direction, half) in halves {
            *limited.entry((direction, half.limited.by.name())).or_default() += 1;
        }
    }
    (flows, limited, next)
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

/// Looks at all workers; `None` if they have ended, or one does not answer.
pub(super) fn look(workers: &Workers, ring: &Arc<TxQueueLenWatch>) -> Option<View> {
    let watch = ring.clone();
    // The first worker alone may.
    visits::ask(workers, 0, move |_| watch.look()).ok()?;
    let seen = visits::ask_all(workers, |inside| {
        let stack = &inside.stack;
        let memory = [stack.memory_used(), stack.memory_promised(), stack.memory_budget()];
        (WorkerMetrics::of(inside), memory.map(|bytes| bytes as u64))
    })
    .ok()?;
    // Of what all share the last one knows most.
    let [memory_used, memory_reserved, memory_budget] = seen.last().map_or([0; 3], |(_, memory)| *memory);
    let mut metrics: Vec<WorkerMetrics> = seen.into_iter().map(|(worker, _)| worker).collect();
    for (number, worker) in (0..).zip(&mut metrics) {
        worker.count_flows(workers, number).ok()?;
    }
    let (ring_dropped, ring_frames) = (ring.dropped(), ring.frames().unwrap_or(0));
    Some(View { workers: metrics, memory_used, memory_reserved, memory_budget, ring_dropped, ring_frames })
}

/// This process as the kernel sees it. What cannot be read is zero.
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
            // The directory that is being read is one of them.
            open_fds: entries("/proc/self/fd").saturating_sub(1),
            max_fds: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
            threads: entries("/proc/self/task"),
        }
    }
}

/// When this process started, in seconds since 1970: now, less its age.
fn start_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may contain anything, come the fields from the third on; the start is the 22nd.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let boot = clock_gettime(ClockId::Boottime);
    let age = boot.tv_sec as f64 + boot.tv_nsec as f64 / 1e9
        - ticks / rustix::param::clock_ticks_per_second() as f64;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(now.as_secs_f64() - age)
}
