//! DNS state in a snapshot: resolver preference, cache, learnt names. Pending queries are left out; the guest
//! repeats them.

use super::Dns;
use super::preference::Preference;
use crate::snapshot::saved::Invalid;
use crate::snapshot::saved::{Saved, is_count, valid};
use crate::snapshot::v1::{Bytes, CachedV1, DnsCacheV1, DnsV1, LearntV1};
use crate::time::{Duration, Instant};
use crate::wire::dns::{NAME_LEN_MAX, Question};

impl Dns {
    /// Saved form of what is known about the resolvers.
    pub(crate) fn save_resolvers(&self) -> DnsV1 {
        let Self { preference, epoch, suspended, cache: _, hosts: _, learnt: _, entropy: _, .. } = self;
        DnsV1 { preference: preference.save(), epoch: *epoch, suspended: suspended.save() }
    }

    /// Takes the saved form of what is known about the resolvers.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts itself.
    pub(crate) fn restore_resolvers(&mut self, saved: DnsV1) -> Result<(), Invalid> {
        self.preference = Preference::restore(saved.preference)?;
        self.epoch = saved.epoch;
        self.suspended = Duration::restore(saved.suspended)?;
        Ok(())
    }

    /// Saved form of the cache.
    pub(crate) fn save_cache(&self) -> DnsCacheV1<'_> {
        let entry = |(key, message, since): (_, _, Instant)| CachedV1 {
            key: Bytes(key),
            message: Bytes(message),
            since: since.save(),
        };
        DnsCacheV1 { entries: self.cache.in_order_of_use().map(entry).collect() }
    }

    /// Takes the saved cache, as far as answers belong to their questions and there is room.
    pub(crate) fn restore_cache(&mut self, saved: &DnsCacheV1<'_>) {
        for CachedV1 { key, message, since } in &saved.entries {
            if is_answer(key.0, message.0) {
                self.cache.put(key.0, Instant::from_ns(*since), message.0);
            }
        }
    }

    /// Saved form of the learnt names.
    pub(crate) fn save_learnt(&self) -> LearntV1<'_> {
        LearntV1 { names: self.learnt.in_order().collect() }
    }

    /// Takes the saved names, as many as have room.
    pub(crate) fn restore_learnt(&mut self, saved: &LearntV1<'_>) {
        for (address, name) in saved.names.iter().filter(|(_, name)| name.len() <= 4 * NAME_LEN_MAX) {
            self.learnt.note(*address, name);
        }
    }

    /// Key of the numbers drawn for queries, and how many were drawn.
    pub(crate) fn draws(&self) -> ([u8; 16], u64) {
        (self.entropy.key(), self.entropy.drawn())
    }

    /// Goes on behind the numbers that were drawn.
    ///
    /// # Errors
    /// [`Invalid`] for a number that no worker reaches.
    pub(crate) fn restore_drawn(&mut self, drawn: u64) -> Result<(), Invalid> {
        valid(is_count(drawn))?;
        self.entropy.restore(drawn);
        Ok(())
    }
}

/// Whether `message` is a response to the question of `key`, of which only letters may differ: an answer
/// that is given out gets the letters of the query put in its place.
fn is_answer(key: &[u8], message: &[u8]) -> bool {
    let Some(question) = Question::parse(message) else { return false };
    let (Some((_, key)), Some(own)) =
        (key.split_last(), message.get(crate::wire::dns::Header::LEN..question.end))
    else {
        return false;
    };
    own.eq_ignore_ascii_case(key)
}
