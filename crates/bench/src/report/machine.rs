//! The measuring machine: processors, memory, kernel, load, and the time that its host took away.

use super::Block;
use crate::procfs::{ProcessorTicks, processor_ticks};
use serde_json::{Value, json};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Load at the start above which other work distorts the figures.
const LOAD_MAX: f64 = 0.5;
/// Share of processor time stolen by a virtual machine's host above which the figures are distorted.
const STOLEN_MAX: f64 = 0.02;

/// The machine as it was when measuring began.
#[derive(Debug, Clone, Default)]
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
    /// Time of all processors at the start.
    pub ticks: ProcessorTicks,
    /// Share of the time of the measurement, 0 to 1, in which programs were ready to run and the host of the
    /// virtual machine ran something else (*steal*). Zero until [`Machine::at_end`].
    pub stolen: f64,
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
            ticks: processor_ticks(),
            stolen: 0.0,
        }
    }

    /// The machine with the time stolen up to now, where the measurement ends.
    #[must_use]
    pub fn at_end(self) -> Self {
        Self { stolen: processor_ticks().stolen_since(self.ticks), ..self }
    }

    /// The machine in words.
    pub fn text(&self) -> String {
        let Self { cpus, model, memory_gib, kernel, load, .. } = self;
        format!("{cpus} × {model}, {memory_gib} GiB, Linux {kernel}, cubic, load {load} at the start")
    }

    /// The machine in words, and a warning if there is cause for one.
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        [Block::Text(self.text())].into_iter().chain(self.warning().map(Block::Warning))
    }

    /// Warning, if the machine had other work, or its host.
    pub fn warning(&self) -> Option<String> {
        let load = (self.load > LOAD_MAX)
            .then(|| format!("The machine had other work (load {} at the start).", self.load));
        let stolen = (self.stolen > STOLEN_MAX).then(|| {
            let percent = self.stolen * 100.0;
            format!("The host of this virtual machine took {percent:.0} % of its processor time away.")
        });
        let causes = [load, stolen].into_iter().flatten().collect::<Vec<_>>().join(" ");
        (!causes.is_empty()).then(|| {
            format!(
                "{causes} Throughput and latency are worse than they could be; only compare what stands side \
                 by side."
            )
        })
    }

    /// The machine as JSON.
    pub fn json(&self) -> Value {
        json!({
            "cpus": self.cpus, "model": self.model, "memory_gib": self.memory_gib, "kernel": self.kernel,
            "load": self.load, "stolen": self.stolen, "unix_seconds": self.unix_s, "congestion_control": "cubic",
        })
    }
}

#[cfg(test)]
mod tests {
    //! Warnings of other work and of stolen time.

    use super::*;

    #[test]
    fn other_work_and_stolen_time_are_warned_of() {
        let warning = |load, stolen| Machine { load, stolen, ..Machine::now() }.warning();
        assert_eq!(warning(0.5, 0.02), None);
        let text = warning(0.5, 0.123).expect("a warning");
        assert!(text.starts_with("The host of this virtual machine took 12 %"), "{text}");
        let text = warning(0.6, 0.5).expect("a warning");
        assert!(text.starts_with("The machine had other work (load 0.6 at the start). The host"), "{text}");
    }

    #[test]
    fn the_end_has_a_share_of_stolen_time() {
        let machine = Machine::now();
        let begin = ProcessorTicks { all: machine.ticks.all - 100, ..machine.ticks };
        assert!((0.0..=1.0).contains(&Machine { ticks: begin, ..machine }.at_end().stolen));
    }
}
