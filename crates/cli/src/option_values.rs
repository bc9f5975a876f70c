//! Values on the command line: networks, rules, sizes, buffer bounds, resolvers, names, MAC addresses,
//! interface names.
//!
//! Each parser takes one word and states in one clause the expected form; clap adds the word and the option.

use brodo_control::method::BulkCarrier;
use brodo_core::config::{BufferBounds, Bulk, ClosedPorts};
use brodo_core::left_out::Part;
use brodo_core::policy::{Deny, FlowRate};
use brodo_core::port_range::PortRange;
use brodo_core::wire::dns::{NAME_LEN_MAX, encode_name};
use brodo_core::wire::ethernet::MacAddr;
use brodo_net::sockets::SourcePorts;
use brodo_sandbox::{Confinement, OnViolation, Stages};
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Port of DNS (RFC 1035).
const DNS_PORT: u16 = 53;

/// Smallest limit of a TCP buffer, in bytes.
const BUFFER_MIN: u64 = 4 << 10;

/// Largest limit of a TCP buffer, in bytes: 16 bits scaled by the largest shift (RFC 7323, section 2.3).
const BUFFER_MAX: u64 = 65_535 << 14;

/// Smallest memory budget, in bytes.
const MEMORY_MIN: u64 = 1 << 20;

/// Smallest bound of a flow log, in bytes: several lines.
pub(crate) const LOG_MIN: u64 = 4 << 10;

/// Least and most bytes of the cache of answers.
const DNS_CACHE_MIN: u64 = 4 << 10;
const DNS_CACHE_MAX: u64 = 64 << 20;

/// The word for a path that is passt's to choose.
pub(crate) const PASST: &str = "passt:";
/// The same, without a line about it.
pub(crate) const PASST_QUIET: &str = "passt:quiet";

/// Socket of a virtual machine's monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MonitorSocket {
    /// By its path.
    Path(PathBuf),
    /// By the first path of passt's own that is free, which standard error has unless it is `quiet`.
    Passt { quiet: bool },
    /// By the number of an inherited descriptor.
    Descriptor(RawFd),
}

impl MonitorSocket {
    /// Paths that passt tries in turn, so many as it does.
    pub(crate) fn passt_paths() -> impl Iterator<Item = PathBuf> {
        (1..=100).map(|number| format!("/tmp/passt_{number}.socket").into())
    }

    /// Its folder.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        let path = match self {
            Self::Path(path) => path.clone(),
            Self::Passt { .. } => Self::passt_paths().next()?,
            Self::Descriptor(_) => return None,
        };
        Some(std::path::absolute(path).ok()?.parent()?.to_owned())
    }

    /// The number of the descriptor.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        match self {
            Self::Path(_) | Self::Passt { .. } => None,
            Self::Descriptor(number) => Some(*number),
        }
    }
}

impl FromStr for MonitorSocket {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word.strip_prefix("fd:") {
            Some(number) => descriptor(number).map(Self::Descriptor),
            None if word.is_empty() => Err("expected PATH or fd:N".to_owned()),
            // Words of brodo in passt's place.
            None if word == PASST => Ok(Self::Passt { quiet: false }),
            None if word == PASST_QUIET => Ok(Self::Passt { quiet: true }),
            None => Ok(Self::Path(word.into())),
        }
    }
}

impl fmt::Display for MonitorSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Passt { quiet } => if *quiet { PASST_QUIET } else { PASST }.fmt(f),
            Self::Descriptor(number) => write!(f, "fd:{number}"),
        }
    }
}

/// An address and the prefix length of its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cidr {
    pub(crate) address: IpAddr,
    pub(crate) prefix_len: u8,
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let expected = || "expected ADDRESS/LENGTH, such as 192.168.7.5/24 or fd01::5/64".to_owned();
        let (address, length) = word.split_once('/').ok_or_else(expected)?;
        let address: IpAddr = address.parse().map_err(|_| expected())?;
        let prefix_len: u8 = length.parse().map_err(|_| expected())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        if prefix_len <= longest {
            Ok(Self { address, prefix_len })
        } else {
            Err(format!("the prefix length is {prefix_len}, and must be 0 to {longest}"))
        }
    }
}

