//! The bytes of the protocol, version 2; all numbers in network byte order.
//!
//! ```text
//! greeting  "basil:s\0"  u32 version  u32 length of a table's name (128)  u32 length of an interface's (16)
//! table     u8 id  name[128]  u32 capabilities  u32 rules  rule[rules]      of the server
//!           u8 id  u32 rules  rule[rules]                                   of the client
//! end       u8 0
//! rule      listen[16]  target[16]  interface[16]  u16 first  u16 last  u16 to  u8 protocol  u8 flags
//! ```
//!
//! An address of IPv4 is mapped into IPv6; the unspecified one of IPv6 stands for any of both families with
//! the flag [`ANY`], and for no target.
//!
//! Both sides are taken for hostile here: lengths are bounded, and fields are checked when they are used.

use brodo_net::forward::spec::PortRange;
use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv6Addr};

/// Beginning of a greeting of the server.
const MAGIC: &[u8; 8] = b"basil:s\0";
/// The only version that is spoken: they change without compatibility.
const VERSION: u32 = 2;
/// Length of a table's name, in bytes.
const NAME_LEN: usize = 128;
/// Length of an interface's name, with its end, in bytes.
const INTERFACE_LEN: usize = 16;
/// Length of a rule, in bytes.
const RULE_LEN: usize = 56;
/// Most rules of a table: the original has 255.
const RULES_MAX: u32 = 4096;
/// Capabilities besides the families: TCP, UDP, following of listening sockets, interfaces.
const CAPABILITIES: u32 = 4 | 8 | 16 | 32;
/// Capabilities of the families.
pub(super) const IPV4: u32 = 1;
pub(super) const IPV6: u32 = 2;

/// Flag: every address, of both families.
pub(super) const ANY: u8 = 1;
/// Flag: a port that cannot be bound is left out.
pub(super) const WEAK: u8 = 2;
/// Flag: only ports on which the other side listens.
pub(super) const SCAN: u8 = 4;

/// Protocol numbers (RFC 5237).
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

/// A table of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TableId {
    /// Ports of the host.
    Host = 1,
    /// Ports of the guest's loopback.
    Splice = 3,
}

impl TableId {
    pub(super) const ALL: [Self; 2] = [Self::Host, Self::Splice];

    fn of(id: u8) -> io::Result<Self> {
        Self::ALL.into_iter().find(|table| *table as u8 == id).ok_or_else(|| invalid("an unknown table"))
    }

    /// Its name, for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Host => "HOST",
            Self::Splice => "SPLICE",
        }
    }
}

/// A range of ports and where it leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Address to listen on; with [`ANY`] every one.
    pub(super) listen: IpAddr,
    /// Interface to listen on.
    pub(super) interface: Option<String>,
    /// Ports listened on.
    pub(super) first: u16,
    pub(super) last: u16,
    /// Address on the other side, if it is not the usual one.
    pub(super) target: Option<IpAddr>,
    /// Port on the other side to which `first` leads.
    pub(super) to: u16,
    pub(super) protocol: u8,
    pub(super) flags: u8,
}

/// Rules of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub(super) id: TableId,
    pub(super) rules: Vec<Rule>,
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("not pesto's protocol, version {VERSION}: {what}"))
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn number(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u16::from(byte))
}

fn array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn number_32(from: &mut impl Read) -> io::Result<u32> {
    Ok(u32::from_be_bytes(array(from)?))
}

impl Rule {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(mapped(self.listen));
        bytes.extend(mapped(self.target.unwrap_or(Ipv6Addr::UNSPECIFIED.into())));
        let mut interface = [0; INTERFACE_LEN];
        let name = self.interface.as_deref().unwrap_or_default().as_bytes();
        let length = name.len().min(INTERFACE_LEN - 1);
        interface[..length].copy_from_slice(&name[..length]);
        bytes.extend(interface);
        bytes.extend([self.first, self.last, self.to].map(u16::to_be_bytes).as_flattened());
        bytes.extend([self.protocol, self.flags]);
    }

    fn read(from: &mut impl Read) -> io::Result<Self> {
        let bytes: [u8; RULE_LEN] = array(from)?;
        let (listen, rest) = bytes.split_at(16);
        let (target, rest) = rest.split_at(16);
        let (interface, rest) = rest.split_at(INTERFACE_LEN);
        let address = |octets: &[u8]| -> IpAddr {
            let mut all = [0; 16];
            all.copy_from_slice(octets);
            Ipv6Addr::from(all).to_canonical()
        };
        let target = address(target);
        let end =
            interface.iter().position(|&byte| byte == 0).ok_or_else(|| invalid("an interface's name"))?;
        let interface = std::str::from_utf8(&interface[..end]).map_err(|_| invalid("an interface's name"))?;
        Ok(Self {
            listen: address(listen),
            interface: Some(interface.to_owned()).filter(|name| !name.is_empty()),
            first: number(&rest[..2]),
            last: number(&rest[2..4]),
            target: (target != IpAddr::from(Ipv6Addr::UNSPECIFIED)).then_some(target),
            to: number(&rest[4..6]),
            protocol: rest[6],
            flags: rest[7],
        })
    }
}

