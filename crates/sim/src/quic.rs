//! Initial packets of QUIC as clients send them (RFC 9000, 17.2.2).

use brodo_core::wire::quic::Version;
use brodo_core::wire::quic::protection::ClientKeys;

/// Length to which clients pad a datagram with an Initial, in bytes (RFC 9000, 14.1).
pub const DATAGRAM_LEN: usize = 1200;
/// Length of a packet number here, and of the tag.
const NUMBER_LEN: usize = 4;
const TAG_LEN: usize = 16;

/// A client that has not finished its handshake.
#[derive(Debug, Clone, Copy)]
pub struct Client<'a> {
    /// Version in its headers.
    pub version: Version,
    /// Destination connection ID in its headers.
    pub destination: &'a [u8],
    /// The one from which its keys follow.
    pub keys_of: &'a [u8],
}

impl<'a> Client<'a> {
    /// A client of version 1 that begins with this connection ID.
    pub const fn new(destination: &'a [u8]) -> Self {
        Self { version: Version::V1, destination, keys_of: destination }
    }

    /// An Initial with these frames.
    pub fn initial(&self, number: u32, frames: &[u8]) -> Vec<u8> {
        let first = match self.version {
            Version::V1 => 0xc3,
            Version::V2 => 0xd3,
        };
        let mut header = vec![first];
        header.extend(self.version.number().to_be_bytes());
        header.push(self.destination.len() as u8);
        header.extend(self.destination);
        // No source connection ID, no token.
        header.extend([0, 0]);
        // The mask over the number is made of the bytes from the fifth on behind its beginning.
        let mut payload = frames.to_vec();
        payload.resize(frames.len().max(NUMBER_LEN), 0);
        let length = (NUMBER_LEN + payload.len() + TAG_LEN) as u16 | 0x4000;
        header.extend(length.to_be_bytes());
        header.extend(number.to_be_bytes());
        ClientKeys::new(self.version, self.keys_of).seal(&header, &payload)
    }

    /// The same in a datagram of its own, padded as clients do.
    pub fn datagram(&self, number: u32, frames: &[u8]) -> Vec<u8> {
        let overhead = self.initial(number, &[0; NUMBER_LEN]).len() - NUMBER_LEN;
        let mut padded = frames.to_vec();
        padded.resize(frames.len().max(DATAGRAM_LEN - overhead), 0);
        self.initial(number, &padded)
    }
}

/// A CRYPTO frame with the bytes of `stream` from `offset` to `end`.
pub fn crypto(stream: &[u8], offset: usize, end: usize) -> Vec<u8> {
    let varint = |number: usize| (number as u16 | 0x4000).to_be_bytes();
    [&[6][..], &varint(offset), &varint(end - offset), &stream[offset..end]].concat()
}
