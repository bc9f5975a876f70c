//! Numbers for people: sizes and times in three digits or so, and text from elsewhere without what moves a cursor.

/// Bytes in powers of 1024: `17`, `4.0K`, `123M`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let unit = UNITS[unit];
    if value < 9.95 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

/// A time in microseconds: `17us`, `3.2ms`, `12s`, `5m07s`, `3h12m`, `4d03h`.
pub(crate) fn time(us: u64) -> String {
    let seconds = us / 1_000_000;
    match us {
        0..1000 => format!("{us}us"),
        1000..9950 => format!("{:.1}ms", us as f64 / 1e3),
        9950..1_000_000 => format!("{:.0}ms", us as f64 / 1e3),
        1_000_000..9_950_000 => format!("{:.1}s", us as f64 / 1e6),
        _ if seconds < 60 => format!("{seconds}s"),
        _ if seconds < 3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ if seconds < 86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Text that a guest, a name server or a command line has made up, fit for a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_invisible(c) { '?' } else { c }).collect()
}

/// Characters that turn the direction of text or take no room.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (n, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (10_188, "9.9K"),
            (10_189, "10K"),
            (1_023_000, "999K"),
            (1_024_000, "1.0M"),
            (5 << 30, "5.0G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(bytes(n), text);
        }
        for (n, text) in [
            (0, "0us"),
            (999, "999us"),
            (3_249, "3.2ms"),
            (43_000, "43ms"),
            (1_500_000, "1.5s"),
            (59_999_999, "59s"),
            (307_000_000, "5m07s"),
            (11_520_000_000, "3h12m"),
            (4 * 86_400_000_000, "4d00h"),
        ] {
            assert_eq!(time(n), text);
        }
    }

    #[test]
    fn what_moves_a_cursor_is_not_printed() {
        assert_eq!(printable("a\x1b[2Jb\nc\u{202e}d\u{9b}e é"), "a?[2Jb?c?d?e é");
    }
}
