//! Proof that bytes behind a length are a frame, for a stream whose position is assumed.
//!
//! A frame has the length that the packet inside gives itself (IPv4 total length, RFC 791, 3.1; IPv6 payload
//! length, RFC 8200, 3; ARP for Ethernet and IPv4, RFC 826), or is padded to the least length of a frame.
//! Bytes from the midst of a frame do so by chance once in 2^32 at least; a guest that forges them could have
//! sent the same frame anyway.

use brodo_core::wire::ethernet::{EtherType, EthernetHeader};

/// Longest frame that may be padded, in bytes: the least length, with a check sequence.
const PADDED_MAX: usize = 64;

/// Whether the bytes are a frame of IPv4, IPv6 or ARP.
pub(super) fn is_frame(bytes: &[u8]) -> bool {
    let Some((header, packet)) = bytes.split_at_checked(EthernetHeader::LEN) else { return false };
    let [.., high, low] = *header else { return false };
    let length = match (EtherType::from(u16::from_be_bytes([high, low])), packet) {
        (EtherType::Ipv4, [0x45..=0x4f, _, high, low, ..]) => u16::from_be_bytes([*high, *low]).into(),
        (EtherType::Ipv6, [0x60..=0x6f, _, _, _, high, low, ..]) => {
            40 + usize::from(u16::from_be_bytes([*high, *low]))
        }
        (EtherType::Arp, [0, 1, 8, 0, 6, 4, ..]) => 28,
        _ => return false,
    };
    packet.len() == length || (packet.len() > length && bytes.len() <= PADDED_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with these bytes behind its addresses, `len` bytes long.
    fn frame(begin: &[u8], len: usize) -> Vec<u8> {
        let mut bytes = [&[2; 12], begin].concat();
        bytes.resize(len, 0);
        bytes
    }

    #[test]
    fn lengths_have_to_agree() {
        let ipv4 = [8, 0, 0x45, 0, 0, 100];
        let ipv6 = [0x86, 0xdd, 0x60, 0, 0, 0, 0, 60];
        let arp = [8, 6, 0, 1, 8, 0, 6, 4];
        let short = [8, 0, 0x45, 0, 0, 40];
        for (begin, len) in
            [(&ipv4[..], 114), (&ipv6, 114), (&arp, 42), (&arp, 60), (&short, 54), (&short, 60)]
        {
            assert!(is_frame(&frame(begin, len)), "{begin:x?}, {len}");
        }
        for (begin, len) in
            [(&ipv4[..], 113), (&ipv4, 115), (&ipv6, 100), (&arp, 41), (&short, 53), (&short, 100)]
        {
            assert!(!is_frame(&frame(begin, len)), "{begin:x?}, {len}");
        }
        for begin in [&[8, 0, 0x55, 0, 0, 100][..], &[0x86, 0xdd, 0x40, 0, 0, 0, 0, 60], &[0x88, 0xcc], &[]] {
            assert!(!is_frame(&frame(begin, 114)), "{begin:x?}");
        }
        for len in 0..18 {
            assert!(!is_frame(&frame(&ipv4, 114)[..len]), "{len}");
        }
    }
}
