//! Requests of HTTP/1.x (RFC 9112) in the stream of a client: where each head ends, which host it names, and
//! where its body ends.
//!
//! [`RequestReader`] takes the bytes as they come, for the life of the connection. Heads are kept until they
//! are whole and parsed once ([`Head`]); bodies are counted and not looked at. The reader is strict, because
//! a server that sees the end of a head or of a body elsewhere sees another request: every line ends with
//! CRLF, a name is followed by its colon, nothing is folded, `Host` occurs once, a length is stated once and
//! in one way, and `chunked` is the only coding. Requests that turn the connection into something else
//! (`CONNECT`, `Upgrade`, the preface of HTTP/2) are refused.

use std::ops::Range;

#[cfg(test)]
mod tests;

/// Longest head, and trailer section, in bytes.
pub const HEAD_LEN_MAX: usize = 16 << 10;
/// Most fields of a head, and of a trailer section.
pub const FIELDS_MAX: usize = 128;
/// Longest line that begins a chunk, in bytes.
pub const CHUNK_LINE_MAX: usize = 256;
/// Most digits of a length: 10^18 bytes, or 16^15, are within 64 bits.
const DECIMAL_DIGITS_MAX: usize = 18;
const HEX_DIGITS_MAX: usize = 15;
const CRLF: &[u8] = b"\r\n";

/// Reason why bytes are no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// They do not begin as one does.
    NotHttp,
    /// They do, but can be read in two ways, are longer than is read, or ask for another protocol.
    Request,
}

/// Result of [`RequestReader::read`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A head, or a line between chunks, is not whole yet.
    More,
    /// A head is whole: of a request to this host, without its port; none if it states none.
    Head(Option<Box<[u8]>>),
    /// Bytes of a body.
    Body,
}

/// End of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// After so many bytes.
    Length(u64),
    Chunked,
}

/// Place in the stream, between two parts that are read as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPlace {
    /// Before a head.
    Head,
    /// Bytes of a body to come, at least one.
    Body(u64),
    /// Before the line that begins a chunk.
    ChunkLine,
    /// Bytes of a chunk to come, at least one.
    Chunk(u64),
    /// Before the CRLF behind a chunk.
    ChunkEnd,
    /// Before the trailer section.
    Trailers,
}

/// Reader of a client's stream.
#[derive(Debug)]
pub struct RequestReader {
    place: RequestPlace,
    /// Lines of the present head, chunk line or trailer section, as far as they have come.
    lines: Vec<u8>,
    /// Whether the first line was read.
    begun: bool,
}

impl Default for RequestReader {
    fn default() -> Self {
        Self { place: RequestPlace::Head, lines: Vec::new(), begun: false }
    }
}

impl RequestReader {
    /// A reader that goes on at `place`.
    pub fn at(place: RequestPlace) -> Self {
        Self { place, ..Self::default() }
    }

    /// Where it stands: behind the last part that was whole.
    pub fn place(&self) -> RequestPlace {
        self.place
    }

