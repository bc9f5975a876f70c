//! Ethernet II frames, without preamble and frame check sequence, as a TAP or a virtual machine hands them
//! over. Priority tags (IEEE 802.1Q, VLAN 0) are for a link to take out: the frame belongs to the untagged
//! network. Tags of VLANs and 802.3 length fields are not understood: both appear as [`EtherType::Other`].

use crate::counters::DropReason;
use core::fmt;
use core::str::FromStr;
use std::net::Ipv6Addr;

#[cfg(test)]
mod tests;

/// A MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// The address as a number of which 0 means that there is none, for an atomic.
    pub fn to_word(self) -> u64 {
        let mut bytes = [0, 1, 0, 0, 0, 0, 0, 0];
        bytes[2..].copy_from_slice(&self.0);
        u64::from_be_bytes(bytes)
    }

    /// The address of such a number.
    pub fn from_word(word: u64) -> Option<Self> {
        match word.to_be_bytes() {
            [0, 1, mac @ ..] => Some(Self(mac)),
            _ => None,
        }
    }

    /// Whether this is a group address (broadcast included): the lowest bit of the first byte.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether this is the broadcast address.
    pub const fn is_broadcast(self) -> bool {
        matches!(self.0, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
    }

    /// The group address that an IPv6 multicast packet is sent to: 33:33 and the address's last four bytes
    /// (RFC 2464 section 7).
    pub const fn from_ipv6_multicast(group: Ipv6Addr) -> Self {
        let o = group.octets();
        Self([0x33, 0x33, o[12], o[13], o[14], o[15]])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            let colon = if i == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

/// A text other than six pairs of hexadecimal digits separated by colons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidMacAddr;

impl fmt::Display for InvalidMacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a MAC address: write six pairs of hexadecimal digits, such as 52:55:0a:00:02:02")
    }
}

impl core::error::Error for InvalidMacAddr {}

impl FromStr for MacAddr {
    type Err = InvalidMacAddr;

    fn from_str(text: &str) -> Result<Self, InvalidMacAddr> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or(InvalidMacAddr)?;
            // from_str_radix alone would take "+1" too.
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(InvalidMacAddr);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| InvalidMacAddr)?;
        }
        if parts.next().is_some() { Err(InvalidMacAddr) } else { Ok(Self(bytes)) }
    }
}

/// Protocol of a frame's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EtherType {
    /// ARP, 0x0806.
    Arp,
    /// IPv4, 0x0800.
    Ipv4,
    /// IPv6, 0x86dd.
    Ipv6,
    /// Anything else, or an 802.3 length below 0x0600.
    Other(u16),
}

impl From<u16> for EtherType {
    fn from(number: u16) -> Self {
        match number {
            0x0806 => Self::Arp,
            0x0800 => Self::Ipv4,
            0x86dd => Self::Ipv6,
            other => Self::Other(other),
        }
    }
}

impl From<EtherType> for u16 {
    fn from(ethertype: EtherType) -> Self {
        match ethertype {
            EtherType::Arp => 0x0806,
            EtherType::Ipv4 => 0x0800,
            EtherType::Ipv6 => 0x86dd,
            EtherType::Other(other) => other,
        }
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EthernetHeader {
    /// Destination MAC address.
    pub dst: MacAddr,
    /// Source MAC address.
    pub src: MacAddr,
    /// Protocol of the payload.
    pub ethertype: EtherType,
}

impl EthernetHeader {
    /// Length in bytes.
    pub const LEN: usize = 14;
    /// Offset in bytes of a tag, behind the addresses.
    pub const TAG_OFFSET: usize = 12;
    /// Length of a tag in bytes.
    pub const TAG_LEN: usize = 4;

    /// Whether a frame has a tag with a priority alone: its VLAN is 0 (IEEE 802.1Q, 9.6).
    pub fn has_priority_tag(frame: &[u8]) -> bool {
        let tag = frame.get(Self::TAG_OFFSET..).and_then(<[u8]>::first_chunk::<{ Self::TAG_LEN }>);
        matches!(tag, Some([0x81, 0x00, control, low]) if u16::from_be_bytes([control & 0x0f, *low]) == 0)
    }

    /// The header, and the bytes behind it (with the padding of a short frame, if any).
    ///
    /// # Errors
    /// [`DropReason::FrameTooShort`] for less than a header.
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), DropReason> {
        let (header, payload) =
            frame.split_first_chunk::<{ Self::LEN }>().ok_or(DropReason::FrameTooShort)?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
        let header = Self {
            dst: MacAddr([d0, d1, d2, d3, d4, d5]),
            src: MacAddr([s0, s1, s2, s3, s4, s5]),
            ethertype: u16::from_be_bytes([t0, t1]).into(),
        };
        Ok((header, payload))
    }

    /// Writes the header to the start of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`EthernetHeader::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..Self::LEN];
        out[..6].copy_from_slice(&self.dst.0);
        out[6..12].copy_from_slice(&self.src.0);
        out[12..].copy_from_slice(&u16::from(self.ethertype).to_be_bytes());
    }
}
