//! Refusals, each distinct one once, with its number, for explanations.
//!
//! A list in the order of the last occurrence runs through a table of fixed size, found by hash: to note a
//! refusal takes the same time however many there are, and the oldest makes room for a new one in its place.

use super::{Counted, Decision, Kept};
use crate::policy::secret_hash::SecretHash;
use hashbrown::HashTable;

/// Most distinct refusals that are kept.
const REFUSALS_MAX: usize = 1024;
/// Place of no entry.
const NONE: u32 = u32::MAX;

/// A refusal, and its neighbours by last occurrence.
#[derive(Debug)]
struct Entry {
    hash: u64,
    refusal: Decision,
    count: u64,
    older: u32,
    newer: u32,
}

/// Refusals with their numbers.
#[derive(Debug)]
pub(in crate::policy) struct Refusals {
    hash: SecretHash,
    /// Places of the entries.
    index: HashTable<u32>,
    entries: Vec<Entry>,
    oldest: u32,
    latest: u32,
    /// Refusals that made room for others.
    forgotten: u64,
}

impl Refusals {
    pub(in crate::policy) fn new(hash: SecretHash) -> Self {
        let (index, entries) = (HashTable::new(), Vec::new());
        Self { hash, index, entries, oldest: NONE, latest: NONE, forgotten: 0 }
    }

    /// Notes a refusal.
    pub(in crate::policy) fn note(&mut self, refusal: Decision) {
        let hash = self.hash.of(&refusal);
        let is_it = |&place: &u32| self.entries[place as usize].refusal == refusal;
        if let Some(&place) = self.index.find(hash, is_it) {
            self.entries[place as usize].count += 1;
            self.unlink(place);
            self.link(place);
        } else {
            let place = self.place_for(Entry { hash, refusal, count: 1, older: NONE, newer: NONE });
            self.index.insert_unique(hash, place, |&place| self.entries[place as usize].hash);
            self.link(place);
        }
        debug_assert_eq!(self.index.len(), self.entries.len(), "every refusal is found");
    }

    /// Puts a refusal in a new place, or in that of the oldest.
    fn place_for(&mut self, new: Entry) -> u32 {
        if self.entries.len() < REFUSALS_MAX {
            self.entries.push(new);
            return (self.entries.len() - 1) as u32;
        }
        let place = self.oldest;
        self.unlink(place);
        let old = std::mem::replace(&mut self.entries[place as usize], new);
        self.forgotten += old.count;
        if let Ok(found) = self.index.find_entry(old.hash, |&at| at == place) {
            found.remove();
        }
        place
    }

    /// Takes an entry out of the order.
    fn unlink(&mut self, place: u32) {
        let Entry { older, newer, .. } = self.entries[place as usize];
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.latest = older,
        }
    }

    /// Makes an entry the latest.
    fn link(&mut self, place: u32) {
        let older = std::mem::replace(&mut self.latest, place);
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = place,
            None => self.oldest = place,
        }
        let entry = &mut self.entries[place as usize];
        (entry.older, entry.newer) = (older, NONE);
    }

    /// The refusals, the latest first.
    fn latest_first(&self) -> impl Iterator<Item = Counted> {
        let mut next = self.latest;
        std::iter::from_fn(move || {
            let entry = self.entries.get(next as usize)?;
            next = entry.older;
            Some(Counted { decision: entry.refusal.clone(), count: entry.count })
        })
    }

    /// The last refusals, the latest first, at most so many.
    pub(in crate::policy) fn last(&self, most: usize) -> Vec<Counted> {
        self.latest_first().take(most).collect()
    }

    /// All refusals, the latest last; left out are those that made room.
    pub(in crate::policy) fn all(&self) -> Kept {
        let mut decisions: Vec<_> = self.latest_first().collect();
        decisions.reverse();
        Kept { decisions, left_out: self.forgotten }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refusal;
    use super::*;

    fn refusals() -> Refusals {
        Refusals::new(SecretHash([7; 16]))
    }

    #[test]
    fn equal_refusals_are_one_and_the_latest_is_last() {
        let mut refusals = refusals();
        for name in ["a", "b", "c", "b", "a", "a"] {
            refusals.note(refusal(name));
        }
        let counted = |(name, count)| Counted { decision: refusal(name), count };
        let decisions = [("c", 1), ("b", 2), ("a", 3)].map(counted).to_vec();
        assert_eq!(refusals.last(1), decisions[2..]);
        assert_eq!(refusals.all(), Kept { decisions, left_out: 0 });
    }

    #[test]
    fn the_oldest_makes_room_and_is_counted() {
        let mut refusals = refusals();
        for name in ["first", "second", "second", "first"] {
            refusals.note(refusal(name));
        }
        // All but one place are taken by others: that of the one that occurred last of the two.
        for n in 0..REFUSALS_MAX - 1 {
            refusals.note(refusal(&n.to_string()));
        }
        let Kept { decisions, left_out } = refusals.all();
        assert_eq!((decisions.len(), left_out), (REFUSALS_MAX, 2));
        assert_eq!(decisions.first(), Some(&Counted { decision: refusal("first"), count: 2 }));
        refusals.note(refusal("second"));
        let Kept { decisions, left_out } = refusals.all();
        assert_eq!((decisions.len(), left_out), (REFUSALS_MAX, 4));
        assert_eq!(decisions.first(), Some(&Counted { decision: refusal("0"), count: 1 }));
        assert_eq!(decisions.last(), Some(&Counted { decision: refusal("second"), count: 1 }));
    }
}
