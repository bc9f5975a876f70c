//! The text against the rules of the format, and a few values in it.

use super::super::view::{PolicyMetrics, WorkerMetrics};
use super::*;
use brodo_core::policy::{RuleTotal, Ruling, Stage};
use brodo_core::time::Duration;
use brodo_net::forward::ForwardCounters;
use std::collections::{BTreeMap, BTreeSet};

/// Two workers that have done something.
fn some_view() -> View {
    let mut worker = WorkerMetrics::default();
    worker.counters.tcp_opened = 3;
    worker.counters.drop(DropReason::SpoofedSource);
    worker.activity.turns = 7;
    worker.flows.insert(("tcp", "outbound", "stack"), 2);
    worker.limited.insert(("to_guest", "guest window"), 2);
    worker.rules.insert("deny 10.0.0.0/8".into(), 4);
    worker.edges.link.down = 4;
    let mut other = worker.clone();
    other.flows = BTreeMap::from([(("udp", "inbound", "relay"), 5), (("tcp", "outbound", "stack"), 2)]);
    let mut counters = ForwardCounters { accepted: 9, ..ForwardCounters::default() };
    counters.splices.reset = 6;
    (worker.edges.forwards, worker.edges.resteered.resteered) = (counters, 3);
    worker.forwards = Some(ForwardsReport { entries: 2, listeners: 5 });
    worker.gates = 2;
    let refused = Tallied { stage: Stage::Gate, ruling: Ruling::WouldDeny, by: "no-name", count: 3 };
    let total = RuleTotal { flows: 7, bytes: [70, 700] };
    let policy = PolicyMetrics {
        decisions: vec![refused],
        pins: 4,
        asked: 1,
        observes: true,
        generation: 3,
        totals: vec![("a.example".into(), total)],
        gate_time: Duration::from_millis(1500),
        evicted: 2,
    };
    View {
        workers: vec![worker, other],
        memory_used: 100,
        memory_budget: 1 << 28,
        policy: Some(policy),
        ..View::default()
    }
}

/// Their metrics.
pub(crate) fn some_text() -> String {
    text(&some_view())
}

fn is_name(name: &str, also: &str) -> bool {
    let rest = |c: char| c.is_ascii_alphanumeric() || c == '_' || also.contains(c);
    name.chars().all(rest) && name.chars().next().is_some_and(|c| !c.is_ascii_digit())
}

/// Name and labels of a sample, and its value.
fn sample(line: &str) -> (&str, Vec<(String, String)>, &str) {
    let (series, value) = line.rsplit_once(' ').expect("a value");
    let Some((name, labels)) = series.split_once('{') else { return (series, Vec::new(), value) };
    let labels = labels.strip_suffix('}').expect("an end of the labels");
    let pairs = labels.split("\",").map(|pair| {
        let (label, text) = pair.split_once("=\"").expect("a label");
        (label.to_owned(), text.trim_end_matches('"').to_owned())
    });
    (name, pairs.collect(), value)
}

#[test]
fn the_text_obeys_the_format() {
    let text = text(&some_view());
    assert!(text.ends_with('\n') && !text.contains("\n\n"));
    let (mut families, mut series) = (BTreeSet::new(), BTreeSet::new());
    let mut family: Option<(&str, &str)> = None;
    let mut helped = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a text");
            assert!(help.len() > 10 && help.ends_with('.') && !help.ends_with(".."), "{line}");
            helped = Some(name);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(helped, Some(name), "HELP goes before TYPE");
            assert!(families.insert(name), "{name} comes twice");
            assert!(is_name(name, ":"), "{name}");
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(name.starts_with("brodo_") || name.starts_with("process_"), "{name}");
            family = Some((name, kind));
        } else {
            let (name, labels, value) = sample(line);
            assert_eq!(Some(name), family.map(|(name, _)| name), "outside of its family: {line}");
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            for (label, _) in &labels {
                assert!(is_name(label, "") && !label.starts_with("__"), "{line}");
            }
            assert!(series.insert((name, labels)), "twice: {line}");
        }
    }
}

#[test]
fn everything_that_is_counted_is_there_and_added_up() {
    let text = text(&some_view());
    let samples: BTreeMap<_, _> =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' ')).collect();
    for (series, value) in [
        ("brodo_tcp_opened_total", "6"),
        ("brodo_rx_bytes_total", "0"),
        ("brodo_drops_total{reason=\"SpoofedSource\"}", "2"),
        ("brodo_drops_total{reason=\"MalformedTcp\"}", "0"),
        ("brodo_flows{protocol=\"tcp\",direction=\"outbound\",carrier=\"stack\"}", "4"),
        ("brodo_flows{protocol=\"udp\",direction=\"inbound\",carrier=\"relay\"}", "5"),
        ("brodo_tcp_limited{direction=\"to_guest\",by=\"guest-window\"}", "4"),
        ("brodo_refused_total{rule=\"deny 10.0.0.0/8\"}", "8"),
        ("brodo_policy_decisions_total{stage=\"gate\",verdict=\"would-deny\",reason=\"no-name\"}", "3"),
        ("brodo_policy_gates", "2"),
        ("brodo_policy_pins", "4"),
        ("brodo_policy_asked", "1"),
        ("brodo_policy_observes", "1"),
        ("brodo_forwards", "2"),
        ("brodo_forward_accepted_total", "9"),
        ("brodo_splice_reset_total", "6"),
        ("brodo_link_down_total", "8"),
        ("brodo_frames_resteered_total", "3"),
        ("brodo_memory_budget_bytes", "268435456"),
        ("brodo_worker_turns_total{worker=\"2\"}", "7"),
        ("brodo_workers", "2"),
        (concat!("brodo_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), "1"),
    ] {
        assert_eq!(samples.get(series), Some(&value), "{series} in\n{text}");
    }
    for (name, _) in Counters::default().named().chain(EdgeCounters::default().named()) {
        assert!(samples.contains_key(format!("brodo_{name}_total").as_str()), "{name}");
    }
}

#[test]
fn what_could_break_a_line_is_escaped() {
    let mut text = Text::default();
    let labels = [("rule", "a\"b\\c\nd}".to_owned())];
    text.family("x", Kind::Gauge, " A\\b\nc. ", [(labels, 1)]);
    assert_eq!(text.into_string(), "# HELP x A\\\\b\\nc.\n# TYPE x gauge\nx{rule=\"a\\\"b\\\\c\\nd}\"} 1\n");
}
