//! Whole DNS messages (RFC 1035, RFC 6891): a query with its OPT record, the records of an answer, and
//! answers of brodo's own.

use super::{AD, CD, Header, NAME_LEN_MAX, Name, OPCODE, QR, Question, RA, RD};
use crate::wire::{u16_at, u32_at};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[cfg(test)]
mod tests;

/// Type of an IPv4 address (RFC 1035).
pub const A: u16 = 1;
/// Type of an alias (RFC 1035).
pub const CNAME: u16 = 5;
/// Type of a zone's start of authority (RFC 1035).
pub const SOA: u16 = 6;
/// Type of a pointer from an address to a name (RFC 1035).
pub const PTR: u16 = 12;
/// Type of a mail exchange (RFC 1035).
pub const MX: u16 = 15;
/// Type of the location of a service (RFC 2782).
pub const SRV: u16 = 33;
/// Type of an IPv6 address (RFC 3596).
pub const AAAA: u16 = 28;
/// Type of the pseudo-record of EDNS (RFC 6891).
pub const OPT: u16 = 41;
/// Types that the authority section of an answer may have: NS, SOA, RRSIG, NSEC, NSEC3 (RFC 4034, RFC 5155).
const AUTHORITIES: [u16; 5] = [2, SOA, 46, 47, 50];
/// The lowest of the types that only a question can have (RFC 6895, 3.1): transfers and ANY.
const QTYPES: u16 = 249;
/// Types of zone transfers (RFC 1995, RFC 5936).
const TRANSFERS: [u16; 2] = [251, 252];
/// Class of the Internet.
pub const IN: u16 = 1;

/// Longest message over UDP without an OPT record, in bytes (RFC 1035, 2.3.4).
pub const PLAIN_LEN_MAX: usize = 512;
/// Bytes of an OPT record without options.
const OPT_LEN: usize = 11;
/// UDP payload size in brodo's own OPT records: fits every path (DNS flag day 2020).
const OPT_SIZE: u16 = 1232;
/// The DO bit of an OPT record, in its TTL field (RFC 3225).
const DNSSEC_OK: u32 = 0x8000;

/// A message that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// Which part of a message a record stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Answer section.
    Answer,
    /// Authority section.
    Authority,
    /// Additional section.
    Additional,
}

/// One resource record.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// Owner name.
    pub name: Name<'a>,
    /// Type of the record or question.
    pub kind: u16,
    /// Class, 1 for the Internet.
    pub class: u16,
    /// Time to live, in seconds.
    pub ttl: u32,
    /// Offset of the TTL in the message, bytes.
    pub ttl_at: usize,
    /// Offset of the data in the message, bytes.
    pub data_at: usize,
    /// The data; names in it may be compressed.
    pub data: &'a [u8],
    /// Section of the record.
    pub section: Section,
    message: &'a [u8],
}

impl<'a> Record<'a> {
    /// The address that an A or AAAA record holds.
    pub fn address(&self) -> Option<IpAddr> {
        match (self.kind, self.data.len()) {
            (A, 4) => self.data.first_chunk::<4>().map(|b| Ipv4Addr::from(*b).into()),
            (AAAA, 16) => self.data.first_chunk::<16>().map(|b| Ipv6Addr::from(*b).into()),
            _ => None,
        }
    }

    /// The name that a CNAME or PTR record holds.
    pub fn target(&self) -> Option<Name<'a>> {
        if !matches!(self.kind, CNAME | PTR) {
            return None;
        }
        let (name, end) = Name::parse(self.message, self.data_at)?;
        (end == self.data_at + self.data.len()).then_some(name)
    }

    /// Lifetime of a negative answer in seconds, if this is its SOA record: the lesser of its TTL and its
    /// last field (RFC 2308, section 5).
    pub fn negative_ttl(&self) -> Option<u32> {
        if self.kind != SOA {
            return None;
        }
        let (_, at) = Name::parse(self.message, self.data_at)?;
        let (_, at) = Name::parse(self.message, at)?;
        (at + 20 == self.data_at + self.data.len()).then_some(())?;
        Some(u32_at(self.message, at + 16)?.min(self.ttl))
    }

    /// Content of an OPT record, if it is one.
    fn opt(&self) -> Option<Opt> {
        (self.kind == OPT && self.section == Section::Additional && self.name.is_root()).then_some(Opt {
            size: self.class,
            rcode: (self.ttl >> 24) as u8,
            version: (self.ttl >> 16) as u8,
            dnssec_ok: self.ttl & DNSSEC_OK != 0,
            has_options: !self.data.is_empty(),
        })
    }
}

