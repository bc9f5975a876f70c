//! What brodo says on standard error: the counters as text, one per line, for people and for `grep`.

use brodo_core::counters::Counters;
use std::io::Write;

/// Writes to standard error, of which the other end may be gone.
pub(crate) fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Every counter of the stack and what the guest's kernel dropped before brodo could read it; then, if above zero, what the
/// link lost and every reason for a drop.
pub(crate) fn report(counters: &Counters, ring_dropped: u64, link: &[(&str, u64)]) -> String {
    let counted = counters.named().chain([("link_ring_dropped", ring_dropped)]);
    let counted = counted.map(|(name, count)| (name.to_owned(), count));
    let lost = link.iter().filter(|(_, count)| *count > 0).map(|&(name, count)| (name.to_owned(), count));
    let dropped = counters.drops().map(|(reason, count)| (format!("drop {}", reason.name()), count));
    let lines = counted.chain(lost).chain(dropped).map(|(name, count)| format!("brodo: {name} {count}\n"));
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
}