    /// Takes bytes from the front of `bytes`, which are the next of the stream and not empty, and says how
    /// many. It stops behind each whole part, so that what follows may be read or not.
    ///
    /// # Errors
    /// They are no request; what follows is not to be read.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(usize, Progress), Malformed> {
        match &mut self.place {
            RequestPlace::Body(left) | RequestPlace::Chunk(left) => {
                let taken = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= taken as u64;
                if *left == 0 {
                    self.place = if let RequestPlace::Chunk(_) = self.place {
                        RequestPlace::ChunkEnd
                    } else {
                        RequestPlace::Head
                    };
                }
                Ok((taken, Progress::Body))
            }
            _ => self.read_lines(bytes),
        }
    }

    /// Whether the stream may end here.
    pub fn is_between_requests(&self) -> bool {
        self.place == RequestPlace::Head && self.lines.is_empty()
    }

    fn read_lines(&mut self, bytes: &[u8]) -> Result<(usize, Progress), Malformed> {
        let longest = if self.place == RequestPlace::ChunkLine { CHUNK_LINE_MAX } else { HEAD_LEN_MAX };
        for (n, &byte) in bytes.iter().enumerate() {
            self.lines.push(byte);
            if byte == b'\n' {
                if !self.lines.ends_with(CRLF) {
                    return Err(self.wrong());
                }
                if let Some(progress) = self.line_ended()? {
                    return Ok((n + 1, progress));
                }
            } else if self.lines.len() >= longest || !self.may_begin() {
                return Err(self.wrong());
            }
        }
        Ok((bytes.len(), Progress::More))
    }

    /// Malformed lines are those of a request if one has begun.
    fn wrong(&self) -> Malformed {
        if self.begun { Malformed::Request } else { Malformed::NotHttp }
    }

    /// Whether the first byte can be that of a method.
    fn may_begin(&self) -> bool {
        self.begun || self.lines.first().is_some_and(|&byte| is_token(byte))
    }

    /// A line has ended: the part of the stream that is whole with it, if it is.
    fn line_ended(&mut self) -> Result<Option<Progress>, Malformed> {
        match self.place {
            RequestPlace::Head if !self.begun => {
                RequestLine::parse(&self.lines[..self.lines.len() - CRLF.len()])?;
                self.begun = true;
                return Ok(None);
            }
            RequestPlace::Head | RequestPlace::Trailers if !self.is_section_whole() => return Ok(None),
            _ => {}
        }
        let lines = std::mem::take(&mut self.lines);
        let progress = match self.place {
            RequestPlace::Head => {
                let head = Head::parse(&lines)?;
                self.place = match head.framing {
                    Framing::Chunked => RequestPlace::ChunkLine,
                    Framing::Length(0) => RequestPlace::Head,
                    Framing::Length(length) => RequestPlace::Body(length),
                };
                return Ok(Some(Progress::Head(head.host.map(|range| lines[range].into()))));
            }
            RequestPlace::ChunkLine => {
                let length = chunk_length(&lines[..lines.len() - CRLF.len()]).ok_or(Malformed::Request)?;
                self.place = if length == 0 { RequestPlace::Trailers } else { RequestPlace::Chunk(length) };
                Progress::Body
            }
            RequestPlace::ChunkEnd if lines == CRLF => {
                self.place = RequestPlace::ChunkLine;
                Progress::Body
            }
            RequestPlace::Trailers => {
                // Fields that belong into a head would be read as such by a server that merges them.
                if Fields::parse(&lines)?.has_any() {
                    return Err(Malformed::Request);
                }
                self.place = RequestPlace::Head;
                Progress::Body
            }
            RequestPlace::ChunkEnd | RequestPlace::Body(_) | RequestPlace::Chunk(_) => {
                return Err(Malformed::Request);
            }
        };
        Ok(Some(progress))
    }

    /// Whether the lines end with an empty one.
    fn is_section_whole(&self) -> bool {
        self.lines == CRLF || self.lines.ends_with(b"\r\n\r\n")
    }
}

/// A head, as far as it says whom the request is for and where it ends.
#[derive(Debug)]
struct Head {
    /// Place of the host in the head.
    host: Option<Range<usize>>,
    framing: Framing,
}

impl Head {
    fn parse(lines: &[u8]) -> Result<Self, Malformed> {
        let end = find(lines, CRLF).ok_or(Malformed::Request)?;
        let line = RequestLine::parse(&lines[..end])?;
        let fields = Fields::parse(&lines[end + CRLF.len()..])?;
        let shifted = |range: Range<usize>| range.start + end + 2..range.end + end + 2;
        let host = fields.host.clone().map(shifted);
        if fields.upgrades || fields.expects_otherwise {
            return Err(Malformed::Request);
        }
        if let Some(authority) = line.authority
            && !host.clone().is_some_and(|host| lines[host].eq_ignore_ascii_case(authority))
        {
            return Err(Malformed::Request);
        }
        let framing = match (fields.length, fields.chunked) {
            (None, false) => Framing::Length(0),
            (Some(length), false) => Framing::Length(length),
            // HTTP/1.0 has no codings: a server of that time would not see them (RFC 9112, 6.1).
            (None, true) if line.is_1_1 => Framing::Chunked,
            (_, true) => return Err(Malformed::Request),
        };
        let host = match host {
            Some(range) => Some(range.start..range.start + without_port(&lines[range])?),
            None => None,
        };
        Ok(Self { host, framing })
    }
}

/// Length of the name in `name[:port]`; an IPv6 address, in brackets, has colons of its own.
fn without_port(host: &[u8]) -> Result<usize, Malformed> {
    let brackets = host.iter().rposition(|&byte| byte == b']').map_or(0, |end| end + 1);
    let colon = host[brackets..].iter().rposition(|&byte| byte == b':');
    let Some(colon) = colon.map(|at| brackets + at) else { return Ok(host.len()) };
    let port = &host[colon + 1..];
    let is_port = (1..=5).contains(&port.len()) && port.iter().all(u8::is_ascii_digit);
    if is_port { Ok(colon) } else { Err(Malformed::Request) }
}

/// The first line of a head.
#[derive(Debug)]
struct RequestLine<'a> {
    /// Authority of an absolute target.
    authority: Option<&'a [u8]>,
    is_1_1: bool,
}

