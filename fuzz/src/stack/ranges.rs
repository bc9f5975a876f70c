//! Sets of places in a stream, kept as disjoint ranges.

/// Disjoint ranges that do not touch, in order.
#[derive(Debug, Default, Clone)]
pub(super) struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    /// Adds everything from `start` on and before `end`.
    pub(super) fn add(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        let from = self.0.partition_point(|r| r.1 < start);
        let to = self.0.partition_point(|r| r.0 <= end);
        let start = self.0[from..to].first().map_or(start, |r| r.0.min(start));
        let end = self.0[from..to].last().map_or(end, |r| r.1.max(end));
        self.0.splice(from..to, [(start, end)]);
    }

    /// The end of the range that begins at 0.
    pub(super) fn contiguous(&self) -> u32 {
        self.0.first().filter(|r| r.0 == 0).map_or(0, |r| r.1)
    }

    /// The end of the last range.
    pub(super) fn end(&self) -> u32 {
        self.0.last().map_or(0, |r| r.1)
    }

    /// The ranges beyond the first gap.
    pub(super) fn beyond_gap(&self) -> impl Iterator<Item = (u32, u32)> {
        let contiguous = self.contiguous();
        self.0.iter().copied().filter(move |r| r.0 > contiguous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let mut r = Ranges::default();
        r.add(10, 20);
        r.add(30, 40);
        assert_eq!(r.contiguous(), 0);
        assert_eq!(r.beyond_gap().collect::<Vec<_>>(), [(10, 20), (30, 40)]);
        r.add(20, 30);
        assert_eq!(r.beyond_gap().collect::<Vec<_>>(), [(10, 40)]);
        r.add(0, 10);
        r.add(5, 6);
        assert_eq!((r.contiguous(), r.beyond_gap().count()), (40, 0));
    }
}
