//! The grammar of `-t`, `-u`, `-T` and `-U`, which is pasta's, as a pure parser.
//!
//! ```text
//! SPEC    = "none" | [WHERE "/"] LIST
//! WHERE   = [ADDRESS | "*"] ["%" INTERFACE]      where to listen; an IPv6 address may stand in brackets
//! LIST    = ITEM {"," ITEM}
//! ITEM    = PORTS | "all" [":" ADDRESS] | "auto" | "~" RANGE
//! PORTS   = RANGE [":" ([ADDRESS "/"] RANGE | ADDRESS)]      the port listened on, and where it leads
//! RANGE   = PORT ["-" PORT]                      1 to 65535
//! ```
//!
//! A list of exclusions alone is `all` without them. Beside `all` stand exclusions and `auto`, and no ports.
//! `auto` beside ports follows the other side for these ports alone, beside `all` it is as if it stood alone.
//! Before the first slash stands WHERE if it reads as an address, and otherwise the target of the first item:
//! `2001:db8::1/80` listens on that address, `2001:[db8::1]/80` on port 2001.
//!
//! Each value of an option is one [`Spec`]; several add up, and [`check`] says where they contradict each
//! other. An explicit port goes before `auto` and `all`, which leave it out. Ports are compared as sets of
//! one bit each, so that it takes the same time however many items the lists have.

pub use brodo_core::port_range::PortRange;
use brodo_core::port_range::PortRangeError;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Longest accepted value of an option, in bytes.
pub const SPEC_LEN_MAX: usize = 4096;
/// Most items of one list.
pub const ITEMS_MAX: usize = 512;

/// Any ports, one bit each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSet(Box<[u64]>);

impl Default for PortSet {
    fn default() -> Self {
        Self(vec![0; 1 << 10].into_boxed_slice())
    }
}

impl PortSet {
    /// Whether `port` is one of them.
    pub fn contains(&self, port: u16) -> bool {
        self.0[usize::from(port >> 6)] & 1 << (port & 63) != 0
    }

    fn insert(&mut self, range: PortRange) {
        for (word, bits) in words(range) {
            self.0[word] |= bits;
        }
    }

    fn remove(&mut self, range: PortRange) {
        for (word, bits) in words(range) {
            self.0[word] &= !bits;
        }
    }

    fn extend(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }

    /// The lowest that both have.
    fn first_shared(&self, other: &Self) -> Option<u16> {
        let shared = self.0.iter().zip(&other.0).map(|(a, b)| a & b);
        (0..)
            .zip(shared)
            .find(|(_, bits)| *bits != 0)
            .map(|(word, bits)| word << 6 | bits.trailing_zeros() as u16)
    }
}

/// The words of a [`PortSet`] in which a range has bits, and those.
fn words(PortRange { first, last }: PortRange) -> impl Iterator<Item = (usize, u64)> {
    (first >> 6..=last >> 6).map(move |word| {
        let above = if word == first >> 6 { u64::MAX << (first & 63) } else { u64::MAX };
        let below = if word == last >> 6 { u64::MAX >> (63 - (last & 63)) } else { u64::MAX };
        (usize::from(word), above & below)
    })
}

/// Ports listened on, and where they lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Listened on.
    pub from: PortRange,
    /// The address on the other side, if it is not the usual one.
    pub to_address: Option<IpAddr>,
    /// The port on the other side to which the first leads; the others follow.
    pub to: u16,
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.from)?;
        if self.to == self.from.first && self.to_address.is_none() {
            return Ok(());
        }
        f.write_str(":")?;
        match self.to_address {
            Some(IpAddr::V6(address)) => write!(f, "[{address}]/")?,
            Some(address) => write!(f, "{address}/")?,
            None => {}
        }
        let length = self.from.last - self.from.first;
        write!(f, "{}", PortRange { first: self.to, last: self.to + length })
    }
}

/// Ports of one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    /// None at all.
    None,
    /// `auto`: the ports on which the other side listens, at any time.
    Auto,
    /// `auto` beside ports: of these the ones on which the other side listens, at any time.
    AutoOf(Vec<PortRange>),
    /// `all`: every port that is not ephemeral, to the same one on the other side, at this address if it is
    /// not the usual one.
    All(Option<IpAddr>),
    /// Ports and where they lead.
    These(Vec<Mapping>),
}

/// Content of one value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Address to listen on; `None`: the usual addresses of the side.
    pub address: Option<IpAddr>,
    /// The interface to listen on; `None`: all.
    pub interface: Option<String>,
    /// The ports.
    pub ports: Ports,
    /// Ports left out.
    pub excluded: Vec<PortRange>,
}

