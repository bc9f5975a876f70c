//! Position in a stream of received frames, in memory that outlives this process.
//!
//! One word: the number of bytes that are missing of the frame in progress, or that it is not known. It is
//! not while a read is under way, because a process that is killed in the midst of the call does not learn
//! how much it has taken, and not in the midst of a length.

use std::sync::atomic::{AtomicU64, Ordering};

/// Not known. No frame is so long.
const UNKNOWN: u64 = u64::MAX;

/// The word, if there is memory for it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Position(Option<&'static AtomicU64>);

impl Position {
    pub(super) const fn new(word: Option<&'static AtomicU64>) -> Self {
        Self(word)
    }

    /// Bytes that were missing when the process before has ended, if that is known.
    pub(super) fn missing(self) -> Option<usize> {
        let word = self.0?.load(Ordering::Acquire);
        usize::try_from(word).ok().filter(|_| word != UNKNOWN)
    }

    /// So many bytes are missing from now on, or it is not known.
    pub(super) fn note(self, missing: Option<usize>) {
        if let Some(word) = self.0 {
            word.store(missing.map_or(UNKNOWN, |bytes| bytes as u64), Ordering::Release);
        }
    }
}
