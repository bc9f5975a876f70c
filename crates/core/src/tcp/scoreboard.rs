//! Scoreboard: ranges sent to the guest and not cumulatively acknowledged, with their state (RFC 6675, RFC
//! 8985).
//!
//! A sorted list of disjoint, adjoining ranges that together cover SND.UNA to SND.NXT. Each range was sent at
//! one time and is in flight, selectively acknowledged, or lost. All segments sent in one turn are one range;
//! an acknowledgement that covers a part splits it. A flow without loss therefore has a handful of ranges
//! that come at the back and go at the front.
//!
//! The number of ranges is bounded, because the guest chooses where they are split: a SACK that would need
//! more is not used, and what is sent joins the last range. Either costs accuracy, never data.

use crate::time::Instant;
use crate::wire::tcp::{Seq, SeqRange};
use std::collections::VecDeque;

/// Maximum of ranges: enough for five hundred holes, or for a thousand turns of the loop within a round trip.
/// Each acknowledgement examines all of them while some range is selectively acknowledged, so this is also
/// what the worst guest can make one acknowledgement cost: a sixth of what it would with four thousand.
const RANGES_MAX: usize = 1024;

/// Maximum of lists kept for use, and of ranges that one of them has room for.
const LISTS_MAX: usize = 32;
const LIST_RANGES_MAX: usize = 1024;

/// Ranges up to which the assertions look at all of them.
const CHECKED_MAX: usize = 64;

/// State of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// On its way, as far as is known.
    InFlight,
    /// Selectively acknowledged.
    Sacked,
    /// Lost, to be retransmitted.
    Lost,
}

/// A range of sequence space that was sent at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: Seq,
    pub(crate) len: u32,
    /// Last transmission.
    pub(crate) at: Instant,
    pub(crate) fate: Fate,
    /// Sent more than once (RFC 8985, 5.2: "retransmitted").
    pub(crate) resent: bool,
}

impl Range {
    /// End of the range: its last sequence number plus one.
    pub(crate) fn end(&self) -> Seq {
        self.start + self.len
    }

    /// Whether it was selectively acknowledged.
    pub(crate) fn is_sacked(&self) -> bool {
        self.fate == Fate::Sacked
    }

    /// Whether `next`, which follows it, differs in nothing that counts.
    fn joins(&self, next: &Self) -> bool {
        self.fate == next.fate
            && (self.fate == Fate::Sacked || (self.at == next.at && self.resent == next.resent))
    }
}

/// Lists for connections that begin to send, so that neither a flight nor a connection costs an allocation.
/// Handed out last-in first-out; at most [`LISTS_MAX`] of at most [`LIST_RANGES_MAX`] ranges, a bound of 800
/// KB that only as many long flights at once reach.
#[derive(Debug, Default)]
pub(crate) struct Lists(Vec<VecDeque<Range>>);

/// The ranges of one connection.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    ranges: VecDeque<Range>,
    sacked: u32,
    lost: u32,
}

impl Scoreboard {
    /// Sequence space that was selectively acknowledged.
    pub(crate) fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Sequence space that is lost and was not retransmitted.
    pub(crate) fn lost(&self) -> u32 {
        self.lost
    }

    /// Heap memory of the list of ranges, bytes.
    pub(crate) fn allocated(&self) -> usize {
        self.ranges.capacity() * size_of::<Range>()
    }

    /// Sequence space on the board.
    pub(crate) fn len(&self) -> u32 {
        match (self.ranges.front(), self.ranges.back()) {
            (Some(first), Some(last)) => (last.end() - first.start) as u32,
            _ => 0,
        }
    }

