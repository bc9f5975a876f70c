//! The counters at the end: as text, one counter per line, for people and for `grep`; as fields of one JSON
//! object for programs.
//!
//! The engine adds them up ([`Report::of`]), the warden writes them.

use crate::escape::printable;
use brodo_core::counters::Counters;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt::Write;

/// Counters by name, in the order of the text.
type Counted = Vec<(String, u64)>;

/// The counters of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Counters of the stack, and the drops of the guest's kernel at its transmit queue.
    counters: Counted,
    /// Losses and other counters of the link and of forwards.
    link: Counted,
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
    /// The counters of all workers, with the numbers of flows that each has refused by its rules.
    pub(crate) fn of<'a, R: Iterator<Item = (&'a str, u64)>>(
        workers: &[&Counters],
        ring_dropped: u64,
        link: &[(&str, u64)],
        rules: impl Iterator<Item = R>,
    ) -> Self {
        let mut sum = Counters::default();
        for counters in workers {
            sum.add(counters);
        }
        Self {
            counters: owned(sum.named().chain([("link_ring_dropped", ring_dropped)])),
            link: owned(link.iter().copied()),
            drops: owned(sum.drops().map(|(reason, count)| (reason.name(), count))),
            workers: workers.iter().map(|counters| shares(counters)).collect(),
            rules: owned(refusals(rules)),
        }
    }

    /// Every counter as a field, those of [`Report::text`] under the same names: drops in `drops` by reason,
    /// refusals in `rules`, shares in `workers`.
    pub(crate) fn fields(&self) -> Map<String, Value> {
        let object = |counted: &Counted| -> Map<String, Value> {
            counted.iter().map(|(name, count)| (name.clone(), (*count).into())).collect()
        };
        let mut fields = object(&self.counters);
        fields.extend(object(&self.link));
        fields.insert("drops".into(), object(&self.drops).into());
        fields.insert("rules".into(), object(&self.rules).into());
        fields.insert("workers".into(), self.workers.iter().map(object).collect());
        fields
    }

    /// Every counter of the stack; then, if above zero, the losses of the link and every reason for a drop;
    /// of several workers also the share of each; then the rules with refused flows.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let mut line = |what: &str, (name, count): &(String, u64)| {
            let _ = writeln!(text, "brodo: {what}{} {count}", printable(name));
        };
        self.counters.iter().for_each(|counted| line("", counted));
        self.link.iter().filter(|(_, count)| *count > 0).for_each(|counted| line("", counted));
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

/// Every rule with refused flows and their number, of all workers together. Their rules are the same, in the
/// same order.
fn refusals<'a, R: Iterator<Item = (&'a str, u64)>>(workers: impl Iterator<Item = R>) -> Vec<(&'a str, u64)> {
    let mut rules: Vec<(&str, u64)> = Vec::new();
    for worker in workers {
        for (place, (text, count)) in worker.enumerate() {
            match rules.get_mut(place) {
                Some((_, sum)) => *sum += count,
                None => rules.push((text, count)),
            }
        }
    }
    rules.retain(|(_, count)| *count > 0);
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use brodo_core::counters::DropReason;

    const NO_RULES: [std::iter::Empty<(&str, u64)>; 0] = [];

    #[test]
    fn zero_counters_are_listed_and_zero_drops_are_not() {
        let mut counters = Counters::default();
        counters.rx_frames = 7;
        counters.drop(DropReason::SpoofedSource);
        let link = [("link_down", 0), ("link_refused", 2)];
        let text = Report::of(&[&counters], 0, &link, NO_RULES.into_iter()).text();
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
        let (first, second) =
            ([("floor a", 1), ("deny b", 0), ("max c", 0)], [("floor a", 2), ("deny b", 5), ("max c", 0)]);
        let refused = refusals([first, second].into_iter().map(<[_; 3]>::into_iter));
        assert_eq!(refused, [("floor a", 3), ("deny b", 5)]);
    }

    #[test]
    fn several_workers_are_summed_and_listed() {
        let (mut first, mut second) = (Counters::default(), Counters::default());
        (first.tcp_opened, second.tcp_opened) = (3, 4);
        first.drop(DropReason::SpoofedSource);
        second.drop(DropReason::SpoofedSource);
        let rules = || [[("--deny 10.0.0.0/8", 3)].into_iter()].into_iter();
        let report = Report::of(&[&first, &second], 1, &[("link_down", 5)], rules());
        let (text, fields) = (report.text(), Value::from(report.fields()));
        let lines = [
            "brodo: tcp_opened 7",
            "brodo: drop SpoofedSource 2",
            "brodo: worker 1: tcp_opened 3",
            "brodo: worker 2: tcp_opened 4",
            "brodo: refused by --deny 10.0.0.0/8 3",
        ];
        for line in lines {
            assert!(text.lines().any(|found| found == line), "{line} not in\n{text}");
        }
        assert_eq!(fields["tcp_opened"], 7);
        assert_eq!((&fields["link_ring_dropped"], &fields["link_down"]), (&1.into(), &5.into()));
        assert_eq!(fields["drops"], serde_json::json!({"SpoofedSource": 2}));
        assert_eq!(fields["workers"][1]["tcp_opened"], 4);
        let read: Report = serde_json::from_value(serde_json::to_value(&report).unwrap()).unwrap();
        assert_eq!(read, report);
    }

    #[test]
    fn a_name_cannot_write_to_the_terminal() {
        let hostile = Report { counters: vec![("\x1b[2J".to_owned(), 1)], ..Report::default() };
        assert!(!hostile.text().contains('\x1b'));
    }
}
