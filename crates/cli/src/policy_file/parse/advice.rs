//! Advice beside an error: the form to write, for mistakes that the TOML parser finds, and for unknown keys.

use crate::alike::most_alike;

/// Parts of the parser's messages, in their order of precedence, and the form to write.
const SYNTAX: [(&str, &str); 10] = [
    ("unclosed array", "close the list and each text in it: [\"a.example\", \"b.example\"]"),
    ("missing comma", "put a comma between entries: [\"a.example\", \"b.example\"]"),
    ("string values must be quoted", "put text in quotes, such as default = \"deny\""),
    ("invalid boolean", "write true or false, in small letters"),
    ("duplicate key", "write each key once, and several rules as [[rule]]"),
    ("key with no value", "write KEY = VALUE, such as allow = [\"a.example\"]"),
    ("carriage return", "end lines with LF or CR LF"),
    ("unicode value digits", BACKSLASH),
    ("escape", BACKSLASH),
    ("basic string", "end text with a quote on its line"),
];
const BACKSLASH: &str = "write \\\\ for a backslash, or the text in 'single quotes'";
/// The form to write where the message says nothing more.
const KEY: &str = "write lines of KEY = VALUE, such as allow = [\"a.example\"]";

/// The parser's message with the form to write.
pub(super) fn syntax(message: &str) -> String {
    let known = SYNTAX.iter().find(|(part, _)| message.contains(part));
    let form = known.map_or(KEY, |(_, form)| form);
    format!("{}: {form}", message.replace('\n', ", "))
}

/// An unknown key, with the known one that it is most like, and all.
pub(super) fn unknown_key(name: &str, known: &[&str]) -> String {
    let plain = name.trim().to_lowercase();
    let alike = most_alike(&plain, known.iter().copied());
    let meant = alike.map(|key| format!("did you mean `{key}`? ")).unwrap_or_default();
    format!("unknown key `{name}`: {meant}expected {}", known.join(", "))
}
