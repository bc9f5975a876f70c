//! ICMPv6 (RFC 4443): echo, and the errors about the path. Neighbour discovery, whose messages are ICMPv6
//! too, is in [`super::ndp`]; the checksum, which covers the addresses, is here for both.

use super::icmpv4::Echo;
use super::{ICMPV6, Writer, checksum, u16_at, u32_at};
use crate::counters::DropReason;
use std::net::Ipv6Addr;

#[cfg(test)]
mod tests;

/// A message. `quoted` is the start of the packet that an error is about, IPv6 header first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Icmpv6Message<'a> {
    /// Type 128.
    EchoRequest(Echo<'a>),
    /// Type 129.
    EchoReply(Echo<'a>),
    /// Type 1.
    Unreachable {
        /// Code, one of the constants here or another.
        code: u8,
        /// The packet.
        quoted: &'a [u8],
    },
    /// Type 2: the packet is too big for the next link.
    PacketTooBig {
        /// MTU of that link in bytes.
        mtu: u32,
        /// The packet.
        quoted: &'a [u8],
    },
    /// Type 3.
    TimeExceeded {
        /// 0 in transit, 1 in reassembly.
        code: u8,
        /// The packet.
        quoted: &'a [u8],
    },
    /// Type 4: something in the headers is not understood.
    ParameterProblem {
        /// 0 for a wrong field, 1 for an unrecognised next header, 2 for an unrecognised option.
        code: u8,
        /// Its offset in the packet, bytes.
        pointer: u32,
        /// The packet.
        quoted: &'a [u8],
    },
}

/// Code of a destination without a route.
pub const NO_ROUTE: u8 = 0;
/// Code of communication administratively prohibited.
pub const PROHIBITED: u8 = 1;
/// Code of an unreachable address.
pub const ADDRESS_UNREACHABLE: u8 = 3;
/// Code of an unreachable port.
pub const PORT_UNREACHABLE: u8 = 4;

/// Code of a parameter problem: an unrecognised next header.
pub const UNRECOGNISED_NEXT_HEADER: u8 = 1;

const UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;

/// Whether the destination is unreachable for good, so that TCP should give up a connection it is opening:
/// prohibited and port unreachable (RFC 9293 section 3.9.2.2), with the two codes that say more of a
/// prohibition (RFC 4443 section 3.1).
pub const fn is_hard_error(code: u8) -> bool {
    matches!(code, PROHIBITED | PORT_UNREACHABLE | 5 | 6)
}

/// Whether no error may answer a message of this type (RFC 4443 section 2.4 e): errors, and redirects.
pub const fn is_error(kind: u8) -> bool {
    kind < 128 || kind == 137
}

/// Verifies the checksum of a message.
///
/// # Errors
/// [`DropReason::MalformedIcmpv6`] if it is too short to have one, [`DropReason::IcmpChecksum`] if it is
/// wrong.
pub fn verify_checksum(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> Result<(), DropReason> {
    if message.len() < 4 {
        return Err(DropReason::MalformedIcmpv6);
    }
    let sum = checksum::pseudo_header(src.into(), dst.into(), ICMPV6, message.len() as u32);
    match checksum::finish(checksum::sum(message, sum)) {
        0 => Ok(()),
        _ => Err(DropReason::IcmpChecksum),
    }
}

/// Computes the checksum of a complete message into its field.
///
/// # Panics
/// If `message` is shorter than 4 bytes.
pub fn fill_checksum(src: Ipv6Addr, dst: Ipv6Addr, message: &mut [u8]) {
    message[2..4].fill(0);
    let sum = checksum::pseudo_header(src.into(), dst.into(), ICMPV6, message.len() as u32);
    let checksum = checksum::finish(checksum::sum(message, sum));
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
}

impl<'a> Icmpv6Message<'a> {
    /// Length in bytes of the header, which data or a quoted packet follow.
    pub const HEADER_LEN: usize = 8;

    /// Most bytes quoted: the whole packet must fit the least MTU of IPv6 (RFC 4443 section 2.4 c).
    pub const QUOTE_MAX: usize = 1280 - 40 - Self::HEADER_LEN;

    /// The message, its checksum verified.
    ///
    /// # Errors
    /// [`DropReason::MalformedIcmpv6`], [`DropReason::IcmpChecksum`] or, also for neighbour discovery,
    /// [`DropReason::UnknownIcmp`].
    pub fn parse(src: Ipv6Addr, dst: Ipv6Addr, message: &'a [u8]) -> Result<Self, DropReason> {
        const BAD: DropReason = DropReason::MalformedIcmpv6;
        let (header, rest) = message.split_first_chunk::<8>().ok_or(BAD)?;
        verify_checksum(src, dst, message)?;
        let echo = Echo {
            ident: u16_at(header, 4).ok_or(BAD)?,
            sequence: u16_at(header, 6).ok_or(BAD)?,
            data: rest,
        };
        Ok(match (header[0], header[1]) {
            (ECHO_REQUEST, 0) => Self::EchoRequest(echo),
            (ECHO_REPLY, 0) => Self::EchoReply(echo),
            (UNREACHABLE, code) => Self::Unreachable { code, quoted: rest },
            (PACKET_TOO_BIG, _) => Self::PacketTooBig { mtu: u32_at(header, 4).ok_or(BAD)?, quoted: rest },
            (TIME_EXCEEDED, code) => Self::TimeExceeded { code, quoted: rest },
            (PARAMETER_PROBLEM, code) => {
                Self::ParameterProblem { code, pointer: u32_at(header, 4).ok_or(BAD)?, quoted: rest }
            }
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
            | Self::PacketTooBig { quoted, .. }
            | Self::ParameterProblem { quoted, .. }
            | Self::TimeExceeded { quoted, .. } => &quoted[..quoted.len().min(Self::QUOTE_MAX)],
        }
    }

    /// Writes the message to the start of `out`, its checksum computed; a quoted packet is cut to
    /// [`Icmpv6Message::QUOTE_MAX`] bytes.
    ///
    /// # Panics
    /// If `out` is shorter than [`Icmpv6Message::len`].
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr, out: &mut [u8]) {
        let echo = |echo: Echo<'_>| u32::from(echo.ident) << 16 | u32::from(echo.sequence);
        let (kind, code, field) = match *self {
            Self::EchoRequest(e) => (ECHO_REQUEST, 0, echo(e)),
            Self::EchoReply(e) => (ECHO_REPLY, 0, echo(e)),
            Self::Unreachable { code, .. } => (UNREACHABLE, code, 0),
            Self::PacketTooBig { mtu, .. } => (PACKET_TOO_BIG, 0, mtu),
            Self::TimeExceeded { code, .. } => (TIME_EXCEEDED, code, 0),
            Self::ParameterProblem { code, pointer, .. } => (PARAMETER_PROBLEM, code, pointer),
        };
        let mut out = Writer::new(out);
        out.bytes(&[kind, code, 0, 0]);
        out.u32(field);
        out.bytes(self.data());
        fill_checksum(src, dst, out.written());
    }
}
