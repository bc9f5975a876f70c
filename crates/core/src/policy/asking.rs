//! Destinations that a person is asked about (`default = "ask"`).
//!
//! A question or a flow that no rule is about is neither refused nor let pass while it waits: it is not
//! answered, and programs repeat it, as on a network that has lost it. Each repetition is judged anew, so a
//! rule that was added meanwhile lets the next one pass. After [`WAIT`] without an answer it is refused, and
//! stays so for [`REFUSED_FOR`].
//!
//! The state is the bounded table of what waits; nothing of the guest's is held.

use super::decisions::Decision;
use crate::time::{Duration, Instant};
use std::collections::BTreeMap;

/// Time in which an answer has to come.
const WAIT: Duration = Duration::from_secs(30);
/// Time for which a refusal holds before the same is asked again.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// Most destinations that wait or were refused lately. Beyond, new ones are refused at once.
const ASKED_MAX: usize = 64;

/// A destination that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Its number.
    pub id: u64,
    /// The refusal that waits.
    pub decision: Decision,
    /// Time until it is refused.
    pub left: Duration,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    /// Time of the refusal, unless the entry is gone before.
    refused_at: Instant,
}

/// Destinations that wait, or were refused lately.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    entries: BTreeMap<Decision, Entry>,
    last_id: u64,
}

impl Asking {
    /// Whether `decision`, a refusal, waits for an answer; else it holds.
    pub(crate) fn waits(&mut self, now: Instant, decision: &Decision) -> bool {
        self.forget(now);
        if let Some(entry) = self.entries.get(decision) {
            return now < entry.refused_at;
        }
        if self.entries.len() == ASKED_MAX {
            return false;
        }
        self.last_id += 1;
        self.entries.insert(decision.clone(), Entry { id: self.last_id, refused_at: now + WAIT });
        true
    }

    /// All that waits, the oldest first.
    pub(crate) fn waiting(&mut self, now: Instant) -> Vec<Asked> {
        self.forget(now);
        let waits = self.entries.iter().filter(|(_, entry)| now < entry.refused_at);
        let asked = |(decision, entry): (&Decision, &Entry)| Asked {
            id: entry.id,
            decision: decision.clone(),
            left: entry.refused_at - now,
        };
        let mut waiting: Vec<Asked> = waits.map(asked).collect();
        waiting.sort_by_key(|asked| asked.id);
        waiting
    }

    /// Refuses what waits under this number; false if nothing does.
    pub(crate) fn refuse(&mut self, now: Instant, id: u64) -> bool {
        let waits = |entry: &&mut Entry| entry.id == id && now < entry.refused_at;
        let found = self.entries.values_mut().find(waits);
        found.map(|entry| entry.refused_at = now).is_some()
    }

    /// The rules have changed: what still waits is asked again when it is repeated.
    pub(crate) fn rules_changed(&mut self, now: Instant) {
        self.entries.retain(|_, entry| entry.refused_at <= now);
    }

    fn forget(&mut self, now: Instant) {
        self.entries.retain(|_, entry| now < entry.refused_at + REFUSED_FOR);
    }
}

#[cfg(test)]
mod tests {
    use super::super::decisions::Ruling;
    use super::*;

    fn question(name: &str) -> Decision {
        Decision::on_question(name.into(), "policy question".into(), Ruling::Denied)
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_question_waits_thirty_seconds_and_is_asked_again_a_minute_later() {
        let mut asking = Asking::default();
        assert!(asking.waits(at(0), &question("a")) && asking.waits(at(29), &question("a")));
        assert_eq!(asking.waiting(at(20)).len(), 1);
        assert!(!asking.waits(at(30), &question("a")) && !asking.waits(at(89), &question("a")));
        assert!(asking.waiting(at(31)).is_empty());
        assert!(asking.waits(at(90), &question("a")));
    }

    #[test]
    fn a_refusal_holds_at_once_and_the_table_is_bounded() {
        let mut asking = Asking::default();
        for n in 0..64 {
            assert!(asking.waits(at(0), &question(&n.to_string())));
        }
        assert!(!asking.waits(at(0), &question("more")));
        assert!(asking.refuse(at(1), 7) && !asking.refuse(at(1), 7));
        assert_eq!(asking.waiting(at(1)).len(), 63);
        assert!(!asking.waits(at(2), &question("6")));
        asking.rules_changed(at(2));
        assert!(asking.waiting(at(2)).is_empty() && !asking.waits(at(3), &question("6")));
    }
}
