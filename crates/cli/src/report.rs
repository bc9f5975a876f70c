//! The counters at the end: as text, one counter per line, for people and for `grep`; as fields of one JSON
//! object for programs.
//!
//! The engine adds them up ([`Report::of`]), the warden writes them.

use crate::escape::printable;
use brodo_control::method;
use brodo_core::counters::Counters;
use brodo_net::command::{EdgeCounters, RuleReport, WorkerReport};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Counters by name, in the order of the text.
type Counted = Vec<(String, u64)>;

/// The counters of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Counters of the stack, and the drops of the guest's kernel at its transmit queue.
    counters: Counted,
    /// Counters of link, re-steering and forwards.
    edges: Counted,
    /// Drops by reason, above zero.
    drops: Counted,
    /// Shares of each worker.
    workers: Vec<Counted>,
    /// Refused flows by rule, above zero.
    rules: Counted,
}

fn owned<S: Into<String>>(counted: impl IntoIterator<Item = (S, u64)>) -> Counted {
    counted.into_iter().map(|(name, count)| (name.into(), count)).collect()
}

/// Counters listed for each of several workers.
fn shares(counters: &Counters) -> Counted {
    owned([
        ("rx_frames", counters.rx_frames),
        ("tx_frames", counters.tx_frames),
        ("tcp_opened", counters.tcp_opened),
        ("udp_opened", counters.udp_opened),
    ])
}

impl Report {
    /// The sums of all workers.
    pub(crate) fn of(workers: &[WorkerReport], ring_dropped: u64) -> Self {
        let (mut sum, mut edges) = (Counters::default(), EdgeCounters::default());
        for worker in workers {
            sum.add(&worker.counters);
            edges.add(&worker.edges);
        }
        Self {
            counters: owned(sum.named().chain([("link_ring_dropped", ring_dropped)])),
            edges: owned(edges.named()),
            drops: owned(sum.drops().map(|(reason, count)| (reason.name(), count))),
            workers: workers.iter().map(|worker| shares(&worker.counters)).collect(),
            rules: owned(refusals(workers.iter().map(|worker| worker.rules.as_slice()))),
        }
    }

    /// Every counter as a field, those of [`Report::text`] under the same names: drops in `drops` by reason,
    /// refusals in `rules`, shares in `workers`.
    pub(crate) fn fields(&self) -> Map<String, Value> {
        let object = |counted: &Counted| -> Map<String, Value> {
            counted.iter().map(|(name, count)| (name.clone(), (*count).into())).collect()
        };
        let mut fields = object(&self.counters);
        fields.extend(object(&self.edges));
        fields.insert("drops".into(), object(&self.drops).into());
        fields.insert("rules".into(), object(&self.rules).into());
        fields.insert("workers".into(), self.workers.iter().map(object).collect());
        fields
    }

    /// Every counter of the stack; then, if above zero, those around it and every reason for a drop;
    /// of several workers also the share of each; then the rules with refused flows.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let mut line = |what: &str, (name, count): &(String, u64)| {
            let _ = writeln!(text, "brodo: {what}{} {count}", printable(name));
        };
        self.counters.iter().for_each(|counted| line("", counted));
        self.edges.iter().filter(|(_, count)| *count > 0).for_each(|counted| line("", counted));
        self.drops.iter().for_each(|counted| line("drop ", counted));
        for (number, shares) in (1..).zip(&self.workers).take_while(|_| self.workers.len() > 1) {
            for counted in shares {
                line(&format!("worker {number}: "), counted);
            }
        }
        self.rules.iter().for_each(|counted| line("refused by ", counted));
        text
    }
}

/// Every rule with refused flows and their number, of all workers together, in the order in which they are
/// found. Rules of the shared policy have a place in each worker's list that depends on its own refusals.
fn refusals<'a>(workers: impl Iterator<Item = &'a [RuleReport]>) -> Vec<(&'a str, u64)> {
    let mut rules: Vec<(&str, u64)> = Vec::new();
    // No map with a random seed, which takes a system call that the engine may not make.
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for RuleReport { rule, refused } in workers.flatten() {
        let place = *places.entry(rule).or_insert(rules.len());
        match rules.get_mut(place) {
            Some((_, sum)) => *sum += refused,
            None => rules.push((rule, *refused)),
        }
    }
    rules.retain(|(_, count)| *count > 0);
    rules
}