/// One port of a [`Spec`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRule {
    /// Listened on.
    pub port: u16,
    /// The address on the other side, if it is not the usual one.
    pub to_address: Option<IpAddr>,
    /// The port on the other side.
    pub to: u16,
}

impl Spec {
    /// Its ports one by one. `ephemeral` are those that the host hands out to clients, which `all` leaves
    /// alone. There is none of `auto`: those are found while the program runs.
    pub fn rules(&self, ephemeral: PortRange) -> Vec<PortRule> {
        let Ports::All(to_address) = self.ports else { return self.named_rules() };
        let excluded = self.excluded_set();
        (1..=u16::MAX)
            .filter(|&port| !ephemeral.contains(port) && !excluded.contains(port))
            .map(|port| PortRule { port, to_address, to: port })
            .collect()
    }

    /// The ports that it names, one by one: none of `auto` and `all`.
    pub fn named_rules(&self) -> Vec<PortRule> {
        let Ports::These(mappings) = &self.ports else { return Vec::new() };
        let excluded = self.excluded_set();
        let of = |mapping: &Mapping| {
            let Mapping { from, to_address, to } = *mapping;
            (from.first..=from.last).map(move |port| PortRule {
                port,
                to_address,
                to: to + (port - from.first),
            })
        };
        mappings.iter().flat_map(of).filter(|rule| !excluded.contains(rule.port)).collect()
    }

    fn excluded_set(&self) -> PortSet {
        let mut excluded = PortSet::default();
        for range in &self.excluded {
            excluded.insert(*range);
        }
        excluded
    }

    /// The ports that it names one by one or by ranges: none of `auto` and `all`.
    fn named(&self) -> PortSet {
        let mut named = PortSet::default();
        if let Ports::These(mappings) = &self.ports {
            for mapping in mappings {
                named.insert(mapping.from);
            }
            for range in &self.excluded {
                named.remove(*range);
            }
        }
        named
    }

    /// Whether `port` can be one of its ports; any that is not excluded can be for `auto` and `all`.
    pub(super) fn covers(&self, port: u16) -> bool {
        let range = |range: &PortRange| range.contains(port);
        let has = match &self.ports {
            Ports::None => false,
            Ports::Auto | Ports::All(_) => true,
            Ports::AutoOf(ranges) => ranges.iter().any(range),
            Ports::These(mappings) => mappings.iter().any(|mapping| range(&mapping.from)),
        };
        has && !self.excluded.iter().any(range)
    }

    /// Whether a port that cannot be bound is skipped silently.
    pub fn is_optional(&self) -> bool {
        self.is_auto() || matches!(self.ports, Ports::All(_))
    }

    /// Whether its ports follow the listening sockets of the other side.
    pub fn is_auto(&self) -> bool {
        matches!(self.ports, Ports::Auto | Ports::AutoOf(_))
    }

    /// The ports to which `auto` is restricted, if it is.
    pub(super) fn among(&self) -> Option<&[PortRange]> {
        if let Ports::AutoOf(ranges) = &self.ports { Some(ranges) } else { None }
    }

    /// Addresses on the other side that it names.
    pub(super) fn targets(&self) -> impl Iterator<Item = IpAddr> + Clone {
        let (mappings, of_all) = match &self.ports {
            Ports::These(mappings) => (&mappings[..], None),
            Ports::All(to_address) => (&[][..], *to_address),
            Ports::None | Ports::Auto | Ports::AutoOf(_) => (&[][..], None),
        };
        mappings.iter().filter_map(|mapping| mapping.to_address).chain(of_all)
    }

