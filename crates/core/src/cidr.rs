//! CIDR networks (RFC 4632): address ranges with a common prefix, for rules, the floor, capture filters and
//! the guest's own networks.
//!
//! Own code and not the crate `ipnet`: these few lines are `const`, and core has few dependencies.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Netmask of an IPv4 prefix of `prefix_len` bits, 0 to 32.
pub const fn mask_v4(prefix_len: u8) -> u32 {
    debug_assert!(prefix_len <= 32, "prefix longer than an IPv4 address");
    match u32::MAX.checked_shl(32 - prefix_len as u32) {
        Some(mask) => mask,
        None => 0,
    }
}

/// Netmask of an IPv6 prefix of `prefix_len` bits, 0 to 128.
pub const fn mask_v6(prefix_len: u8) -> u128 {
    debug_assert!(prefix_len <= 128, "prefix longer than an IPv6 address");
    match u128::MAX.checked_shl(128 - prefix_len as u32) {
        Some(mask) => mask,
        None => 0,
    }
}

/// A network: all addresses of one family with the same first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr {
    /// Address with all bits behind the prefix zero.
    address: IpAddr,
    prefix_len: u8,
}

impl Cidr {
    /// The network of `address` with a prefix of `prefix_len` bits; `None` if it is longer than the address.
    pub const fn new(address: IpAddr, prefix_len: u8) -> Option<Self> {
        let address = match address {
            IpAddr::V4(ip) if prefix_len <= 32 => {
                IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & mask_v4(prefix_len)))
            }
            IpAddr::V6(ip) if prefix_len <= 128 => {
                IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask_v6(prefix_len)))
            }
            _ => return None,
        };
        Some(Self { address, prefix_len })
    }

    /// The network of this address alone.
    pub const fn of_host(address: IpAddr) -> Self {
        Self { address, prefix_len: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// First address of the network.
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Length of the prefix in bits.
    pub const fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// Whether `ip` belongs to the network; an address of the other family does not.
    pub fn contains(&self, ip: IpAddr) -> bool {
        Self::new(ip, self.prefix_len).is_some_and(|network| network.address == self.address)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

#[cfg(test)]
mod tests;
