//! Position of a fragment: the fields of the IPv4 header (RFC 791) and the IPv6 extension header (RFC 8200,
//! section 4.5).

/// The place of a fragment in the packet that was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// Identification, shared by the fragments of one packet: 16 bits over IPv4, 32 over IPv6.
    pub ident: u32,
    /// Offset of its content in the packet behind the IP header, in bytes, a multiple of 8, at most 65,528.
    pub offset: u16,
    /// More fragments follow.
    pub more: bool,
}

impl Fragment {
    /// Length in bytes of IPv6's extension header.
    pub const LEN_V6: usize = 8;

    /// From the field of flags and offset of the IPv4 header; `None` for a whole packet.
    pub(super) const fn of_ipv4(field: u16, ident: u16) -> Option<Self> {
        let (offset, more) = ((field & 0x1fff) << 3, field & 0x2000 != 0);
        if offset == 0 && !more {
            return None;
        }
        Some(Self { ident: ident as u32, offset, more })
    }

    /// The field of flags and offset, without "do not fragment".
    pub(super) const fn to_ipv4(self) -> u16 {
        self.offset >> 3 | if self.more { 0x2000 } else { 0 }
    }

    /// From IPv6's extension header, of a fragment or of a whole packet (an atomic fragment, RFC 6946).
    pub(super) const fn of_ipv6(header: [u8; Self::LEN_V6]) -> Self {
        let [_, _, high, low, a, b, c, d] = header;
        let field = u16::from_be_bytes([high, low]);
        Self { ident: u32::from_be_bytes([a, b, c, d]), offset: field & 0xfff8, more: field & 1 != 0 }
    }

    /// Writes IPv6's extension header, which `next` follows, to the start of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`Fragment::LEN_V6`].
    pub fn emit_v6(&self, next: u8, out: &mut [u8]) {
        let [high, low] = (self.offset & 0xfff8 | u16::from(self.more)).to_be_bytes();
        let [a, b, c, d] = self.ident.to_be_bytes();
        out[..Self::LEN_V6].copy_from_slice(&[next, 0, high, low, a, b, c, d]);
    }
}
