//! Capture filter: a few words, all of which must match a frame.
//!
//! | Words | Matches |
//! |---|---|
//! | `tcp`, `udp`, `icmp` (of either family), `arp` | frames of that protocol |
//! | `ip`, `ip6` | packets of that family |
//! | `host ADDRESS` | packets from or to that address |
//! | `net ADDRESS/LENGTH` | packets from or to that network |
//! | `port NUMBER` | TCP segments and UDP datagrams from or to that port |
//! | `not` before any of them | all other frames |
//!
//! `and` may stand between them. The words are tcpdump's, as far as they go, and mean the same. Neighbour
//! discovery is ICMP here as there. Ports are in a packet's first fragment only.
//!
//! Frames are parsed only up to their layer-4 ports; a truncated frame matches no word.

use brodo_core::cidr::Cidr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Most words in a filter: more than enough, and little work per frame.
const TERMS_MAX: usize = 16;
/// Most extension headers skipped on the way to the protocol.
const EXTENSIONS_MAX: usize = 8;

/// Meaning of one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Tcp,
    Udp,
    Icmp,
    Arp,
    Ipv4,
    Ipv6,
    Net(Cidr),
    Port(u16),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Term {
    what: What,
    negated: bool,
}

/// A filter. The empty one matches every frame.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    terms: Vec<Term>,
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut terms = Vec::new();
        let mut words = text.split_whitespace();
        while let Some(mut word) = words.next() {
            if word == "and" && !terms.is_empty() {
                word = words.next().ok_or("nothing follows `and`")?;
            }
            let negated = word == "not";
            if negated {
                word = words.next().ok_or("nothing follows `not`")?;
            }
            let mut value = || words.next().ok_or_else(|| format!("nothing follows `{word}`"));
            let what = match word {
                "tcp" => What::Tcp,
                "udp" => What::Udp,
                "icmp" | "icmp6" => What::Icmp,
                "arp" => What::Arp,
                "ip" => What::Ipv4,
                "ip6" => What::Ipv6,
                "host" => host(value()?)?,
                "net" => net(value()?)?,
                "port" => port(value()?)?,
                _ => {
                    return Err(format!(
                        "`{word}` is not known here: expected tcp, udp, icmp, arp, ip, ip6, host ADDRESS, net ADDRESS/LENGTH or port NUMBER"
                    ));
                }
            };
            if terms.len() == TERMS_MAX {
                return Err(format!("a filter has at most {TERMS_MAX} conditions"));
            }
            terms.push(Term { what, negated });
        }
        Ok(Self { terms })
    }
}

fn host(word: &str) -> Result<What, String> {
    let address: IpAddr = word.parse().map_err(|_| format!("`{word}` is no IP address"))?;
    Ok(What::Net(Cidr::of_host(address)))
}

fn net(word: &str) -> Result<What, String> {
    let parse = || {
        let (address, length) = word.split_once('/')?;
        Cidr::new(address.parse().ok()?, length.parse().ok()?).map(What::Net)
    };
    parse().ok_or_else(|| format!("`{word}` is no network, such as 192.0.2.0/24"))
}

fn port(word: &str) -> Result<What, String> {
    word.parse().map(What::Port).map_err(|_| format!("`{word}` is no port, 0 to 65535"))
}

impl Filter {
    /// Whether a frame matches; `frame` has its headers, Ethernet first.
    pub fn matches(&self, frame: &[u8]) -> bool {
        if self.terms.is_empty() {
            return true;
        }
        self.accepts(&Seen::of(frame))
    }

    /// Whether the segments of a TCP connection between these ends match: no condition is about more.
    pub(crate) fn matches_tcp(&self, from: SocketAddr, to: SocketAddr) -> bool {
        self.accepts(&Seen {
            arp: false,
            ends: Some((from.ip(), to.ip())),
            protocol: Some(TCP),
            ports: Some((from.port(), to.port())),
        })
    }

    fn accepts(&self, seen: &Seen) -> bool {
        self.terms.iter().all(|term| seen.is(term.what) != term.negated)
    }
}

/// Fields read from a frame.
#[derive(Debug, Default)]
struct Seen {
    arp: bool,
    ends: Option<(IpAddr, IpAddr)>,
    protocol: Option<u8>,
    ports: Option<(u16, u16)>,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

impl Seen {
    fn of(frame: &[u8]) -> Self {
        let packet = frame.get(14..).unwrap_or_default();
        match word(frame, 12) {
            Some(0x0806) => Self { arp: true, ..Self::default() },
            Some(0x0800) => Self::ipv4(packet).unwrap_or_default(),
            Some(0x86dd) => Self::ipv6(packet).unwrap_or_default(),
            _ => Self::default(),
        }
    }

    fn ipv4(packet: &[u8]) -> Option<Self> {
        let address = |at: usize| <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok().map(Ipv4Addr::from);
        let ends = (address(12)?.into(), address(16)?.into());
        let offset = word(packet, 6)? & 0x1fff;
        let content = usize::from(packet[0] & 0xf) * 4;
        Some(Self::with_ports(ends, packet[9], packet.get(content..).filter(|_| offset == 0)))
    }

    fn ipv6(packet: &[u8]) -> Option<Self> {
        let address = |at: usize| <[u8; 16]>::try_from(packet.get(at..at + 16)?).ok().map(Ipv6Addr::from);
        let ends = (address(8)?.into(), address(24)?.into());
        let (mut next, mut rest) = (packet[6], packet.get(40..));
        for _ in 0..EXTENSIONS_MAX {
            let Some(header) = rest.filter(|header| header.len() >= 8) else { break };
            let (len, first) = match next {
                // Hop-by-hop options, routing, destination options (RFC 8200, section 4).
                0 | 43 | 60 => (8 + usize::from(header[1]) * 8, true),
                44 => (8, u16::from_be_bytes([header[2], header[3]]) & 0xfff8 == 0),
                _ => break,
            };
            next = header[0];
            rest = header.get(len..).filter(|_| first);
        }
        Some(Self::with_ports(ends, next, rest))
    }

    fn with_ports(ends: (IpAddr, IpAddr), protocol: u8, content: Option<&[u8]>) -> Self {
        let content = content.filter(|_| matches!(protocol, TCP | UDP));
        let ports = content.and_then(|content| Some((word(content, 0)?, word(content, 2)?)));
        Self { arp: false, ends: Some(ends), protocol: Some(protocol), ports }
    }

    fn is(&self, what: What) -> bool {
        match what {
            What::Tcp => self.protocol == Some(TCP),
            What::Udp => self.protocol == Some(UDP),
            What::Icmp => matches!(self.protocol, Some(ICMP | ICMPV6)),
            What::Arp => self.arp,
            What::Ipv4 => self.ends.is_some_and(|(from, _)| from.is_ipv4()),
            What::Ipv6 => self.ends.is_some_and(|(from, _)| from.is_ipv6()),
            What::Net(net) => self.ends.is_some_and(|(from, to)| net.contains(from) || net.contains(to)),
            What::Port(port) => self.ports.is_some_and(|(from, to)| from == port || to == port),
        }
    }
}

#[cfg(test)]
mod tests;
