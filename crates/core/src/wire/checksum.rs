//! The Internet checksum (RFC 1071): 16-bit one's complement sums, used by IPv4, ICMP, TCP and UDP.
//!
//! An accumulator is a `u32` whose one's complement value counts, not its bits: [`sum`] and [`pseudo_header`]
//! fold it on the way, so that no chain of calls overflows. Pieces are summed in order; all but the last must
//! have an even length, because each starts on a 16-bit boundary.
//!
//! To fill a field: zero it, `finish(sum(segment, pseudo_header(..)))`. To verify: the same over the received
//! bytes, field included, gives 0. The partial checksum of virtio-net is `fold(pseudo_header(..))`, not
//! complemented.

use std::net::IpAddr;

#[cfg(test)]
mod tests;

/// Adds `data` to the accumulator `initial`.
///
/// The sum is taken in native byte order over 64-bit words, which compilers turn into vector code, and
/// swapped once at the end (RFC 1071 section 2 B and C). A last odd byte counts as the high half of a 16-bit
/// word.
pub fn sum(data: &[u8], initial: u32) -> u32 {
    let (words, rest) = data.as_chunks::<8>();
    // Each word adds less than 2^33: 16 GiB of data would have to be summed to overflow.
    let mut total = 0u64;
    for word in words {
        let word = u64::from_ne_bytes(*word);
        total += (word & 0xffff_ffff) + (word >> 32);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let word = u64::from_ne_bytes(last);
        total += (word & 0xffff_ffff) + (word >> 32);
    }
    let total = (total & 0xffff_ffff) + (total >> 32);
    let total = (total & 0xffff_ffff) + (total >> 32);
    let native = fold(total as u32);
    (initial & 0xffff) + (initial >> 16) + u32::from(native.to_be())
}

/// The accumulator as a 16-bit one's complement sum, not complemented.
pub const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The checksum field for an accumulator: its complement. Over bytes that already hold a right checksum, 0.
pub const fn finish(sum: u32) -> u16 {
    !fold(sum)
}

/// The accumulator of the pseudo-header of TCP, UDP and ICMPv6: RFC 9293 section 3.1 over IPv4, RFC 8200
/// section 8.1 over IPv6. `length` is that of the upper-layer packet in bytes, header included.
///
/// Both addresses are to be of one family.
pub fn pseudo_header(src: IpAddr, dst: IpAddr, protocol: u8, length: u32) -> u32 {
    let address = |address, initial| match address {
        IpAddr::V4(a) => sum(&a.octets(), initial),
        IpAddr::V6(a) => sum(&a.octets(), initial),
    };
    let initial = (length & 0xffff) + (length >> 16) + u32::from(protocol);
    address(dst, address(src, initial))
}
