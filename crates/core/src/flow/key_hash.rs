//! The hash of a flow's key, with a secret: the guest chooses the keys, and cannot aim for collisions.

use super::{Endpoint, FlowKey, Protocol};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::net::IpAddr;

/// A key as the bytes that are hashed: one write into the hasher instead of a dozen.
fn packed(key: &FlowKey) -> [u8; 38] {
    let mut bytes = [0; 38];
    let put = |bytes: &mut [u8; 38], at: usize, address: &Endpoint| {
        match address.ip() {
            IpAddr::V4(ip) => bytes[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[at..at + 16].copy_from_slice(&ip.octets()),
        }
        bytes[at + 16..at + 18].copy_from_slice(&address.port().to_ne_bytes());
    };
    put(&mut bytes, 0, &key.guest);
    put(&mut bytes, 18, &key.remote);
    bytes[36] = match key.protocol {
        Protocol::Tcp => 0,
        Protocol::Udp => 1,
        Protocol::Echo => 2,
    };
    bytes[37] = u8::from(key.guest.is_ipv6());
    bytes
}

/// Hash of a key with a secret.
pub(super) fn hash(secret: &[u8; 16], key: &FlowKey) -> u64 {
    let mut hasher = SipHasher13::new_with_key(secret);
    hasher.write(&packed(key));
    hasher.finish()
}