/// Content of an OPT record (RFC 6891, 6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opt {
    /// Longest message that its sender takes over UDP, in bytes.
    pub size: u16,
    /// The high bits of the response code.
    pub rcode: u8,
    /// Version of EDNS; only 0 is defined.
    pub version: u8,
    /// DNSSEC records are wanted (RFC 3225).
    pub dnssec_ok: bool,
    /// It has options.
    pub has_options: bool,
}

/// The records of a message, in order. Ends after the first that cannot be read.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    message: &'a [u8],
    at: usize,
    left: [u16; 3],
}

impl<'a> Records<'a> {
    /// The records of `message`, whose question section ends at `at`.
    pub fn new(message: &'a [u8], header: &Header, at: usize) -> Self {
        Self { message, at, left: [header.answers, header.authorities, header.additionals] }
    }

    fn read(&self, section: Section) -> Option<(Record<'a>, usize)> {
        let message = self.message;
        let (name, at) = Name::parse(message, self.at)?;
        let data_at = at + 10;
        let end = data_at + usize::from(u16_at(message, at + 8)?);
        let record = Record {
            name,
            kind: u16_at(message, at)?,
            class: u16_at(message, at + 2)?,
            ttl: u32_at(message, at + 4)?,
            ttl_at: at + 4,
            data_at,
            data: message.get(data_at..end)?,
            section,
            message,
        };
        Some((record, end))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let part = self.left.iter().position(|&left| left > 0)?;
        let section = [Section::Answer, Section::Authority, Section::Additional][part];
        if let Some((record, end)) = self.read(section) {
            self.left[part] -= 1;
            self.at = end;
            return Some(Ok(record));
        }
        self.left = [0; 3];
        Some(Err(Malformed))
    }
}

/// Match of a message with a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// A response to another query, or none.
    No,
    /// All agrees but the case of letters in the question.
    OtherCase,
    /// A response to the query, with the same case of letters.
    Yes,
}

/// UDP payload size that brodo's own queries offer: the most that a resolver of the host's network is likely
/// to send at once, so that answers are seldom truncated.
const QUERY_SIZE: u16 = 4096;
/// Most bytes of [`Query::canonical`].
pub const CANONICAL_LEN_MAX: usize = Header::LEN + NAME_LEN_MAX + 4 + OPT_LEN;

/// Most bytes of [`Query::key`].
pub const KEY_LEN_MAX: usize = NAME_LEN_MAX + 5;

/// A query with one question.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// The whole message.
    pub message: &'a [u8],
    /// Its header.
    pub header: Header,
    /// Its question; the name is not compressed.
    pub question: Question<'a>,
    /// Its OPT record, if it has one.
    pub opt: Option<Opt>,
    /// It has no other records.
    bare: bool,
}

impl<'a> Query<'a> {
    /// Reads a query. Of an operation other than the standard query only the question is parsed.
    ///
    /// # Errors
    /// It is a response, has not exactly one question, or cannot be read.
    pub fn parse(message: &'a [u8]) -> Result<Self, Malformed> {
        let header = Header::parse(message).ok_or(Malformed)?;
        let question = Question::parse(message).ok_or(Malformed)?;
        let plain = question.name.encoded_len() + 4 == question.end - Header::LEN;
        if header.is_response() || header.questions != 1 || !plain {
            return Err(Malformed);
        }
        let mut query = Self { message, header, question, opt: None, bare: true };
        if header.opcode() != 0 {
            query.bare = false;
            return Ok(query);
        }
        for record in Records::new(message, &header, question.end) {
            let record = record?;
            match record.opt() {
                Some(_) if query.opt.is_some() => return Err(Malformed),
                Some(opt) => query.opt = Some(opt),
                None if record.kind == OPT => return Err(Malformed),
                None => query.bare = false,
            }
        }
        Ok(query)
    }

