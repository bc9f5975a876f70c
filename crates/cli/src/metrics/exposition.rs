//! Prometheus' text format, version 0.0.4: families of a HELP line, a TYPE line and samples.
//!
//! Library weighed: prometheus-client writes OpenMetrics from metric objects that it owns; here values are
//! copied from workers at each scrape, and the text format is the thirty lines of [`Text`].
//!
//! Names: a counter of the stack's `x` is `brodo_x_total`; metrics of the process have the names of
//! Prometheus' own libraries. Sums over all workers, except what says which worker it is about.

use super::view::View;
use crate::own_process::OwnProcess;
use brodo_core::counters::{Counters, DropReason};
use brodo_net::driver::Activity;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Monotonic until the process ends.
    Counter,
    /// A value that may fall.
    Gauge,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// A text under construction.
#[derive(Default)]
struct Text(String);

impl Text {
    /// One family. Its samples are their labels and their values.
    fn family<L, V>(&mut self, name: &str, kind: Kind, help: &str, samples: impl IntoIterator<Item = (L, V)>)
    where
        L: AsRef<[(&'static str, String)]>,
        V: Display,
    {
        // Writing to a string cannot fail.
        let help = help.trim().trim_end_matches('.').replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(self.0, "# HELP {name} {help}.\n# TYPE {name} {}\n", kind.name());
        for (labels, value) in samples {
            self.0.push_str(name);
            for (number, (label, text)) in labels.as_ref().iter().enumerate() {
                let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = write!(self.0, "{}{label}=\"{text}\"", if number == 0 { "{" } else { "," });
            }
            if !labels.as_ref().is_empty() {
                self.0.push('}');
            }
            let _ = writeln!(self.0, " {value}");
        }
    }

    /// A family of one sample.
    fn one(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help, [([], value)]);
    }
}

/// All metrics.
pub(super) fn text(view: &View, process: &OwnProcess) -> String {
    let mut text = Text::default();
    let version = [("version", env!("CARGO_PKG_VERSION").to_owned())];
    text.family("brodo_build_info", Kind::Gauge, "Always 1; the version of brodo", [(version, 1)]);
    counters(&mut text, view);
    flows(&mut text, view);
    forwards(&mut text, view);
    memory(&mut text, view);
    workers(&mut text, view);
    facts(&mut text, process);
    text.0
}

fn counters(text: &mut Text, view: &View) {
    let mut sum = Counters::default();
    view.workers.iter().for_each(|worker| sum.add(&worker.counters));
    for (name, help, value) in sum.described() {
        text.one(&format!("brodo_{name}_total"), Kind::Counter, help, value);
    }
    let drops =
        DropReason::ALL.iter().map(|&reason| ([("reason", reason.name().to_owned())], sum.dropped(reason)));
    text.family("brodo_drops_total", Kind::Counter, "Packets dropped, by reason", drops);
    let mut rules = BTreeMap::new();
    for (rule, count) in view.workers.iter().flat_map(|worker| &worker.rules) {
        *rules.entry(rule).or_insert(0) += count;
    }
    let refused = rules.into_iter().map(|(rule, count)| ([("rule", rule.clone())], count));
    text.family("brodo_refused_total", Kind::Counter, "Flows refused, by rule", refused);
    let help = "Frames of the guest that its kernel dropped because the transmit queue was full";
    text.one("brodo_link_ring_dropped_total", Kind::Counter, help, view.ring_dropped);
    let help = "Frames that the transmit queue of the guest's interface holds";
    text.one("brodo_link_ring_frames", Kind::Gauge, help, view.ring_frames);
}

fn flows(text: &mut Text, view: &View) {
    let flows = view.workers.iter().flat_map(|worker| &worker.flows);
    let flows = sums(flows).map(|((protocol, direction, carrier), count)| {
        let labels = [("protocol", protocol), ("direction", direction), ("carrier", carrier)];
        (labels.map(|(label, word)| (label, word.to_owned())), count)
    });
    let help = "Flows open now, by protocol, direction of opening and carrier";
    text.family("brodo_flows", Kind::Gauge, help, flows);
    let limited = view.workers.iter().flat_map(|worker| &worker.limited);
    let limited = sums(limited).map(|((direction, by), count)| {
        ([("direction", direction.to_owned()), ("by", by.replace(' ', "-"))], count)
    });
    let help = "TCP connections open now, by direction and limiting factor";
    text.family("brodo_tcp_limited", Kind::Gauge, help, limited);
}

fn forwards(text: &mut Text, view: &View) {
    let (forwards, listeners) = view.workers.iter().find_map(|worker| worker.forwards).unwrap_or_default();
    text.one("brodo_forwards", Kind::Gauge, "Forwards: ports and ranges of ports", forwards);
    text.one("brodo_forward_listeners", Kind::Gauge, "Listening sockets of forwarded ports", listeners);
    let counted = view.workers.iter().flat_map(|worker| &worker.forwarded);
    for (name, value) in counted {
        let help = match *name {
            "forward_accepted" => "Connections accepted at forwarded ports",
            "forward_rejected" => "Connections at forwarded ports reset at once",
            "forward_pauses" => "Pauses of accept for lack of descriptors",
            "forward_datagrams" => "Datagrams read from published ports, or runs of them",
            "forward_relayed" => "Datagrams passed between loopbacks, or runs of them",
            "forward_lost" => "Datagrams at forwarded ports that could not be passed on",
            "splice_reset" => "Connections between loopbacks that ended with a reset",
            "splice_refused" => "Connections between loopbacks refused: too many, or an error of epoll",
            _ => "Counted of forwarded ports",
        };
        text.one(&format!("brodo_{name}_total"), Kind::Counter, help, value);
    }
}

/// Adds up values with the same key, in order of the keys.
fn sums<'a, K: Ord + Copy + 'a>(
    counts: impl Iterator<Item = (&'a K, &'a u64)>,
) -> impl Iterator<Item = (K, u64)> {
    let mut sums = BTreeMap::new();
    counts.for_each(|(&key, count)| *sums.entry(key).or_default() += count);
    sums.into_iter()
}

fn memory(text: &mut Text, view: &View) {
    for (name, help, bytes) in [
        ("used", "Memory that holds payload of flows", view.memory_used),
        ("reserved", "Receive memory committed to advertised windows", view.memory_reserved),
        ("budget", "Bound of the memory for payload of flows", view.memory_budget),
    ] {
        text.one(&format!("brodo_memory_{name}_bytes"), Kind::Gauge, help, bytes);
    }
}

type Figure = fn(&Activity) -> u64;

fn workers(text: &mut Text, view: &View) {
    text.one("brodo_workers", Kind::Gauge, "Worker threads", view.workers.len());
    let columns: [(&str, &str, Figure); 4] = [
        ("turns", "Turns of a worker's loop", |done| done.turns),
        ("sleeps", "Turns that began with a sleep", |done| done.sleeps),
        ("polls", "Busy polls before sleep (--busy-poll)", |done| done.polls),
        ("polled", "Busy polls that found work", |done| done.polled),
    ];
    for (name, help, column) in columns {
        let samples = (1..)
            .zip(&view.workers)
            .map(|(number, worker): (u32, _)| ([("worker", number.to_string())], column(&worker.activity)));
        text.family(&format!("brodo_worker_{name}_total"), Kind::Counter, help, samples);
    }
}

fn facts(text: &mut Text, process: &OwnProcess) {
    let help = "Processor time of brodo, in user mode and in the kernel, in seconds";
    text.one("process_cpu_seconds_total", Kind::Counter, help, process.cpu_seconds);
    text.one(
        "process_resident_memory_bytes",
        Kind::Gauge,
        "Resident memory of brodo",
        process.usage.resident_bytes,
    );
    text.one(
        "process_virtual_memory_bytes",
        Kind::Gauge,
        "Address space of brodo",
        process.usage.virtual_bytes,
    );
    let help = "When brodo started, in seconds since 1970";
    text.one("process_start_time_seconds", Kind::Gauge, help, process.start_seconds);
    text.one("process_open_fds", Kind::Gauge, "Open descriptors of brodo", process.open_fds);
    text.one("process_max_fds", Kind::Gauge, "Limit on open descriptors", process.max_fds);
    text.one("process_threads", Kind::Gauge, "Threads of brodo", process.threads);
}

#[cfg(test)]
pub(super) mod tests;