    /// Whether ranges adjoin, none is empty, and both sums are those of the ranges. Long lists are taken to
    /// be as short ones: looking at all of a thousand ranges each time would be most of a test.
    fn is_consistent(&self) -> bool {
        if self.ranges.len() > CHECKED_MAX {
            return true;
        }
        let sum = |fate| self.ranges.iter().filter(|range| range.fate == fate).map(|range| range.len).sum();
        let adjoin = self.ranges.iter().zip(self.ranges.iter().skip(1)).all(|(a, b)| a.end() == b.start);
        let (sacked, lost): (u32, u32) = (sum(Fate::Sacked), sum(Fate::Lost));
        adjoin && self.ranges.iter().all(|r| r.len > 0) && (sacked, lost) == (self.sacked, self.lost)
    }

    /// All ranges, in order.
    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = &Range> {
        self.ranges.iter()
    }

    /// The first range.
    pub(crate) fn first(&self) -> Option<&Range> {
        self.ranges.front()
    }

    /// First transmission of `len` from `start` on, which is SND.NXT.
    pub(crate) fn sent(&mut self, start: Seq, len: u32, at: Instant) {
        debug_assert!(len > 0, "a segment takes sequence space");
        debug_assert!(self.ranges.back().is_none_or(|last| last.end() == start), "sent without gaps");
        let full = self.ranges.len() >= RANGES_MAX;
        let fresh = Range { start, len, at, fate: Fate::InFlight, resent: false };
        match self.ranges.back_mut() {
            Some(last) if last.joins(&fresh) => last.len += len,
            Some(last) if full && last.fate == Fate::InFlight => {
                last.len += len;
                last.at = at;
            }
            _ => self.ranges.push_back(fresh),
        }
    }

    /// Cumulative acknowledgement up to `una`; calls `delivered` for every part that was not known to have
    /// arrived.
    pub(crate) fn acknowledge(&mut self, una: Seq, mut delivered: impl FnMut(&Range)) {
        while let Some(first) = self.ranges.front_mut() {
            if first.start.ge(una) {
                break;
            }
            let mut gone = *first;
            gone.len = gone.len.min((una - gone.start) as u32);
            first.start += gone.len;
            first.len -= gone.len;
            match gone.fate {
                Fate::Sacked => self.sacked -= gone.len,
                Fate::Lost => self.lost -= gone.len,
                Fate::InFlight => {}
            }
            if gone.fate != Fate::Sacked {
                delivered(&gone);
            }
            if first.len == 0 {
                self.ranges.pop_front();
            }
        }
        debug_assert!(self.is_consistent(), "ranges and sums after an acknowledgement: {self:?}");
    }

    /// Takes a list from `lists` unless it has one; to be called before something is sent.
    pub(crate) fn take_list(&mut self, lists: &mut Lists) {
        if self.ranges.capacity() == 0 {
            self.ranges = lists.0.pop().unwrap_or_default();
        }
    }

    /// Gives the list to `lists` if nothing is in flight: an idle connection keeps none, it would be a tenth
    /// of what it may take.
    pub(crate) fn give_list(&mut self, lists: &mut Lists) {
        if self.ranges.is_empty() && self.ranges.capacity() > 0 {
            let list = std::mem::take(&mut self.ranges);
            if lists.0.len() < LISTS_MAX && list.capacity() <= LIST_RANGES_MAX {
                lists.0.push(list);
            }
        }
    }

    /// Selective acknowledgement from `start` to `end`; calls `delivered` for every part that was not known
    /// to have arrived.
    pub(crate) fn sack(&mut self, start: Seq, end: Seq, mut delivered: impl FnMut(&Range)) {
        let (Some(first), Some(last)) = (self.split(start), self.split(end)) else { return };
        if first == last {
            return;
        }
        let mut len = 0;
        for range in self.ranges.range_mut(first..last) {
            len += range.len;
            match range.fate {
                Fate::Sacked => continue,
                Fate::Lost => self.lost -= range.len,
                Fate::InFlight => {}
            }
            self.sacked += range.len;
            delivered(range);
            range.fate = Fate::Sacked;
        }
        self.ranges[first].len = len;
        self.ranges.drain(first + 1..last);
        self.join(first);
        debug_assert!(self.is_consistent(), "ranges and sums after a SACK block: {self:?}");
    }

