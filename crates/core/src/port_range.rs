//! Ranges of ports, as rules and options have them: `80` or `8000-8010`.

use std::fmt;
use std::str::FromStr;

/// Ports from `first` to `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortRange {
    /// The lowest; not 0.
    pub first: u16,
    /// The highest; not below `first`.
    pub last: u16,
}

impl PortRange {
    /// Whether `port` is one of them.
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Number of ports.
    #[allow(clippy::len_without_is_empty, reason = "a range has at least one port")]
    pub const fn len(self) -> u32 {
        (self.last - self.first) as u32 + 1
    }

    /// A range of one port.
    pub const fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// Reason why a text is no range of ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortRangeError {
    /// It is not a number of at most five digits, nor two of them with a hyphen.
    Malformed,
    /// It has port 0.
    Zero,
    /// This number is above 65535.
    TooLarge(String),
    /// This range ends before it begins.
    Reversed(String),
}

impl fmt::Display for PortRangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("expected PORT or PORT-PORT, such as 80 or 8000-8010"),
            Self::Zero => f.write_str("port 0 cannot be listened on: expected 1 to 65535"),
            Self::TooLarge(port) => write!(f, "{port} is no port: expected 1 to 65535"),
            Self::Reversed(range) => write!(f, "the range {range} ends before it begins"),
        }
    }
}

impl std::error::Error for PortRangeError {}

impl FromStr for PortRange {
    type Err = PortRangeError;

    fn from_str(text: &str) -> Result<Self, PortRangeError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = Self { first: port(first)?, last: port(last)? };
        if range.first > range.last {
            return Err(PortRangeError::Reversed(text.to_owned()));
        }
        Ok(range)
    }
}

fn port(text: &str) -> Result<u16, PortRangeError> {
    if text.is_empty() || text.len() > 5 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(PortRangeError::Malformed);
    }
    match text.parse() {
        Ok(0) => Err(PortRangeError::Zero),
        Ok(port) => Ok(port),
        Err(_) => Err(PortRangeError::TooLarge(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_written() {
        for (text, first, last) in [("80", 80, 80), ("1-65535", 1, 65_535), ("8000-8010", 8000, 8010)] {
            let range = PortRange { first, last };
            assert_eq!((text.parse(), range.to_string()), (Ok(range), text.to_owned()));
            assert_eq!(range.len(), u32::from(last - first) + 1);
            assert!(range.contains(first) && range.contains(last) && !range.contains(first - 1), "{text}");
        }
        assert_eq!("7-7".parse(), Ok(PortRange::one(7)));
    }

    #[test]
    fn other_texts_are_refused() {
        use PortRangeError::{Malformed, Reversed, TooLarge, Zero};
        for text in ["", "-", "1-", "-1", "+1", "1-2-3", "a", "000080", " 1"] {
            assert_eq!(text.parse::<PortRange>(), Err(Malformed), "{text}");
        }
        assert_eq!("0-7".parse::<PortRange>(), Err(Zero));
        assert_eq!("65536".parse::<PortRange>(), Err(TooLarge("65536".into())));
        assert_eq!("9-8".parse::<PortRange>(), Err(Reversed("9-8".into())));
    }
}
