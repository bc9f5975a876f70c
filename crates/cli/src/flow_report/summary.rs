//! Sums of the logs: by destination, by refusal, and over time.
//!
//! *Refusals.* A flow log has those of flows, an audit log those of questions too. With both, each refused
//! flow stands in both: then the flow log's line is the one that counts.

use crate::flow_log::read::Line;
use crate::{refusal_reason, suggested_rule};
use brodo_control::flow::{FlowDirection, FlowEnd};
use brodo_control::policy::{ChangeStage, Decision, Ruling, Stage};
use serde::Serialize;
use std::collections::HashMap;

/// Most destinations, and most refusals, that are kept apart.
const ROWS_MAX: usize = 100_000;
/// Addresses listed of one destination.
const ADDRESSES_MAX: usize = 8;
/// Steps in time, and destinations drawn over it.
const STEPS: usize = 240;
const LANES: usize = 16;

/// A destination that was reached, or was to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Reached {
    /// Its name, or else its address.
    pub(super) name: String,
    pub(super) addresses: Vec<String>,
    /// Whether there are further addresses.
    more: bool,
    pub(super) port: u16,
    protocol: String,
    pub(super) flows: u64,
    /// Flows that the host could not open.
    failed: u64,
    /// Bytes from the guest.
    pub(super) out: u64,
    /// Bytes to the guest.
    #[serde(rename = "in")]
    pub(super) back: u64,
    /// Begin of the first flow and end of the last, in milliseconds of Unix time.
    first: i64,
    last: i64,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Refused {
    pub(super) what: String,
    stage: &'static str,
    reason: String,
    /// The reason as a sentence, if it is none already.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'static str>,
    pub(super) count: u64,
    first: i64,
    last: i64,
    /// Rule that would allow it.
    pub(super) allow: Option<String>,
}

/// A flow on the axis of time.
#[derive(Debug, Clone, Copy)]
struct Interval {
    begin: i64,
    end: i64,
    out: u64,
    back: u64,
    /// Row of its destination; none if it was not opened, or beyond the bound.
    reached: Option<u32>,
    /// Whether its end is a refusal.
    refused: bool,
}

/// Amounts by step of time.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Timeline {
    /// Begin and end, in milliseconds of Unix time; none without flows.
    pub(super) from: Option<i64>,
    pub(super) to: Option<i64>,
    pub(super) out: Vec<f64>,
    #[serde(rename = "in")]
    pub(super) back: Vec<f64>,
    /// Number of lines about refusals.
    pub(super) stopped: Vec<u64>,
    pub(super) lanes: Vec<Lane>,
}

/// One destination over time.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Lane {
    pub(super) label: String,
    pub(super) total: u64,
    pub(super) cells: Vec<f64>,
}

/// The sums.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) reached: Vec<Reached>,
    by_destination: HashMap<(String, u16, String), u32>,
    pub(super) refused: Vec<Refused>,
    by_refusal: HashMap<(String, String), u32>,
    intervals: Vec<Interval>,
    /// Whether there was a flow.
    has_flows: bool,
    /// Refused flows of audit logs, with their times, for the case that there is no flow log.
    audited: Vec<(Box<Decision>, i64)>,
    /// Further ones, beyond the bound, which are only counted.
    unkept: u64,
    /// Flows and decisions that are missing in the logs.
    pub(super) lost: u64,
    /// Lines that are none of a log.
    pub(super) unreadable: u64,
    /// Flows to destinations beyond the bound.
    pub(super) omitted: u64,
}

impl Summary {
    /// Adds a line.
    pub(super) fn add(&mut self, line: &[u8]) {
        match Line::parse(line) {
            Some(Line::Flow(flow)) => match flow.time.parse::<jiff::Timestamp>() {
                Ok(time) => self.add_flow(&flow, time.as_millisecond()),
                Err(_) => self.unreadable += 1,
            },
            Some(Line::Decision(decision)) => match decision.time.parse::<jiff::Timestamp>() {
                Ok(time) => self.add_decision(decision, time.as_millisecond()),
                Err(_) => self.unreadable += 1,
            },
            // Of no destination.
            Some(Line::Change { stage: ChangeStage::Policy }) => {}
            Some(Line::Lost { lost }) => self.lost = self.lost.saturating_add(lost),
            None => self.unreadable += 1,
        }
    }

    /// Ends the sums: without any flow log, refused flows are those of the audit logs.
    pub(super) fn finish(&mut self) {
        let audited = std::mem::take(&mut self.audited);
        if !self.has_flows {
            for (decision, at) in audited {
                self.refuse_decision(&decision, at);
            }
            self.omitted = self.omitted.saturating_add(self.unkept);
        }
    }

