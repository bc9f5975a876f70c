//! Pressure of datagrams on the link: they fill its transmit queue, which drops what finds it full.
//!
//! Segments of TCP have windows that keep them within the queue (the TX queue budget); datagrams have none.
//! The queue is full, or about to be, when the link was never read empty for [`STANDING`] while at least
//! [`FRAMES_MIN`] frames came, most of them datagrams. A processor that was away for a while finds as many
//! frames and reads them empty at once.

use brodo_core::time::{Duration, Instant};

/// Time without an empty link.
const STANDING: Duration = Duration::from_millis(5);
/// Least number of frames in it.
const FRAMES_MIN: usize = 512;

/// Frames taken since the link was last read empty.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    since: Option<Instant>,
    frames: usize,
    datagrams: usize,
}

impl Pressure {
    /// Notes frames that were taken, the datagrams among them, and whether the link was read empty.
    pub(super) fn took(&mut self, now: Instant, frames: usize, datagrams: usize, emptied: bool) {
        if emptied {
            *self = Self::default();
            return;
        }
        self.since.get_or_insert(now);
        self.frames += frames;
        self.datagrams += datagrams;
    }

    /// Whether datagrams fill the queue.
    pub(super) fn is_flood(&self, now: Instant) -> bool {
        let stands = self.since.is_some_and(|since| now - since >= STANDING);
        stands && self.frames >= FRAMES_MIN && self.datagrams * 2 >= self.frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_ms(ms: u64) -> Instant {
        Instant::from_ns(7_000_000_000) + Duration::from_millis(ms)
    }

    #[test]
    fn a_flood_of_datagrams_differs_from_bulk_and_from_a_pause() {
        let mut pressure = Pressure::default();
        for ms in 0..5 {
            pressure.took(after_ms(ms), 128, 100, false);
            assert!(!pressure.is_flood(after_ms(ms)), "{ms} ms");
        }
        assert!(pressure.is_flood(after_ms(5)));
        pressure.took(after_ms(6), 1, 1, true);
        assert!(!pressure.is_flood(after_ms(6)), "read empty");

        pressure.took(after_ms(10), 600, 200, false);
        assert!(!pressure.is_flood(after_ms(20)), "segments for the most part");
        pressure.took(after_ms(20), 0, 0, true);
        pressure.took(after_ms(30), 100, 100, false);
        assert!(!pressure.is_flood(after_ms(60)), "few");
    }
}
