//! Rules as their author writes them: `[scheme://]target[:port[-port]]`.
//!
//! | Scheme | Transport, port if none is given | Target |
//! |---|---|---|
//! | `https` (also a bare name in `allow`), `tls` | TCP, 443 (`tls`: required) | name, `*.name`, `*` |
//! | `http` | TCP, 80 | the same |
//! | `quic` | UDP, 443 | the same |
//! | `tcp`, `udp` | required | name, `*.name`, network, `host` |
//! | `ping` | none | the same |
//! | none | all; with ports TCP and UDP | network, `host`; in `deny` also a name, as a whole |
//!
//! `*.example.com` is any name below `example.com`, and not that name itself. `host` is every address that
//! the host has at the time. The grammar is small on purpose: a form that could be read in two ways, or that
//! could never match, is refused with the form to write instead ([`RuleError`]).

use super::domain_name::DomainName;
use super::floor;
use crate::cidr::Cidr;
use crate::port_range::{PortRange, PortRangeError};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Protocol of a rule, and with it the way in which a name is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// TLS on TCP; the guest names its server in its first bytes (SNI).
    Tls,
    /// HTTP without TLS on TCP; every request names its host.
    Http,
    /// QUIC on UDP; the first packets name the server.
    Quic,
    /// Any TCP; the name is checked by its address alone.
    Tcp,
    /// Any UDP; likewise.
    Udp,
    /// Echo requests; likewise.
    Ping,
}

impl Scheme {
    /// Whether the flow's first bytes are to name the target.
    pub const fn is_checked(self) -> bool {
        matches!(self, Self::Tls | Self::Http | Self::Quic)
    }
}

/// The word of a scheme with its meaning.
const SCHEMES: [(&str, Scheme, Option<u16>); 7] = [
    ("https", Scheme::Tls, Some(443)),
    ("tls", Scheme::Tls, None),
    ("http", Scheme::Http, Some(80)),
    ("quic", Scheme::Quic, Some(443)),
    ("tcp", Scheme::Tcp, None),
    ("udp", Scheme::Udp, None),
    ("ping", Scheme::Ping, None),
];

/// Destination that a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RuleTarget {
    /// One name.
    Name(DomainName),
    /// All names below this one.
    Below(DomainName),
    /// Every name.
    AnyName,
    /// A network.
    Network(Cidr),
    /// The addresses of the host, except its loopback.
    Host,
}

impl RuleTarget {
    /// Whether it is one of names.
    pub const fn is_named(&self) -> bool {
        matches!(self, Self::Name(_) | Self::Below(_) | Self::AnyName)
    }
}

/// Effect of a rule: its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The flows that it fits may be opened.
    Allow,
    /// They may not, whatever allows them.
    Deny,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `None`: all protocols.
    pub scheme: Option<Scheme>,
    /// Names or addresses that the rule is about.
    pub target: RuleTarget,
    /// `None`: all ports, and echo where no scheme is given.
    pub ports: Option<PortRange>,
    /// The rule as its author wrote it.
    pub text: Arc<str>,
}

