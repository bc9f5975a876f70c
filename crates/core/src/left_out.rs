//! Parts of the network that are left out (`--without`): packets for them are dropped and counted, and never
//! answered.

use std::fmt;
use std::str::FromStr;

/// Protocol or service that may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// TCP, in both directions.
    Tcp,
    /// UDP in both directions, DNS among it, but not DHCP.
    Udp,
    /// brodo's DNS service, over UDP and TCP.
    Dns,
    /// Echo of both families, brodo's own answers among it.
    Ping,
    /// DHCP of IPv4.
    Dhcp,
    /// DHCP of IPv6.
    Dhcpv6,
    /// Neighbour discovery and router advertisements.
    Ndp,
    /// Router advertisements alone.
    Ra,
}

impl Part {
    /// All, in order of declaration.
    pub const ALL: [Self; 8] =
        [Self::Tcp, Self::Udp, Self::Dns, Self::Ping, Self::Dhcp, Self::Dhcpv6, Self::Ndp, Self::Ra];

    /// Its name in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Dns => "dns",
            Self::Ping => "ping",
            Self::Dhcp => "dhcp",
            Self::Dhcpv6 => "dhcpv6",
            Self::Ndp => "ndp",
            Self::Ra => "ra",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let part = Self::ALL.into_iter().find(|part| part.name() == word);
        part.ok_or_else(|| format!("expected one of {}", names()))
    }
}

/// Set of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parts(u8);

impl Parts {
    /// Whether `part` is among them.
    pub fn contains(self, part: Part) -> bool {
        self.0 & 1 << part as u8 != 0
    }
}

impl FromIterator<Part> for Parts {
    fn from_iter<I: IntoIterator<Item = Part>>(parts: I) -> Self {
        Self(parts.into_iter().fold(0, |set, part| set | 1 << part as u8))
    }
}