    fn add_decision(&mut self, decision: Box<Decision>, at: i64) {
        match (decision.verdict, decision.stage) {
            (Ruling::Allow, _) => {}
            (Ruling::Deny, Stage::Open | Stage::Gate) => {
                // With a flow log it is there.
                if self.has_flows || self.audited.len() == ROWS_MAX {
                    self.unkept = self.unkept.saturating_add(decision.count);
                } else {
                    self.audited.push((decision, at));
                }
            }
            (Ruling::Deny, Stage::Question | Stage::End | Stage::Inbound) | (Ruling::WouldDeny, _) => {
                self.refuse_decision(&decision, at);
            }
        }
    }

    fn refuse_decision(&mut self, decision: &Decision, at: i64) {
        let name = decision.name.as_deref().unwrap_or_default();
        let protocol = decision.protocol.as_deref().unwrap_or("flow");
        let what = match (decision.stage, decision.remote) {
            (Stage::Question, _) | (_, None) => format!("question {name}"),
            (Stage::Inbound, Some(remote)) => format!("{protocol} from {remote}"),
            (_, Some(remote)) if protocol == "ping" => format!("ping {}", remote.ip()),
            (_, Some(remote)) if name.is_empty() => format!("{protocol} {remote}"),
            (_, Some(remote)) => format!("{protocol} {name}:{}", remote.port()),
        };
        let step = match (decision.verdict, decision.stage) {
            (Ruling::WouldDeny, _) => "passed: the policy only observes",
            (_, Stage::Question) => "question",
            (_, Stage::Open) => "opening",
            (_, Stage::Gate) => "name said by the guest",
            (_, Stage::End) => "end of an open flow",
            (_, Stage::Inbound) => "connection or datagram to a published port",
        };
        let Decision { stage, reason, protocol, remote, name, pinned, .. } = decision;
        let (protocol, name) = (protocol.as_deref(), name.as_deref());
        let allow = suggested_rule::for_given(*stage, reason, protocol, *remote, name, pinned);
        self.count_refusal((what, decision.reason.clone()), decision.count, at, || (step, allow));
        let (out, back, reached, refused) = (0, 0, None, true);
        self.intervals.push(Interval { begin: at, end: at, out, back, reached, refused });
    }

    fn add_flow(&mut self, flow: &FlowEnd, end: i64) {
        self.has_flows = true;
        let duration = i64::try_from(flow.duration_us / 1000).unwrap_or(i64::MAX);
        let begin = end.saturating_sub(duration);
        let (out, back) = (flow.from_guest.bytes, flow.to_guest.bytes);
        let refused = flow.cause == "denied";
        if refused {
            self.refuse(flow, end);
        }
        if refused && flow.id.is_none() {
            // It was not opened: none of its bytes were moved.
            let (out, back, reached) = (0, 0, None);
            self.intervals.push(Interval { begin, end, out, back, reached, refused });
            return;
        }
        let reached = self.place(flow, begin, end);
        if let Some(index) = reached {
            let row = &mut self.reached[index as usize];
            let failed = matches!(flow.cause.as_str(), "refused" | "unreachable" | "no-resources");
            row.flows += 1;
            row.failed += u64::from(failed);
            row.out = row.out.saturating_add(out);
            row.back = row.back.saturating_add(back);
            (row.first, row.last) = (row.first.min(begin), row.last.max(end));
            let address = flow.remote.ip().to_string();
            if !row.addresses.contains(&address) {
                row.more = row.addresses.len() == ADDRESSES_MAX;
                if !row.more {
                    row.addresses.push(address);
                }
            }
        } else {
            self.omitted += 1;
        }
        self.intervals.push(Interval { begin, end, out, back, reached, refused });
    }

    /// The row of a flow's destination; none beyond the bound.
    fn place(&mut self, flow: &FlowEnd, first: i64, last: i64) -> Option<u32> {
        let name = flow.name.clone().unwrap_or_else(|| flow.remote.ip().to_string());
        let protocol = flow.protocol.to_string();
        let (port, protocol) = match flow.direction {
            FlowDirection::Inbound => (flow.guest.port(), format!("{protocol}, from outside")),
            FlowDirection::Outbound if protocol == "echo" => (0, "ping".to_owned()),
            FlowDirection::Outbound => (flow.remote.port(), protocol),
        };
        let key = (name, port, protocol);
        if let Some(&index) = self.by_destination.get(&key) {
            return Some(index);
        }
        if self.reached.len() == ROWS_MAX {
            return None;
        }
        let index = self.reached.len() as u32;
        let (name, port, protocol) = key.clone();
        let (addresses, more, (flows, failed, out, back)) = Default::default();
        self.reached.push(Reached {
            name,
            addresses,
            more,
            port,
            protocol,
            flows,
            failed,
            out,
            back,
            first,
            last,
        });
        self.by_destination.insert(key, index);
        Some(index)
    }

