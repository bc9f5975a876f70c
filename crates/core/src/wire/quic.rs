//! QUIC as far as its handshake is readable without a secret: the long headers of versions 1 and 2 (RFC 9000,
//! 17.2; RFC 9369), the protection of Initial packets ([`protection`]), and their frames ([`CryptoFrames`]).
//!
//! The keys of a client's Initials follow from the destination connection ID of its first one (RFC 9001,
//! 5.2), so reading them decrypts nothing that was secret. The tag proves that a server with the same ID
//! reads the same bytes.

pub mod protection;

#[cfg(test)]
pub(crate) mod tests;

/// Longest connection ID of both versions, in bytes (RFC 9000, 17.2).
pub const CONNECTION_ID_LEN_MAX: usize = 20;
/// Bit of the first byte that makes a header a long one.
const LONG: u8 = 0x80;
/// Frame types that a client's Initial may have (RFC 9000, 12.4).
const PADDING: u8 = 0;
const PING: u8 = 1;
const ACK: u8 = 2;
const ACK_WITH_ECN: u8 = 3;
const CRYPTO: u8 = 6;
const CONNECTION_CLOSE: u8 = 0x1c;

/// Bytes that are no packet of these versions, or contradict themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// Version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// RFC 9000.
    V1,
    /// RFC 9369.
    V2,
}

impl Version {
    /// Its number on the wire.
    pub const fn number(self) -> u32 {
        match self {
            Self::V1 => 1,
            Self::V2 => 0x6b33_43cf,
        }
    }

    /// The version with this number on the wire.
    pub fn of(number: u32) -> Option<Self> {
        [Self::V1, Self::V2].into_iter().find(|version| version.number() == number)
    }

    /// Two bits that mark an Initial; the other types follow in order (RFC 9369, 3.2).
    const fn initial_bits(self) -> u8 {
        match self {
            Self::V1 => 0,
            Self::V2 => 1,
        }
    }
}

/// Type of a packet with a long header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LongType {
    /// Carries the first handshake messages.
    Initial,
    /// Early data.
    ZeroRtt,
    /// Carries the rest of the handshake.
    Handshake,
    /// A server's demand to begin anew.
    Retry,
}

/// A packet with a long header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongPacket<'a> {
    /// Its version.
    pub version: Version,
    /// Its type.
    pub kind: LongType,
    /// Destination connection ID.
    pub destination: &'a [u8],
    /// The whole packet, protected.
    pub bytes: &'a [u8],
    /// Offset of the packet number, which is protected as well; of a Retry, the end of its header.
    pub number_at: usize,
}

/// A packet of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuicPacket<'a> {
    /// With a long header.
    Long(LongPacket<'a>),
    /// With a short header, or padding behind the others: the rest of the datagram.
    Short,
}

impl<'a> QuicPacket<'a> {
    /// The first packet of `datagram`, and what is behind it.
    ///
    /// # Errors
    /// [`Malformed`] for another version, and for lengths beyond the datagram.
    pub fn parse(datagram: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        match datagram.first() {
            None => Err(Malformed),
            Some(first) if first & LONG == 0 => Ok((Self::Short, &[])),
            Some(_) => LongPacket::read(datagram),
        }
    }
}

impl<'a> LongPacket<'a> {
    fn read(datagram: &'a [u8]) -> Result<(QuicPacket<'a>, &'a [u8]), Malformed> {
        let mut rest = Bytes(datagram);
        let first = rest.byte()?;
        let version = rest.take(4)?.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
        let version = Version::of(version).ok_or(Malformed)?;
        let destination = rest.connection_id()?;
        rest.connection_id()?;
        let bits = (first >> 4 & 3).wrapping_sub(version.initial_bits()) & 3;
        let kind =
            [LongType::Initial, LongType::ZeroRtt, LongType::Handshake, LongType::Retry][usize::from(bits)];
        if kind == LongType::Initial {
            let token = rest.length()?;
            rest.take(token)?;
        }
        let length = if kind == LongType::Retry { rest.0.len() } else { rest.length()? };
        let number_at = datagram.len() - rest.0.len();
        rest.take(length)?;
        let bytes = &datagram[..number_at + length];
        Ok((QuicPacket::Long(Self { version, kind, destination, bytes, number_at }), rest.0))
    }
}

/// Part of the handshake's stream of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CryptoFrame<'a> {
    /// Its place in the stream.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
}

/// The CRYPTO frames of an opened Initial, in order. After an error there are no more.
#[derive(Debug)]
pub struct CryptoFrames<'a>(Bytes<'a>);

impl<'a> CryptoFrames<'a> {
    /// Frames of this payload.
    pub fn new(payload: &'a [u8]) -> Self {
        Self(Bytes(payload))
    }

    /// The next CRYPTO frame; `None` at the end.
    fn read(&mut self) -> Result<Option<CryptoFrame<'a>>, Malformed> {
        let rest = &mut self.0;
        while !rest.0.is_empty() {
            match rest.byte()? {
                PADDING => rest.skip_padding(),
                PING => {}
                kind @ (ACK | ACK_WITH_ECN) => {
                    let (_largest, _delay, ranges, _first) =
                        (rest.varint()?, rest.varint()?, rest.varint()?, rest.varint()?);
                    let counts = if kind == ACK_WITH_ECN { 3 } else { 0 };
                    // Each number takes a byte at least, so the loop ends with the bytes.
                    for _ in 0..ranges.saturating_mul(2).saturating_add(counts) {
                        rest.varint()?;
                    }
                }
                CRYPTO => {
                    let offset = rest.varint()?;
                    let length = rest.length()?;
                    return Ok(Some(CryptoFrame { offset, data: rest.take(length)? }));
                }
                CONNECTION_CLOSE => {
                    let (_error, _frame) = (rest.varint()?, rest.varint()?);
                    let reason = rest.length()?;
                    rest.take(reason)?;
                }
                _ => return Err(Malformed),
            }
        }
        Ok(None)
    }
}

impl<'a> Iterator for CryptoFrames<'a> {
    type Item = Result<CryptoFrame<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read().transpose();
        if let Some(Err(Malformed)) = read {
            self.0 = Bytes(&[]);
        }
        read
    }
}

/// Bytes that are read from the front.
#[derive(Debug)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.take(1).map(|byte| byte[0])
    }

    /// Skips padding, many bytes at a time: it is most of an Initial.
    fn skip_padding(&mut self) {
        while let Some((chunk, rest)) = self.0.split_first_chunk::<64>()
            && chunk.iter().fold(0, |all, byte| all | byte) == PADDING
        {
            self.0 = rest;
        }
    }

    /// A number of variable length (RFC 9000, 16).
    fn varint(&mut self) -> Result<u64, Malformed> {
        let first = self.byte()?;
        let more = (1usize << (first >> 6)) - 1;
        let tail = self.take(more)?;
        Ok(tail.iter().fold(u64::from(first & 0x3f), |value, &byte| value << 8 | u64::from(byte)))
    }

    /// The same as a number of bytes.
    fn length(&mut self) -> Result<usize, Malformed> {
        self.varint().and_then(|length| usize::try_from(length).map_err(|_| Malformed))
    }

    fn connection_id(&mut self) -> Result<&'a [u8], Malformed> {
        let len = usize::from(self.byte()?);
        if len > CONNECTION_ID_LEN_MAX { Err(Malformed) } else { self.take(len) }
    }
}
