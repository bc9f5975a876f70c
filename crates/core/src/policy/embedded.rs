//! Embedded IPv4 addresses: forms of IPv6 addresses that a translator or tunnel on the path turns into IPv4
//! packets.
//!
//! A rule about an IPv4 address that ignored them would be evaded by writing the same destination as
//! `64:ff9b::a00:1`. The translators of the host's network are unknown here, so every form that a standard
//! defines counts, and an ambiguous form counts with each of its readings. Unknown are the prefixes that an
//! operator has chosen for its own NAT64 (RFC 6052, section 2.2): a user with such a network denies the
//! prefix itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most readings of one address: NAT64's local-use prefix has four, and any address may end as ISATAP's do.
const READINGS_MAX: usize = 5;

/// IPv4 addresses to which a translator on the path may lead packets for `address`; none for IPv4 itself.
///
/// | Form | Standard |
/// |---|---|
/// | `::a.b.c.d`, `::ffff:a.b.c.d` | RFC 4291, 2.5.5 |
/// | `::ffff:0:a.b.c.d` | RFC 2765, 2.1 (SIIT) |
/// | `64:ff9b::/96` | RFC 6052, 2.1 |
/// | `64:ff9b:1::/48`, with every prefix length that it has room for | RFC 8215, RFC 6052, 2.2 |
/// | `2002:a.b.c.d::/48` (6to4) | RFC 3056, 2 |
/// | `2001::/32` (Teredo): the server, and the client with inverted bits | RFC 4380, 4 |
/// | `0:5efe:a.b.c.d` and `200:5efe:a.b.c.d` in the last 64 bits (ISATAP) | RFC 5214, 6.1 |
pub(super) fn embedded_ipv4(address: IpAddr) -> impl Iterator<Item = Ipv4Addr> {
    let mut found = [None; READINGS_MAX];
    if let IpAddr::V6(address) = address {
        let bytes = address.octets();
        let at = |places: [usize; 4]| Some(Ipv4Addr::from(places.map(|place| bytes[place])));
        let (last, inverted) = ([12, 13, 14, 15], bytes.map(|byte| !byte));
        let own = address == Ipv6Addr::UNSPECIFIED || address == Ipv6Addr::LOCALHOST;
        match address.segments() {
            [0, 0, 0, 0, 0, 0, ..] if own => {}
            [0, 0, 0, 0, 0, 0 | 0xffff, ..]
            | [0, 0, 0, 0, 0xffff, 0, ..]
            | [0x64, 0xff9b, 0, 0, 0, 0, ..] => found[0] = at(last),
            // Bits 64 to 71 are zero in every form, so the address goes around them.
            [0x64, 0xff9b, 1, ..] => {
                let forms = [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12], last];
                for (slot, form) in found.iter_mut().zip(forms) {
                    *slot = at(form);
                }
            }
            [0x2002, ..] => found[0] = at([2, 3, 4, 5]),
            [0x2001, 0, ..] => {
                found[0] = at([4, 5, 6, 7]);
                found[1] = Some(Ipv4Addr::from(last.map(|place| inverted[place])));
            }
            _ => {}
        }
        if let [_, _, _, _, 0 | 0x200, 0x5efe, ..] = address.segments() {
            found[READINGS_MAX - 1] = at(last);
        }
    }
    found.into_iter().flatten()
}

#[cfg(test)]
mod tests;
