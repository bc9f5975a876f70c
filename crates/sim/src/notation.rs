//! The notation of scripts: one line is one packet.
//!
//! ```text
//! SYN|ACK seq=0 ack=1 win=65535 mss=1460 wscale=7 sackok
//! ACK seq=1 ack=1001 win>=30000 data=500 sack=2001-3001,4001-5001
//! UDP sport=5000 dport=53 data=40
//! ICMP port-unreachable
//! ICMP echo-request id=7 seq=1 data=56
//! ```
//!
//! TCP lines begin with the flags; sequence numbers are relative to each side's SYN. `data=N` is N bytes of
//! the side's stream at that place, so repeated and overlapping segments agree by themselves. In a line that
//! is expected only the fields that stand there are compared, except that flags must agree (PSH only if the
//! line says `PSH` or `nopsh`) and that a line without `data` expects none. Numbers may be bounded:
//! `win>=1000`, `data<=1460`. An option that must be absent is written `mss=none`. One parser reads sent and
//! expected lines.

use crate::packet::flags;
use std::fmt::Write as _;

/// Comparison of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// Equal to this.
    Is(i64),
    /// At least this.
    AtLeast(i64),
    /// At most this.
    AtMost(i64),
    /// The field is absent.
    None,
}

impl Number {
    /// Whether a value, if present, satisfies the bound.
    pub fn fits(self, value: Option<i64>) -> bool {
        match (self, value) {
            (Self::Is(n), Some(v)) => v == n,
            (Self::AtLeast(n), Some(v)) => v >= n,
            (Self::AtMost(n), Some(v)) => v <= n,
            (Self::None, None) => true,
            _ => false,
        }
    }

    /// The value to send.
    pub fn exact(self) -> Option<i64> {
        match self {
            Self::Is(n) => Some(n),
            _ => None,
        }
    }
}

/// The kinds of line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// TCP with these flag bits.
    Tcp(u8),
    /// A UDP datagram.
    Udp,
    /// ICMP of this name.
    Icmp(String),
    /// ARP of any content; only expected, never sent.
    Arp,
}

/// One line, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Kind of packet.
    pub kind: Kind,
    /// Numeric fields, in the order written.
    pub fields: Vec<(String, Number)>,
    /// SACK blocks; `None` if absent from the line.
    pub sack: Option<Vec<(i64, i64)>>,
    /// SACK-permitted, if the line has it.
    pub sack_ok: Option<bool>,
    /// PSH, if the line has it.
    pub psh: Option<bool>,
}

const FIELDS: [&str; 18] = [
    "seq", "ack", "win", "urg", "mss", "wscale", "tsval", "tsecr", "data", "gso", "sport", "dport", "id",
    "mtu", "rawwin", "ttl", "tos", "df",
];

