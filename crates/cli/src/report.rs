//! The counters at the end: as text, one counter per line, for people and for `grep`; as fields of one JSON
//! object for programs.

use brodo_core::counters::Counters;
use serde_json::{Map, Value};

/// Counters listed for each of several workers.
fn shares(counters: &Counters) -> [(&'static str, u64); 4] {
    [
        ("rx_frames", counters.rx_frames),
        ("tx_frames", counters.tx_frames),
        ("tcp_opened", counters.tcp_opened),
        ("udp_opened", counters.udp_opened),
    ]
}

/// Every counter as a field, those of [`report_all`] under the same names: drops in `drops` by reason,
/// refusals in `rules`, shares in `workers`.
pub(crate) fn fields(
    workers: &[&Counters],
    ring_dropped: u64,
    link: &[(&str, u64)],
    refusals: &[(&str, u64)],
) -> Map<String, Value> {
    let sum = sum(workers);
    let link = link.iter().map(|&(name, count)| field((name, count)));
    let ring = ("link_ring_dropped", ring_dropped);
    let mut fields: Map<_, _> = sum.named().chain([ring]).map(field).chain(link).collect();
    let drops: Map<_, _> = sum.drops().map(|(reason, count)| field((reason.name(), count))).collect();
    let shares =
        workers.iter().map(|counters| Value::Object(shares(counters).map(field).into_iter().collect()));
    fields.insert("drops".into(), drops.into());
    let rules: Map<_, _> = refusals.iter().copied().map(field).collect();
    fields.insert("rules".into(), rules.into());
    fields.insert("workers".into(), shares.collect());
    fields
}

fn field((name, count): (&str, u64)) -> (String, Value) {
    (name.to_owned(), count.into())
}

/// The counters of all workers as one, with [`sum`]; of several workers also the share of each; then the
/// rules with refused flows.
pub(crate) fn report_all(
    workers: &[&Counters],
    ring_dropped: u64,
    link: &[(&str, u64)],
    refusals: &[(&str, u64)],
) -> String {
    let mut text = report(&sum(workers), ring_dropped, link);
    for (number, counters) in (1..).zip(workers).take_while(|_| workers.len() > 1) {
        text.extend(
            shares(counters).map(|(name, count)| format!("brodo: worker {number}: {name} {count}\n")),
        );
    }
    text.extend(refusals.iter().map(|(rule, count)| format!("brodo: refused by {rule} {count}\n")));
    text
}

/// One set of counters for all workers.
fn sum(workers: &[&Counters]) -> Counters {
    let mut sum = Counters::default();
    for counters in workers {
        sum.add(counters);
    }
    sum
}

/// Every counter of the stack and the drops of the guest's kernel at its transmit queue; then, if above zero,
/// the losses of the link and every reason for a drop.
fn report(counters: &Counters, ring_dropped: u64, link: &[(&str, u64)]) -> String {
    let counted = counters.named().chain([("link_ring_dropped", ring_dropped)]);
    let counted = counted.map(|(name, count)| (name.to_owned(), count));
    let lost = link.iter().filter(|(_, count)| *count > 0).map(|&(name, count)| (name.to_owned(), count));
    let dropped = counters.drops().map(|(reason, count)| (format!("drop {}", reason.name()), count));
    let lines = counted.chain(lost).chain(dropped).map(|(name, count)| format!("brodo: {name} {count}\n"));
    lines.collect()
}

/// Every rule with refused flows and their number, of all workers together. Their rules are the same, in the
/// same order.
pub(crate) fn refusals<'a, R: Iterator<Item = (&'a str, u64)>>(
    workers: impl Iterator<Item = R>,
) -> Vec<(&'a str, u64)> {
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

    #[test]
    fn what_is_zero_is_told_of_counters_but_not_of_losses() {
        let mut counters = Counters::default();
        counters.rx_frames = 7;
        counters.drop(DropReason::SpoofedSource);
        let text = report(&counters, 0, &[("link_down", 0), ("link_refused", 2)]);
        for line in [
            "brodo: rx_frames 7",
            "brodo: tx_frames 0",
            "brodo: link_refused 2",
            "brodo: link_ring_dropped 0",
            "brodo: drop SpoofedSource 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} not in\n{text}");
        }
        assert!(!text.contains("link_down") && !text.contains("Malformed"));
    }

    #[test]
    fn rules_of_several_workers_are_summed() {
        let (first, second) =
            ([("floor a", 1), ("deny b", 0), ("max c", 0)], [("floor a", 2), ("deny b", 5), ("max c", 0)]);
        let refused = refusals([first, second].into_iter().map(<[_; 3]>::into_iter));
        assert_eq!(refused, [("floor a", 3), ("deny b", 5)]);
    }

    #[test]
    fn several_workers_are_summed_and_told_apart() {
        let (mut first, mut second) = (Counters::default(), Counters::default());
        (first.tcp_opened, second.tcp_opened) = (3, 4);
        first.drop(DropReason::SpoofedSource);
        second.drop(DropReason::SpoofedSource);
        let text = report_all(&[&first, &second], 0, &[], &[("--deny 10.0.0.0/8", 3)]);
        let lines = [
            "brodo: tcp_opened 7",
            "brodo: drop SpoofedSource 2",
            "brodo: worker 1: tcp_opened 3",
            "brodo: worker 2: tcp_opened 4",
        ];
        for line in lines {
            assert!(text.lines().any(|found| found == line), "{line} not in\n{text}");
        }
        assert!(!report_all(&[&first], 0, &[], &[]).contains("worker"), "one alone is all");
        let fields =
            Value::from(fields(&[&first, &second], 1, &[("link_down", 5)], &[("--deny 10.0.0.0/8", 3)]));
        assert_eq!(fields["tcp_opened"], 7);
        assert_eq!((&fields["link_ring_dropped"], &fields["link_down"]), (&1.into(), &5.into()));
        assert_eq!(fields["drops"], serde_json::json!({"SpoofedSource": 2}));
        assert_eq!(fields["workers"][1]["tcp_opened"], 4);
    }
}
