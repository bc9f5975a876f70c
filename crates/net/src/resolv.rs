//! The host's resolvers, from resolv.conf, and the notice of its changes.
//!
//! [`ResolvConf::parse`] takes `nameserver`, `search` and `domain` of resolv.conf(5); options concern the C
//! library only. [`Watch`] compares the state of the file at the end of the path: a stat now and then while a
//! worker is awake anyway ([`crate::host_network`]) notices every way of changing it (written in place,
//! renamed over, a symbolic link turned elsewhere anywhere along the path), where notifications would need a
//! watch per directory and link.

use brodo_core::config::RESOLVERS_MAX;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::{Path, PathBuf};

/// Most bytes of a file that are read; a longer one is not a resolv.conf.
const LEN_MAX: u64 = 64 << 10;
/// Most search names in use; the C library had a bound of six for long.
const SEARCH_MAX: usize = 32;
const DNS_PORT: u16 = 53;

/// Content of a resolv.conf.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvConf {
    /// Name servers in order of preference, port 53. Empty if the file names none.
    pub resolvers: Vec<SocketAddr>,
    /// Search names, without final dots.
    pub search: Vec<String>,
}

impl ResolvConf {
    /// Parses a file. `interface` maps an interface's name to its index, for addresses such as
    /// `fe80::1%eth0`. Malformed lines are ignored, as by the C library.
    pub fn parse(text: &str, interface: impl Fn(&str) -> Option<u32>) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let server = words.next().and_then(|word| resolver(word, &interface));
                    if let Some(server) = server
                        && conf.resolvers.len() < RESOLVERS_MAX
                        && !conf.resolvers.contains(&server)
                    {
                        conf.resolvers.push(server);
                    }
                }
                // The last of these lines counts.
                Some("search") => conf.search = words.filter_map(search_name).take(SEARCH_MAX).collect(),
                Some("domain") => conf.search = words.filter_map(search_name).take(1).collect(),
                _ => {}
            }
        }
        conf
    }

    /// Reads and parses a file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(path: &Path) -> io::Result<Self> {
        use io::Read;
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(LEN_MAX).read_to_end(&mut bytes)?;
        Ok(Self::parse(&String::from_utf8_lossy(&bytes), interface_index))
    }
}

/// An address, with a scope if it has one.
fn resolver(word: &str, interface: impl Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    let Some((address, scope)) = word.split_once('%') else {
        return word.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, DNS_PORT));
    };
    let address: Ipv6Addr = address.parse().ok()?;
    let scope = scope.parse().ok().or_else(|| interface(scope))?;
    Some(SocketAddrV6::new(address, DNS_PORT, 0, scope).into())
}

/// A search name without its final dot. The root alone means "no search".
fn search_name(word: &str) -> Option<String> {
    let name = word.strip_suffix('.').unwrap_or(word);
    (!name.is_empty() && name.len() <= 253).then(|| name.to_owned())
}

/// The index of an interface of the host.
fn interface_index(name: &str) -> Option<u32> {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    netdevice::name_to_index(&socket, name).ok()
}

/// Attributes that tell one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    len: i64,
    changed: (i64, u64),
    modified: (i64, u64),
}

impl Stamp {
    /// The file at the end of the path, through all links; `None` if it does not exist.
    fn of(path: &Path) -> Option<Self> {
        let stat = rustix::fs::stat(path).ok()?;
        Some(Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            len: stat.st_size,
            changed: (stat.st_ctime, stat.st_ctime_nsec),
            modified: (stat.st_mtime, stat.st_mtime_nsec),
        })
    }
}

/// Detection of changes of a resolv.conf.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    stamp: Option<Stamp>,
}

impl Watch {
    /// Watches the file at `path`, which need not exist. The first [`Watch::poll`] reads it.
    pub fn new(path: PathBuf) -> Self {
        Self { path, stamp: None }
    }

    /// The file's new content, if it has changed since the last call that returned some. Costs a stat. A
    /// missing file counts as unchanged.
    pub fn poll(&mut self) -> Option<ResolvConf> {
        let stamp = Stamp::of(&self.path)?;
        if self.stamp == Some(stamp) {
            return None;
        }
        // The stamp was taken first: a change in between is noticed by the next check.
        let conf = ResolvConf::read(&self.path).ok()?;
        self.stamp = Some(stamp);
        Some(conf)
    }
}

#[cfg(test)]
mod tests;
