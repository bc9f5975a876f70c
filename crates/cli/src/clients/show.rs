//! Replies of instances as text for people: it fits the terminal, and control characters are escaped.

use super::table::{Column, table};
use crate::escape::printable;
use crate::timestamp::Timestamp;
use crate::units::{age, bytes, time};
use brodo_control::event::Event;
use brodo_control::flow::{Carrier, Flow, FlowEnd, Half, Protocol, TuningStep};
use brodo_control::method::{
    Bulk, BulkCarrier, CaptureStatus, Counters, FlowDetail, Forward, Side, Status, Upgrades,
};
use brodo_control::policy::{Decision, PolicyChange, Ruling, subject};
use std::fmt::Write as _;

/// Words separated by commas, or a dash for none.
fn list(words: impl IntoIterator<Item = String>) -> String {
    let words: Vec<_> = words.into_iter().collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

/// An instance: a heading, and a line for each property.
pub(super) fn status(status: &Status) -> String {
    let networks = &status.networks;
    let addresses = list(networks.iter().map(|net| format!("{}/{}", net.address, net.prefix_len)));
    let memory = &status.memory;
    let capture = status.capture.as_ref().map_or_else(|| "none".to_owned(), capture_words);
    let lines = [
        ("up", format!("{}, version {}", age(status.uptime_s * 1_000_000), status.version)),
        ("guest", format!("{} on {}, MTU {}", addresses, status.interface, status.mtu)),
        ("router", list(networks.iter().map(|net| net.gateway.to_string()))),
        ("dns", list(networks.iter().filter_map(|net| net.dns).map(|dns| dns.to_string()))),
        ("resolvers", list(status.resolvers.iter().map(ToString::to_string))),
        ("flows", format!("{} of {}", status.flows, status.flows_max)),
        (
            "data",
            format!(
                "{} held and {} reserved of {}",
                bytes(memory.used),
                bytes(memory.reserved),
                bytes(memory.budget)
            ),
        ),
        ("memory", bytes(status.rss_bytes)),
        (
            "processor",
            format!(
                "{} user, {} system, {} worker{}",
                time(status.cpu_user_us),
                time(status.cpu_system_us),
                status.workers,
                if status.workers == 1 { "" } else { "s" }
            ),
        ),
        ("capture", capture),
        ("bulk", bulk(&status.bulk)),
        ("confined", printable(&confinement(status))),
        ("upgrades", printable(&upgrades(status.upgrades.as_ref()))),
    ];
    let mut text = format!("brodo {}: {} {}\n", status.pid, status.command, printable(&status.target));
    for (name, value) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<10} {value}");
    }
    text
}

/// The carrier of bulk flows.
pub(super) fn bulk(bulk: &Bulk) -> String {
    let promoted = match (bulk.carrier, bulk.promoted) {
        (BulkCarrier::Tap, 0) => String::new(),
        (_, promoted) => format!(", {promoted} promoted"),
    };
    let unavailable = bulk.unavailable.as_ref().map(|why| format!(" (kernel is not available: {why})"));
    printable(&format!("{}{promoted}{}", bulk.carrier.name(), unavailable.unwrap_or_default()))
}

/// Confinement of the engine, and crashes of earlier ones.
fn confinement(status: &Status) -> String {
    match status.crashes {
        0 => status.confinement.clone(),
        1 => format!("{}; 1 engine has crashed", status.confinement),
        crashes => format!("{}; {crashes} engines have crashed", status.confinement),
    }
}

/// Upgrades in place, and a failed attempt after them.
fn upgrades(upgrades: Option<&Upgrades>) -> String {
    let Some(upgrades) = upgrades else { return "none".to_owned() };
    let mut text = upgrades.count.to_string();
    if let Some(last) = &upgrades.last {
        let _ = write!(text, ", the last at {} with a pause of {}", last.time, pause(last.pause_us));
    }
    if let Some(failed) = &upgrades.failure {
        let _ = write!(text, "; failed at {}: {}", failed.time, failed.reason);
    }
    text
}

