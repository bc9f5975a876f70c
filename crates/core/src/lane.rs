//! Lane of a connection: sparse, or bulk.
//!
//! The guest's frames wait in a queue of the link until they are read. In one queue for all, a request of one
//! byte waits behind everything that bulk flows were allowed to send: 3.0 of 4.2 ms beside four uploads. So a
//! link may have two queues ([`Lane`]), of which it takes sparse flows' frames first. The guest puts a frame
//! into the queue from which the last frame toward it of the same flow came, hence each of ours has a lane.
//!
//! A flow is bulk once [`BULK_BYTES`] have moved, both ways together, within [`PERIOD`], and stays it until
//! fewer have moved within [`MEMORY`]. That is longer than a queue of the link lasts: frames of a flow that
//! is sparse again overtake none that are still in the bulk lane. In the other direction nothing is
//! overtaken, as the sparse lane is read first.

use crate::link::Lane;
use crate::time::{Duration, Instant};

/// Bytes that make a flow bulk: two super-segments, so that the answer to a request is seldom too much.
const BULK_BYTES: u32 = 128 << 10;
/// Time in which they move.
const PERIOD: Duration = Duration::from_millis(50);
/// Time without as many after which a bulk flow is sparse again.
const MEMORY: Duration = Duration::from_secs(1);

/// The lane of one connection, and the measurement that decides on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowLane {
    /// Begin of the measurement, and the total then (wraps).
    since: Instant,
    from: u32,
    lane: Lane,
}

impl FlowLane {
    /// A flow is sparse at first. `moved` bytes have moved so far, both ways (wraps).
    pub(crate) fn new(now: Instant, moved: u32) -> Self {
        Self { since: now, from: moved, lane: Lane::Sparse }
    }

    /// The lane.
    pub(crate) fn lane(&self) -> Lane {
        self.lane
    }

    /// Notes that `moved` bytes have moved so far, both ways (wraps).
    pub(crate) fn follow(&mut self, now: Instant, moved: u32) {
        let longest = match self.lane {
            Lane::Sparse => PERIOD,
            Lane::Bulk => MEMORY,
        };
        let lane = if now - self.since > longest {
            Lane::Sparse
        } else if moved.wrapping_sub(self.from) >= BULK_BYTES {
            Lane::Bulk
        } else {
            return;
        };
        *self = Self { since: now, from: moved, lane };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The lane after each of `count` steps of `bytes` every `every`, from `total` on.
    fn lanes(flow: &mut FlowLane, now: &mut Instant, total: &mut u32, every: Duration, bytes: u32) -> Lane {
        for _ in 0..100 {
            *now = *now + every;
            *total = total.wrapping_add(bytes);
            flow.follow(*now, *total);
        }
        flow.lane()
    }

    #[test]
    fn a_flow_is_bulk_while_much_moves_and_for_a_second_after() {
        let (mut now, mut total) = (Instant::from_ns(1_000_000_000), 0);
        let mut flow = FlowLane::new(now, 0);
        assert_eq!(lanes(&mut flow, &mut now, &mut total, MS, 1000), Lane::Sparse, "a megabyte per second");
        assert_eq!(lanes(&mut flow, &mut now, &mut total, MS, 8000), Lane::Bulk);
        assert_eq!(lanes(&mut flow, &mut now, &mut total, MS * 9, 1000), Lane::Bulk, "for 0.9 s");
        assert_eq!(lanes(&mut flow, &mut now, &mut total, MS * 9, 100), Lane::Sparse);
    }

    #[test]
    fn a_total_may_wrap() {
        let (mut now, mut total) = (Instant::from_ns(1_000_000_000), u32::MAX - 50_000);
        let mut flow = FlowLane::new(now, total);
        assert_eq!(lanes(&mut flow, &mut now, &mut total, MS, 500), Lane::Sparse);
        assert_eq!(lanes(&mut flow, &mut now, &mut total, MS, 50_000), Lane::Bulk);
    }
}
