//! Metrics of the workers as text for Prometheus.
//!
//! Names: a counter `x` is `brodo_x_total`, a gauge `brodo_x`, with the unit behind it unless `x` ends with
//! it. Sums over all workers, except what
//! says which worker it is about. Counters are not listed here: each set of them describes itself
//! ([`brodo_core::metric`]).

use super::policy::{stage_of, verdict_of};
use super::view::{PolicyMetrics, View};
use crate::prometheus::Text;
use brodo_core::counters::{Counters, DropReason};
use brodo_core::metric::{Kind, Metric, Unit};
use brodo_core::policy::Tallied;
use brodo_net::command::{EdgeCounters, ForwardsReport};
use std::collections::BTreeMap;
use std::fmt::Display;

/// Name of a metric's family.
fn family_name(metric: &Metric) -> String {
    let unit = match metric.unit {
        Unit::Bytes if !metric.name.ends_with("bytes") => "_bytes",
        Unit::Bytes | Unit::Count => "",
    };
    let total = if metric.kind == Kind::Counter { "_total" } else { "" };
    format!("brodo_{}{unit}{total}", metric.name)
}

/// Adds a family of one sample, by its description.
fn one(text: &mut Text, metric: &Metric, value: impl Display) {
    text.one(&family_name(metric), metric.kind, metric.help, value);
}

/// All metrics of the workers.
pub(super) fn text(view: &View) -> String {
    let mut text = Text::default();
    let version = [("version", env!("CARGO_PKG_VERSION").to_owned())];
    text.family("brodo_build_info", Kind::Gauge, "Always 1; the version of brodo", [(version, 1)]);
    counters(&mut text, view);
    policy(&mut text, view);
    flows(&mut text, view);
    forwards(&mut text, view);
    edges(&mut text, view);
    memory(&mut text, view);
    workers(&mut text, view);
    text.into_string()
}

fn counters(text: &mut Text, view: &View) {
    let mut sum = Counters::default();
    view.workers.iter().for_each(|worker| sum.add(&worker.counters));
    sum.described().for_each(|(metric, value)| one(text, &metric, value));
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

fn policy(text: &mut Text, view: &View) {
    let Some(policy) = &view.policy else { return };
    let decisions = policy.decisions.iter().map(|&Tallied { stage, ruling, by, count }| {
        let labels =
            [("stage", stage_of(stage).name()), ("verdict", verdict_of(ruling).name()), ("reason", by)];
        (labels.map(|(label, word)| (label, word.to_owned())), count)
    });
    let help = "Decisions of the policy, by step, verdict and reason";
    text.family("brodo_policy_decisions_total", Kind::Counter, help, decisions);
    rules(text, policy);
    let gates: u32 = view.workers.iter().map(|worker| worker.gates).sum();
    let help = "Flows behind gates: connections whose server has no name yet, and flows of QUIC";
    text.one("brodo_policy_gates", Kind::Gauge, help, gates);
    let help = "Time for which gates were closed before they opened";
    text.one("brodo_policy_gate_seconds_total", Kind::Counter, help, policy.gate_time.as_secs_f64());
    let help = "Addresses that hold for a name of the policy";
    text.one("brodo_policy_pins", Kind::Gauge, help, policy.pins);
    let help = "Addresses that made room for others";
    text.one("brodo_policy_pins_evicted_total", Kind::Counter, help, policy.evicted);
    text.one("brodo_policy_asked", Kind::Gauge, "Destinations about which a person is asked", policy.asked);
    let help = "1 if the policy observes, and refuses nothing";
    text.one("brodo_policy_observes", Kind::Gauge, help, u8::from(policy.observes));
    text.one("brodo_policy_generation", Kind::Gauge, "Number of changes of the policy", policy.generation);
}

/// Totals of allow rules.
fn rules(text: &mut Text, PolicyMetrics { totals, .. }: &PolicyMetrics) {
    let flows = totals.iter().map(|(rule, total)| ([("rule", rule.to_string())], total.flows));
    let help = "Flows that have ended, by the rule that allowed them";
    text.family("brodo_policy_rule_flows_total", Kind::Counter, help, flows);
    let bytes = totals.iter().flat_map(|(rule, total)| {
        let by = |direction: &str, bytes| {
            ([("rule", rule.to_string()), ("direction", direction.to_owned())], bytes)
        };
        [by("from_guest", total.bytes[0]), by("to_guest", total.bytes[1])]
    });
    let help = "Bytes of flows that have ended, by rule and direction";
    text.family("brodo_policy_rule_bytes_total", Kind::Counter, help, bytes);
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
    let own = view.workers.iter().find_map(|worker| worker.forwards);
    let ForwardsReport { entries, listeners, .. } = own.unwrap_or_default();
    text.one("brodo_forwards", Kind::Gauge, "Forwards: ports and ranges of ports", entries);
    text.one("brodo_forward_listeners", Kind::Gauge, "Listening sockets of forwarded ports", listeners);
}

/// Counters of link, re-steering and forwards.
fn edges(text: &mut Text, view: &View) {
    let mut sum = EdgeCounters::default();
    view.workers.iter().for_each(|worker| sum.add(&worker.edges));
    sum.described().for_each(|(metric, value)| one(text, &metric, value));
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
        ("memory_used", "Memory that holds payload of flows", view.memory_used),
        ("memory_reserved", "Receive memory committed to advertised windows", view.memory_reserved),
        ("memory_budget", "Bound of the memory for payload of flows", view.memory_budget),
    ] {
        one(text, &Metric { name, kind: Kind::Gauge, unit: Unit::Bytes, help }, bytes);
    }
}

/// The loops' counters, a sample for each worker.
fn workers(text: &mut Text, view: &View) {
    text.one("brodo_workers", Kind::Gauge, "Worker threads", view.workers.len());
    let mut loops: Vec<_> = view.workers.iter().map(|worker| worker.activity.described()).collect();
    loop {
        let counted: Vec<_> = loops.iter_mut().filter_map(Iterator::next).collect();
        let Some((metric, _)) = counted.first() else { break };
        let samples = (1..)
            .zip(&counted)
            .map(|(number, (_, value)): (u32, _)| ([("worker", number.to_string())], value));
        text.family(&family_name(metric), metric.kind, metric.help, samples);
    }
}

#[cfg(test)]
pub(crate) mod tests;