/// The pause of an upgrade.
pub(super) fn pause(us: u64) -> String {
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}

fn capture_words(capture: &CaptureStatus) -> String {
    let file = printable(&capture.file.display().to_string());
    let filter = capture.filter.as_deref().map(|filter| format!(", only {}", printable(filter)));
    let filter = filter.unwrap_or_default();
    format!("{file}{filter}: {} frames, {} bytes", capture.frames, bytes(capture.bytes))
}

/// A capture, as a line.
pub(super) fn capture(capture: Option<&CaptureStatus>) -> String {
    capture.map_or_else(|| "no capture is under way\n".to_owned(), |c| capture_words(c) + "\n")
}

const FLOW_COLUMNS: [Column; 14] = [
    Column { title: "ID", right: false, rank: 4 },
    Column { title: "PROTO", right: false, rank: 1 },
    Column { title: "DIR", right: false, rank: 8 },
    Column { title: "CARRIER", right: false, rank: 11 },
    Column { title: "GUEST", right: false, rank: 7 },
    Column { title: "REMOTE", right: false, rank: 0 },
    Column { title: "STATE", right: false, rank: 5 },
    Column { title: "AGE", right: true, rank: 6 },
    Column { title: "IDLE", right: true, rank: 9 },
    Column { title: "OUT", right: true, rank: 0 },
    Column { title: "IN", right: true, rank: 0 },
    Column { title: "RTT", right: true, rank: 3 },
    Column { title: "RETRANS", right: true, rank: 10 },
    Column { title: "LIMITED BY", right: false, rank: 2 },
];

/// Flows as a table.
pub(super) fn flows(flows: &[Flow], width: Option<usize>) -> String {
    let rows: Vec<Vec<String>> = flows.iter().map(flow_row).collect();
    table(&FLOW_COLUMNS, &rows, width)
}

fn flow_row(flow: &Flow) -> Vec<String> {
    let rtt = flow.remote_rtt_us.or(flow.rtt_us);
    vec![
        flow.id.to_string(),
        flow.protocol.to_string(),
        if flow.direction == brodo_control::flow::FlowDirection::Inbound { "in" } else { "out" }.to_owned(),
        flow.carrier.to_string(),
        flow.guest.to_string(),
        peer(flow),
        printable(&flow.state),
        time(flow.age_us),
        time(flow.idle_us),
        bytes(flow.from_guest.bytes),
        bytes(flow.to_guest.bytes),
        rtt.map_or_else(|| "-".to_owned(), time),
        flow.tcp.as_ref().map_or_else(|| "-".to_owned(), |tcp| tcp.retransmissions.to_string()),
        limited_by(flow),
    ]
}

fn peer(flow: &Flow) -> String {
    match (&flow.name, flow.protocol) {
        (Some(name), Protocol::Echo) => printable(name),
        (Some(name), _) => format!("{}:{}", printable(name), flow.remote.port()),
        (None, Protocol::Echo) => flow.remote.ip().to_string(),
        (None, _) => flow.remote.to_string(),
    }
}

/// The limiting factor of a connection: of the direction that is not limited by the application, if there is
/// one.
fn limited_by(flow: &Flow) -> String {
    let Some(tcp) = &flow.tcp else { return "-".to_owned() };
    let (out, into) = (&tcp.from_guest.limited_by, &tcp.to_guest.limited_by);
    match (out.as_str(), into.as_str()) {
        (out, into) if out == into => printable(out),
        ("application", into) => format!("in {}", printable(into)),
        (out, "application") => format!("out {}", printable(out)),
        (out, into) => format!("out {}, in {}", printable(out), printable(into)),
    }
}