impl<'a> RequestLine<'a> {
    fn parse(line: &'a [u8]) -> Result<Self, Malformed> {
        let mut words = line.split(|&byte| byte == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(Malformed::NotHttp);
        };
        let is_1_1 = version == b"HTTP/1.1";
        let is_method = !method.is_empty() && method.iter().all(|&byte| is_token(byte));
        if method == b"PRI" || method == b"CONNECT" {
            return Err(Malformed::Request);
        }
        if !is_method || !(is_1_1 || version == b"HTTP/1.0") {
            return Err(Malformed::NotHttp);
        }
        if !target.iter().all(u8::is_ascii_graphic) {
            return Err(Malformed::Request);
        }
        let authority = match target {
            [b'/', ..] => None,
            b"*" if method == b"OPTIONS" => None,
            _ => Some(authority(target).ok_or(Malformed::Request)?),
        };
        Ok(Self { authority, is_1_1 })
    }
}

/// Authority of `http://authority/path`.
fn authority(target: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"http://";
    let (scheme, rest) = target.split_at_checked(SCHEME.len())?;
    let end = rest.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(rest.len());
    let authority = &rest[..end];
    (scheme.eq_ignore_ascii_case(SCHEME) && !authority.is_empty() && !authority.contains(&b'@'))
        .then_some(authority)
}

/// The fields of a section that say something about the connection.
#[derive(Debug, Default)]
struct Fields {
    /// Place of the value of `Host` in the section.
    host: Option<Range<usize>>,
    length: Option<u64>,
    chunked: bool,
    upgrades: bool,
    /// An expectation other than `100-continue` (RFC 9110, 10.1.1): servers differ in whether a body follows.
    expects_otherwise: bool,
    expects: bool,
}

impl Fields {
    /// Fields of a section that ends with an empty line.
    fn parse(section: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Self::default();
        let (mut at, mut count) = (0, 0);
        while let Some(len) = find(&section[at..], CRLF) {
            if len == 0 {
                return if at + CRLF.len() == section.len() { Ok(fields) } else { Err(Malformed::Request) };
            }
            count += 1;
            if count > FIELDS_MAX {
                return Err(Malformed::Request);
            }
            fields.add(&section[at..at + len], at).ok_or(Malformed::Request)?;
            at += len + CRLF.len();
        }
        Err(Malformed::Request)
    }

    /// Whether one of them occurs.
    fn has_any(&self) -> bool {
        let Self { host, length, chunked, upgrades, expects, .. } = self;
        host.is_some() || length.is_some() || *chunked || *upgrades || *expects
    }

    /// Takes one line, which begins at `at`.
    fn add(&mut self, line: &[u8], at: usize) -> Option<()> {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = &line[..colon];
        let is_value = |&byte: &u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
        if name.is_empty() || !name.iter().all(|&byte| is_token(byte)) || !line.iter().all(is_value) {
            return None;
        }
        let value = line[colon + 1..].trim_ascii();
        let start = at + colon + 1 + (line[colon + 1..].len() - line[colon + 1..].trim_ascii_start().len());
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let once = |seen: bool| (!seen).then_some(());
        if is("host") {
            once(self.host.is_some())?;
            self.host = Some(start..start + value.len());
        } else if is("content-length") {
            once(self.length.is_some())?;
            self.length = Some(number(value, 10, DECIMAL_DIGITS_MAX)?);
        } else if is("transfer-encoding") {
            once(self.chunked)?;
            self.chunked = value.eq_ignore_ascii_case(b"chunked").then_some(true)?;
        } else if is("upgrade") {
            self.upgrades = true;
        } else if is("expect") {
            self.expects_otherwise |= self.expects || !value.eq_ignore_ascii_case(b"100-continue");
            self.expects = true;
        }
        Some(())
    }
}

/// Length of a chunk, from the line that begins it: hexadecimal digits, perhaps with extensions.
fn chunk_length(line: &[u8]) -> Option<u64> {
    let end = line.iter().position(|&byte| byte == b';').unwrap_or(line.len());
    let (digits, extensions) = line.split_at(end);
    let legal = extensions.iter().all(|&byte| byte == b' ' || byte.is_ascii_graphic());
    legal.then(|| number(digits, 16, HEX_DIGITS_MAX))?
}

/// A number of digits alone.
fn number(digits: &[u8], radix: u32, most: usize) -> Option<u64> {
    let legal = (1..=most).contains(&digits.len()) && digits.iter().all(|&b| char::from(b).is_digit(radix));
    let text = std::str::from_utf8(digits).ok().filter(|_| legal)?;
    u64::from_str_radix(text, radix).ok()
}

/// Bytes of names (RFC 9110, 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
