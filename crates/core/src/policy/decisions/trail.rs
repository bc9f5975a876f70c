//! Every decision since the last reading, for an audit log.
//!
//! Equal decisions are one, with their number and the circumstances of the first. Different ones lie
//! in the order of their first occurrence, which is that of their times, and are found by hash.

use super::{Audited, Decision, Occasion, Particulars, Trailed};
use crate::policy::secret_hash::SecretHash;
use hashbrown::HashTable;

/// Most distinct decisions between two readings.
const TRAIL_MAX: usize = 4096;

/// Decisions since the last reading.
#[derive(Debug)]
pub(in crate::policy) struct Trail {
    hash: SecretHash,
    /// Places of the decisions, with their hashes.
    index: HashTable<(u64, u32)>,
    decisions: Vec<Audited>,
    lost: u64,
}

impl Trail {
    pub(in crate::policy) fn new(hash: SecretHash) -> Self {
        Self { hash, index: HashTable::new(), decisions: Vec::new(), lost: 0 }
    }

    /// Notes a decision of the policy of this generation; `occasion` is asked for the first of equal ones.
    pub(in crate::policy) fn note(
        &mut self,
        generation: u64,
        decision: &Decision,
        particulars: Particulars,
        occasion: impl FnOnce() -> Occasion,
    ) {
        let hash = self.hash.of(&(decision, generation, particulars));
        let is_it = |&(_, place): &(u64, u32)| {
            let known = &self.decisions[place as usize];
            known.decision == *decision && (known.generation, known.particulars) == (generation, particulars)
        };
        if let Some(&(_, place)) = self.index.find(hash, is_it) {
            self.decisions[place as usize].count += 1;
        } else if self.decisions.len() == TRAIL_MAX {
            self.lost += 1;
        } else {
            let place = self.decisions.len() as u32;
            let (decision, occasion) = (decision.clone(), occasion());
            self.decisions.push(Audited { generation, decision, particulars, count: 1, occasion });
            self.index.insert_unique(hash, (hash, place), |&(hash, _)| hash);
        }
    }

    /// Takes the decisions; left out are those beyond the bound.
    pub(in crate::policy) fn take(&mut self) -> Trailed {
        let Self { decisions, lost, .. } = std::mem::replace(self, Self::new(self.hash));
        Trailed { decisions, left_out: lost }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refusal;
    use super::*;
    use crate::time::Instant;
    use std::net::SocketAddr;

    fn occasion(number: u16) -> Occasion {
        let guest = SocketAddr::from(([10, 0, 2, 15], number));
        Occasion { at: Instant::from_ns(number.into()), guest: Some(guest), pinned: vec![] }
    }

    #[test]
    fn the_trail_is_taken_once_and_counts_its_losses() {
        let mut trail = Trail::new(SecretHash([7; 16]));
        let ipv4 = Particulars::of_question(1);
        for n in 0..TRAIL_MAX + 3 {
            trail.note(1, &refusal(&n.to_string()), ipv4, || occasion(n as u16));
        }
        trail.note(1, &refusal("1"), ipv4, || occasion(2));
        // Another policy makes another decision, and another type is another question.
        trail.note(2, &refusal("1"), ipv4, || occasion(3));
        trail.note(1, &refusal("1"), Particulars::of_question(28), || occasion(3));
        let Trailed { decisions, left_out } = trail.take();
        assert_eq!((decisions.len(), left_out), (TRAIL_MAX, 5));
        let decision = refusal("1");
        let second = Audited { generation: 1, decision, particulars: ipv4, count: 2, occasion: occasion(1) };
        assert_eq!(decisions[1], second);
        assert!(decisions.is_sorted_by_key(|audited| audited.occasion.at), "in the order of their times");
        assert_eq!(decisions.iter().map(|audited| audited.count).sum::<u64>(), TRAIL_MAX as u64 + 1);
        assert_eq!(trail.take(), Trailed::default());
    }
}