/// One flow in detail.
pub(super) fn flow(detail: &FlowDetail) -> String {
    let flow = &detail.flow;
    let mut text = format!(
        "{} {} {}{} {} {} {}\n  age        {}, idle {}\n",
        flow.id,
        flow.protocol,
        by(flow.carrier),
        flow.guest,
        if flow.direction == brodo_control::flow::FlowDirection::Inbound { "<-" } else { "->" },
        flow.remote,
        printable(&flow.state),
        time(flow.age_us),
        time(flow.idle_us)
    );
    // Writing to a string cannot fail.
    if let Some(name) = &flow.name {
        let _ = writeln!(text, "  name       {}", printable(name));
    }
    let traffic = [("out", &flow.from_guest), ("in", &flow.to_guest)];
    for (name, traffic) in traffic {
        let _ = writeln!(text, "  {name:<10} {} in {} packets", bytes(traffic.bytes), traffic.packets);
    }
    let known = |us: Option<u64>| us.map_or_else(|| "-".to_owned(), time);
    if let Some(tcp) = &flow.tcp {
        let _ = writeln!(
            text,
            "  rtt        {} to the peer, {} to the guest\n  mss        {}\n  retrans    {} segments",
            known(flow.remote_rtt_us),
            known(flow.rtt_us),
            tcp.mss,
            tcp.retransmissions
        );
        text.push_str(&half("out", &tcp.from_guest));
        text.push_str(&half("in", &tcp.to_guest));
    }
    if !detail.history.is_empty() {
        text.push('\n');
        text.push_str(&history(&detail.history));
    }
    text
}

fn half(name: &str, half: &Half) -> String {
    let mut text = format!(
        "\n  {name}: limited by {}\n    limit    {} of {}, grew {} times, shrank {}\n    window   {}, {} in flight, {} held\n",
        printable(&half.limited_by),
        bytes(half.limit.into()),
        bytes(half.limit_max.into()),
        half.grows,
        half.shrinks,
        bytes(half.window.into()),
        bytes(half.in_flight.into()),
        bytes(half.held.into())
    );
    let mut limits: Vec<_> = half.limited_us.iter().collect();
    limits.sort_by(|a, b| b.1.cmp(a.1));
    for (by, &us) in limits {
        let _ = writeln!(text, "    {:>8} {}", time(us), printable(by));
    }
    text
}

const HISTORY_COLUMNS: [Column; 7] = [
    Column { title: "AGO", right: true, rank: 0 },
    Column { title: "DIR", right: false, rank: 0 },
    Column { title: "FROM", right: true, rank: 0 },
    Column { title: "TO", right: true, rank: 0 },
    Column { title: "CAUSE", right: false, rank: 0 },
    Column { title: "PER RTT", right: true, rank: 0 },
    Column { title: "RTT", right: true, rank: 0 },
];

fn history(steps: &[TuningStep]) -> String {
    let row = |step: &TuningStep| {
        vec![
            time(step.ago_us),
            if step.from_guest { "out" } else { "in" }.to_owned(),
            bytes(step.from.into()),
            bytes(step.to.into()),
            printable(&step.cause),
            bytes(step.per_rtt.into()),
            time(step.rtt_us.into()),
        ]
    };
    table(&HISTORY_COLUMNS, &steps.iter().map(row).collect::<Vec<_>>(), None)
}

/// Counters above zero.
pub(super) fn counters(counters: &Counters) -> String {
    let mut text = String::new();
    let kinds = [("", &counters.counters), ("drop ", &counters.drops), ("rule ", &counters.rules)];
    for (kind, counts) in kinds {
        for (name, count) in counts.iter().filter(|(_, count)| **count > 0) {
            let _ = writeln!(text, "{count:>14}  {kind}{}", printable(name));
        }
    }
    text
}

const FORWARD_COLUMNS: [Column; 5] = [
    Column { title: "ID", right: true, rank: 0 },
    Column { title: "OPTION", right: false, rank: 0 },
    Column { title: "SPEC", right: false, rank: 0 },
    Column { title: "SOCKETS", right: true, rank: 0 },
    Column { title: "LISTENING", right: false, rank: 1 },
];

