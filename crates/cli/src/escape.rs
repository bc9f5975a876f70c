//! Escaping: text chosen by a guest, a name server or a command line, made safe for a terminal and for
//! readers of lines.

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

fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_movements_line_ends_and_invisible_characters_are_escaped() {
        assert_eq!(printable("a\x1b[2Jb\nc\u{202e}d\u{9b}e é"), "a\\u{1b}[2Jb\\nc\\u{202e}d\\u{9b}e é");
    }
}
