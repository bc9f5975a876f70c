//! What metrics are made of: copies of what each worker has, taken on its own thread, and facts about the process.

use crate::control::visits;
use crate::wording;
use brodo_core::counters::Counters;
use brodo_core::tcp::limited::LimitedBy;
use brodo_linux::crew::Crew;
use brodo_linux::driver::{Activity, Inside};
use brodo_linux::ring::RingWatch;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// One worker.
#[derive(Debug, Clone, Default)]
pub(super) struct WorkerView {
    pub(super) counters: Counters,
    pub(super) activity: Activity,
    /// Flows open now, by protocol and direction.
    pub(super) flows: BTreeMap<(&'static str, &'static str), u64>,
    /// TCP connections by what limits each of their directions now.
    pub(super) limited: BTreeMap<(&'static str, &'static str), u64>,
    /// Flows that rules have refused, by the rule.
    pub(super) rules: BTreeMap<String, u64>,
    /// Forwards, and sockets that listen for them; of the worker that has them.
    pub(super) forwards: Option<(u64, u64)>,
    /// What was counted of them.
    pub(super) forwarded: Vec<(&'static str, u64)>,
}

impl WorkerView {
    fn of(inside: &Inside<'_>) -> Self {
        let stack = &*inside.stack;
        let (mut flows, mut limited) = (BTreeMap::new(), BTreeMap::new());
        for by in LimitedBy::ALL {
            limited.extend(["from_guest", "to_guest"].map(|direction| ((direction, by.name()), 0)));
        }
        for info in stack.flow_infos(inside.now) {
            let key =
                (wording::protocol(info.key.protocol).name(), wording::direction(info.initiator).name());
            *flows.entry(key).or_default() += 1;
        }
        for info in stack.tcp_infos(inside.now) {
            for (direction, half) in [("from_guest", &info.rx), ("to_guest", &info.tx)] {
                *limited.entry((direction, half.limited.by.name())).or_default() += 1;
            }
        }
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
            flows,
            limited,
            rules,
            forwards,
            forwarded,
        }
    }
}

/// All workers, and what they share.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    pub(super) workers: Vec<WorkerView>,
    pub(super) memory_used: u64,
    pub(super) memory_promised: u64,
    pub(super) memory_budget: u64,
    pub(super) ring_dropped: u64,
    pub(super) ring_frames: u32,
}

/// Looks at all workers; `None` if they have ended, or one does not answer.
pub(super) fn look(crew: &Crew, ring: &Arc<RingWatch>) -> Option<View> {
    let watch = ring.clone();
    // The first worker alone may.
    visits::ask(crew, 0, move |_| watch.look()).ok()?;
    let seen = visits::ask_all(crew, |inside| {
        let stack = &inside.stack;
        let memory = [stack.memory_used(), stack.memory_promised(), stack.memory_budget()];
        (WorkerView::of(inside), memory.map(|bytes| bytes as u64))
    })
    .ok()?;
    // Of what all share the last one knows most.
    let [memory_used, memory_promised, memory_budget] = seen.last().map_or([0; 3], |(_, memory)| *memory);
    let workers = seen.into_iter().map(|(worker, _)| worker).collect();
    let (ring_dropped, ring_frames) = (ring.dropped(), ring.frames().unwrap_or(0));
    Some(View { workers, memory_used, memory_promised, memory_budget, ring_dropped, ring_frames })
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
