//! Client FQDN options: what a DHCP client says about its fully qualified domain name, and the flags of a
//! server's answer (RFC 4702 section 2.1, RFC 4704 section 4.1). The server here makes no updates of DNS.

/// S, in both: the server should update the address record of the name, or does so.
const SERVER_UPDATES: u8 = 1;
/// O, in both: S of the reply differs from the client's.
const OVERRIDDEN: u8 = 2;
/// E of DHCPv4: the name is encoded as in DNS, not as text.
const ENCODED_V4: u8 = 4;
/// N of DHCPv4: the server makes no update at all.
const NO_UPDATE_V4: u8 = 8;
/// N of DHCPv6.
const NO_UPDATE_V6: u8 = 4;

/// A client's request for its domain name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientFqdn {
    /// The client wants the server to update DNS.
    pub wants_update: bool,
    /// The client reads names encoded as in DNS, not as text.
    pub is_encoded: bool,
}

impl ClientFqdn {
    /// Request of a client that names the option in its list of parameters only.
    pub const LISTED: Self = Self { wants_update: false, is_encoded: true };

    /// The option of a DHCPv4 client; none if it is empty.
    pub fn from_v4(value: &[u8]) -> Option<Self> {
        let flags = value.first()?;
        Some(Self { wants_update: flags & SERVER_UPDATES != 0, is_encoded: flags & ENCODED_V4 != 0 })
    }

    /// The option of a DHCPv6 client; none if it is empty.
    pub fn from_v6(value: &[u8]) -> Option<Self> {
        Some(Self { wants_update: value.first()? & SERVER_UPDATES != 0, is_encoded: true })
    }

    /// Flags of the answer in DHCPv4.
    pub fn reply_v4(self) -> u8 {
        NO_UPDATE_V4 | self.overridden() | if self.is_encoded { ENCODED_V4 } else { 0 }
    }

    /// Flags of the answer in DHCPv6.
    pub fn reply_v6(self) -> u8 {
        NO_UPDATE_V6 | self.overridden()
    }

    fn overridden(self) -> u8 {
        if self.wants_update { OVERRIDDEN } else { 0 }
    }
}
