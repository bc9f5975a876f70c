//! ClientHello of TLS (RFC 8446, 4.1.2; RFC 6066, 3), as much as says which server is meant.
//!
//! [`HelloReader`] takes the bytes of a connection as they come, strips the records and keeps the handshake
//! message until it is whole; [`ClientHello::parse`] reads it. Both are strict: a server may read a message
//! in another way than this file, but only if it takes one that contradicts itself, and such a message is
//! [`Malformed`]. All lengths must agree to the byte, no extension may occur twice, and `server_name` has
//! exactly one name.

use super::u16_at;

#[cfg(test)]
mod tests;

/// Longest handshake message read, in bytes: a ClientHello with post-quantum keys has some 1,500.
pub const HELLO_LEN_MAX: usize = 16 << 10;
/// Most records that it may be spread over.
pub const RECORDS_MAX: u8 = 16;
/// Longest content of a record (RFC 8446, 5.1).
const RECORD_LEN_MAX: usize = 1 << 14;
const RECORD_HEADER_LEN: usize = 5;
/// Record type of handshake messages.
const HANDSHAKE: u8 = 22;
/// Handshake type of a ClientHello.
const CLIENT_HELLO: u8 = 1;

/// Extension types.
const SERVER_NAME: u16 = 0;
const EARLY_DATA: u16 = 42;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
const ENCRYPTED_SERVER_NAME: u16 = 0xffce;

/// Reason why bytes are no ClientHello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// They do not begin as a TLS connection does.
    NotTls,
    /// They do, but contradict themselves, or are longer or in more pieces than is read.
    Hello,
}

/// Progress of a [`HelloReader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The message is not whole yet.
    More,
    /// It is whole.
    Whole,
}

/// A ClientHello in the making.
#[derive(Debug, Default)]
pub struct HelloReader {
    header: [u8; RECORD_HEADER_LEN],
    header_len: usize,
    /// Bytes of the present record that are still to come.
    record_left: usize,
    records: u8,
    message: Vec<u8>,
}

impl HelloReader {
    /// Takes bytes of the connection, in order: how many, and what they lead to. A message that is whole ends
    /// with its record, and what stands behind it (early data) is not taken.
    ///
    /// # Errors
    /// They are no ClientHello; what follows is not to be read.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(usize, Progress), Malformed> {
        let all = bytes.len();
        let mut bytes = bytes;
        while !bytes.is_empty() && !self.is_whole() {
            if self.record_left == 0 {
                let wanted = RECORD_HEADER_LEN - self.header_len;
                let (taken, rest) = bytes.split_at(wanted.min(bytes.len()));
                self.header[self.header_len..self.header_len + taken.len()].copy_from_slice(taken);
                self.header_len += taken.len();
                bytes = rest;
                self.check_header()?;
                continue;
            }
            let (taken, rest) = bytes.split_at(self.record_left.min(bytes.len()));
            self.message.extend_from_slice(taken);
            self.record_left -= taken.len();
            bytes = rest;
            self.check_message()?;
        }
        let progress = if self.is_whole() { Progress::Whole } else { Progress::More };
        Ok((all - bytes.len(), progress))
    }

    /// Checks as much of the record's header as there is.
    fn check_header(&mut self) -> Result<(), Malformed> {
        let first = self.records == 0;
        let wrong = if first { Malformed::NotTls } else { Malformed::Hello };
        let header = &self.header[..self.header_len];
        if header.first().is_some_and(|&kind| kind != HANDSHAKE)
            || header.get(1).is_some_and(|&major| major != 3)
            || header.get(2).is_some_and(|&minor| minor > 4)
        {
            return Err(wrong);
        }
        if self.header_len == RECORD_HEADER_LEN {
            let length = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
            self.records += 1;
            // Empty handshake records are forbidden (RFC 8446, 5.1).
            if length == 0 || length > RECORD_LEN_MAX || self.records > RECORDS_MAX {
                return Err(Malformed::Hello);
            }
            (self.record_left, self.header_len) = (length, 0);
        }
        Ok(())
    }

    fn check_message(&self) -> Result<(), Malformed> {
        if self.message.first() != Some(&CLIENT_HELLO) {
            return Err(Malformed::Hello);
        }
        match self.expected() {
            Some(expected)
                if expected > HELLO_LEN_MAX || self.message.len() + self.record_left > expected =>
            {
                Err(Malformed::Hello)
            }
            _ => Ok(()),
        }
    }

    /// Length of the whole message, once its header is there.
    fn expected(&self) -> Option<usize> {
        let [_, a, b, c] = *self.message.first_chunk()?;
        Some(4 + u32::from_be_bytes([0, a, b, c]) as usize)
    }

    fn is_whole(&self) -> bool {
        self.record_left == 0 && self.expected() == Some(self.message.len())
    }

    /// The message, as far as it is there.
    pub fn message(&self) -> &[u8] {
        &self.message
    }
}