    /// Longest answer over UDP that the sender takes, in bytes.
    pub fn answer_len_max(&self) -> usize {
        self.opt.map_or(PLAIN_LEN_MAX, |opt| usize::from(opt.size).max(PLAIN_LEN_MAX))
    }

    /// Whether the answer depends on [`Query::key`] alone: a standard query for one type of record, recursion
    /// desired, with no options, signature or other records.
    pub fn is_ordinary(&self) -> bool {
        let opt = self.opt.is_none_or(|opt| !opt.has_options && opt.version == 0);
        let kind = self.question.qtype != OPT && self.question.qtype < QTYPES;
        self.bare && opt && kind && self.question.qclass == IN && self.header.flags & RD != 0
    }

    /// Whether it asks for a whole zone, or for its changes.
    pub fn is_zone_transfer(&self) -> bool {
        TRANSFERS.contains(&self.question.qtype)
    }

    /// Writes the key of the answer to the start of `out` and returns its length in bytes: the name in lower
    /// case, type, class, presence of an OPT record, and the bits DO, CD and AD.
    pub fn key(&self, out: &mut [u8; KEY_LEN_MAX]) -> usize {
        let question = &self.message[Header::LEN..self.question.end];
        let name = question.len() - 4;
        out[..question.len()].copy_from_slice(question);
        // Lengths of labels are below 64 and so are no letters.
        out[..name].make_ascii_lowercase();
        let bits = [
            self.opt.is_some(),
            self.opt.is_some_and(|opt| opt.dnssec_ok),
            self.header.flags & CD != 0,
            self.header.flags & AD != 0,
        ];
        out[question.len()] = bits.iter().fold(0, |all, &bit| all << 1 | u8::from(bit));
        question.len() + 1
    }

    /// Writes a query with the same question, and nothing else of this one but the DO and CD bits, to the
    /// start of `out` and returns its length in bytes: identifier zero, letters in lower case, an OPT record
    /// without options.
    pub fn canonical(&self, out: &mut [u8; CANONICAL_LEN_MAX]) -> usize {
        let question = &self.message[Header::LEN..self.question.end];
        let flags = RD | self.header.flags & CD;
        let header = Header { id: 0, flags, questions: 1, answers: 0, authorities: 0, additionals: 1 };
        header.emit(out);
        let end = self.question.end;
        out[Header::LEN..end].copy_from_slice(question);
        out[Header::LEN..end - 4].make_ascii_lowercase();
        let dnssec_ok = self.opt.is_some_and(|opt| opt.dnssec_ok);
        write_opt(&mut out[end..end + OPT_LEN], QUERY_SIZE, dnssec_ok, 0);
        end + OPT_LEN
    }

    /// Length in bytes of the same query without its OPT record, in whose header no further records are
    /// counted. `None` if it has none, or other records, or options that are a question of their own.
    pub fn plain_len(&self) -> Option<usize> {
        let has_plain_form = self.bare && self.opt.is_some_and(|opt| !opt.has_options);
        has_plain_form.then_some(self.question.end)
    }

    /// The same query without its OPT record; `None` as with [`Query::plain_len`].
    pub fn without_edns(&self) -> Option<Box<[u8]>> {
        let mut plain: Box<[u8]> = self.message[..self.plain_len()?].into();
        plain[Header::ADDITIONALS].fill(0);
        Some(plain)
    }

    /// Match of `message` as a response to this query, sent under the identifier `id`.
    pub fn fit(&self, id: u16, message: &[u8]) -> Fit {
        let Some(header) = Header::parse(message) else { return Fit::No };
        let alike = (header.id, header.opcode(), header.questions) == (id, self.header.opcode(), 1);
        let asked = &self.message[Header::LEN..self.question.end];
        let Some(got) = message.get(Header::LEN..self.question.end) else { return Fit::No };
        let name = asked.len() - 4;
        if !header.is_response() || !alike || got[name..] != asked[name..] {
            return Fit::No;
        }
        match &got[..name] {
            got if *got == asked[..name] => Fit::Yes,
            got if got.eq_ignore_ascii_case(&asked[..name]) => Fit::OtherCase,
            _ => Fit::No,
        }
    }

