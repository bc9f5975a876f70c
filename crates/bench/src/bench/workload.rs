//! The workloads as a table: the probe's arguments, and the figures read from its output.
//!
//! A new workload is a line in [`KINDS`], and a subcommand of the probe if none fits yet.

use serde_json::Value;
use std::fmt;
use std::str::FromStr;

/// A measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Payload, counted where it arrives.
    Throughput,
    /// Datagrams, counted where they arrive.
    DatagramRate,
    /// Datagrams that did not arrive.
    Loss,
    /// Median latency.
    P50,
    /// 99th percentile of the latency.
    P99,
    /// Operations of all flows together.
    OperationRate,
    /// TCP segments that the sender's kernel retransmitted, the guest's or the host's.
    Retransmissions,
    /// The forwarder's process time for payload.
    CpuPerGib,
    /// The forwarder's process time for an operation.
    CpuPerOperation,
    /// The forwarder's process time for a datagram that arrived.
    CpuPerDatagram,
}

impl Metric {
    /// In the order of the report.
    pub const ALL: [Self; 10] = [
        Self::Throughput,
        Self::DatagramRate,
        Self::Loss,
        Self::P50,
        Self::P99,
        Self::OperationRate,
        Self::Retransmissions,
        Self::CpuPerGib,
        Self::CpuPerOperation,
        Self::CpuPerDatagram,
    ];

    /// Name and unit, for people.
    pub const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Throughput => ("throughput", "Gbit/s"),
            Self::DatagramRate => ("datagrams that arrived", "per second"),
            Self::Loss => ("loss", "%"),
            Self::P50 => ("latency, median", "us"),
            Self::P99 => ("latency, 99th percentile", "us"),
            Self::OperationRate => ("operations", "per second"),
            Self::Retransmissions => ("retransmissions of the sender's kernel", "segments per run"),
            Self::CpuPerGib => ("CPU of the forwarder", "ms per GiB"),
            Self::CpuPerOperation => ("CPU of the forwarder", "us per operation"),
            Self::CpuPerDatagram => ("CPU of the forwarder", "us per datagram that arrived"),
        }
    }

    /// Its name in files.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Throughput => "gbit_per_second",
            Self::DatagramRate => "datagrams_per_second",
            Self::Loss => "loss_percent",
            Self::P50 => "p50_us",
            Self::P99 => "p99_us",
            Self::OperationRate => "per_second",
            Self::Retransmissions => "retransmissions",
            Self::CpuPerGib => "cpu_ms_per_gib",
            Self::CpuPerOperation => "cpu_us_per_operation",
            Self::CpuPerDatagram => "cpu_us_per_datagram",
        }
    }

    /// Whether it is processor time of the forwarder.
    pub const fn is_cpu(self) -> bool {
        matches!(self, Self::CpuPerGib | Self::CpuPerOperation | Self::CpuPerDatagram)
    }

    /// Whether it is a time of which each answer is a sample.
    pub const fn is_latency(self) -> bool {
        matches!(self, Self::P50 | Self::P99)
    }

    /// Whether it counts work, of which a run that has worked did some.
    pub const fn is_rate(self) -> bool {
        matches!(self, Self::Throughput | Self::DatagramRate | Self::OperationRate)
    }

    /// Value in one run; `None` where the run has no such figure.
    pub(super) fn of(self, outcome: &Outcome) -> Option<f64> {
        let found = |name: &str| outcome.found.get(name).and_then(Value::as_f64);
        let cpu_us_per = |count: f64| outcome.cpu_ms.filter(|_| count > 0.0).map(|ms| ms * 1e3 / count);
        match self {
            Self::Retransmissions => Some(outcome.retransmissions as f64),
            Self::CpuPerGib => cpu_us_per(found("bytes")? / f64::from(1 << 30)).map(|us| us / 1e3),
            Self::CpuPerOperation => cpu_us_per(found("count")?),
            Self::CpuPerDatagram => cpu_us_per(found("datagrams")?),
            measured => found(measured.key()),
        }
    }
}

/// Outcome of one run.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Output of the probe.
    pub(super) found: Value,
    /// Processor time of the forwarder; `None` where there is none.
    pub(super) cpu_ms: Option<f64>,
    /// Segments that the sending kernel retransmitted.
    pub(super) retransmissions: u64,
}

impl Outcome {
    /// The number of requests that were answered, if that is less than `answers_min`: a request without an
    /// answer until the bulk beside it ends is one sample, as long as the run.
    pub(super) fn few_answers(&self, answers_min: u64) -> Option<u64> {
        self.found["count"].as_u64().filter(|count| *count < answers_min)
    }
}

