//! Learnt names: the name by which the guest knows an address, from the answers given to it.
//!
//! Of an answer only the addresses of the queried name, or of a name that it is an alias of, are learnt
//! ([`chain`]). They are kept under the queried name, which is the one that people know. Bounded: the address
//! learnt longest ago is evicted.

use crate::wire::dns::{Question, chain};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Most addresses kept.
const ADDRESSES_MAX: usize = 4096;

/// One address.
#[derive(Debug)]
struct Entry {
    name: Box<str>,
    /// Position in the order of learning.
    learnt: u64,
}

/// The names of one worker.
#[derive(Debug, Default)]
pub(crate) struct Learnt {
    names: BTreeMap<IpAddr, Entry>,
    /// Addresses in the order in which they were learnt.
    order: BTreeMap<u64, IpAddr>,
    count: u64,
    /// Bytes of all names.
    bytes: usize,
}

impl Learnt {
    /// Name by which the guest learnt an address, without final dot.
    pub(crate) fn name_of(&self, address: IpAddr) -> Option<&str> {
        self.names.get(&address).map(|entry| &*entry.name)
    }

    /// Addresses and names in the order in which they were learnt.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (IpAddr, &str)> {
        self.order.values().filter_map(|&address| Some((address, self.name_of(address)?)))
    }

    /// Bytes allocated, about.
    pub(crate) fn allocated(&self) -> usize {
        self.bytes + self.names.len() * (size_of::<(IpAddr, Entry)>() + size_of::<(u64, IpAddr)>())
    }

    /// Learns from an answer sent to the guest.
    pub(crate) fn learn(&mut self, message: &[u8]) {
        let Some(question) = Question::parse(message) else { return };
        let mut text = None;
        chain::addresses(message, |address, _| {
            let name = text.get_or_insert_with(|| {
                let name = question.name.to_string();
                name.strip_suffix('.').unwrap_or(&name).to_owned()
            });
            self.note(address, name);
        });
    }

    /// Learns one name.
    pub(super) fn note(&mut self, address: IpAddr, name: &str) {
        self.count += 1;
        if let Some(entry) = self.names.get_mut(&address) {
            self.order.remove(&entry.learnt);
            entry.learnt = self.count;
            if &*entry.name != name {
                self.bytes = self.bytes - entry.name.len() + name.len();
                entry.name = name.into();
            }
        } else {
            if self.names.len() >= ADDRESSES_MAX
                && let Some((_, oldest)) = self.order.pop_first()
                && let Some(gone) = self.names.remove(&oldest)
            {
                self.bytes -= gone.name.len();
            }
            self.bytes += name.len();
            self.names.insert(address, Entry { name: name.into(), learnt: self.count });
        }
        self.order.insert(self.count, address);
    }
}

#[cfg(test)]
mod tests;
