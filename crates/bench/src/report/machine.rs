//! The measuring machine: processors, memory, kernel, load.

use serde_json::{Value, json};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Load at the start above which other work distorts the figures.
const LOAD_MAX: f64 = 0.5;

/// The machine as it was when measuring began.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Logical processors this program may use.
    pub cpus: usize,
    /// The processor's own name.
    pub model: String,
    /// Memory, GiB.
    pub memory_gib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// Load average of the last minute.
    pub load: f64,
    /// Start of the measurement, seconds since 1970.
    pub unix_s: u64,
}

impl Machine {
    /// Properties and load of the machine; to be called before the measurement starts any program.
    pub fn now() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let kib: u64 =
            read("/proc/meminfo").split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0);
        let load = read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok());
        Self {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            model: model.unwrap_or("unknown processor").to_owned(),
            memory_gib: kib >> 20,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: load.unwrap_or(0.0),
            unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        }
    }

    /// The machine in words.
    pub fn text(&self) -> String {
        let Self { cpus, model, memory_gib, kernel, load, .. } = self;
        format!("{cpus} × {model}, {memory_gib} GiB, Linux {kernel}, cubic, load {load} at the start")
    }

    /// Warning, if the machine had other work.
    pub fn warning(&self) -> Option<String> {
        (self.load > LOAD_MAX).then(|| {
            format!(
                "The machine had other work (load {} at the start): throughput and latency are lower than it could do; only \
                 compare what stands side by side.",
                self.load
            )
        })
    }

    /// The machine as JSON.
    pub fn json(&self) -> Value {
        json!({
            "cpus": self.cpus, "model": self.model, "memory_gib": self.memory_gib, "kernel": self.kernel,
            "load": self.load, "unix_seconds": self.unix_s, "congestion_control": "cubic",
        })
    }
}
