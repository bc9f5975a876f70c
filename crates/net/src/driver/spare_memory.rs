//! Payload memory that is kept for reuse, up to 6 MiB, returns to the system when nothing has moved for
//! [`QUIET`]: a guest that has downloaded once does not hold it for ever. It costs one turn more for each
//! such silence, and the page faults of the first chunks after it. Pipes of splices at rest are closed with
//! it.

use brodo_core::time::{Duration, Instant};

/// Silence after which the memory returns.
const QUIET: Duration = Duration::from_secs(10);

/// Wait for the end of a silence.
#[derive(Debug, Default)]
pub(super) struct SpareMemory {
    until: Option<Instant>,
}

impl SpareMemory {
    /// Notes a turn at `now`, behind which the loop waits; true if the memory is to be given up. `moved`:
    /// there was traffic.
    pub(super) fn is_over(&mut self, now: Instant, moved: bool, is_spare: bool) -> bool {
        let until = self.until.filter(|_| !moved).unwrap_or(now + QUIET);
        let is_over = is_spare && now >= until;
        self.until = Some(until).filter(|_| is_spare && !is_over);
        is_over
    }

    /// Time of the next turn at which it has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_up_once_after_ten_seconds_of_silence() {
        let mut spare = SpareMemory::default();
        let at = |s: u64| Instant::from_ms(s * 1000);
        assert!(!spare.is_over(at(1), true, false));
        assert_eq!(spare.deadline(), None, "there is none");
        assert!(!spare.is_over(at(2), true, true));
        assert!(!spare.is_over(at(9), false, true), "a turn without traffic");
        assert_eq!(spare.deadline(), Some(at(12)));
        assert!(!spare.is_over(at(11), true, true));
        assert!(!spare.is_over(at(12), false, true));
        assert!(spare.is_over(at(21), false, true));
        assert_eq!(spare.deadline(), None);
    }
}
