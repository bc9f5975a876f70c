//! Cache of DNS answers, each for as long as its TTLs allow (RFC 1035, 2308).
//!
//! Keyed by all that an answer depends on ([`Query::key`]); only ordinary queries come here. An answer is
//! kept unchanged, with the offsets of its TTLs, which are counted down in each copy given out. It expires
//! with the shortest of them; a negative answer after the time that its SOA record states, at most
//! [`NEGATIVE_MAX`]. Not kept are truncated answers, failures, and answers without a TTL.
//!
//! Bounded by bytes, the overhead of an entry included; eviction is least recently used. Trees instead of
//! hash tables: the guest chooses the keys, and there are few.
//!
//! [`Query::key`]: crate::wire::dns::message::Query::key

use crate::time::{Duration, Instant};
use crate::wire::dns::message::{OPT, Records, Section};
use crate::wire::dns::{Header, Question, Rcode};
use std::collections::BTreeMap;

/// Longest answer kept, in bytes.
const MESSAGE_MAX: usize = 4096;
/// Longest lifetime of a positive answer, in seconds.
const POSITIVE_MAX: u32 = 86_400;
/// Longest lifetime of a negative answer, in seconds. RFC 2308 (section 5) has hours in mind; but a missing
/// name is often about to be created.
const NEGATIVE_MAX: u32 = 300;
/// Overhead of an entry beside key and answer, in bytes: its places in two trees, and allocations.
const OVERHEAD: usize = 256;

/// One answer.
#[derive(Debug)]
struct Entry {
    message: Box<[u8]>,
    /// Offsets of the message's TTLs.
    ttls: Box<[u16]>,
    since: Instant,
    until: Instant,
    /// Position in the order of use.
    used: u64,
}

impl Entry {
    fn cost(&self, key: &[u8]) -> usize {
        OVERHEAD + 2 * key.len() + self.message.len() + 2 * self.ttls.len()
    }
}

/// The cache of one worker.
#[derive(Debug)]
pub(crate) struct Cache {
    bytes_max: usize,
    bytes: usize,
    entries: BTreeMap<Box<[u8]>, Entry>,
    /// Keys in the order of use.
    order: BTreeMap<u64, Box<[u8]>>,
    uses: u64,
}

impl Cache {
    /// A cache of at most `bytes_max` bytes; 0 for none.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, entries: BTreeMap::new(), order: BTreeMap::new(), uses: 0 }
    }

    /// Bytes allocated.
    pub(crate) fn allocated(&self) -> usize {
        self.bytes
    }

    /// Key, message and age of every answer, the least recently used first.
    pub(super) fn in_order_of_use(&self) -> impl Iterator<Item = (&[u8], &[u8], Instant)> {
        self.order.values().filter_map(|key| {
            let entry = self.entries.get(key)?;
            Some((&**key, &*entry.message, entry.since))
        })
    }

    /// Empties the cache.
    pub(crate) fn flush(&mut self) {
        self.entries.clear();
        self.order.clear();
        self.bytes = 0;
    }

    /// Writes the answer cached for `key`, with its TTLs counted down, to the start of `out`; returns its
    /// length in bytes.
    pub(crate) fn get(&mut self, key: &[u8], now: Instant, out: &mut [u8]) -> Option<usize> {
        let entry = self.entries.get_mut(key)?;
        if entry.until <= now {
            self.remove(key);
            return None;
        }
        let out = out.get_mut(..entry.message.len())?;
        out.copy_from_slice(&entry.message);
        let age = u32::try_from((now - entry.since).as_secs()).unwrap_or(u32::MAX);
        for &at in &entry.ttls {
            if let Some(field) = out.get_mut(usize::from(at)..).and_then(<[u8]>::first_chunk_mut::<4>) {
                *field = u32::from_be_bytes(*field).saturating_sub(age).to_be_bytes();
            }
        }
        let len = out.len();
        if let Some(key) = self.order.remove(&entry.used) {
            self.uses += 1;
            entry.used = self.uses;
            self.order.insert(self.uses, key);
        }
        Some(len)
    }

    /// Caches an answer to the query of `key`, if it is cacheable.
    pub(crate) fn put(&mut self, key: &[u8], now: Instant, message: &[u8]) {
        if self.bytes_max == 0 || message.len() > MESSAGE_MAX {
            return;
        }
        let Some((seconds, ttls)) = lifetime(message) else { return };
        self.remove(key);
        self.uses += 1;
        let entry = Entry {
            message: message.into(),
            ttls: ttls.into(),
            since: now,
            until: now + Duration::from_secs(seconds.into()),
            used: self.uses,
        };
        let cost = entry.cost(key);
        while self.bytes + cost > self.bytes_max {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            if let Some(gone) = self.entries.remove(&oldest) {
                self.bytes -= gone.cost(&oldest);
            }
        }
        self.bytes += cost;
        self.order.insert(self.uses, key.into());
        self.entries.insert(key.into(), entry);
        debug_assert!(self.bytes <= self.bytes_max, "the cache exceeds its bound");
        debug_assert_eq!(
            self.entries.len(),
            self.order.len(),
            "each answer has one place in the order of use"
        );
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(gone) = self.entries.remove(key) {
            self.bytes -= gone.cost(key);
            self.order.remove(&gone.used);
        }
    }
}

/// Lifetime of an answer in seconds, and the offsets of its TTLs. None if it is not cacheable.
fn lifetime(message: &[u8]) -> Option<(u32, Vec<u16>)> {
    let header = Header::parse(message)?;
    let exists = match header.rcode() {
        0 => true,
        code if code == Rcode::NxDomain as u8 => false,
        _ => return None,
    };
    if header.is_truncated() || header.opcode() != 0 {
        return None;
    }
    let question = Question::parse(message)?;
    let (mut least, mut negative, mut found) = (POSITIVE_MAX, None, false);
    let mut ttls = Vec::new();
    for record in Records::new(message, &header, question.end) {
        let record = record.ok()?;
        if record.kind == OPT {
            // Extended response codes (RFC 6891, 6.1.3): none is known here.
            if record.ttl >> 24 != 0 {
                return None;
            }
            continue;
        }
        // A TTL with its highest bit set counts as zero (RFC 2181, section 8).
        let ttl = if record.ttl > i32::MAX as u32 { 0 } else { record.ttl };
        least = least.min(ttl);
        ttls.push(u16::try_from(record.ttl_at).ok()?);
        found |= record.section == Section::Answer && record.kind == question.qtype;
        if record.section == Section::Authority {
            negative = negative.or(record.negative_ttl());
        }
    }
    let seconds = if exists && found { least } else { least.min(negative?).min(NEGATIVE_MAX) };
    (seconds > 0).then_some((seconds, ttls))
}

#[cfg(test)]
mod tests;
