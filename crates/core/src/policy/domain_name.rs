//! Domain names as rules have them: lower case, without final dot, one byte for each letter.
//!
//! Only letters, digits, hyphens and underscores can match a rule. A name of a guest's with any other byte (a
//! dot or a zero inside a label, a letter outside ASCII) is no [`DomainName`], so it equals none: there is no
//! second reading for a server to take. Names in other scripts are converted to A-labels (RFC 5890, 2.3.2.1)
//! before they come here.

use crate::wire::dns::Name;
use std::fmt;
use std::sync::Arc;

/// Longest name in characters: 255 bytes on the wire (RFC 1035, 3.1).
const LEN_MAX: usize = 253;
/// Longest label in bytes (RFC 1035, 2.3.4).
const LABEL_LEN_MAX: usize = 63;

/// A canonical name of one label at least. Its text is shared by rules, compiled rules and pins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainName(Arc<str>);

impl DomainName {
    /// The name that `text` writes, with or without final dot and in either case; `None` if it can be none of
    /// a rule's. A name whose last label is a number is none: it would be read as an address (RFC 3696, 2).
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = text.strip_suffix(b".").unwrap_or(text);
        let labels = || text.split(|&byte| byte == b'.');
        let legal = |label: &[u8]| {
            (1..=LABEL_LEN_MAX).contains(&label.len())
                && label.iter().all(|&b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        let is_number = |label: &[u8]| label.iter().all(u8::is_ascii_digit);
        if text.len() > LEN_MAX || !labels().all(legal) || labels().next_back().is_none_or(is_number) {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        let is_lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
        Some(Self(if is_lower { text.into() } else { text.to_ascii_lowercase().into() }))
    }

    /// The name in a DNS message; `None` for the root and for names that no rule can have.
    pub(crate) fn of_wire(name: &Name<'_>) -> Option<Self> {
        let mut text = Vec::with_capacity(LEN_MAX);
        for label in name.labels() {
            // A dot inside a label is a byte like any other, and not legal.
            if label.contains(&b'.') {
                return None;
            }
            if !text.is_empty() {
                text.push(b'.');
            }
            text.extend_from_slice(label);
        }
        Self::parse(&text)
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its text, shared.
    pub(crate) fn shared(&self) -> Arc<str> {
        self.0.clone()
    }

    /// Number of its labels.
    pub fn labels(&self) -> usize {
        self.0.split('.').count()
    }

    /// The names above it, the nearest first; without itself and the root.
    pub(crate) fn parents(&self) -> impl Iterator<Item = &str> {
        self.0.match_indices('.').map(|(at, _)| &self.0[at + 1..])
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_canonical() {
        for (text, canonical) in [
            ("Example.COM", "example.com"),
            ("example.com.", "example.com"),
            ("_dmarc.x-1.example", "_dmarc.x-1.example"),
            ("localhost", "localhost"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ] {
            assert_eq!(DomainName::parse(text.as_bytes()).expect(text).as_str(), canonical);
        }
    }

    #[test]
    fn other_bytes_make_no_name() {
        let long = "a".repeat(64);
        let deep = "a.".repeat(127) + "a";
        for text in [
            "",
            ".",
            "a..b",
            ".a",
            "a b",
            "pkg.example.com\0.evil.dev",
            " a",
            "a\u{ff0e}b",
            "b\u{fc}cher.example",
        ] {
            assert_eq!(DomainName::parse(text.as_bytes()), None, "{text:?}");
        }
        for text in ["192.0.2.1", "1", "a.1", &long, &deep, "a.*", "*.a", "[::1]", "a:1", "..", "a.."] {
            assert_eq!(DomainName::parse(text.as_bytes()), None, "{text}");
        }
        assert!(DomainName::parse(&b"a.".repeat(126)).is_some());
    }

    #[test]
    fn parents_come_nearest_first() {
        let name = DomainName::parse(b"a.b.c").expect("a name");
        assert_eq!(name.parents().collect::<Vec<_>>(), ["b.c", "c"]);
        assert_eq!(name.labels(), 3);
    }

    #[test]
    fn a_dot_inside_a_label_is_no_separator() {
        let read = |wire: &[u8]| Name::parse(wire, 0).and_then(|(name, _)| DomainName::of_wire(&name));
        assert_eq!(read(b"\x03a.b\x01c\0"), None);
        assert_eq!(read(b"\x01A\x01c\0").expect("a name").as_str(), "a.c");
        assert_eq!(read(b"\0"), None);
    }
}
