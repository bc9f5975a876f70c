//! Answers that were given lately, for as long as they say that they hold (RFC 1035, 2308).
//!
//! Keyed by all that an answer depends on ([`Query::key`]); only ordinary questions come here. An answer is
//! kept as it came, with the places of its TTLs, which are counted down in what is given out. It holds for
//! the shortest of them; that there is no such name or no such record holds for as long as the start of
//! authority says, at most [`NEGATIVE_MAX`]. Answers that were cut, failures, and what names no time are not
//! kept.
//!
//! Bounded by bytes, with what an entry costs beside its content; the answer that was used longest ago goes
//! first. Trees instead of hash tables: the guest chooses the keys, and there are few.
//!
//! [`Query::key`]: crate::wire::dns::message::Query::key

use crate::time::{Duration, Instant};
use crate::wire::dns::message::{OPT, Records, Section};
use crate::wire::dns::{Header, Question, Rcode};
use std::collections::BTreeMap;

/// Longest answer that is kept, in bytes.
const MESSAGE_MAX: usize = 4096;
/// For how long an answer is kept at most, in seconds.
const POSITIVE_MAX: u32 = 86_400;
/// For how long an answer is kept that says that there is nothing, in seconds. RFC 2308 (section 5) thinks of
/// hours; but names that are missing are often about to be made.
const NEGATIVE_MAX: u32 = 300;
/// Overhead of an entry beside key and answer, in bytes: its places in two trees, and allocations.
const OVERHEAD: usize = 256;

/// One answer.
#[derive(Debug)]
struct Entry {
    message: Box<[u8]>,
    /// Where the message has TTLs.
    ttls: Box<[u16]>,
    since: Instant,
    until: Instant,
    /// Its place in the order of use.
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
    /// A cache of so many bytes; 0 for none.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, entries: BTreeMap::new(), order: BTreeMap::new(), uses: 0 }
    }

    /// Bytes that it takes.
    pub(crate) fn allocated(&self) -> usize {
        self.bytes
    }

    /// Forgets everything.
    pub(crate) fn flush(&mut self) {
        self.entries.clear();
        self.order.clear();
        self.bytes = 0;
    }

    /// Writes the answer kept for `key`, with its TTLs counted down, to the start of `out`; gives its length
    /// in bytes.
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

    /// Keeps an answer to the question of `key`, if it is one that may be kept.
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
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(gone) = self.entries.remove(key) {
            self.bytes -= gone.cost(key);
            self.order.remove(&gone.used);
        }
    }
}

/// For how many seconds an answer may be kept, and where it has TTLs. None if it may not be.
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
            // An extended response code (RFC 6891, 6.1.3) is none that is known here.
            if record.ttl >> 24 != 0 {
                return None;
            }
            continue;
        }
        // One with its highest bit set counts as zero (RFC 2181, section 8).
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
