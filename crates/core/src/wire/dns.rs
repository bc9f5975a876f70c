//! DNS messages (RFC 1035), as much as a forwarder needs: headers, names and questions here, records and
//! whole messages in [`message`]. The encoding of names is shared with DHCP and router advertisements.

pub(crate) mod chain;
pub mod message;

use super::u16_at;
use core::fmt;
use core::ops::Range;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[cfg(test)]
mod tests;

/// Longest encoded name in bytes, with its final zero.
pub const NAME_LEN_MAX: usize = 255;
/// Most pointers in a name: as many as it has labels if each is followed by one (RFC 1035, 3.1 and 4.1.4).
/// Without a bound a message of records that all point into one long chain would take time by the square of
/// its length.
const HOPS_MAX: u8 = 127;

/// Most bytes of encoded search names offered to a guest: the capacity of one DHCPv4 option.
pub const SEARCH_LEN_MAX: usize = 255;

/// Response codes of a forwarder's own answers (RFC 1035 section 4.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rcode {
    /// The query cannot be read.
    FormErr = 1,
    /// No resolver answered.
    ServFail = 2,
    /// The name does not exist.
    NxDomain = 3,
    /// The operation is not implemented.
    NotImp = 4,
    /// Policy said no.
    Refused = 5,
}

/// The fixed header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Identifier, the same in query and response.
    pub id: u16,
    /// QR, opcode, AA, TC, RD, RA, AD, CD and the response code, as on the wire.
    pub flags: u16,
    /// Entries in the question section.
    pub questions: u16,
    /// Records in the answer section.
    pub answers: u16,
    /// Records in the authority section.
    pub authorities: u16,
    /// Records in the additional section.
    pub additionals: u16,
}

const QR: u16 = 0x8000;
const OPCODE: u16 = 0x7800;
/// Flag: authoritative answer.
pub const AA: u16 = 0x0400;
/// Bit of the flags: the message was cut.
pub const TC: u16 = 0x0200;
const RD: u16 = 0x0100;
const RA: u16 = 0x0080;
const AD: u16 = 0x0020;
const CD: u16 = 0x0010;

impl Header {
    /// Length in bytes.
    pub const LEN: usize = 12;
    /// The count of additional records.
    pub(crate) const ADDITIONALS: Range<usize> = 10..12;

    /// The header of a message, if it is long enough to have one.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let at = |i: usize| u16_at(message, 2 * i);
        Some(Self {
            id: at(0)?,
            flags: at(1)?,
            questions: at(2)?,
            answers: at(3)?,
            authorities: at(4)?,
            additionals: at(5)?,
        })
    }

    /// Writes the header to the start of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`Header::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        let fields = [self.id, self.flags, self.questions, self.answers, self.authorities, self.additionals];
        for (field, out) in fields.iter().zip(out[..Self::LEN].as_chunks_mut::<2>().0) {
            *out = field.to_be_bytes();
        }
    }

    /// Whether this is a response.
    pub const fn is_response(&self) -> bool {
        self.flags & QR != 0
    }

    /// Whether the message was cut, so that the question is to be asked again over TCP.
    pub const fn is_truncated(&self) -> bool {
        self.flags & TC != 0
    }

    /// The operation; 0 is a standard query.
    pub const fn opcode(&self) -> u8 {
        ((self.flags & OPCODE) >> 11) as u8
    }

    /// The response code, without the high bits of EDNS.
    pub const fn rcode(&self) -> u8 {
        (self.flags & 0xf) as u8
    }

    /// Whether the resolver could not answer, or would not: SERVFAIL, NOTIMP, REFUSED or FORMERR.
    pub fn is_failure(&self) -> bool {
        let failures = [Rcode::ServFail, Rcode::NotImp, Rcode::Refused, Rcode::FormErr];
        failures.iter().any(|&failure| self.rcode() == failure as u8)
    }

    /// Whether this is a refusal that EDNS may be the reason of (RFC 6891, section 7).
    pub const fn may_refuse_edns(&self) -> bool {
        let is_reason = self.rcode() == Rcode::FormErr as u8 || self.rcode() == Rcode::NotImp as u8;
        self.is_response() && is_reason
    }

    /// Whether `message`, of which this is the header, is nothing else and says "format error": so resolvers
    /// answer that have read no further than EDNS.
    pub const fn is_bare_format_error(&self, message: &[u8]) -> bool {
        self.is_response() && self.rcode() == Rcode::FormErr as u8 && message.len() == Self::LEN
    }
}

