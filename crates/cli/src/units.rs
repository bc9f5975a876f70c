//! Sizes, rates and times for people, in at most six letters: tables of the commands and columns of `brodo
//! top`.

/// Bytes per second as bits per second, with powers of 1000: `-`, `999`, `1.23k`, `12.3M`, `123G`.
pub(crate) fn bits(bytes_per_second: f64) -> String {
    let bits = bytes_per_second * 8.0;
    if bits < 0.5 { "-".to_owned() } else { three_digits(bits, 1000.0, &["", "k", "M", "G", "T", "P"]) }
}

/// Bytes, with powers of 1024: `0`, `1023`, `64K`, `1.54M`.
pub(crate) fn bytes(bytes: u64) -> String {
    three_digits(bytes as f64, 1024.0, &["", "K", "M", "G", "T", "P", "E"])
}

/// Three digits and a unit; whole numbers without a fraction.
fn three_digits(mut value: f64, base: f64, units: &[&str]) -> String {
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    // A value that would round up to the next unit is shown in it.
    while value >= base - 0.5 {
        let Some(next) = units.next() else { break };
        (value, unit) = (value / base, next);
    }
    let decimals = match value {
        _ if unit.is_empty() || value >= 99.95 => 0,
        _ if value >= 9.995 => 1,
        _ => 2,
    };
    let number = format!("{value:.decimals$}");
    let number = if decimals > 0 { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
    format!("{number}{unit}")
}

/// A time in microseconds: `20us`, `1.2ms`, `123ms`, `4.5s`.
pub(crate) fn time(us: u64) -> String {
    let ms = us as f64 / 1e3;
    match us {
        0..1000 => format!("{us}us"),
        1000..9950 => format!("{ms:.1}ms"),
        9950..999_500 => format!("{ms:.0}ms"),
        999_500..99_950_000 => format!("{:.1}s", us as f64 / 1e6),
        _ => age(us),
    }
}

/// A long time in microseconds: `5s`, `3m05`, `2h07`, `3d04`.
pub(crate) fn age(us: u64) -> String {
    let seconds = us / 1_000_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}", minutes % 60),
        _ => format!("{days}d{:02}", hours % 24),
    }
}

/// The last `width` values as bars, against the largest of them.
pub(crate) fn sparkline(values: impl DoubleEndedIterator<Item = u64> + Clone, width: usize) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = values.rev().take(width);
    let max = shown.clone().max().unwrap_or(0).max(1);
    let bars = shown.map(|value| BARS[(value as f64 / max as f64 * 8.0).ceil() as usize]);
    let bars: Vec<char> = bars.collect();
    let blank = " ".repeat(width - bars.len());
    blank + &bars.into_iter().rev().collect::<String>()
}

/// Smallest size that a [`gauge`] shows, in bytes: the least limit there is.
const GAUGE_MIN: u32 = 4096;

/// Number of doublings from [`GAUGE_MIN`] to `size`, linear between whole numbers: a logarithm would be the
/// only use of the mathematical library in every brodo.
fn doublings(size: u32) -> f64 {
    let size = size.max(GAUGE_MIN);
    let whole = size.ilog2();
    f64::from(whole - GAUGE_MIN.ilog2()) + f64::from(size) / f64::from(1_u32 << whole) - 1.0
}

/// A limit against its bound, and the used part of it, in so many letters: `███▒▒····`. Sizes are
/// logarithmic, because limits begin at a hundredth of their bound and double.
pub(crate) fn gauge(used: u32, limit: u32, bound: u32, width: usize) -> String {
    let range = doublings(bound);
    let letters = |size: u32| {
        let part = if range > 0.0 { doublings(size) / range } else { 1.0 };
        // A non-zero value shows at least one block.
        let least = f64::from(u8::from(size > 0));
        (part * width as f64).round().clamp(least, width as f64) as usize
    };
    let used = letters(used);
    let limit = letters(limit).max(used);
    format!("{}{}{}", "█".repeat(used), "▒".repeat(limit - used), "·".repeat(width - limit))
}

#[cfg(test)]
mod tests {
    //! Figures at the edges of their units.

    use super::*;

    #[test]
    fn rates_and_sizes_have_three_digits() {
        for (rate, text) in [
            (0.0, "-"),
            (1.0, "8"),
            (124.9, "999"),
            (125.0, "1k"),
            (154.0, "1.23k"),
            (12_499.0, "100k"),
            (124_990.0, "1M"),
            (1.5e6, "12M"),
            (1.54e6, "12.3M"),
            (1.25e9, "10G"),
            (f64::MAX, &bits(f64::MAX)),
        ] {
            assert_eq!(bits(rate), text, "{rate}");
        }
        for (size, text) in
            [(0, "0"), (1023, "1023"), (1024, "1K"), (65536, "64K"), (1_614_807, "1.54M"), (4 << 20, "4M")]
        {
            assert_eq!(bytes(size), text, "{size}");
        }
        assert!(bytes(u64::MAX).len() <= 6);
    }

    #[test]
    fn times_are_short() {
        for (us, text) in [
            (0, "0us"),
            (999, "999us"),
            (1000, "1.0ms"),
            (9949, "9.9ms"),
            (12_345, "12ms"),
            (999_499, "999ms"),
            (1_500_000, "1.5s"),
            (125_000_000, "2m05"),
        ] {
            assert_eq!(time(us), text, "{us}");
        }
        for (s, text) in [
            (0, "0s"),
            (59, "59s"),
            (61, "1m01"),
            (3600, "1h00"),
            (7620, "2h07"),
            (86_400 * 3 + 4 * 3600, "3d04"),
        ] {
            assert_eq!(age(s * 1_000_000), text);
        }
        assert!(time(u64::MAX).len() > 6, "nothing lives that long");
    }

    #[test]
    fn bars_are_relative_and_what_is_not_nothing_shows() {
        assert_eq!(sparkline([0, 1, 4, 8, 800, 400].into_iter(), 4), "▁▁█▄");
        assert_eq!(sparkline([0, 8].into_iter(), 4), "   █");
        assert_eq!(sparkline([].into_iter(), 3), "   ");
    }

    #[test]
    fn a_gauge_is_logarithmic_and_never_too_long() {
        assert_eq!(gauge(64 << 10, 512 << 10, 4 << 20, 10), "████▒▒▒···");
        assert_eq!(gauge(0, 4096, 4 << 20, 10), "▒·········");
        assert_eq!(gauge(4 << 20, 4 << 20, 4 << 20, 10), "██████████");
        for (used, limit, bound) in [(0, 0, 0), (u32::MAX, 1, 1), (9, u32::MAX, 4096), (1, 1, u32::MAX)] {
            assert_eq!(gauge(used, limit, bound, 7).chars().count(), 7);
        }
    }
}
