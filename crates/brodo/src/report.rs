//! What brodo says on standard error: the counters as text, one per line, for people and for `grep`.

use brodo_core::counters::Counters;
use std::io::Write;

/// Writes to standard error, of which the other end may be gone.
pub(crate) fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// The counters of all workers as one, with [`sum`]; of several workers also what each of them has had to do.
pub(crate) fn report_all(workers: &[&Counters], ring_dropped: u64, link: &[(&str, u64)]) -> String {
    let mut text = report(&sum(workers), ring_dropped, link);
    for (number, counters) in (1..).zip(workers).take_while(|_| workers.len() > 1) {
        let shares = [
            ("rx_frames", counters.rx_frames),
            ("tx_frames", counters.tx_frames),
            ("tcp_opened", counters.tcp_opened),
            ("udp_opened", counters.udp_opened),
        ];
        text.extend(shares.map(|(name, count)| format!("brodo: worker {number}: {name} {count}\n")));
    }
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

/// Every counter of the stack and what the guest's kernel dropped before brodo could read it; then, if above zero, what the
/// link lost and every reason for a drop.
fn report(counters: &Counters, ring_dropped: u64, link: &[(&str, u64)]) -> String {
    let counted = counters.named().chain([("link_ring_dropped", ring_dropped)]);
    let counted = counted.map(|(name, count)| (name.to_owned(), count));
    let lost = link.iter().filter(|(_, count)| *count > 0).map(|&(name, count)| (name.to_owned(), count));
    let dropped = counters.drops().map(|(reason, count)| (format!("drop {}", reason.name()), count));
    let lines = counted.chain(lost).chain(dropped).map(|(name, count)| format!("brodo: {name} {count}\n"));
    lines.collect()
}

/// Every rule that has refused flows and how many, of all workers together. Their rules are the same, in the same order.
pub(crate) fn refusals<'a, R: Iterator<Item = (&'a str, u64)>>(workers: impl Iterator<Item = R>) -> String {
    let mut rules: Vec<(&str, u64)> = Vec::new();
    for worker in workers {
        for (place, (text, count)) in worker.enumerate() {
            match rules.get_mut(place) {
                Some((_, sum)) => *sum += count,
                None => rules.push((text, count)),
            }
        }
    }
    let refused = rules.iter().filter(|(_, count)| *count > 0);
    let lines =
        refused.map(|(text, count)| ["brodo: refused by ", text, " ", &count.to_string(), "\n"].concat());
    lines.collect()
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
        let text = refusals([first, second].into_iter().map(<[_; 3]>::into_iter));
        assert_eq!(text, "brodo: refused by floor a 3\nbrodo: refused by deny b 5\n");
    }

    #[test]
    fn several_workers_are_summed_and_told_apart() {
        let (mut first, mut second) = (Counters::default(), Counters::default());
        (first.tcp_opened, second.tcp_opened) = (3, 4);
        first.drop(DropReason::SpoofedSource);
        second.drop(DropReason::SpoofedSource);
        let text = report_all(&[&first, &second], 0, &[]);
        let lines = [
            "brodo: tcp_opened 7",
            "brodo: drop SpoofedSource 2",
            "brodo: worker 1: tcp_opened 3",
            "brodo: worker 2: tcp_opened 4",
        ];
        for line in lines {
            assert!(text.lines().any(|found| found == line), "{line} not in\n{text}");
        }
        assert!(!report_all(&[&first], 0, &[]).contains("worker"), "one alone is all");
    }
}