/// An address, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MaybeAddress {
    /// The word `none`.
    None,
    /// This address.
    Address(IpAddr),
}

impl MaybeAddress {
    /// The address, if there is one.
    pub(crate) fn address(self) -> Option<IpAddr> {
        match self {
            Self::None => None,
            Self::Address(address) => Some(address),
        }
    }
}

impl FromStr for MaybeAddress {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "none" => Ok(Self::None),
            _ => word.parse().map(Self::Address).map_err(|_| "expected an address, or none".to_owned()),
        }
    }
}

/// Source of connections and datagrams: `ADDRESS`, `%INTERFACE` or `ADDRESS%INTERFACE`; an unspecified
/// address leaves the address to the kernel and means its family alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutboundOption {
    /// The address, and with it the family.
    pub(crate) address: Option<IpAddr>,
    /// The interface.
    pub(crate) interface: Option<String>,
}

impl FromStr for OutboundOption {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let expected = || "expected ADDRESS, %INTERFACE or ADDRESS%INTERFACE".to_owned();
        let (address, interface) = match word.split_once('%') {
            Some((address, interface)) => (address, Some(interface)),
            None => (word, None),
        };
        let is_name = |name: &str| (1..=15).contains(&name.len()) && !name.contains(['/', ' ', '\0']);
        if interface.is_some_and(|name| !is_name(name)) {
            return Err(expected());
        }
        let address = match address {
            "" if interface.is_some() => None,
            text => Some(text.parse().map_err(|_| expected())?),
        };
        Ok(Self { address, interface: interface.map(str::to_owned) })
    }
}

/// Further namespaces of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Isolate {
    /// PID, IPC and UTS.
    All,
    /// IPC and UTS.
    NoPid,
}

/// Longest host name, bytes: the kernel's `__NEW_UTS_LEN`.
pub(crate) const HOST_NAME_MAX: usize = 64;

/// A host name of a UTS namespace.
pub(crate) fn host_label(word: &str) -> Result<String, String> {
    if (1..=HOST_NAME_MAX).contains(&word.len()) && !word.contains('\0') {
        Ok(word.to_owned())
    } else {
        Err(format!("a host name has 1 to {HOST_NAME_MAX} bytes"))
    }
}

/// The address that stands for the host's loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostLoopback {
    /// `gateway`: the router's of each family.
    Gateway,
    /// This address.
    Address(IpAddr),
}

impl FromStr for HostLoopback {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "gateway" => Ok(Self::Gateway),
            _ => word.parse().map(Self::Address).map_err(|_| "expected an address, or gateway".to_owned()),
        }
    }
}

/// Destination of peers on the host's loopback from published ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum LocalPeers {
    /// Connections: the guest's loopback; datagrams: its interface
    #[default]
    Mixed,
    /// The guest's loopback, between two sockets
    Loopback,
    /// The guest's address, between two sockets
    Address,
    /// The guest's address by its interface, as for all others
    Link,
}

/// Answer to new flows to brodo's own addresses where nothing is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum ClosedPortsOption {
    /// A reset, or ICMP "port unreachable"
    #[default]
    Refuse,
    /// ICMP "network unreachable"
    Unreachable,
}

/// Whether UDP to groups leaves the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum MulticastOption {
    /// From a copy of the host's network (--copy-host) without --deny, and not from a network of its own
    #[default]
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

/// Source ports of the guest's UDP flows on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum SourcePortsOption {
    /// One for each of the guest's, of the same number where it is free
    #[default]
    Guest,
    /// One of the kernel's choice for each flow
    Any,
}

impl From<SourcePortsOption> for SourcePorts {
    fn from(option: SourcePortsOption) -> Self {
        match option {
            SourcePortsOption::Guest => Self::Guest,
            SourcePortsOption::Any => Self::Any,
        }
    }
}

impl From<ClosedPortsOption> for ClosedPorts {
    fn from(option: ClosedPortsOption) -> Self {
        match option {
            ClosedPortsOption::Refuse => Self::Refuse,
            ClosedPortsOption::Unreachable => Self::Unreachable,
        }
    }
}