/// Forwarded ports as a table.
pub(super) fn forwards(forwards: &[Forward], width: Option<usize>) -> String {
    if forwards.is_empty() {
        return "no ports are forwarded\n".to_owned();
    }
    let row = |forward: &Forward| {
        let option = match (forward.side, forward.protocol) {
            (Side::Host, Protocol::Udp) => "-u",
            (Side::Host, _) => "-t",
            (Side::Guest, Protocol::Udp) => "-U",
            (Side::Guest, _) => "-T",
        };
        vec![
            forward.id.to_string(),
            option.to_owned(),
            printable(&forward.spec),
            forward.sockets.to_string(),
            list(forward.listening.iter().map(ToString::to_string)),
        ]
    };
    table(&FORWARD_COLUMNS, &forwards.iter().map(row).collect::<Vec<_>>(), width)
}

/// Events as lines, each behind its time.
#[derive(Debug, Default)]
pub(super) struct EventLines {
    /// Generation of the policy after its last change.
    changed: Option<u64>,
}

impl EventLines {
    /// The line of an event that has come at `now`, in nanoseconds since 1970; empty for the notice of a
    /// change that has a line already.
    pub(super) fn line(&mut self, event: &Event, now: u64) -> String {
        match event {
            Event::FlowOpened { flow } => {
                // One of a version before has none, and its age is that at another moment than now.
                let began = || Timestamp(now.saturating_sub(flow.age_us.saturating_mul(1000))).to_string();
                let time = flow.time.as_deref().map_or_else(began, printable);
                format!("{time} opened {} {} {} {}\n", flow.id, flow.protocol, flow.guest, peer(flow))
            }
            Event::FlowEnded { flow } => ended(flow),
            Event::Notice { text, .. } if self.is_reported(text) => String::new(),
            Event::Notice { time, level, text } => {
                format!("{} {level}: {}\n", printable(time), printable(text))
            }
            Event::Decision { decision } => decided(decision),
            Event::PolicyChanged { change } => {
                let PolicyChange { time, generation, change, .. } = change;
                self.changed = Some(*generation);
                format!("{} policy {}: generation {generation}\n", printable(time), printable(change))
            }
            Event::Lost { count } | Event::DecisionsLost { count } => {
                format!("{} {count} events were lost\n", Timestamp(now))
            }
        }
    }

    /// Whether a notice is about the last change of the policy, and adds nothing to it.
    fn is_reported(&self, notice: &str) -> bool {
        let end = self.changed.map(|generation| format!(": generation {generation}"));
        notice.starts_with("policy") && end.is_some_and(|end| notice.ends_with(&end))
    }
}

/// Equal decisions of the policy.
fn decided(decision: &Decision) -> String {
    let Decision { time, stage, verdict, reason, protocol, remote, name, qtype, count, .. } = decision;
    let verdict = match verdict {
        Ruling::Allow => "allowed",
        Ruling::Deny => "denied",
        Ruling::WouldDeny => "would be denied",
    };
    let what = subject(protocol.as_deref(), *remote, name.as_deref());
    let (time, what, stage) = (printable(time), printable(&what), stage.name());
    let records = qtype.as_deref().map(|qtype| format!(" {}", printable(qtype))).unwrap_or_default();
    let times = if *count > 1 { format!(" ({count} times)") } else { String::new() };
    format!("{time} {verdict} {stage} {what}{records} by {}{times}\n", printable(reason))
}

/// A carrier other than the stack, and a space.
fn by(carrier: Carrier) -> String {
    if carrier == Carrier::Stack { String::new() } else { format!("{carrier} ") }
}

fn ended(flow: &FlowEnd) -> String {
    let name = flow.name.as_deref().map(|name| format!(" {}", printable(name))).unwrap_or_default();
    let rule = flow.rule.as_deref().map(|rule| format!(" by {}", printable(rule))).unwrap_or_default();
    // Denied flows have none: they were never opened.
    let id = flow.id.map(|id| format!("{id} ")).unwrap_or_default();
    format!(
        "{} ended {id}{} {}{} {}{name} {}{rule} after {}, out {}, in {}\n",
        printable(&flow.time),
        flow.protocol,
        by(flow.carrier),
        flow.guest,
        flow.remote,
        printable(&flow.cause),
        time(flow.duration_us),
        bytes(flow.from_guest.bytes),
        bytes(flow.to_guest.bytes)
    )
}

#[cfg(test)]
mod tests;
