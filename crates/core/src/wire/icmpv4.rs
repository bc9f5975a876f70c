//! ICMP (RFC 792): echo, and the errors about the path. Other types are not supported.

use super::{Writer, checksum, u16_at};
use crate::counters::DropReason;

#[cfg(test)]
mod tests;

/// An echo request or reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo<'a> {
    /// Identifier, which separates the requests of different programs.
    pub ident: u16,
    /// Sequence number.
    pub sequence: u16,
    /// Payload to be echoed.
    pub data: &'a [u8],
}

/// A message. `quoted` is the start of the packet that an error is about, IP header first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Icmpv4Message<'a> {
    /// Type 8.
    EchoRequest(Echo<'a>),
    /// Type 0.
    EchoReply(Echo<'a>),
    /// Type 3 except code 4.
    Unreachable {
        /// Code, one of the constants here or another.
        code: u8,
        /// The packet.
        quoted: &'a [u8],
    },
    /// Type 3 code 4 (RFC 1191): the packet is too big for the next link and must not be fragmented.
    FragmentationNeeded {
        /// MTU of that link in bytes; 0 from routers that do not say.
        mtu: u16,
        /// The packet.
        quoted: &'a [u8],
    },
    /// Type 11.
    TimeExceeded {
        /// 0 in transit, 1 in reassembly.
        code: u8,
        /// The packet.
        quoted: &'a [u8],
    },
}

/// Code of an unreachable network.
pub const NET_UNREACHABLE: u8 = 0;
/// Code of an unreachable host.
pub const HOST_UNREACHABLE: u8 = 1;
/// Code of an unreachable protocol.
pub const PROTOCOL_UNREACHABLE: u8 = 2;
/// Code of an unreachable port.
pub const PORT_UNREACHABLE: u8 = 3;
/// Code of a packet that must be fragmented but must not be.
pub const FRAGMENTATION_NEEDED: u8 = 4;
/// Code of communication administratively prohibited (RFC 1812 section 5.2.7.1).
pub const PROHIBITED: u8 = 13;

const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;

/// Whether the destination is unreachable for good, so that TCP should give up a connection it is opening:
/// protocol and port unreachable (RFC 9293 section 3.9.2.2), and administratively prohibited (codes 9, 10 and
/// 13).
pub const fn is_hard_error(code: u8) -> bool {
    matches!(code, PROTOCOL_UNREACHABLE | PORT_UNREACHABLE | 9 | 10 | PROHIBITED)
}

/// Whether an ICMP type is that of an error, to which no error may answer (RFC 1122 section 3.2.2):
/// unreachable, source quench, redirect, time exceeded, parameter problem.
pub const fn is_error(kind: u8) -> bool {
    matches!(kind, 3 | 4 | 5 | 11 | 12)
}

impl<'a> Icmpv4Message<'a> {
    /// Length in bytes of the header, which data or a quoted packet follow.
    pub const HEADER_LEN: usize = 8;

    /// Most bytes quoted: the whole packet, with an IP header of 20 bytes, should be at most 576 bytes long
    /// (RFC 1812 section 4.3.2.3).
    pub const QUOTE_MAX: usize = 576 - 20 - Self::HEADER_LEN;

    /// The message, its checksum verified.
    ///
    /// # Errors
    /// [`DropReason::MalformedIcmpv4`], [`DropReason::IcmpChecksum`] or [`DropReason::UnknownIcmp`].
    pub fn parse(message: &'a [u8]) -> Result<Self, DropReason> {
        const BAD: DropReason = DropReason::MalformedIcmpv4;
        let (header, rest) = message.split_first_chunk::<8>().ok_or(BAD)?;
        if checksum::finish(checksum::sum(message, 0)) != 0 {
            return Err(DropReason::IcmpChecksum);
        }
        let first = u16_at(header, 4).ok_or(BAD)?;
        let second = u16_at(header, 6).ok_or(BAD)?;
        let echo = Echo { ident: first, sequence: second, data: rest };
        Ok(match (header[0], header[1]) {
            (ECHO_REQUEST, 0) => Self::EchoRequest(echo),
            (ECHO_REPLY, 0) => Self::EchoReply(echo),
            (UNREACHABLE, FRAGMENTATION_NEEDED) => Self::FragmentationNeeded { mtu: second, quoted: rest },
            (UNREACHABLE, code) => Self::Unreachable { code, quoted: rest },
            (TIME_EXCEEDED, code) => Self::TimeExceeded { code, quoted: rest },
            _ => return Err(DropReason::UnknownIcmp),
        })
    }

    /// Length in bytes as emitted.
    #[allow(clippy::len_without_is_empty, reason = "a message is never empty")]
    pub fn len(&self) -> usize {
        Self::HEADER_LEN + self.data().len()
    }

    /// Data of an echo, or as much of the quoted packet as is sent.
    fn data(&self) -> &'a [u8] {
        match *self {
            Self::EchoRequest(echo) | Self::EchoReply(echo) => echo.data,
            Self::Unreachable { quoted, .. }
            | Self::FragmentationNeeded { quoted, .. }
            | Self::TimeExceeded { quoted, .. } => &quoted[..quoted.len().min(Self::QUOTE_MAX)],
        }
    }

    /// Writes the message to the start of `out`, its checksum computed; a quoted packet is cut to
    /// [`Icmpv4Message::QUOTE_MAX`] bytes.
    ///
    /// # Panics
    /// If `out` is shorter than [`Icmpv4Message::len`].
    pub fn emit(&self, out: &mut [u8]) {
        let (kind, code, first, second) = match *self {
            Self::EchoRequest(echo) => (ECHO_REQUEST, 0, echo.ident, echo.sequence),
            Self::EchoReply(echo) => (ECHO_REPLY, 0, echo.ident, echo.sequence),
            Self::Unreachable { code, .. } => (UNREACHABLE, code, 0, 0),
            Self::FragmentationNeeded { mtu, .. } => (UNREACHABLE, FRAGMENTATION_NEEDED, 0, mtu),
            Self::TimeExceeded { code, .. } => (TIME_EXCEEDED, code, 0, 0),
        };
        let mut out = Writer::new(out);
        out.bytes(&[kind, code, 0, 0]);
        out.u16(first);
        out.u16(second);
        out.bytes(self.data());
        let message = out.written();
        let checksum = checksum::finish(checksum::sum(message, 0));
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
}