/// A number of bytes: `4096`, `64K`, `4M`, `1G` (powers of 1024).
pub(crate) fn size(word: &str) -> Result<u64, String> {
    let expected = || "expected a number of bytes, such as 65536, 64K, 4M or 1G".to_owned();
    let (digits, shift) = match word.as_bytes().last() {
        Some(b'k' | b'K') => (&word[..word.len() - 1], 10),
        Some(b'm' | b'M') => (&word[..word.len() - 1], 20),
        Some(b'g' | b'G') => (&word[..word.len() - 1], 30),
        _ => (word, 0),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(expected());
    }
    let number: u64 = digits.parse().map_err(|_| expected())?;
    number.checked_mul(1 << shift).ok_or_else(expected)
}

/// The parts that may be left out, listed for help and completions.
pub(crate) fn parts() -> impl TypedValueParser<Value = Part> {
    PossibleValuesParser::new(Part::ALL.map(Part::name)).try_map(|word| word.parse::<Part>())
}

/// The size of a flow log.
pub(crate) fn log_size(word: &str) -> Result<u64, String> {
    match size(word)? {
        bytes if bytes < LOG_MIN => Err("a log must be at least 4K".to_owned()),
        bytes => Ok(bytes),
    }
}

/// The memory budget.
pub(crate) fn memory(word: &str) -> Result<usize, String> {
    let bytes = size(word)?;
    if bytes < MEMORY_MIN {
        return Err("the budget must be at least 1M".to_owned());
    }
    usize::try_from(bytes).map_err(|_| "more than this machine can address".to_owned())
}

/// A limit of one direction.
fn limit(word: &str) -> Result<u32, String> {
    let bytes = size(word)?;
    if (BUFFER_MIN..=BUFFER_MAX).contains(&bytes) {
        Ok(bytes as u32)
    } else {
        Err("a limit must be 4K to 1048560K, the most that a TCP window can express".to_owned())
    }
}

/// `INITIAL..MAX`, or one size for a buffer that does not grow.
pub(crate) fn bounds(word: &str) -> Result<BufferBounds, String> {
    let (initial, max) = word.split_once("..").unwrap_or((word, word));
    let (initial, max) = (limit(initial)?, limit(max)?);
    if initial > max {
        return Err("the initial limit is above the maximum".to_owned());
    }
    Ok(BufferBounds { initial, max })
}

/// `NET`, `NET:PORT` or `NET:FIRST-LAST`, where a network is an address with or without a prefix length, and
/// one of IPv6 with ports has its address in brackets; or `host` or `private` in the place of a network.
pub(crate) fn deny_address(word: &str) -> Result<Deny, String> {
    let expected = || {
        "expected CIDR[:PORT[-PORT]], host[:PORT[-PORT]] or private[:PORT[-PORT]], such as 10.0.0.0/8, \
         192.0.2.1:25, 2001:db8::/32, [2001:db8::]/32:80-90 or host:22"
            .to_owned()
    };
    let classes = [("host", Deny::host as fn(_) -> _), ("private", Deny::private)];
    let of_class = classes.iter().find_map(|(name, rule)| Some((rule, word.strip_prefix(name)?)));
    if let Some((rule, rest)) = of_class {
        let ports = match rest.strip_prefix(':') {
            Some(ports) => Some(ports.parse::<PortRange>().map_err(|_| expected())?),
            None if rest.is_empty() => None,
            None => return Err(expected()),
        };
        return rule(ports).ok_or_else(expected);
    }
    let (address, rest) = match word.strip_prefix('[') {
        Some(word) => word.split_once(']').ok_or_else(expected)?,
        None => word.split_at(word.find('/').or_else(|| first_port(word)).unwrap_or(word.len())),
    };
    let address: IpAddr = address.parse().map_err(|_| expected())?;
    // Brackets are for IPv6, which needs them if a port follows.
    let bracketed = word.starts_with('[');
    if bracketed && address.is_ipv4() || !bracketed && address.is_ipv6() && rest.contains(':') {
        return Err(expected());
    }
    let (length, ports) = match rest.split_once(':') {
        Some((length, ports)) => (length, Some(ports.parse::<PortRange>().map_err(|_| expected())?)),
        None => (rest, None),
    };
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let length = match length.strip_prefix('/') {
        Some(digits) => digits.parse().map_err(|_| expected())?,
        None if length.is_empty() => longest,
        None => return Err(expected()),
    };
    let rule = Deny::new(address, length, ports);
    let rule = rule.ok_or_else(|| format!("the prefix length is {length}, and must be 0 to {longest}"))?;
    match rule.network() {
        Some(network) if network.address() != address => {
            Err(format!("{address} has bits behind its prefix; the network is {network}"))
        }
        _ => Ok(rule),
    }
}

