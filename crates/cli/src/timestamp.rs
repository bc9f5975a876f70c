//! Times as RFC 3339 has them: UTC, with microseconds, as in `2026-11-21T18:30:00.000001Z`.

use std::fmt;

/// A time, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timestamp(pub(crate) u64);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1_000_000_000;
        let (year, month, day) = date(seconds / 86_400);
        let of_day = seconds % 86_400;
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        let micros = self.0 / 1000 % 1_000_000;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

/// Year, month and day of a day since 1970 in the Gregorian calendar. Years are counted from March, so that the day that is
/// there only sometimes is the last.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_400_YEARS: u64 = 146_097;
    // From 1 March of the year 0 to 1 January 1970.
    let days = days + 719_468;
    let (era, day) = (days / DAYS_400_YEARS, days % DAYS_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let in_month = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, in_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_that_are_known() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000000Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000000Z"),
            (1_767_225_600, "2026-01-01T00:00:00.000000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(Timestamp(seconds * 1_000_000_000).to_string(), text);
        }
        assert_eq!(Timestamp(1_234_999).to_string(), "1970-01-01T00:00:00.001234Z");
    }
}