    /// Whether it has no other records than an OPT record: no signature, for one.
    pub fn is_bare(&self) -> bool {
        self.bare
    }

    /// Rewrites `answer`, a response to the same question, with the ID and the letters of this query.
    pub fn restore(&self, answer: &mut [u8]) {
        answer[..2].copy_from_slice(&self.header.id.to_be_bytes());
        answer[Header::LEN..self.question.end].copy_from_slice(&self.message[Header::LEN..self.question.end]);
    }

    /// Makes `answer`, an earlier response to the same question, one to this query: identifier, the bits that
    /// are repeated, and the letters of the question as they were asked. It is not authoritative.
    ///
    /// # Panics
    /// If `answer` is not a response to the same question.
    pub fn adopt(&self, answer: &mut [u8]) {
        let Some(header) = Header::parse(answer) else { return };
        let flags = header.flags & !(super::AA | RD | CD) | self.header.flags & (RD | CD);
        Header { flags, ..header }.emit(answer);
        self.restore(answer);
    }
}

/// A response to a query in the making.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut [u8],
    len: usize,
    header: Header,
    opt: Option<Opt>,
}

impl<'a> Reply<'a> {
    /// Most bytes of a response without records: header, question, and an OPT record.
    pub const EMPTY_LEN_MAX: usize = Header::LEN + NAME_LEN_MAX + 4 + OPT_LEN;

    /// A response without records, with the response code and bits of `flags`. It grows no longer than `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`Reply::EMPTY_LEN_MAX`].
    pub fn new(query: &Query<'_>, flags: u16, out: &'a mut [u8]) -> Self {
        let question = &query.message[Header::LEN..query.question.end];
        out[Header::LEN..query.question.end].copy_from_slice(question);
        let header = Header {
            id: query.header.id,
            flags: QR | RA | query.header.flags & (OPCODE | RD | CD) | flags,
            questions: 1,
            answers: 0,
            authorities: 0,
            additionals: 0,
        };
        Self { out, len: query.question.end, header, opt: query.opt }
    }

    /// Adds a record of the queried name. False if there is no room for it.
    pub fn push(&mut self, kind: u16, ttl: u32, data: &[u8]) -> bool {
        let reserved = if self.opt.is_some() { OPT_LEN } else { 0 };
        let Ok(data_len) = u16::try_from(data.len()) else { return false };
        let end = self.len + 12 + data.len();
        if end + reserved > self.out.len() {
            return false;
        }
        let record = &mut self.out[self.len..end];
        // A pointer to the question's name.
        record[..2].copy_from_slice(&[0xc0, Header::LEN as u8]);
        record[2..4].copy_from_slice(&kind.to_be_bytes());
        record[4..6].copy_from_slice(&IN.to_be_bytes());
        record[6..10].copy_from_slice(&ttl.to_be_bytes());
        record[10..12].copy_from_slice(&data_len.to_be_bytes());
        record[12..].copy_from_slice(data);
        self.len = end;
        self.header.answers += 1;
        true
    }

    /// Adds the record that says how long a negative answer holds (RFC 2308, 3): the root's, for no zone of
    /// the guest's world is brodo's.
    pub fn push_negative_soa(&mut self, ttl: u32) {
        const SOA_LEN: usize = 11 + 22;
        let reserved = if self.opt.is_some() { OPT_LEN } else { 0 };
        if self.len + SOA_LEN + reserved > self.out.len() {
            return;
        }
        let record = &mut self.out[self.len..self.len + SOA_LEN];
        record.fill(0);
        record[1..3].copy_from_slice(&SOA.to_be_bytes());
        record[3..5].copy_from_slice(&IN.to_be_bytes());
        record[5..9].copy_from_slice(&ttl.to_be_bytes());
        record[9..11].copy_from_slice(&22u16.to_be_bytes());
        // Names of server and mailbox: the root. Serial, refresh, retry, expire: zero. Minimum: the TTL.
        record[29..33].copy_from_slice(&ttl.to_be_bytes());
        self.len += SOA_LEN;
        self.header.authorities = 1;
    }

