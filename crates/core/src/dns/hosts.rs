//! Host entries: names that brodo answers itself, from the configuration, and `host.brodo.internal` for the
//! mapped loopback.
//!
//! A name has addresses, an address has names. Other record types of such a name exist but are empty, so that
//! the resolvers are never queried for it.

use crate::config::Config;
use crate::wire::dns::message::{A, AAAA, PTR, Query, Reply};
use crate::wire::dns::{AA, NAME_LEN_MAX, Name, encode_name};
use std::net::IpAddr;

/// The name of the host's loopback as the guest sees it, where it is mapped.
pub(crate) const HOST: &str = "host.brodo.internal";
/// TTL of the answers, in seconds: another start may have other entries.
const TTL: u32 = 10;
/// QTYPE ANY.
const ANY: u16 = 255;
/// Class IN, the Internet.
const IN: u16 = 1;

/// One name and one of its addresses.
#[derive(Debug)]
struct Entry {
    /// Name in wire format.
    name: Box<[u8]>,
    address: IpAddr,
}

impl Entry {
    fn is_named(&self, name: &Name<'_>) -> bool {
        Name::parse(&self.name, 0).is_some_and(|(own, _)| own.is(name))
    }
}

/// Host entries of one instance.
#[derive(Debug, Default)]
pub(crate) struct Hosts(Vec<Entry>);

impl Hosts {
    /// The entries of the configuration; an unencodable name is left out. An entry for [`HOST`] takes the
    /// place of brodo's own.
    pub(crate) fn new(config: &Config) -> Self {
        let entry = |name: &str, address| {
            let mut out = [0; NAME_LEN_MAX];
            let len = encode_name(name, &mut out)?;
            Some(Entry { name: out[..len].into(), address })
        };
        let given = config.host_names.iter().filter_map(|(name, address)| entry(name, *address));
        let mut hosts: Vec<Entry> = given.collect();
        let is_host =
            |(name, _): &(String, IpAddr)| name.strip_suffix('.').unwrap_or(name).eq_ignore_ascii_case(HOST);
        if !config.host_names.iter().any(is_host) {
            let v4 = config.v4.and_then(|net| net.host_loopback).map(IpAddr::from);
            let v6 = config.v6.and_then(|net| net.host_loopback).map(IpAddr::from);
            hosts.extend(v4.into_iter().chain(v6).filter_map(|address| entry(HOST, address)));
        }
        Self(hosts)
    }

    /// Whether a name is answered here.
    pub(crate) fn has(&self, name: &Name<'_>) -> bool {
        self.0.iter().any(|entry| entry.is_named(name))
    }

    /// The same of a name as text.
    pub(crate) fn has_text(&self, name: &str) -> bool {
        let mut out = [0; NAME_LEN_MAX];
        let parsed = encode_name(name, &mut out).and_then(|len| Name::parse(&out[..len], 0));
        parsed.is_some_and(|(name, _)| self.has(&name))
    }

    /// Writes the answer to a query for one of the names or addresses here to the start of `out`, with as
    /// many records as there is room for; returns its length in bytes. None for a query about something else.
    ///
    /// # Panics
    /// If `out` is shorter than [`Reply::EMPTY_LEN_MAX`].
    pub(crate) fn answer(&self, query: &Query<'_>, out: &mut [u8]) -> Option<usize> {
        if self.0.is_empty() || query.header.opcode() != 0 || query.question.qclass != IN {
            return None;
        }
        let (asked, qtype) = (query.question.name, query.question.qtype);
        let by_name = |entry: &&Entry| entry.is_named(&asked);
        if self.has(&asked) {
            let mut reply = Reply::new(query, AA, out);
            for entry in self.0.iter().filter(by_name) {
                match entry.address {
                    IpAddr::V4(v4) if matches!(qtype, A | ANY) => _ = reply.push(A, TTL, &v4.octets()),
                    IpAddr::V6(v6) if matches!(qtype, AAAA | ANY) => _ = reply.push(AAAA, TTL, &v6.octets()),
                    _ => {}
                }
            }
            return Some(reply.finish());
        }
        let address = asked.reverse()?;
        self.0.iter().find(|entry| entry.address == address)?;
        let mut reply = Reply::new(query, AA, out);
        for entry in self.0.iter().filter(|entry| entry.address == address && matches!(qtype, PTR | ANY)) {
            reply.push(PTR, TTL, &entry.name);
        }
        Some(reply.finish())
    }
}

#[cfg(test)]
mod tests;
