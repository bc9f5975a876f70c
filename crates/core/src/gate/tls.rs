//! TLS at a gate: the server that a ClientHello names ([`crate::wire::tls`]).
//!
//! * *First*: until the ClientHello is whole.
//! * *Watching*: after a pass, until the handshake cannot begin anew. A server may answer with a
//!   HelloRetryRequest, and the second ClientHello names a server again: it must be the same.

use super::Outcome;
use crate::policy::{Named, reason};
use crate::snapshot::saved::{Invalid, valid};
use crate::snapshot::v1::GateReaderV1;
use crate::wire::tls::{ClientHello, HelloReader, Malformed, Progress};
use std::sync::Arc;

/// Bytes of early data (RFC 8446, 4.2.10) behind which a second ClientHello is still looked for: servers take
/// some 16 KiB.
const EARLY_MAX: u32 = 64 << 10;
/// Alerts that may stand before a second ClientHello. A server reads past a warning, and closes behind more
/// of them (OpenSSL takes five in a row).
const ALERTS_MAX: u8 = 5;
/// Record types.
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
pub(super) const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const RECORD_HEADER_LEN: usize = 5;

/// Alert record that refuses a connection: fatal, `access_denied` (RFC 8446, 6.2).
pub(super) const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// Reader of a connection's first records.
#[derive(Debug)]
pub(super) enum TlsGate {
    First(HelloReader),
    Watching(Watch),
}

impl Default for TlsGate {
    fn default() -> Self {
        Self::First(HelloReader::default())
    }
}

impl TlsGate {
    /// Takes bytes of the guest's from the front of `bytes`, which are not empty; `allowed` judges a name.
    /// Early data may stand behind the first ClientHello, and is not taken with it.
    ///
    /// # Errors
    /// The rule or reason that refuses the connection.
    pub(super) fn read(
        &mut self,
        bytes: &[u8],
        allowed: impl FnOnce(&[u8], bool) -> Result<(), Arc<str>>,
    ) -> Result<(usize, Outcome), Arc<str>> {
        let reader = match self {
            Self::First(reader) => reader,
            Self::Watching(watch) => return watch.read(bytes, allowed),
        };
        match reader.read(bytes) {
            Ok((taken, Progress::More)) => Ok((taken, Outcome::Hold)),
            Ok((taken, Progress::Whole)) => {
                let (name, hello) = judge(reader.message(), allowed)?;
                *self = Self::Watching(Watch::new(name.into(), &hello));
                Ok((taken, Outcome::Release))
            }
            Err(Malformed::NotTls) => Err(reason::NOT_TLS.into()),
            Err(Malformed::Hello) => Err(reason::HELLO.into()),
        }
    }
}

/// The name in an allowed ClientHello, which is a whole handshake message; `allowed` judges it, and whether
/// it is the outer one of an encrypted ClientHello (`true`).
///
/// # Errors
/// The rule or reason that refuses it.
pub(super) fn judge(
    message: &[u8],
    allowed: impl FnOnce(&[u8], bool) -> Result<(), Arc<str>>,
) -> Result<(&[u8], ClientHello<'_>), Arc<str>> {
    let hello = ClientHello::parse(message).map_err(|_| reason::HELLO)?;
    if hello.encrypted_name {
        return Err(reason::ECH.into());
    }
    let missing = if hello.encrypted { reason::ECH } else { reason::NO_NAME };
    let name = hello.server_name.ok_or(missing)?;
    allowed(name, hello.encrypted)?;
    Ok((name, hello))
}

/// Judges a further ClientHello by its name and whether that is an outer one. The server has to be that of
/// the first; an encrypted ClientHello behind one that was not may name another, so `allowed` judges it.
///
/// # Errors
/// The rule or reason that refuses it.
pub(super) fn again(
    first: (&[u8], bool),
    said: (&[u8], bool),
    allowed: impl FnOnce(&[u8], bool) -> Result<(), Arc<str>>,
) -> Result<(), Arc<str>> {
    let (name, encrypted) = said;
    if *name != *first.0 {
        return Err(reason::NAME_CHANGED.into());
    }
    if encrypted && !first.1 { allowed(name, encrypted) } else { Ok(()) }
}

/// Whether a message that begins as a ClientHello may be one for some server: the longest that OpenSSL reads
/// has 131,396 bytes. A longer one is the encrypted Finished of a resumed session of TLS 1.2, of which one in
/// 256 begins with the same byte. The version says nothing: with supported_versions servers do not look at it
/// (RFC 8446, 4.2.1).
fn is_possible_hello(message: &[u8]) -> bool {
    const LENGTH_TOP_MAX: u8 = 2;
    message.get(1).is_none_or(|&top| top <= LENGTH_TOP_MAX)
}

/// Records behind the first ClientHello, as long as a second one may come.
#[derive(Debug)]
pub(super) struct Watch {
    /// The server of the first.
    name: Box<[u8]>,
    /// It is the outer name of an encrypted ClientHello.
    encrypted: bool,
    /// Early data that may still come before the second ClientHello, in bytes.
    early_left: u32,
    /// Alerts likewise.
    alerts_left: u8,
    header: [u8; RECORD_HEADER_LEN],
    header_len: usize,
    /// Bytes of the present record that are still to come.
    left: u16,
    second: Option<HelloReader>,
}

