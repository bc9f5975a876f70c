//! History of limits: the last tuning decisions, for the details of a connection.
//!
//! Limits change seldom once a connection has found its pace, so a worker simply remembers the last changes
//! of all its connections, in a ring: no cost per connection, and no switch to set before a problem occurs.

use brodo_core::flow::FlowId;
use brodo_core::time::Instant;
use brodo_core::trace::Event;
use std::collections::VecDeque;

/// Decisions remembered: 56 KiB at most.
const LEN_MAX: usize = 1024;

/// One decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TuningDecision {
    /// Time of the turn in which it was taken.
    pub at: Instant,
    /// The decision, [`Event::Tuned`].
    pub event: Event,
}

/// The last decisions of one worker.
#[derive(Debug, Default)]
pub struct TuningLog {
    now: Instant,
    steps: VecDeque<TuningDecision>,
}

impl TuningLog {
    /// The time of this turn.
    pub(crate) fn turn(&mut self, now: Instant) {
        self.now = now;
    }

    /// Notes a tuning decision; other events are ignored.
    #[cold]
    pub(crate) fn note(&mut self, event: &Event) {
        if self.steps.len() == LEN_MAX {
            self.steps.pop_front();
        }
        self.steps.push_back(TuningDecision { at: self.now, event: *event });
    }

    /// Decisions for a flow, the oldest first.
    pub fn of(&self, id: FlowId) -> impl Iterator<Item = &TuningDecision> {
        self.steps.iter().filter(move |step| matches!(step.event, Event::Tuned { flow, .. } if flow == id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brodo_core::trace::{Cause, Direction};

    #[test]
    fn the_oldest_are_forgotten() {
        let mut history = TuningLog::default();
        let flow = |index| FlowId { index, generation: 0 };
        for to in 0..LEN_MAX as u32 + 10 {
            history.turn(Instant::from_ms(to.into()));
            history.note(&Event::Tuned {
                flow: flow(to % 2),
                direction: Direction::Send,
                from: 0,
                to,
                cause: Cause::Hit,
                per_rtt: 0,
                rtt_us: 0,
            });
        }
        assert_eq!(history.of(flow(0)).count(), LEN_MAX / 2);
        assert_eq!(history.of(flow(1)).next().map(|step| step.at), Some(Instant::from_ms(11)));
        assert_eq!(history.of(flow(2)).count(), 0);
    }
}