/// Reason why a text is no rule, with the form to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleError {
    /// It is empty or has blanks or control characters.
    Blank,
    /// A scheme that is none of the seven.
    Scheme(String),
    /// A path, query or fragment behind the target.
    Path(String),
    /// A user before the target.
    User,
    /// A wildcard other than a first label of its own.
    Wildcard(String),
    /// A wildcard below a top-level domain.
    TopLevel(String),
    /// `*` where only single names or networks may be.
    Everything,
    /// A scheme whose flows name their server, with an address.
    CheckedAddress(String),
    /// A scheme that needs a port.
    PortMissing(String),
    /// Ports with `ping`.
    PingPort,
    /// Ports that are none.
    Ports(PortRangeError),
    /// A denied name with a port and without a scheme.
    DenyPort(String),
    /// Neither a name nor a network.
    Target(String),
    /// An IPv6 address with a port and without brackets.
    Brackets(String),
    /// A prefix longer than the address.
    Prefix(u8),
    /// An address with bits behind its prefix.
    HostBits(Cidr),
    /// An allowed network inside the floor.
    Floor(&'static str),
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => f.write_str("a rule is one word, such as example.com or 10.20.0.0/16:5432"),
            Self::Scheme(scheme) => write!(
                f,
                "unknown scheme {scheme}: expected https, tls, http, quic, tcp, udp or ping; other protocols are \
                 tcp://NAME:PORT or udp://NAME:PORT"
            ),
            Self::Path(rule) => write!(f, "brodo does not see paths: write {rule}"),
            Self::User => f.write_str("brodo does not see users: leave out what stands before the @"),
            Self::Wildcard(name) => {
                // One label alone would be a whole top-level domain.
                let below = if name.contains('.') { name.clone() } else { format!("example.{name}") };
                write!(f, "a wildcard is the whole first label: write *.{below} for all names below {below}")
            }
            Self::TopLevel(name) => {
                write!(f, "*.{name} is a whole top-level domain: write the names below it, such as *.example.{name}")
            }
            Self::Everything => f.write_str(
                "* is allowed with https, tls, http and quic only: for everything else write 0.0.0.0/0:PORT and \
                 [::]/0:PORT; all names are denied by default = \"deny\"",
            ),
            Self::CheckedAddress(target) => write!(
                f,
                "the name of this scheme is checked, and an address has none: write tcp://{target}:PORT or {target} alone"
            ),
            Self::PortMissing(rule) => write!(f, "a port is missing: write {rule}:PORT"),
            Self::PingPort => f.write_str("ping has no port: write ping://NAME"),
            Self::Ports(error) => error.fmt(f),
            Self::DenyPort(rule) => write!(
                f,
                "a denied name without scheme is denied as a whole: leave out the port, or write https://{rule}"
            ),
            Self::Target(target) => write!(
                f,
                "{target:?} is neither a name nor a network: expected NAME, *.NAME, 192.0.2.0/24, [2001:db8::]/32 or \
                 host"
            ),
            Self::Brackets(address) => write!(f, "a port behind IPv6 needs brackets: write [{address}]:PORT"),
            Self::Prefix(longest) => write!(f, "the prefix length must be 0 to {longest}"),
            Self::HostBits(network) => {
                write!(f, "the address has bits behind its prefix; the network is {network}")
            }
            Self::Floor(floor) => {
                write!(f, "nothing opens this network ({floor}); the host's loopback is mapped by --map-host-loopback")
            }
        }
    }
}

impl std::error::Error for RuleError {}

impl Rule {
    /// Reads a rule of the list `effect`.
    ///
    /// # Errors
    /// The text is no rule; the error says what to write instead.
    pub fn parse(text: &str, effect: Effect) -> Result<Self, RuleError> {
        if text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(RuleError::Blank);
        }
        let (word, rest) = match text.split_once("://") {
            Some((word, rest)) => (Some(word), rest),
            None => (None, text),
        };
        let known = word.map(|word| scheme(word).ok_or_else(|| RuleError::Scheme(word.to_owned())));
        let known = known.transpose()?;
        if rest.contains('@') {
            return Err(RuleError::User);
        }
        let Parts { target, ports } = parts(rest, word)?;
        let ports = ports.map(|ports| ports.parse().map_err(RuleError::Ports)).transpose()?;
        let (scheme, ports) = match (known, effect) {
            (Some((scheme, port)), _) => (Some(scheme), ports.or(port.map(PortRange::one))),
            (None, Effect::Allow) if target.is_named() => {
                (Some(Scheme::Tls), ports.or(Some(PortRange::one(443))))
            }
            (None, Effect::Deny) if target.is_named() && ports.is_some() => {
                return Err(RuleError::DenyPort(rest.to_owned()));
            }
            (None, _) => (None, ports),
        };
        let rule = Self { scheme, target, ports, text: text.into() };
        rule.checked(effect, rest)?;
        Ok(rule)
    }

    /// Checks that scheme, target and ports go together.
    fn checked(&self, effect: Effect, rest: &str) -> Result<(), RuleError> {
        match (self.scheme, &self.target) {
            (Some(scheme), target) if scheme.is_checked() && !target.is_named() => {
                return Err(RuleError::CheckedAddress(self.target_text()));
            }
            (None | Some(Scheme::Tcp | Scheme::Udp | Scheme::Ping), RuleTarget::AnyName) => {
                return Err(RuleError::Everything);
            }
            (Some(Scheme::Ping), _) if self.ports.is_some() => return Err(RuleError::PingPort),
            (Some(scheme), _) if scheme != Scheme::Ping && self.ports.is_none() => {
                let word = self.text.strip_suffix(rest).unwrap_or_default();
                return Err(RuleError::PortMissing(format!("{word}{rest}")));
            }
            _ => {}
        }
        match (&self.target, effect) {
            (RuleTarget::Network(network), Effect::Allow) => {
                floor::covering(*network).map_or(Ok(()), |floor| Err(RuleError::Floor(floor)))
            }
            _ => Ok(()),
        }
    }

    /// The target as a rule has it.
    fn target_text(&self) -> String {
        match &self.target {
            RuleTarget::Network(network) if network.address().is_ipv6() => {
                format!("[{}]/{}", network.address(), network.prefix_len())
            }
            RuleTarget::Network(network) => network.to_string(),
            RuleTarget::Host => "host".to_owned(),
            RuleTarget::Name(name) => name.to_string(),
            RuleTarget::Below(name) => format!("*.{name}"),
            RuleTarget::AnyName => "*".to_owned(),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn scheme(word: &str) -> Option<(Scheme, Option<u16>)> {
    SCHEMES.iter().find(|(name, ..)| *name == word).map(|&(_, scheme, port)| (scheme, port))
}

/// Target and ports of a rule without its scheme.
struct Parts<'a> {
    target: RuleTarget,
    ports: Option<&'a str>,
}

/// Splits and reads what stands behind the scheme.
fn parts<'a>(rest: &'a str, scheme: Option<&str>) -> Result<Parts<'a>, RuleError> {
    if let Some(inner) = rest.strip_prefix('[') {
        return bracketed(inner, rest);
    }
    // IPv6 without brackets has no ports: its last group would be read as one.
    if rest.matches(':').count() > 1 {
        return match rest.split_once('/').unwrap_or((rest, "")) {
            (address, length) if length.contains(':') && address.parse::<Ipv6Addr>().is_ok() => {
                Err(RuleError::Brackets(rest.rsplit_once(':').map_or(rest, |(net, _)| net).to_owned()))
            }
            (address, _) => Ok(Parts { target: network(address, prefix(rest)?)?, ports: None }),
        };
    }
    let (target, ports) = match rest.split_once(':') {
        Some((target, ports)) => (target, Some(ports)),
        None => (rest, None),
    };
    let address = target.split('/').next().unwrap_or_default();
    if address.parse::<IpAddr>().is_ok() {
        return Ok(Parts { target: network(address, prefix(target)?)?, ports });
    }
    if let Some(at) = rest.find(['/', '?', '#']) {
        let scheme = scheme.map(|scheme| format!("{scheme}://")).unwrap_or_default();
        return Err(RuleError::Path(format!("{scheme}{}", &rest[..at])));
    }
    Ok(Parts { target: named(target)?, ports })
}