/// For a snapshot.
impl TlsGate {
    /// A gate behind a first ClientHello that has named this server.
    pub(super) fn restore(named: &Named, saved: GateReaderV1) -> Result<Self, Invalid> {
        let GateReaderV1::Tls { early_left, alerts_left, left } = saved else { return Err(Invalid) };
        valid(early_left <= EARLY_MAX && alerts_left <= ALERTS_MAX)?;
        let watch = Watch::behind(named.name.clone(), named.encrypted);
        Ok(Self::Watching(Watch { early_left, alerts_left, left, ..watch }))
    }
}

impl Watch {
    /// Saved form of the place behind the last byte that was released: between the parts of records. A header
    /// or second ClientHello that is not whole is held.
    pub(super) fn save(&self) -> GateReaderV1 {
        let Self { early_left, alerts_left, left, .. } = *self;
        GateReaderV1::Tls { early_left, alerts_left, left }
    }

    fn new(name: Box<[u8]>, first: &ClientHello<'_>) -> Self {
        let early_left = if first.early_data { EARLY_MAX } else { 0 };
        Self { early_left, ..Self::behind(name, first.encrypted) }
    }

    /// Behind a ClientHello without early data.
    fn behind(name: Box<[u8]>, encrypted: bool) -> Self {
        Self {
            name,
            encrypted,
            early_left: 0,
            alerts_left: ALERTS_MAX,
            header: [0; RECORD_HEADER_LEN],
            header_len: 0,
            left: 0,
            second: None,
        }
    }

    /// Takes bytes from the front of `bytes`, which are not empty, up to the end of a record's header or of
    /// its content, or all that may belong to a second ClientHello.
    fn read(
        &mut self,
        bytes: &[u8],
        allowed: impl FnOnce(&[u8], bool) -> Result<(), Arc<str>>,
    ) -> Result<(usize, Outcome), Arc<str>> {
        if self.second.is_some() {
            return self.read_second(bytes, allowed);
        }
        if self.left > 0 {
            let taken = bytes.len().min(self.left.into());
            self.left -= taken as u16;
            return Ok((taken, Outcome::Release));
        }
        let wanted = RECORD_HEADER_LEN - self.header_len;
        let (taken, rest) = bytes.split_at(wanted.min(bytes.len()));
        self.header[self.header_len..self.header_len + taken.len()].copy_from_slice(taken);
        self.header_len += taken.len();
        if self.header_len < RECORD_HEADER_LEN {
            return Ok((bytes.len(), Outcome::Hold));
        }
        let length = u16::from_be_bytes([self.header[3], self.header[4]]);
        match self.header[0] {
            CHANGE_CIPHER_SPEC => {}
            ALERT => {
                self.alerts_left = self.alerts_left.checked_sub(1).ok_or(reason::HELLO)?;
            }
            APPLICATION_DATA if self.early_left > 0 => {
                self.early_left = self.early_left.saturating_sub(length.into());
            }
            // Empty handshake records are forbidden (RFC 8446, 5.1), and the byte behind is another's.
            HANDSHAKE if length == 0 => return Err(reason::HELLO.into()),
            // One byte behind the header says which handshake message it is.
            HANDSHAKE => match rest.first() {
                None => return Ok((bytes.len(), Outcome::Hold)),
                Some(1) => {
                    let mut second = HelloReader::default();
                    second.read(&self.header).map_err(|_| reason::HELLO)?;
                    self.second = Some(second);
                    let (more, outcome) = self.read_second(rest, allowed)?;
                    return Ok((taken.len() + more, outcome));
                }
                // The client's next message: the server has accepted the first.
                Some(_) => return Ok((bytes.len(), Outcome::Open)),
            },
            _ => return Ok((bytes.len(), Outcome::Open)),
        }
        (self.header_len, self.left) = (0, length);
        Ok((taken.len(), Outcome::Release))
    }

    /// Takes all bytes, behind the header of a record that begins a second ClientHello.
    fn read_second(
        &mut self,
        bytes: &[u8],
        allowed: impl FnOnce(&[u8], bool) -> Result<(), Arc<str>>,
    ) -> Result<(usize, Outcome), Arc<str>> {
        let Some(second) = &mut self.second else { return Ok((bytes.len(), Outcome::Hold)) };
        let outcome = match second.read(bytes) {
            _ if !is_possible_hello(second.message()) => Outcome::Open,
            Ok((_, Progress::More)) => Outcome::Hold,
            Ok((_, Progress::Whole)) => self.second_hello(allowed)?,
            Err(_) => return Err(reason::HELLO.into()),
        };
        Ok((bytes.len(), outcome))
    }

    /// The second ClientHello is whole. There is no third (RFC 8446, 4.1.4).
    fn second_hello(
        &self,
        allowed: impl FnOnce(&[u8], bool) -> Result<(), Arc<str>>,
    ) -> Result<Outcome, Arc<str>> {
        let message = self.second.as_ref().map_or(&[][..], HelloReader::message);
        let first = (&*self.name, self.encrypted);
        judge(message, |name, encrypted| again(first, (name, encrypted), allowed)).map(|_| Outcome::Open)
    }
}