/// A name, ICMPv4 type and code, ICMPv6 type and code.
pub type IcmpName = (&'static str, (u8, u8), (u8, u8));

/// ICMP messages by name.
pub const ICMP: [IcmpName; 10] = [
    ("echo-request", (8, 0), (128, 0)),
    ("echo-reply", (0, 0), (129, 0)),
    ("net-unreachable", (3, 0), (1, 0)),
    ("host-unreachable", (3, 1), (1, 3)),
    ("port-unreachable", (3, 3), (1, 4)),
    ("prohibited", (3, 13), (1, 1)),
    ("too-big", (3, 4), (2, 0)),
    ("time-exceeded", (11, 0), (3, 0)),
    ("reassembly-time-exceeded", (11, 1), (3, 1)),
    ("protocol-unreachable", (3, 2), (4, 1)),
];

impl Line {
    /// Parses a line.
    ///
    /// # Errors
    /// The word that cannot be parsed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let head = words.next().ok_or("an empty line")?;
        let kind = match head {
            "UDP" => Kind::Udp,
            "ARP" => Kind::Arp,
            "ICMP" => {
                let name = words.next().ok_or("ICMP without a name")?;
                // A message without a name is written as its type and code, `3/5`.
                let known = ICMP.iter().any(|(n, ..)| *n == name) || name.contains('/');
                known.then(|| Kind::Icmp(name.to_owned())).ok_or(format!("ICMP {name}"))?
            }
            _ => Kind::Tcp(parse_flags(head)?),
        };
        let psh = matches!(kind, Kind::Tcp(f) if f & flags::PSH != 0).then_some(true);
        let mut line = Self { kind, fields: Vec::new(), sack: None, sack_ok: None, psh };
        for word in words {
            line.word(word).ok_or_else(|| format!("“{word}” in “{text}”"))?;
        }
        Ok(line)
    }

    /// A TCP line of these flags and nothing else.
    pub fn of_flags(bits: u8) -> Self {
        Self { kind: Kind::Tcp(bits), fields: Vec::new(), sack: None, sack_ok: None, psh: None }
    }

    fn word(&mut self, word: &str) -> Option<()> {
        match word {
            "sackok" => self.sack_ok = Some(true),
            "sackok=none" => self.sack_ok = Some(false),
            "nopsh" => self.psh = Some(false),
            "sack=none" => self.sack = Some(Vec::new()),
            _ => {
                let at = word.find(['=', '<', '>'])?;
                let (name, rest) = word.split_at(at);
                if name == "sack" {
                    let blocks = rest.strip_prefix('=')?.split(',').map(parse_block);
                    self.sack = Some(blocks.collect::<Option<_>>()?);
                } else {
                    FIELDS.contains(&name).then_some(())?;
                    self.fields.push((name.to_owned(), parse_number(rest)?));
                }
            }
        }
        Some(())
    }

    /// A field, if the line has it.
    pub fn get(&self, name: &str) -> Option<Number> {
        self.fields.iter().find(|(n, _)| n == name).map(|&(_, v)| v)
    }

    /// A field's exact value, for a line that is sent.
    ///
    /// # Panics
    /// If the line gives only a bound.
    pub fn value(&self, name: &str) -> Option<i64> {
        let value = self.get(name)?.exact();
        Some(value.unwrap_or_else(|| panic!("{name} needs an exact value to be sent")))
    }

    /// Whether `seen`, a line with exact values, matches this line.
    pub fn fits(&self, seen: &Self) -> bool {
        let kinds = match (&self.kind, &seen.kind) {
            (Kind::Tcp(want), Kind::Tcp(got)) => want & !flags::PSH == got & !flags::PSH,
            (want, got) => want == got,
        };
        let value = |name: &str| match (name, seen.get(name).and_then(Number::exact)) {
            ("data", None) => Some(0),
            (_, value) => value,
        };
        let no_data = self.get("data").is_some() || value("data") == Some(0);
        kinds
            && no_data
            && self.fields.iter().all(|(name, number)| number.fits(value(name)))
            && self.psh.is_none_or(|p| seen.psh == Some(p))
            && self.sack_ok.is_none_or(|s| seen.sack_ok == Some(s))
            && self.sack.as_ref().is_none_or(|s| seen.sack.as_deref().unwrap_or_default() == s)
    }
}

fn parse_flags(word: &str) -> Result<u8, String> {
    word.split('|').try_fold(0, |bits, name| match flags::NAMES.iter().find(|(n, _)| *n == name) {
        Some((_, bit)) => Ok(bits | bit),
        None if name == "-" => Ok(bits),
        None => Err(format!("“{name}” is no TCP flag, UDP, ICMP or ARP")),
    })
}

fn parse_number(rest: &str) -> Option<Number> {
    if rest == "=none" {
        return Some(Number::None);
    }
    let (wrap, digits): (fn(i64) -> Number, _) = if let Some(d) = rest.strip_prefix(">=") {
        (Number::AtLeast, d)
    } else if let Some(d) = rest.strip_prefix("<=") {
        (Number::AtMost, d)
    } else {
        (Number::Is, rest.strip_prefix('=')?)
    };
    Some(wrap(digits.parse().ok()?))
}

fn parse_block(text: &str) -> Option<(i64, i64)> {
    let (left, right) = text.split_once('-')?;
    Some((left.parse().ok()?, right.parse().ok()?))
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        match &self.kind {
            Kind::Tcp(bits) => {
                let names = flags::NAMES.iter().filter(|(_, bit)| bits & bit != 0).map(|(name, _)| *name);
                let names: Vec<_> = names.collect();
                text.push_str(if names.is_empty() { "-" } else { "" });
                text.push_str(&names.join("|"));
            }
            Kind::Udp => text.push_str("UDP"),
            Kind::Arp => text.push_str("ARP"),
            Kind::Icmp(name) => write!(text, "ICMP {name}")?,
        }
        for (name, number) in &self.fields {
            match number {
                Number::Is(n) => write!(text, " {name}={n}")?,
                Number::AtLeast(n) => write!(text, " {name}>={n}")?,
                Number::AtMost(n) => write!(text, " {name}<={n}")?,
                Number::None => write!(text, " {name}=none")?,
            }
        }
        match self.sack.as_deref() {
            Some([]) => text.push_str(" sack=none"),
            Some(blocks) => {
                let blocks: Vec<_> = blocks.iter().map(|(l, r)| format!("{l}-{r}")).collect();
                write!(text, " sack={}", blocks.join(","))?;
            }
            None => {}
        }
        match self.sack_ok {
            Some(true) => text.push_str(" sackok"),
            Some(false) => text.push_str(" sackok=none"),
            None => {}
        }
        if self.psh == Some(false) {
            text.push_str(" nopsh");
        }
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests;