/// The offset of the port of an IPv4 address without a prefix length.
fn first_port(word: &str) -> Option<usize> {
    word.find(':').filter(|_| word.matches(':').count() == 1)
}

/// Digits and nothing else.
fn decimal(digits: &str) -> Option<u32> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// `N/s`, or `N/s:BURST`.
pub(crate) fn flow_rate(word: &str) -> Result<FlowRate, String> {
    let expected = || "expected N/s or N/s:BURST, such as 100/s or 100/s:500".to_owned();
    let number = |digits: &str| decimal(digits).filter(|n| (1..=1 << 20).contains(n));
    let (rate, burst) = word.split_once("/s").ok_or_else(expected)?;
    let per_second = number(rate).ok_or_else(expected)?;
    let burst = match burst.strip_prefix(':') {
        Some(burst) => number(burst).ok_or_else(expected)?,
        None if burst.is_empty() => per_second,
        None => return Err(expected()),
    };
    Ok(FlowRate { per_second, burst })
}

/// `IP`, `IP:PORT` or `[IP6]:PORT`.
pub(crate) fn resolver(word: &str) -> Result<SocketAddr, String> {
    let parsed = match word.parse() {
        Ok(address) => Ok(SocketAddr::new(address, DNS_PORT)),
        Err(_) => word.parse::<SocketAddr>(),
    };
    let resolver = parsed.map_err(|_| {
        "expected IP or IP:PORT, such as 1.1.1.1, 127.0.0.1:5353 or [2606:4700::1111]:53".to_owned()
    })?;
    if resolver.port() == 0 || resolver.ip().is_unspecified() || resolver.ip().is_multicast() {
        return Err("not the address of a resolver: unspecified, multicast, or port 0".to_owned());
    }
    Ok(resolver)
}

/// A unicast MAC address: six pairs of hexadecimal digits.
pub(crate) fn mac(word: &str) -> Result<MacAddr, String> {
    let expected = || "expected six pairs of hexadecimal digits, such as 52:55:0a:00:02:0f".to_owned();
    let mut octets = [0; 6];
    let mut pairs = word.split([':', '-']);
    for octet in &mut octets {
        let pair = pairs.next().filter(|pair| pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit()));
        *octet = u8::from_str_radix(pair.ok_or_else(expected)?, 16).map_err(|_| expected())?;
    }
    if pairs.next().is_some() {
        return Err(expected());
    }
    if octets[0] & 1 != 0 || octets == [0; 6] {
        return Err(
            "not a unicast MAC address: the first octet must be even, and not all may be zero".to_owned()
        );
    }
    Ok(MacAddr(octets))
}

/// The name of a network interface.
pub(crate) fn interface_name(word: &str) -> Result<String, String> {
    if brodo_netns::setup::is_interface_name(word) {
        Ok(word.to_owned())
    } else {
        Err("expected 1 to 15 visible ASCII characters without / : %, and not lo, all or default".to_owned())
    }
}

/// A DNS search name; `.` alone stands for none.
pub(crate) fn search_name(word: &str) -> Result<String, String> {
    let name = word.strip_suffix('.').unwrap_or(word);
    let label_ok = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    if word == "." || (name.len() <= 253 && name.split('.').all(label_ok)) {
        Ok(name.to_owned())
    } else {
        Err("expected a domain name, such as example.org".to_owned())
    }
}

/// A name of the guest for DHCP: one option of DHCPv4 has 255 bytes, three of them other than the name's.
pub(crate) fn offered_name(word: &str) -> Result<String, String> {
    let name = word.strip_suffix('.').unwrap_or(word);
    match encode_name(name, &mut [0; NAME_LEN_MAX - 3]) {
        Some(_) => Ok(name.to_owned()),
        None => Err("expected a host or domain name, such as db.example.org".to_owned()),
    }
}

