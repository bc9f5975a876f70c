//! The source of metrics: copies of the state of each worker, taken on its own thread.

use super::ask::{FLOWS_PER_COMMAND, ask, ask_all};
use crate::flow_messages;
use brodo_control::rpc::Error;
use brodo_core::counters::Counters;
use brodo_core::policy::{RuleTotal, SharedPolicy, Tallied};
use brodo_core::stack::FlowDetail;
use brodo_core::tcp::limiting_factor::LimitingFactor;
use brodo_core::time::{Duration, Instant};
use brodo_net::command::{
    Activity, Command, EdgeCounters, FlowFilter, ForwardsReport, RuleReport, WorkerReport,
};
use brodo_net::txqueuelen::TxQueueLenWatch;
use brodo_net::workers::Workers;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Numbers by two labels.
type Tally = BTreeMap<(&'static str, &'static str), u64>;
/// Protocol, direction and carrier of flows.
pub(super) type FlowKind = (&'static str, &'static str, &'static str);

/// One worker.
#[derive(Debug, Clone, Default)]
pub(super) struct WorkerMetrics {
    pub(super) counters: Counters,
    pub(super) edges: EdgeCounters,
    pub(super) activity: Activity,
    /// Flows open now, by protocol, direction and carrier.
    pub(super) flows: BTreeMap<FlowKind, u64>,
    /// TCP connections by direction and limiting factor.
    pub(super) limited: Tally,
    /// Refused flows by rule.
    pub(super) rules: BTreeMap<String, u64>,
    /// Flows behind gates of the policy.
    pub(super) gates: u32,
    /// Forwarded ports, of the worker that owns them.
    pub(super) forwards: Option<ForwardsReport>,
}

impl WorkerMetrics {
    fn of(report: WorkerReport) -> Self {
        // A rule may be given twice, and then the first of them refuses.
        let mut rules = BTreeMap::new();
        for RuleReport { rule, refused } in report.rules {
            *rules.entry(rule).or_default() += refused;
        }
        Self {
            counters: report.counters,
            edges: report.edges,
            activity: report.activity,
            flows: BTreeMap::new(),
            limited: every_limit(),
            rules,
            gates: report.gates,
            forwards: report.forwards,
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
    /// The policy, if there is one.
    pub(super) policy: Option<PolicyMetrics>,
}

/// The policy that all workers share.
#[derive(Debug, Clone, Default)]
pub(super) struct PolicyMetrics {
    pub(super) decisions: Vec<Tallied>,
    pub(super) pins: usize,
    /// Destinations about which a person is asked.
    pub(super) asked: usize,
    pub(super) observes: bool,
    pub(super) generation: u64,
    /// Flows that have ended, by rule.
    pub(super) totals: Vec<(Arc<str>, RuleTotal)>,
    pub(super) gate_time: Duration,
    pub(super) evicted: u64,
}

impl PolicyMetrics {
    fn of(policy: &SharedPolicy, now: Instant) -> Self {
        Self {
            decisions: policy.tally(),
            pins: policy.pins(),
            asked: policy.asked(now).len(),
            observes: policy.is_observing(),
            generation: policy.generation(),
            totals: policy.rule_totals(),
            gate_time: policy.gate_time(),
            evicted: policy.pins_evicted(),
        }
    }
}

/// Collects from all workers; `None` if they have ended, or one does not reply.
pub(super) fn look(
    workers: &Workers,
    ring: Option<&Arc<TxQueueLenWatch>>,
    policy: Option<&SharedPolicy>,
    now: Instant,
) -> Option<View> {
    // Before the workers' reports: their totals are kept then for an engine after a crash, with all of these.
    let policy = policy.map(|policy| PolicyMetrics::of(policy, now));
    // A task of the first worker.
    ask(workers, 0, |reply| Command::ReadTxQueue { reply }).ok()?;
    let reports = ask_all(workers, |reply| Command::Report { reply }).ok()?;
    // Shared figures: the last worker's are the newest.
    let memory = reports.last().map(|report| report.memory).unwrap_or_default();
    let mut metrics: Vec<WorkerMetrics> = reports.into_iter().map(WorkerMetrics::of).collect();
    for (number, worker) in (0..).zip(&mut metrics) {
        worker.count_flows(workers, number).ok()?;
    }
    let ring_dropped = ring.map_or(0, |ring| ring.dropped());
    let ring_frames = ring.and_then(|ring| ring.frames()).unwrap_or(0);
    Some(View {
        workers: metrics,
        memory_used: memory.used as u64,
        memory_reserved: memory.reserved as u64,
        memory_budget: memory.budget as u64,
        ring_dropped,
        ring_frames,
        policy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_rules_with_the_same_text_are_one_number() {
        let rule = |refused| RuleReport { rule: "deny 192.0.2.0/24".to_owned(), refused };
        let report = WorkerReport { rules: vec![rule(5), rule(0)], ..WorkerReport::default() };
        assert_eq!(WorkerMetrics::of(report).rules["deny 192.0.2.0/24"], 5);
    }
}
