//! Wire formats, one protocol per file: a plain header struct without illegal states, `parse` that returns
//! the header and the bytes behind it (or the [`crate::counters::DropReason`]), and `emit` into a buffer that
//! the caller has made big enough. No parser allocates, and none trusts a length it has not compared with the
//! bytes present.
//!
//! Conventions, everywhere: `LEN` is the fixed length that `emit` writes, `emit` panics if the buffer is
//! shorter, numbers in structs are in host order, and layer-4 checksums are not part of `parse` and `emit`,
//! because a link may have verified or may complete them (`CHECKSUM_OFFSET` is the field's offset).

pub mod arp;
pub mod checksum;
pub mod client_fqdn;
pub mod dhcpv4;
pub mod dhcpv6;
pub mod dns;
pub mod ethernet;
pub mod fragment;
pub mod http;
pub mod icmpv4;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod ndp;
pub mod quic;
pub mod tcp;
pub mod tls;
pub mod udp;
mod writer;

use std::net::{Ipv4Addr, Ipv6Addr};
use writer::Writer;

/// IP protocol number of ICMP.
pub const ICMP: u8 = 1;
/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// IP protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// The big-endian 16-bit number at `at`, if it is there.
fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    data.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

/// The big-endian 32-bit number at `at`, if it is there.
fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..)?.first_chunk().map(|b| u32::from_be_bytes(*b))
}

/// The IPv4 address at `at`, if it is there.
fn ipv4_at(data: &[u8], at: usize) -> Option<Ipv4Addr> {
    data.get(at..)?.first_chunk::<4>().map(|b| Ipv4Addr::from(*b))
}

/// The IPv6 address at `at`, if it is there.
fn ipv6_at(data: &[u8], at: usize) -> Option<Ipv6Addr> {
    data.get(at..)?.first_chunk::<16>().map(|b| Ipv6Addr::from(*b))
}