/// A name inside a message, known to be well-formed. Shown with dots between labels and a final dot, bytes
/// other than printable ASCII (and dots and backslashes inside labels) escaped as `\DDD` (RFC 1035 section
/// 5.1).
#[derive(Debug, Clone, Copy)]
pub struct Name<'a> {
    message: &'a [u8],
    start: usize,
}

impl<'a> Name<'a> {
    /// The name at `start` in `message`, and the offset behind it.
    pub fn parse(message: &'a [u8], start: usize) -> Option<(Self, usize)> {
        let mut labels = Labels::new(message, start);
        while labels.step().ok()?.is_some() {}
        Some((Self { message, start }, labels.end?))
    }

    /// The labels, without the root's.
    pub fn labels(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut labels = Labels::new(self.message, self.start);
        core::iter::from_fn(move || labels.step().ok().flatten())
    }

    /// Whether it is the root's.
    pub fn is_root(&self) -> bool {
        self.labels().next().is_none()
    }

    /// Bytes that it takes uncompressed, with its final zero.
    pub fn encoded_len(&self) -> usize {
        self.labels().map(|label| 1 + label.len()).sum::<usize>() + 1
    }

    /// Whether it is the same name; the case of letters does not matter (RFC 4343).
    pub fn is(&self, other: &Name<'_>) -> bool {
        let (mut own, mut others) = (self.labels(), other.labels());
        loop {
            match (own.next(), others.next()) {
                (None, None) => return true,
                (Some(a), Some(b)) if a.eq_ignore_ascii_case(b) => {}
                _ => return false,
            }
        }
    }

    /// The address with PTR records under this name (RFC 1035, 3.5; RFC 3596, 2.5). An address has one such
    /// name, but for the case of letters: zeros before a number would be data of the party that asks.
    pub fn reverse(&self) -> Option<IpAddr> {
        const LABELS_MAX: usize = 34;
        let mut labels = [&[][..]; LABELS_MAX];
        let mut count = 0;
        for label in self.labels() {
            *labels.get_mut(count)? = label;
            count += 1;
        }
        let (top, labels) = labels[..count].split_last()?;
        let (zone, digits) = labels.split_last()?;
        if !top.eq_ignore_ascii_case(b"arpa") {
            return None;
        }
        let number = |label: &[u8], radix| {
            let text = core::str::from_utf8(label).ok().filter(|text| !text.starts_with('+'))?;
            let is_canonical = text.len() == 1 || (radix == 10 && !text.starts_with('0'));
            u8::from_str_radix(text, radix).ok().filter(|_| is_canonical)
        };
        match digits.len() {
            4 if zone.eq_ignore_ascii_case(b"in-addr") => {
                let mut octets = [0; 4];
                for (octet, label) in octets.iter_mut().rev().zip(digits) {
                    *octet = number(label, 10)?;
                }
                Some(Ipv4Addr::from(octets).into())
            }
            32 if zone.eq_ignore_ascii_case(b"ip6") => {
                let mut bits = 0u128;
                for label in digits.iter().rev() {
                    bits = bits << 4 | u128::from(number(label, 16)?);
                }
                Some(Ipv6Addr::from_bits(bits).into())
            }
            _ => None,
        }
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut root = true;
        for label in self.labels() {
            root = false;
            for &byte in label {
                match byte {
                    b'.' | b'\\' => write!(f, "\\{}", char::from(byte))?,
                    b'!'..=b'~' => write!(f, "{}", char::from(byte))?,
                    _ => write!(f, "\\{byte:03}")?,
                }
            }
            f.write_str(".")?;
        }
        if root { f.write_str(".") } else { Ok(()) }
    }
}

/// A truncated or too long name, or one compressed into a loop.
struct BadName;

/// A walk over labels.
struct Labels<'a> {
    message: &'a [u8],
    at: usize,
    /// Start of the current run of labels: the next pointer must lead before it, hence no loops.
    floor: usize,
    /// Pointers that may still be followed.
    hops: u8,
    /// Bytes of the name so far, uncompressed.
    len: usize,
    /// Offset behind the name, once known.
    end: Option<usize>,
}

impl<'a> Labels<'a> {
    const fn new(message: &'a [u8], at: usize) -> Self {
        Self { message, at, floor: at, hops: HOPS_MAX, len: 0, end: None }
    }