    /// Whether both may listen at the same place, ports aside.
    fn meets(&self, other: &Self) -> bool {
        let interfaces = match (&self.interface, &other.interface) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        let addresses = match (self.address, other.address) {
            (Some(a), Some(b)) => {
                a.is_ipv4() == b.is_ipv4() && (a == b || a.is_unspecified() || b.is_unspecified())
            }
            _ => true,
        };
        interfaces && addresses
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ports == Ports::None {
            return f.write_str("none");
        }
        match self.address {
            Some(IpAddr::V6(address)) => write!(f, "[{address}]")?,
            Some(address) => write!(f, "{address}")?,
            None => {}
        }
        if let Some(interface) = &self.interface {
            write!(f, "%{interface}")?;
        }
        if self.address.is_some() || self.interface.is_some() {
            f.write_str("/")?;
        }
        let items: Vec<String> = match &self.ports {
            Ports::Auto => vec!["auto".into()],
            Ports::AutoOf(ranges) => {
                ranges.iter().map(ToString::to_string).chain(["auto".to_owned()]).collect()
            }
            Ports::All(None) => vec!["all".into()],
            Ports::All(Some(IpAddr::V6(to))) => vec![format!("all:[{to}]")],
            Ports::All(Some(to)) => vec![format!("all:{to}")],
            Ports::None => Vec::new(),
            Ports::These(mappings) => mappings.iter().map(ToString::to_string).collect(),
        };
        let excluded = self.excluded.iter().map(|range| format!("~{range}"));
        f.write_str(&items.into_iter().chain(excluded).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > SPEC_LEN_MAX {
            return Err(format!("the list is longer than {SPEC_LEN_MAX} characters"));
        }
        let mut spec = Self { address: None, interface: None, ports: Ports::None, excluded: Vec::new() };
        if text == "none" {
            return Ok(spec);
        }
        let list = match text.split_once('/') {
            Some((place, list)) if is_place(place) => {
                (spec.address, spec.interface) = read_place(place)?;
                list
            }
            _ => text,
        };
        if list.is_empty() {
            return Err(EXPECTED.to_owned());
        }
        let mut mappings: Vec<Mapping> = Vec::new();
        let (mut all, mut is_auto) = (None, false);
        for (number, item) in list.split(',').enumerate() {
            if number >= ITEMS_MAX {
                return Err(format!("the list has more than {ITEMS_MAX} items"));
            }
            match (item, item.strip_prefix('~')) {
                (_, Some(range)) => spec.excluded.push(port_range(range)?),
                ("none", _) => return Err("`none` stands alone".to_owned()),
                ("auto", _) => is_auto = true,
                ("all", _) => all = Some(all_again(all, None)?),
                _ if item.starts_with("all:") => all = Some(all_again(all, Some(all_to(item)?))?),
                _ => {
                    let mapping = mapping(item)?;
                    if let Some(earlier) = mappings.iter().find(|earlier| overlap(earlier.from, mapping.from))
                    {
                        return Err(format!("{} and {} overlap", earlier.from, mapping.from));
                    }
                    mappings.push(mapping);
                }
            }
        }
        spec.ports = ports_of(mappings, all, is_auto)?;
        spec.families_agree()?;
        Ok(spec)
    }
}

/// Forms of a value, for the error about any other.
const EXPECTED: &str =
    "expected none, auto, all, or ports such as 8080, 8080:80, 127.0.0.1/2000-2010,~2005 or %eth0/53";

impl Spec {
    /// Address families of both ends agree: the peer's address could not be kept.
    fn families_agree(&self) -> Result<(), String> {
        let Some(address) = self.address else { return Ok(()) };
        match self.targets().find(|to| to.is_ipv4() != address.is_ipv4()) {
            Some(to) => Err(format!("{address} and {to} are of different families")),
            None => Ok(()),
        }
    }
}

/// `all` in a list.
#[derive(Debug, Clone, Copy)]
struct AllPorts {
    /// Address to which it leads.
    to: Option<IpAddr>,
}

/// `all` with this target, after the one before it in the list.
fn all_again(before: Option<AllPorts>, to: Option<IpAddr>) -> Result<AllPorts, String> {
    match before {
        Some(before) if before.to != to => Err("`all` leads to one address".to_owned()),
        _ => Ok(AllPorts { to }),
    }
}

/// The ports of a list.
fn ports_of(mappings: Vec<Mapping>, all: Option<AllPorts>, is_auto: bool) -> Result<Ports, String> {
    match (mappings.first(), all) {
        (Some(mapping), Some(_)) => {
            Err(format!("beside `all` stand exclusions and `auto`, and {mapping} is neither"))
        }
        (None, Some(AllPorts { to: Some(to) })) if is_auto => {
            Err(format!("`auto` follows a port by its own number, and all:{to} leads to another"))
        }
        _ if is_auto => auto_of(&mappings),
        (None, all) => Ok(Ports::All(all.and_then(|all| all.to))),
        (Some(_), None) => Ok(Ports::These(mappings)),
    }
}

/// `auto`, restricted to ports if there are any.
fn auto_of(mappings: &[Mapping]) -> Result<Ports, String> {
    let translated = |it: &&Mapping| it.to_address.is_some() || it.to != it.from.first;
    match mappings.iter().find(translated) {
        Some(mapping) => {
            Err(format!("`auto` follows a port by its own number, and {mapping} leads to another"))
        }
        None if mappings.is_empty() => Ok(Ports::Auto),
        None => Ok(Ports::AutoOf(mappings.iter().map(|mapping| mapping.from).collect())),
    }
}

fn overlap(a: PortRange, b: PortRange) -> bool {
    a.first <= b.last && b.first <= a.last
}

/// `PORT` or `FIRST-LAST`.
fn port_range(text: &str) -> Result<PortRange, String> {
    text.parse().map_err(|error| match error {
        PortRangeError::Malformed => EXPECTED.to_owned(),
        error => error.to_string(),
    })
}

/// An address, in brackets or not.
fn address(text: &str) -> Option<IpAddr> {
    match text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => inner.parse().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    }
}