/// `NAME=IP`: an entry of a hosts file.
pub(crate) fn host_name(word: &str) -> Result<(String, IpAddr), String> {
    let expected = || "expected NAME=IP, such as db.lan=192.168.7.5".to_owned();
    let (name, address) = word.split_once('=').ok_or_else(expected)?;
    let address = address.parse().map_err(|_| expected())?;
    let name = name.strip_suffix('.').unwrap_or(name);
    match encode_name(name, &mut [0; NAME_LEN_MAX]) {
        Some(_) => Ok((name.to_owned(), address)),
        None => Err(expected()),
    }
}

/// Bytes of the cache of answers.
pub(crate) fn dns_cache(word: &str) -> Result<usize, String> {
    match size(word)? {
        bytes @ (0 | DNS_CACHE_MIN..=DNS_CACHE_MAX) => Ok(bytes as usize),
        _ => Err("the cache must have 4K to 64M, or 0 for none".to_owned()),
    }
}

/// Number of an inherited descriptor, other than the three standard ones.
pub(crate) fn descriptor(word: &str) -> Result<i32, String> {
    match word.parse() {
        Ok(number) if number > 2 => Ok(number),
        _ => Err("expected the number of an open descriptor above 2".to_owned()),
    }
}

/// Number of an inherited descriptor, the three standard ones included.
pub(crate) fn any_descriptor(word: &str) -> Result<i32, String> {
    match word.parse() {
        Ok(number) if number >= 0 => Ok(number),
        _ => Err("expected the number of an open descriptor".to_owned()),
    }
}

/// A connected socket for a monitor, by its number alone.
pub(crate) fn monitor_descriptor(word: &str) -> Result<MonitorSocket, String> {
    descriptor(word).map(MonitorSocket::Descriptor)
}

/// A descriptor for readiness, and the text written to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReadyFd {
    pub(crate) number: i32,
    pub(crate) text: String,
}

/// `N`, for an empty line, or `N:TEXT`.
pub(crate) fn ready_fd(word: &str) -> Result<ReadyFd, String> {
    let (number, text) = word.split_once(':').unwrap_or((word, "\n"));
    Ok(ReadyFd { number: any_descriptor(number)?, text: text.to_owned() })
}

/// A sampling interval.
pub(crate) fn interval(word: &str) -> Result<Duration, String> {
    match word.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected seconds, 0.1 to 3600".to_owned()),
    }
}

/// Confinement of the process that parses the guest's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Confine {
    /// As far as this system allows
    #[default]
    On,
    /// Completely, or brodo does not start
    Required,
    /// As on, but a system call that is not allowed is only logged by the kernel
    Log,
    /// Not at all
    Off,
}

impl From<Confine> for Confinement {
    fn from(confine: Confine) -> Self {
        let stages = if confine == Confine::Off { Stages::NONE } else { Stages::ALL };
        let on_violation = if confine == Confine::Log { OnViolation::Log } else { OnViolation::Kill };
        Self { stages, on_violation, required: confine == Confine::Required }
    }
}

/// Mode of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum PolicyMode {
    /// Refuse everything that no rule allows
    #[default]
    Enforce,
    /// Let everything pass but the floor
    Observe,
}

/// Carrier of bulk flows that a brodo is started with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum BulkOption {
    /// A kernel socket where this system allows it, else the guest's interface
    #[default]
    Auto,
    /// The same, with a warning where it is the interface
    Kernel,
    /// The guest's interface
    Tap,
}

impl From<BulkOption> for Bulk {
    fn from(option: BulkOption) -> Self {
        match option {
            BulkOption::Auto | BulkOption::Kernel => Self::Kernel,
            BulkOption::Tap => Self::Tap,
        }
    }
}

/// Carrier of bulk flows that a running brodo changes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CarrierOption {
    /// A kernel socket
    Kernel,
    /// The guest's interface
    Tap,
}

impl From<CarrierOption> for BulkCarrier {
    fn from(option: CarrierOption) -> Self {
        match option {
            CarrierOption::Kernel => Self::Kernel,
            CarrierOption::Tap => Self::Tap,
        }
    }
}

/// An address as options and URLs have it before a port: one of IPv6 in brackets.
pub(crate) fn bracketed(address: IpAddr) -> String {
    if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
}

#[cfg(test)]
mod tests;
