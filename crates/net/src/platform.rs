//! The stack's platform on Linux: a guest link, kernel sockets, and the tracer that observes connections.

use crate::probes;
use crate::sockets::Sockets;
use crate::tuning_log::TuningLog;
use brodo_core::link::Link;
use brodo_core::stack::Platform;
use brodo_core::trace::{Event, Observer};
use std::marker::PhantomData;

/// Linux with a link of type `L`.
#[derive(Debug)]
pub struct Linux<L>(PhantomData<L>);

impl<L: Link> Platform for Linux<L> {
    type Link = L;
    type Host = Sockets;
    type Observer = Tracer;
}

/// Trace events become static probes; changes of limits are also remembered for the report on a flow.
#[derive(Debug, Default)]
pub struct Tracer {
    pub(crate) tuning_log: TuningLog,
}

impl Observer for Tracer {
    #[expect(clippy::inline_always, reason = "see `probes::event`")]
    #[inline(always)]
    fn trace(&mut self, event: &Event) {
        probes::event(event);
        if matches!(event, Event::Tuned { .. }) {
            self.tuning_log.note(event);
        }
    }
}