/// Whether what stands before the first slash says where to listen. A target of the first item stands there
/// otherwise, and a colon in that comes after digits alone.
fn is_place(text: &str) -> bool {
    let (before, _) = text.split_once('%').unwrap_or((text, ""));
    if before == "*" || address(before).is_some() || text.contains('%') {
        return true;
    }
    let item = text.rsplit(',').next().unwrap_or(text);
    let target = item
        .split_once(':')
        .is_some_and(|(ports, to)| ports.parse::<PortRange>().is_ok() && address(to).is_some());
    !target
}

fn read_place(text: &str) -> Result<(Option<IpAddr>, Option<String>), String> {
    let (before, interface) = match text.split_once('%') {
        Some((before, interface)) => (before, Some(interface)),
        None => (text, None),
    };
    let listen = match before {
        "" | "*" => None,
        _ => Some(address(before).ok_or_else(|| format!("{before} is no address to listen on"))?),
    };
    if listen.is_some_and(|address| address.is_multicast()) {
        return Err(format!("{before} is a multicast address"));
    }
    let visible = |name: &&str| {
        (1..=15).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%'))
    };
    match interface {
        Some(name) if !visible(&name) => Err(format!("%{name} is no interface's name")),
        None if before.is_empty() => Err(EXPECTED.to_owned()),
        _ => Ok((listen, interface.map(str::to_owned))),
    }
}

/// Parses `a[-b][:[toaddr/]c[-d]]` and `a[-b]:toaddr`.
fn mapping(item: &str) -> Result<Mapping, String> {
    let Some((from, target)) = item.split_once(':') else {
        let from = port_range(item)?;
        return Ok(Mapping { from, to_address: None, to: from.first });
    };
    let from = port_range(from)?;
    let (to_address, to) = match target.rsplit_once('/') {
        Some((text, to)) => {
            let to_address = address(text).ok_or_else(|| format!("{text} is no address"))?;
            (to_host(from, to_address)?.to_address, to)
        }
        None => match address(target) {
            Some(to_address) => return to_host(from, to_address),
            None => (None, target),
        },
    };
    let to = port_range(to)?;
    if to.len() != from.len() {
        return Err(format!(
            "{from} and {to} are of different lengths: {} and {} ports",
            from.len(),
            to.len()
        ));
    }
    Ok(Mapping { from, to_address, to: to.first })
}

/// Ports that lead to those of the same numbers at an address.
fn to_host(from: PortRange, to_address: IpAddr) -> Result<Mapping, String> {
    Ok(Mapping { from, to_address: Some(host(to_address)?), to: from.first })
}

/// Parses `all:toaddr`.
fn all_to(item: &str) -> Result<IpAddr, String> {
    let text = item.strip_prefix("all:").unwrap_or_default();
    host(address(text).ok_or_else(|| format!("{text} is no address"))?)
}

/// An address that a host can have.
fn host(address: IpAddr) -> Result<IpAddr, String> {
    if address.is_unspecified() || address.is_multicast() {
        return Err(format!("no host can be reached at {address}"));
    }
    Ok(address)
}

/// The ports that any of these name.
pub fn named(specs: &[&Spec]) -> PortSet {
    let mut all = PortSet::default();
    for spec in specs {
        all.extend(&spec.named());
    }
    all
}

/// Says where the values of one option contradict each other, in one clause.
pub fn check(specs: &[Spec]) -> Result<(), String> {
    let specs: Vec<&Spec> = specs.iter().collect();
    specs.iter().enumerate().try_for_each(|(number, spec)| check_beside(spec, &specs[..number]))
}

/// Says where a value contradicts others of its option that do not contradict each other, in one clause.
pub fn check_beside(spec: &Spec, others: &[&Spec]) -> Result<(), String> {
    let named = spec.named();
    for other in others {
        if spec.ports == Ports::None || other.ports == Ports::None {
            return Err("`none` is given together with others".to_owned());
        }
        if !spec.meets(other) {
            continue;
        }
        if spec.is_optional() && other.is_optional() {
            return Err(format!("`{other}` and `{spec}` are given for the same address"));
        }
        if let Some(port) = named.first_shared(&other.named()) {
            return Err(format!("port {port} is given twice, in `{other}` and `{spec}`"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