/// IPv6 in brackets, with the prefix length in them or behind.
fn bracketed<'a>(inner: &'a str, rest: &str) -> Result<Parts<'a>, RuleError> {
    let unreadable = || RuleError::Target(rest.to_owned());
    let (address, behind) = inner.split_once(']').ok_or_else(unreadable)?;
    let (behind, ports) = match behind.split_once(':') {
        Some((behind, ports)) => (behind, Some(ports)),
        None => (behind, None),
    };
    let (address, length) = match (address.split_once('/'), behind.strip_prefix('/')) {
        (None, None) if behind.is_empty() => (address, None),
        (Some((address, length)), None) if behind.is_empty() => (address, Some(length)),
        (None, Some(length)) => (address, Some(length)),
        _ => return Err(unreadable()),
    };
    if address.parse::<Ipv6Addr>().is_err() {
        return Err(unreadable());
    }
    let length = length.map(|length| decimal(length).ok_or(RuleError::Prefix(128))).transpose()?;
    Ok(Parts { target: network(address, length)?, ports })
}

/// The prefix length behind a slash.
fn prefix(target: &str) -> Result<Option<u8>, RuleError> {
    let Some((address, length)) = target.split_once('/') else { return Ok(None) };
    let longest = if address.contains(':') { 128 } else { 32 };
    decimal(length).map(Some).ok_or(RuleError::Prefix(longest))
}

fn decimal(digits: &str) -> Option<u8> {
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

fn network(address: &str, prefix_len: Option<u8>) -> Result<RuleTarget, RuleError> {
    let ip: IpAddr = address.parse().map_err(|_| RuleError::Target(address.to_owned()))?;
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    let network = Cidr::new(ip, prefix_len.unwrap_or(longest)).ok_or(RuleError::Prefix(longest))?;
    if network.address() == ip { Ok(RuleTarget::Network(network)) } else { Err(RuleError::HostBits(network)) }
}

/// A name, a wildcard, or the word for the host.
fn named(target: &str) -> Result<RuleTarget, RuleError> {
    match target {
        "*" => return Ok(RuleTarget::AnyName),
        "host" => return Ok(RuleTarget::Host),
        _ => {}
    }
    let (below, name) = match target.strip_prefix("*.") {
        Some(name) => (true, name),
        None => (false, target),
    };
    if name.contains('*') {
        let tail = name.rsplit('*').next().unwrap_or_default().trim_matches('.');
        return Err(RuleError::Wildcard(if tail.is_empty() { "com".to_owned() } else { tail.to_owned() }));
    }
    let name = DomainName::parse(name.as_bytes()).ok_or_else(|| RuleError::Target(target.to_owned()))?;
    match below {
        true if name.labels() == 1 => Err(RuleError::TopLevel(name.to_string())),
        true => Ok(RuleTarget::Below(name)),
        false => Ok(RuleTarget::Name(name)),
    }
}

#[cfg(test)]
mod tests;
