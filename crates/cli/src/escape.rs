//! Escaping: text chosen by a guest, a name server or a command line, made safe for a terminal and for
//! readers of lines.

use std::fmt::Write;

/// Escapes control characters (line ends, escape sequences), and characters that change the direction of text
/// or have no width, in Rust's notation such as `\u{1b}`.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_invisible(c) {
            printable.extend(c.escape_default());
        } else {
            printable.push(c);
        }
    }
    printable
}

/// JSON in one line, with the same characters escaped in its strings as JSON has it: serializers escape those
/// below U+0020 alone. All of them are in the first plane.
pub(crate) fn json(text: String) -> String {
    let is_escaped = |c: char| c.is_control() || is_invisible(c);
    if !text.contains(is_escaped) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len() + 5);
    for c in text.chars() {
        if is_escaped(c) {
            // Infallible: a string takes all.
            let _ = write!(escaped, "\\u{:04x}", u32::from(c));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_the_same_value_without_a_character_that_moves_or_hides() {
        let hostile = "a\u{9b}2Jb\u{7f}\u{202e}c\u{feff}\u{1b}\n\"é";
        let text = json(serde_json::to_string(hostile).unwrap());
        assert_eq!(text, r#""a\u009b2Jb\u007f\u202ec\ufeff\u001b\n\"é""#);
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), hostile);
    }

    #[test]
    fn cursor_movements_line_ends_and_invisible_characters_are_escaped() {
        assert_eq!(printable("a\x1b[2Jb\nc\u{202e}d\u{9b}e é"), "a\\u{1b}[2Jb\\nc\\u{202e}d\\u{9b}e é");
    }
}