    /// The next label, or none at the name's end.
    fn step(&mut self) -> Result<Option<&'a [u8]>, BadName> {
        loop {
            let first = *self.message.get(self.at).ok_or(BadName)?;
            match first >> 6 {
                0 if first == 0 => {
                    self.end.get_or_insert(self.at + 1);
                    return Ok(None);
                }
                0 => {
                    let start = self.at + 1;
                    let label = self.message.get(start..start + usize::from(first)).ok_or(BadName)?;
                    self.at = start + label.len();
                    self.len += 1 + label.len();
                    return if self.len < NAME_LEN_MAX { Ok(Some(label)) } else { Err(BadName) };
                }
                3 => {
                    let target = usize::from(u16_at(self.message, self.at).ok_or(BadName)? & 0x3fff);
                    self.end.get_or_insert(self.at + 2);
                    self.hops = self.hops.checked_sub(1).ok_or(BadName)?;
                    if target >= self.floor {
                        return Err(BadName);
                    }
                    self.at = target;
                    self.floor = target;
                }
                _ => return Err(BadName),
            }
        }
    }
}

/// The first entry of the question section.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Name asked for.
    pub name: Name<'a>,
    /// Type of record asked for; 1 is A, 28 AAAA.
    pub qtype: u16,
    /// Class, 1 for the Internet.
    pub qclass: u16,
    /// Offset behind the entry, in bytes from the start of the message.
    pub end: usize,
}

impl<'a> Question<'a> {
    /// The first question of a message; none if it is malformed or absent.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        if Header::parse(message)?.questions == 0 {
            return None;
        }
        let (name, at) = Name::parse(message, Header::LEN)?;
        Some(Self { name, qtype: u16_at(message, at)?, qclass: u16_at(message, at + 2)?, end: at + 4 })
    }
}

/// Most bytes of a reply that [`error_reply`] makes: header and one question.
pub const ERROR_REPLY_LEN_MAX: usize = Header::LEN + NAME_LEN_MAX + 4;

/// Writes the reply that refuses `query` to the start of `out` and returns its length in bytes: the same ID
/// and question, no records. None if `query` is not a query, so that two forwarders cannot answer each other
/// for ever. A malformed question is left out.
pub fn error_reply(query: &[u8], rcode: Rcode, out: &mut [u8]) -> Option<usize> {
    let header = Header::parse(query)?;
    if header.is_response() {
        return None;
    }
    // One question, not compressed: with nothing before it, a pointer could lead only into the header.
    let question = match Question::parse(query) {
        Some(q) if header.questions == 1 && q.end <= ERROR_REPLY_LEN_MAX => &query[Header::LEN..q.end],
        _ => &[],
    };
    let reply = Header {
        flags: QR | header.flags & (OPCODE | RD | CD) | RA | rcode as u16,
        questions: u16::from(!question.is_empty()),
        answers: 0,
        authorities: 0,
        additionals: 0,
        ..header
    };
    let len = Header::LEN + question.len();
    let out = &mut out[..len];
    reply.emit(out);
    out[Header::LEN..].copy_from_slice(question);
    Some(len)
}

/// Writes a name given as text, with or without final dot, to the start of `out`, not compressed, and gives
/// its length in bytes. None if it is empty or a label is empty, longer than 63 bytes or not made of letters,
/// digits, hyphens and underscores, or if it does not fit into `out` or into [`NAME_LEN_MAX`].
pub fn encode_name(text: &str, out: &mut [u8]) -> Option<usize> {
    let text = text.strip_suffix('.').unwrap_or(text);
    let mut len = 0;
    for label in text.split('.') {
        let legal = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if label.is_empty() || label.len() > 63 || !label.bytes().all(legal) {
            return None;
        }
        let out = out.get_mut(len..=len + label.len())?;
        out[0] = label.len() as u8;
        out[1..].copy_from_slice(label.as_bytes());
        len += out.len();
    }
    *out.get_mut(len)? = 0;
    (len < NAME_LEN_MAX).then_some(len + 1)
}

/// Writes search names one after another to the start of `out` and returns their length in bytes. Names that
/// are invalid or do not fit are left out.
pub fn encode_search(names: &[String], out: &mut [u8; SEARCH_LEN_MAX]) -> usize {
    let mut len = 0;
    for name in names {
        len += encode_name(name, &mut out[len..]).unwrap_or(0);
    }
    len
}
