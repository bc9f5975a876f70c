//! The sending half of a connection behind a gate: nothing of the host's passes a closed one.

use super::Sender;
use crate::context::Shared;

impl Sender {
    /// Whether nothing was read of the host.
    pub(in crate::connection) fn is_untouched(&self) -> bool {
        self.bytes == 0 && self.queue.is_empty()
    }

    /// End of a connection that a gate has refused: the guest gets `last` and the end of the stream, and
    /// nothing of the host's.
    pub(in crate::connection) fn conclude(&mut self, shared: &mut Shared, last: &[u8]) {
        debug_assert!(self.is_untouched(), "nothing passes a closed gate");
        // Behind a gate nothing is kept for a crash.
        shared.memory.pool.push(&mut self.queue, None, last);
        self.stream.abandon();
        self.paused = false;
    }
}
