//! Ephemeral ports of the host (net.ipv4.ip_local_port_range of the caller's network namespace), and a
//! guest's share of them.
//!
//! A socket that is connected without a bind takes one, of UDP one that no other socket has. All programs of
//! the host share them, 28,232 by default.

use std::ops::RangeInclusive;

/// Divisor of the number of ports for the share of the guest's UDP flows.
const GUEST_PART: usize = 4;

/// The range; the kernel's default if the file cannot be read.
pub fn ephemeral_ports() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    parse(&text).unwrap_or(32768..=60999)
}

/// Most UDP flows of a guest at a time, of a host with this range:
/// [`brodo_core::config::Config::max_udp_flows`].
pub fn udp_flows_max(range: &RangeInclusive<u16>) -> usize {
    (range.len() / GUEST_PART).max(1)
}

fn parse(text: &str) -> Option<RangeInclusive<u16>> {
    let mut words = text.split_whitespace().map(str::parse);
    match (words.next(), words.next()) {
        (Some(Ok(first)), Some(Ok(last))) if first <= last => Some(first..=last),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_numbers_in_order_are_a_range() {
        assert_eq!(parse("32768\t60999\n"), Some(32768..=60999));
        assert_eq!(parse("7 7"), Some(7..=7));
        for text in ["", "8 7", "1", "1 70000", "a b"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
