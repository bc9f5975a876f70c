//! Times as RFC 3339 has them: UTC, with microseconds, as in `2026-11-21T18:30:00.000001Z`.

use std::fmt;

/// A time, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timestamp(pub(crate) u64);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 64 bits of nanoseconds end in the year 2554, which jiff can express.
        let time = jiff::Timestamp::from_nanosecond(self.0.into()).unwrap_or_default();
        // Digits beyond the precision are cut.
        write!(f, "{time:.6}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_fixed() {
        for (unix_ns, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (1_234_999, "1970-01-01T00:00:00.001234Z"),
            (951_782_400_000_000_000, "2000-02-29T00:00:00.000000Z"),
            (u64::MAX, "2554-07-21T23:34:33.709551Z"),
        ] {
            assert_eq!(Timestamp(unix_ns).to_string(), text);
        }
    }
}