/// Sender of the bulk; its kernel counts the retransmissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// Kernel of the guest.
    Guest,
    /// Kernel of the host.
    Host,
}

/// A kind of workload.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// Description for people.
    pub what: &'static str,
    /// Default numbers of concurrent flows; none for a workload whose flows are part of it.
    pub flows: &'static [usize],
    /// Arguments of the probe, with `{}` for values known only at the run.
    pub probe: &'static str,
    /// Figures of the workload. The first is compared between systems.
    pub metrics: &'static [Metric],
    /// Sender of the bulk.
    pub sender: Sender,
    /// Whether it is measured on request only: other forwarders may come to a standstill by it, or it takes a
    /// variant of brodo.
    pub on_request: bool,
    /// The workload whose rate over veth, halved, paces this one.
    pub half_of: Option<&'static str>,
}

const BULK: &[Metric] = &[Metric::Throughput, Metric::Retransmissions, Metric::CpuPerGib];
const LATENCY: &[Metric] = &[Metric::P50, Metric::P99, Metric::OperationRate, Metric::CpuPerOperation];
const DATAGRAMS: &[Metric] =
    &[Metric::Throughput, Metric::Loss, Metric::DatagramRate, Metric::CpuPerDatagram];
const SMALL: &[Metric] = &[Metric::DatagramRate, Metric::Loss, Metric::CpuPerDatagram];
const PACED: &[Metric] = &[Metric::Loss, Metric::Throughput, Metric::CpuPerDatagram];
const MIX: &[Metric] = &[Metric::P50, Metric::P99, Metric::Throughput];
const BESIDE: &[Metric] = &[Metric::Throughput, Metric::DatagramRate, Metric::Loss, Metric::Retransmissions];
const ALONE: &[Metric] = &[Metric::P50, Metric::P99];

/// A line of the table.
const fn kind(
    name: &'static str,
    what: &'static str,
    flows: &'static [usize],
    probe: &'static str,
    metrics: &'static [Metric],
    sender: Sender,
) -> Kind {
    Kind { name, what, flows, probe, metrics, sender, on_request: false, half_of: None }
}

/// All kinds, in the order of the report. A paced kind comes after the kind that paces it.
#[rustfmt::skip]
pub static KINDS: [Kind; 16] = [
    kind("up", "TCP bulk from the guest", &[1, 4, 16], "up {host} {bulk} {flows} {seconds}", BULK, Sender::Guest),
    kind("down", "TCP bulk to the guest", &[1, 4, 16], "down {host} {bulk} {flows} {seconds}", BULK, Sender::Host),
    kind("crr", "connect, one byte there and back, close; a process per flow", &[1, 2, 4, 8],
        "crr {host} {respond} {flows} {seconds}", LATENCY, Sender::Guest),
    kind("rr", "one byte there and back on an open connection; a process per flow", &[1, 2, 4, 8],
        "rr {host} {respond} {flows} {seconds}", LATENCY, Sender::Guest),
    Kind { on_request: true, ..kind("http", "connect, a request of HTTP and its answer, close; a process per flow", &[1],
        "http {host} {respond} {flows} {seconds}", LATENCY, Sender::Guest) },
    kind("uup", "UDP datagrams of 1400 bytes from the guest as fast as they go", &[],
        "datagrams-up {host} {bulk} 1400 {seconds}", DATAGRAMS, Sender::Guest),
    kind("udown", "UDP datagrams of 1400 bytes to the guest as fast as they go", &[],
        "datagrams-down {host} {bulk} 1400 {seconds}", DATAGRAMS, Sender::Host),
    kind("uup64", "UDP datagrams of 64 bytes from the guest as fast as they go", &[],
        "datagrams-up {host} {bulk} 64 {seconds}", SMALL, Sender::Guest),
    kind("udown64", "UDP datagrams of 64 bytes to the guest as fast as they go", &[],
        "datagrams-down {host} {bulk} 64 {seconds}", SMALL, Sender::Host),
    Kind { half_of: Some("uup"), ..kind("uup-half", "UDP datagrams of 1400 bytes from the guest at half the rate that veth delivers", &[],
        "datagrams-up {host} {bulk} 1400 {seconds} {rate}", PACED, Sender::Guest) },
    Kind { half_of: Some("udown"), ..kind("udown-half", "UDP datagrams of 1400 bytes to the guest at half the rate that veth delivers", &[],
        "datagrams-down {host} {bulk} 1400 {seconds} {rate}", PACED, Sender::Host) },
    kind("mix-none", "one byte there and back every 2 ms beside nothing else", &[],
        "mix up {host} {bulk} {respond} 0 {seconds}", ALONE, Sender::Guest),
    kind("mix-up", "one byte there and back every 2 ms beside four bulk flows from the guest", &[],
        "mix up {host} {bulk} {respond} 4 {seconds}", MIX, Sender::Guest),
    kind("mix-down", "one byte there and back every 2 ms beside four bulk flows to the guest", &[],
        "mix down {host} {bulk} {respond} 4 {seconds}", MIX, Sender::Host),
    Kind { on_request: true, ..kind("up-flood", "one TCP bulk flow from the guest beside datagrams of 9,000 bytes to it, as fast as they go", &[],
        "beside-datagrams up {host} {bulk} 9000 {seconds}", BESIDE, Sender::Guest) },
    Kind { on_request: true, ..kind("down-flood", "one TCP bulk flow to the guest beside datagrams of 9,000 bytes from it, as fast as they go", &[],
        "beside-datagrams down {host} {bulk} 9000 {seconds}", BESIDE, Sender::Host) },
];