/// A ClientHello, as far as it concerns the server's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientHello<'a> {
    /// The name of the server.
    pub server_name: Option<&'a [u8]>,
    /// It has an encrypted ClientHello (RFC 9849), or bytes that look like one; the name is the outer one.
    pub encrypted: bool,
    /// It has an encrypted server name, the draft before that.
    pub encrypted_name: bool,
    /// Data may follow before the server has answered.
    pub early_data: bool,
}

impl<'a> ClientHello<'a> {
    /// Reads a whole handshake message.
    ///
    /// # Errors
    /// Its lengths disagree, an extension occurs twice, or `server_name` is other than one host name.
    pub fn parse(message: &'a [u8]) -> Result<Self, Malformed> {
        Self::read(message).ok_or(Malformed::Hello)
    }

    fn read(message: &'a [u8]) -> Option<Self> {
        let mut body = Bytes(message);
        let head = body.take(4)?;
        let length = u32::from_be_bytes([0, head[1], head[2], head[3]]) as usize;
        if head[0] != CLIENT_HELLO || length != body.0.len() {
            return None;
        }
        // Version, random.
        if body.take(2)?[0] != 3 {
            return None;
        }
        body.take(32)?;
        let session = body.vector8()?;
        let suites = body.vector16()?;
        let compression = body.vector8()?;
        if session.len() > 32 || suites.is_empty() || suites.len() % 2 != 0 || compression.is_empty() {
            return None;
        }
        let mut hello =
            Self { server_name: None, encrypted: false, encrypted_name: false, early_data: false };
        if body.0.is_empty() {
            return Some(hello);
        }
        let mut extensions = Bytes(body.vector16()?);
        if !body.0.is_empty() {
            return None;
        }
        let mut kinds = Vec::new();
        while !extensions.0.is_empty() {
            let kind = extensions.number()?;
            let data = extensions.vector16()?;
            kinds.push(kind);
            match kind {
                SERVER_NAME => hello.server_name = Some(server_name(data)?),
                EARLY_DATA => hello.early_data = true,
                ENCRYPTED_CLIENT_HELLO => hello.encrypted = true,
                ENCRYPTED_SERVER_NAME => hello.encrypted_name = true,
                _ => {}
            }
        }
        kinds.sort_unstable();
        kinds.windows(2).all(|pair| pair[0] != pair[1]).then_some(hello)
    }
}

/// The one host name of a `server_name` extension (RFC 6066, 3).
fn server_name(data: &[u8]) -> Option<&[u8]> {
    let mut data = Bytes(data);
    let mut list = Bytes(data.vector16()?);
    let kind = list.take(1)?[0];
    let name = list.vector16()?;
    (data.0.is_empty() && list.0.is_empty() && kind == 0 && !name.is_empty()).then_some(name)
}

/// Bytes that are read from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        u16_at(self.take(2)?, 0)
    }

    fn vector8(&mut self) -> Option<&'a [u8]> {
        let len = self.take(1)?[0];
        self.take(len.into())
    }

    fn vector16(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?;
        self.take(len.into())
    }
}