    /// Completes it with an extended error (RFC 8914), if the query has an OPT record to put it in and there
    /// is room for it; returns its length in bytes.
    pub fn finish_with_error(mut self, code: u16, text: &str) -> usize {
        const OPTION_HEAD: usize = 6;
        const EXTENDED_ERROR: u16 = 15;
        let option = OPTION_HEAD + text.len();
        let end = self.len + OPT_LEN + option;
        let (Some(opt), Ok(data_len)) = (self.opt, u16::try_from(option)) else { return self.finish() };
        if end > self.out.len() {
            return self.finish();
        }
        write_opt(&mut self.out[self.len..self.len + OPT_LEN], OPT_SIZE, opt.dnssec_ok, data_len);
        let out = &mut self.out[self.len + OPT_LEN..end];
        out[..2].copy_from_slice(&EXTENDED_ERROR.to_be_bytes());
        out[2..4].copy_from_slice(&(data_len - 4).to_be_bytes());
        out[4..6].copy_from_slice(&code.to_be_bytes());
        out[6..].copy_from_slice(text.as_bytes());
        self.header.additionals = 1;
        self.header.emit(self.out);
        end
    }

    /// Completes it; returns its length in bytes. A query with an OPT record gets one in the answer (RFC
    /// 6891, 6.1.1).
    pub fn finish(mut self) -> usize {
        if let Some(opt) = self.opt {
            write_opt(&mut self.out[self.len..self.len + OPT_LEN], OPT_SIZE, opt.dnssec_ok, 0);
            self.len += OPT_LEN;
            self.header.additionals = 1;
        }
        self.header.emit(self.out);
        self.len
    }
}

/// Writes an OPT record that is followed by `data_len` bytes of options.
fn write_opt(record: &mut [u8], size: u16, dnssec_ok: bool, data_len: u16) {
    record.fill(0);
    record[1..3].copy_from_slice(&OPT.to_be_bytes());
    record[3..5].copy_from_slice(&size.to_be_bytes());
    record[5..9].copy_from_slice(&(u32::from(dnssec_ok) * DNSSEC_OK).to_be_bytes());
    record[9..11].copy_from_slice(&data_len.to_be_bytes());
}

/// The part of `message`, a response to `query`, that answers it, in at most `limit` bytes: the records of
/// the answer section, as many as fit, truncated (TC) if those are not all. If none of them is of the queried
/// type, or if the query has the DO bit, the authority section follows, up to the first record that is
/// neither about the zone nor a proof: the time for which the lack holds (RFC 2308), and what a validator
/// needs for an answer from a wildcard (RFC 4035, 3.1.3.3). An OPT record of brodo's own follows if the query
/// has one. `None` if it cannot be read.
///
/// Names in records point back only (RFC 1035, 4.1.4), so what is kept stays readable.
pub fn cut_answer(query: &Query<'_>, message: &[u8], limit: usize) -> Option<Vec<u8>> {
    let header = Header::parse(message)?;
    let reserved = if query.opt.is_some() { OPT_LEN } else { 0 };
    let room = limit.checked_sub(reserved)?;
    let (mut end, mut counts) = (query.question.end, [0u16; 2]);
    let mut keeps_authority = true;
    for record in Records::new(message, &header, end) {
        let record = record.ok()?;
        let kept = match record.section {
            Section::Answer => {
                let answers = record.kind == query.question.qtype || query.question.qtype >= QTYPES;
                keeps_authority &= !answers || query.opt.is_some_and(|opt| opt.dnssec_ok);
                0
            }
            Section::Authority if keeps_authority && AUTHORITIES.contains(&record.kind) => 1,
            _ => break,
        };
        let record_end = record.data_at + record.data.len();
        if record_end > room {
            break;
        }
        end = record_end;
        counts[kept] += 1;
    }
    let mut out = message.get(..end)?.to_vec();
    let flags = if counts[0] < header.answers { header.flags | super::TC } else { header.flags };
    let additionals = u16::from(query.opt.is_some());
    Header { flags, answers: counts[0], authorities: counts[1], additionals, ..header }.emit(&mut out);
    if let Some(opt) = query.opt {
        out.resize(end + OPT_LEN, 0);
        write_opt(&mut out[end..], OPT_SIZE, opt.dnssec_ok, 0);
    }
    Some(out)
}