/// A kind and a number of flows, written as in "up4"; or a kind whose flows are part of it, as in "uup".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Kind of traffic.
    pub kind: &'static Kind,
    /// Number of concurrent flows, 1 to 64.
    pub flows: usize,
}

impl Workload {
    /// Workloads measured by default.
    pub fn all() -> Vec<Self> {
        let of = |kind: &'static Kind| kind.flows.iter().copied().map(move |flows| Self { kind, flows });
        let alone = |kind: &'static Kind| kind.flows.is_empty().then_some(Self { kind, flows: 1 });
        let wanted = KINDS.iter().filter(|kind| !kind.on_request);
        wanted.flat_map(|kind| of(kind).chain(alone(kind))).collect()
    }

    /// The figure by which systems are compared.
    pub fn main_metric(self) -> Metric {
        self.kind.metrics[0]
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(kind) = KINDS.iter().find(|kind| kind.name == text && kind.flows.is_empty()) {
            return Ok(Self { kind, flows: 1 });
        }
        let numbered = KINDS.iter().find_map(|kind| {
            let flows = text.strip_prefix(kind.name).filter(|_| !kind.flows.is_empty())?.parse().ok()?;
            (1..=64).contains(&flows).then_some(Self { kind, flows })
        });
        numbered.ok_or_else(|| {
            let names: Vec<String> = KINDS
                .iter()
                .map(
                    |kind| {
                        if kind.flows.is_empty() { kind.name.to_owned() } else { format!("{}N", kind.name) }
                    },
                )
                .collect();
            format!("{text:?} is not a workload; there are {} (N: flows, 1 to 64)", names.join(", "))
        })
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name)?;
        if self.kind.flows.is_empty() { Ok(()) } else { write!(f, "{}", self.flows) }
    }
}

#[cfg(test)]
mod tests {
    //! Names of workloads.

    use super::*;
    use serde_json::json;

    #[test]
    fn every_name_is_understood_and_nothing_else() {
        for workload in Workload::all() {
            assert_eq!(workload.to_string().parse(), Ok(workload));
        }
        assert_eq!("up7".parse::<Workload>().map(|w| (w.kind.name, w.flows)), Ok(("up", 7)));
        for wrong in ["", "up", "up0", "up65", "uup7", "sideways1", "crr-1"] {
            assert!(wrong.parse::<Workload>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn few_answers_are_no_latency() {
        let outcome = |found| Outcome { found, cpu_ms: None, retransmissions: 0 };
        let mix = |count: u64| outcome(json!({ "bytes": 1, "count": count, "p50_us": 612_000.0 }));
        assert_eq!(mix(1).few_answers(20), Some(1));
        assert_eq!(mix(19).few_answers(20), Some(19));
        assert_eq!(mix(20).few_answers(20), None);
        assert_eq!(outcome(json!({ "bytes": 1 })).few_answers(20), None, "bulk alone");
    }

    #[test]
    fn pacing_workloads_come_before_paced_ones() {
        for (i, kind) in KINDS.iter().enumerate() {
            if let Some(name) = kind.half_of {
                assert!(KINDS[..i].iter().any(|earlier| earlier.name == name), "{}", kind.name);
            }
        }
    }
}
