//! The scoreboard in a snapshot: its ranges; both sums follow from them.

use super::{Fate, RANGES_MAX, Range, Scoreboard};
use crate::snapshot::saved::{Invalid, Saved, saved_enum, saved_struct, valid};
use crate::snapshot::v1::RangeV1;
use crate::wire::tcp::Seq;

saved_enum!(Fate { InFlight = 0, Sacked = 1, Lost = 2 });
saved_struct!(Range as RangeV1 { start, len, at, fate, resent } if |range| range.len > 0);

impl Scoreboard {
    /// Saved form.
    pub(crate) fn save(&self) -> Vec<RangeV1> {
        let Self { ranges, sacked: _, lost: _ } = self;
        ranges.iter().map(Saved::save).collect()
    }

    /// Scoreboard of what is in flight from `una` to `nxt`.
    ///
    /// # Errors
    /// [`Invalid`] if the ranges do not adjoin from the one to the other, or are too many.
    pub(crate) fn restore(una: Seq, nxt: Seq, saved: Vec<RangeV1>) -> Result<Self, Invalid> {
        // Beyond the bound a list is not split any more, but may still get a last range.
        valid(saved.len() <= 2 * RANGES_MAX)?;
        let mut board = Self::default();
        let mut end = una;
        for range in saved {
            let range = Range::restore(range)?;
            // No flight is half the sequence space: its numbers would have no order.
            valid(range.start == end && range.len <= (nxt - end).max(0) as u32)?;
            end = range.end();
            match range.fate {
                Fate::InFlight => {}
                Fate::Sacked => board.sacked += range.len,
                Fate::Lost => board.lost += range.len,
            }
            board.ranges.push_back(range);
        }
        valid(end == nxt || board.ranges.is_empty())?;
        Ok(board)
    }
}