    fn refuse(&mut self, flow: &FlowEnd, at: i64) {
        let reason = flow.rule.clone().unwrap_or_default();
        let name = flow.name.clone().unwrap_or_else(|| flow.remote.ip().to_string());
        let protocol = flow.protocol.to_string();
        let ping = protocol == "echo";
        let what =
            if ping { format!("ping {name}") } else { format!("{protocol} {name}:{}", flow.remote.port()) };
        let stage = if flow.id.is_some() { "name said by the guest" } else { "opening" };
        self.count_refusal((what, reason), 1, at, || {
            let protocol = flow.protocol.to_string();
            let reason = flow.rule.as_deref().unwrap_or_default();
            let allow = suggested_rule::for_flow(reason, &protocol, flow.remote, flow.name.as_deref());
            (stage, allow)
        });
    }

    /// Counts refusals of one thing for one reason; `about` is asked for the first.
    fn count_refusal(
        &mut self,
        key: (String, String),
        count: u64,
        at: i64,
        about: impl FnOnce() -> (&'static str, Option<String>),
    ) {
        let known = self.by_refusal.get(&key).copied();
        let index = match known {
            Some(index) => index,
            None if self.refused.len() == ROWS_MAX => {
                self.omitted += 1;
                return;
            }
            None => {
                let (what, reason) = key.clone();
                let (stage, allow) = about();
                let why = refusal_reason::sentence(&reason);
                self.refused.push(Refused { what, stage, reason, why, count: 0, first: at, last: at, allow });
                let index = self.refused.len() as u32 - 1;
                self.by_refusal.insert(key, index);
                index
            }
        };
        let row = &mut self.refused[index as usize];
        row.count = row.count.saturating_add(count);
        (row.first, row.last) = (row.first.min(at), row.last.max(at));
    }

    /// Amounts over time, with the destinations of most bytes.
    pub(super) fn timeline(&self) -> Timeline {
        let from = self.intervals.iter().map(|interval| interval.begin).min();
        let to = self.intervals.iter().map(|interval| interval.end).max();
        let (Some(begin), Some(end)) = (from, to) else {
            let (out, back, stopped, lanes) = Default::default();
            return Timeline { from: None, to: None, out, back, stopped, lanes };
        };
        // A second at least, so that a step has a length.
        let end = end.max(begin.saturating_add(1000));
        let mut order: Vec<u32> = (0..self.reached.len() as u32).collect();
        let total = |index: u32| {
            let row = &self.reached[index as usize];
            row.out.saturating_add(row.back)
        };
        order.sort_by_key(|&index| std::cmp::Reverse(total(index)));
        order.truncate(LANES);
        let lane = |&index: &u32| {
            let row = &self.reached[index as usize];
            let label = if row.port == 0 { row.name.clone() } else { format!("{}:{}", row.name, row.port) };
            Lane { label, total: total(index), cells: vec![0.0; STEPS] }
        };
        let mut timeline = Timeline {
            from: Some(begin),
            to: Some(end),
            out: vec![0.0; STEPS],
            back: vec![0.0; STEPS],
            stopped: vec![0; STEPS],
            lanes: order.iter().map(lane).collect(),
        };
        let lanes: HashMap<u32, usize> =
            order.iter().enumerate().map(|(lane, &index)| (index, lane)).collect();
        let scale = STEPS as f64 / (end - begin) as f64;
        let step = |at: i64| (((at - begin) as f64 * scale) as usize).min(STEPS - 1);
        for interval in &self.intervals {
            let (first, last) = (step(interval.begin), step(interval.end));
            timeline.stopped[last] += u64::from(interval.refused);
            let lane = interval.reached.and_then(|index| lanes.get(&index));
            let share = 1.0 / (last - first + 1) as f64;
            for at in first..=last {
                timeline.out[at] += interval.out as f64 * share;
                timeline.back[at] += interval.back as f64 * share;
                if let Some(&lane) = lane {
                    timeline.lanes[lane].cells[at] +=
                        (interval.out.saturating_add(interval.back)) as f64 * share;
                }
            }
        }
        timeline
    }
}