impl From<Report> for method::Counters {
    fn from(report: Report) -> Self {
        Self {
            counters: report.counters.into_iter().chain(report.edges).collect(),
            drops: report.drops.into_iter().collect(),
            rules: report.rules.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brodo_core::counters::DropReason;

    fn rule(rule: &str, refused: u64) -> RuleReport {
        RuleReport { rule: rule.to_owned(), refused }
    }

    #[test]
    fn zero_counters_are_listed_and_zero_drops_are_not() {
        let mut worker = WorkerReport::default();
        worker.counters.rx_frames = 7;
        worker.counters.drop(DropReason::SpoofedSource);
        worker.edges.link.refused = 2;
        let text = Report::of(&[worker], 0).text();
        for line in [
            "brodo: rx_frames 7",
            "brodo: tx_frames 0",
            "brodo: link_refused 2",
            "brodo: link_ring_dropped 0",
            "brodo: drop SpoofedSource 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} not in\n{text}");
        }
        assert!(!text.contains("link_down") && !text.contains("Malformed") && !text.contains("worker"));
    }

    #[test]
    fn rules_of_several_workers_are_summed() {
        let first = [rule("floor a", 1), rule("deny b", 0), rule("max c", 0)];
        let second = [rule("floor a", 2), rule("deny b", 5), rule("max c", 0)];
        let refused = refusals([first.as_slice(), &second].into_iter());
        assert_eq!(refused, [("floor a", 3), ("deny b", 5)]);
    }

    #[test]
    fn rules_of_the_policy_are_summed_wherever_they_stand() {
        let first = [rule("floor a", 1), rule("policy name", 2), rule("deny b", 3)];
        let second =
            [rule("floor a", 1), rule("deny b", 10), rule("policy quota", 20), rule("policy name", 30)];
        let refused = refusals([first.as_slice(), &second].into_iter());
        assert_eq!(refused, [("floor a", 2), ("policy name", 32), ("deny b", 13), ("policy quota", 20)]);
    }

    #[test]
    fn several_workers_are_summed_and_listed() {
        let workers = [3, 4].map(|opened| {
            let mut worker = WorkerReport::default();
            worker.counters.tcp_opened = opened;
            worker.counters.drop(DropReason::SpoofedSource);
            worker.edges.link.down = opened;
            worker.rules = vec![rule("deny 10.0.0.0/8", 2)];
            worker
        });
        let report = Report::of(&workers, 1);
        let (text, fields) = (report.text(), Value::from(report.fields()));
        let lines = [
            "brodo: tcp_opened 7",
            "brodo: drop SpoofedSource 2",
            "brodo: worker 1: tcp_opened 3",
            "brodo: worker 2: tcp_opened 4",
            "brodo: refused by deny 10.0.0.0/8 4",
        ];
        for line in lines {
            assert!(text.lines().any(|found| found == line), "{line} not in\n{text}");
        }
        assert_eq!(fields["tcp_opened"], 7);
        assert_eq!((&fields["link_ring_dropped"], &fields["link_down"]), (&1.into(), &7.into()));
        assert_eq!(fields["drops"], serde_json::json!({"SpoofedSource": 2}));
        assert_eq!(fields["workers"][1]["tcp_opened"], 4);
        let read: Report = serde_json::from_value(serde_json::to_value(&report).unwrap()).unwrap();
        assert_eq!(read, report);
        let shown = method::Counters::from(report);
        assert_eq!((shown.counters["tcp_opened"], shown.counters["link_down"]), (7, 7));
        assert_eq!((shown.drops["SpoofedSource"], shown.rules["deny 10.0.0.0/8"]), (2, 4));
    }

    #[test]
    fn a_name_cannot_write_to_the_terminal() {
        let hostile = Report { counters: vec![("\x1b[2J".to_owned(), 1)], ..Report::default() };
        assert!(!hostile.text().contains('\x1b'));
    }
}
