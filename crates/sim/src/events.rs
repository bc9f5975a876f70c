//! The trace events of a simulated stack, with their times.

use brodo_core::time::Instant;
use brodo_core::trace::{Event, Observer};

/// Trace events since the last [`EventLog::take`].
#[derive(Debug, Default)]
pub struct EventLog {
    /// The time of this turn.
    pub(crate) now: Instant,
    /// Events are discarded.
    pub(crate) off: bool,
    events: Vec<(Instant, Event)>,
}

impl EventLog {
    /// The events so far.
    pub fn all(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().map(|(_, event)| event)
    }

    /// The events since the last call, each with its time.
    pub fn take(&mut self) -> Vec<(Instant, Event)> {
        std::mem::take(&mut self.events)
    }
}

impl Observer for EventLog {
    fn trace(&mut self, event: &Event) {
        if !self.off {
            self.events.push((self.now, *event));
        }
    }
}