/// As pesto prints it: `TCP [*]:8080  =>  80`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = if self.protocol == UDP { "UDP" } else { "TCP" };
        let listen = if self.flags & ANY != 0 { "*".to_owned() } else { self.listen.to_string() };
        write!(f, "{protocol} [{listen}]")?;
        if let Some(interface) = &self.interface {
            write!(f, "%{interface}")?;
        }
        write!(f, ":{}  =>  ", PortRange { first: self.first, last: self.last })?;
        if let Some(target) = self.target {
            write!(f, "{target}:")?;
        }
        let last = self.to.saturating_add(self.last.saturating_sub(self.first));
        write!(f, "{} ", PortRange { first: self.to, last })?;
        if self.flags & WEAK != 0 {
            f.write_str(" (best effort)")?;
        }
        if self.flags & SCAN != 0 {
            f.write_str(" (auto-scan)")?;
        }
        Ok(())
    }
}

/// The server's first message; `families` are those of the guest ([`IPV4`], [`IPV6`]).
pub(super) fn greeting(tables: &[Table], families: u32) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend([VERSION, NAME_LEN as u32, INTERFACE_LEN as u32].map(u32::to_be_bytes).as_flattened());
    for table in tables {
        bytes.push(table.id as u8);
        let mut name = [0; NAME_LEN];
        name[..table.id.name().len()].copy_from_slice(table.id.name().as_bytes());
        bytes.extend(name);
        bytes.extend((CAPABILITIES | families).to_be_bytes());
        write_rules(&mut bytes, &table.rules);
    }
    bytes.push(0);
    bytes
}

/// Reads the server's first message.
///
/// # Errors
/// It is none of this version.
pub(super) fn read_greeting(from: &mut impl Read) -> io::Result<Vec<Table>> {
    if array::<8>(from)? != *MAGIC {
        return Err(invalid("another program listens there"));
    }
    let version = number_32(from)?;
    if version != VERSION {
        let why = format!("the other side speaks version {version}: use both of one release");
        return Err(invalid(&why));
    }
    if (number_32(from)?, number_32(from)?) != (NAME_LEN as u32, INTERFACE_LEN as u32) {
        return Err(invalid("names of other lengths"));
    }
    read_tables(from, |from| {
        let (_name, _capabilities) = (array::<NAME_LEN>(from)?, number_32(from)?);
        Ok(())
    })
}

/// The client's answer.
pub(super) fn answer(tables: &[Table]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for table in tables {
        bytes.push(table.id as u8);
        write_rules(&mut bytes, &table.rules);
    }
    bytes.push(0);
    bytes
}

/// Reads the client's answer; `None` if it has gone without one.
///
/// # Errors
/// It is none, or ends in the middle.
pub(super) fn read_answer(from: &mut impl Read) -> io::Result<Option<Vec<Table>>> {
    let mut first = [0];
    if from.read(&mut first)? == 0 {
        return Ok(None);
    }
    read_tables(&mut first.as_slice().chain(from), |_| Ok(())).map(Some)
}

fn write_rules(bytes: &mut Vec<u8>, rules: &[Rule]) {
    let count = u32::try_from(rules.len()).unwrap_or(u32::MAX).min(RULES_MAX);
    bytes.extend(count.to_be_bytes());
    rules.iter().take(count as usize).for_each(|rule| rule.write(bytes));
}

/// Reads tables up to the end, each with `properties` behind its id.
fn read_tables<R: Read>(
    from: &mut R,
    mut properties: impl FnMut(&mut R) -> io::Result<()>,
) -> io::Result<Vec<Table>> {
    let mut tables: Vec<Table> = Vec::new();
    loop {
        let [id] = array(from)?;
        if id == 0 {
            return Ok(tables);
        }
        let id = TableId::of(id)?;
        if tables.iter().any(|table| table.id == id) {
            return Err(invalid("a table twice"));
        }
        properties(from)?;
        let count = number_32(from)?;
        if count > RULES_MAX {
            return Err(invalid("too many rules"));
        }
        let rules = (0..count).map(|_| Rule::read(from)).collect::<Result<_, _>>()?;
        tables.push(Table { id, rules });
    }
}

#[cfg(test)]
mod tests;