    /// Marks as lost every range in flight for which `is_lost` holds.
    pub(crate) fn mark_lost(&mut self, mut is_lost: impl FnMut(&Range) -> bool) {
        for range in &mut self.ranges {
            if range.fate == Fate::InFlight && is_lost(range) {
                range.fate = Fate::Lost;
                self.lost += range.len;
            }
        }
        debug_assert!(self.is_consistent(), "ranges and sums after a loss: {self:?}");
    }

    /// Marks up to `len` bytes from the front on as lost.
    pub(crate) fn mark_first_lost(&mut self, len: u32) {
        let (Some(first), Some(last)) = (self.ranges.front(), self.ranges.back()) else { return };
        let len = len.min((last.end() - first.start) as u32);
        let start = first.start;
        if let Some(end) = self.split(start + len) {
            let end = self.ranges.get(end).map_or(start + len, |range| range.start);
            self.mark_lost(|range| range.start.lt(end));
        }
    }

    /// Reneging: forgets all selective acknowledgements, as the guest may have (RFC 2018, section 8).
    pub(crate) fn renege(&mut self) {
        for range in &mut self.ranges {
            if range.fate == Fate::Sacked {
                range.fate = Fate::InFlight;
            }
        }
        self.sacked = 0;
        debug_assert!(self.is_consistent(), "ranges and sums after reneging: {self:?}");
    }

    /// The first lost range.
    pub(crate) fn next_lost(&self) -> Option<Range> {
        if self.lost == 0 {
            return None;
        }
        self.ranges.iter().find(|range| range.fate == Fate::Lost).copied()
    }

    /// The last `max` or less of sequence space that has not arrived, in one range.
    pub(crate) fn tail(&self, max: u32) -> Option<SeqRange> {
        let range = self.ranges.iter().rev().find(|range| range.fate != Fate::Sacked)?;
        let len = range.len.min(max);
        Some(SeqRange { start: range.end() - len, len })
    }

    /// Retransmission of `len` from `start` on, part of one range.
    pub(crate) fn resent(&mut self, start: Seq, len: u32, at: Instant) {
        // Without room to split, all of the range counts as sent now: parts that were not are detected as
        // lost later.
        self.split(start + len);
        self.split(start);
        let index = self.ranges.partition_point(|range| range.end().le(start));
        let Some(range) = self.ranges.get_mut(index).filter(|range| range.fate != Fate::Sacked) else {
            return;
        };
        if range.fate == Fate::Lost {
            self.lost -= range.len;
        }
        *range = Range { at, fate: Fate::InFlight, resent: true, ..*range };
        self.join(index);
        debug_assert!(self.is_consistent(), "ranges and sums after a retransmission: {self:?}");
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        (self.sacked, self.lost) = (0, 0);
    }

    /// Index of the range that begins at `at`, made by splitting one if need be; behind the last for the end
    /// of all. `None` if `at` lies outside, or there are too many ranges.
    fn split(&mut self, at: Seq) -> Option<usize> {
        let (first, last) = (self.ranges.front()?, self.ranges.back()?);
        if at.lt(first.start) || at.gt(last.end()) {
            return None;
        }
        let index = self.ranges.partition_point(|range| range.end().le(at));
        let Some(range) = self.ranges.get(index).copied().filter(|range| range.start != at) else {
            return Some(index);
        };
        if self.ranges.len() >= RANGES_MAX {
            return None;
        }
        let len = (at - range.start) as u32;
        self.ranges[index].len = len;
        self.ranges.insert(index + 1, Range { start: at, len: range.len - len, ..range });
        Some(index + 1)
    }

    /// Joins the range at `index` with its neighbours where they do not differ.
    fn join(&mut self, index: usize) {
        for index in [index + 1, index] {
            if index > 0 && index < self.ranges.len() && self.ranges[index - 1].joins(&self.ranges[index]) {
                let gone = self.ranges.remove(index).map_or(0, |range| range.len);
                self.ranges[index - 1].len += gone;
            }
        }
    }
}

mod snapshot;
#[cfg(test)]
mod tests;
