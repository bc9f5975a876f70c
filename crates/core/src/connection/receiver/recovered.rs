//! The receiving half of a recovered connection ([`crate::journal`]).

use super::{Receiver, ReceiverState};
use crate::journal::Progress;
use crate::snapshot::saved::{Invalid, valid};
use crate::tcp::window::Advertised;
use crate::wire::tcp::Seq;

impl Receiver {
    /// State of a half of whose stream the host socket has taken so much, after `advertised`: the last
    /// acknowledgement and the right edge of the window.
    ///
    /// # Errors
    /// [`Invalid`] if more was acknowledged to the guest: those bytes are gone.
    pub(in crate::connection) fn recover_from(
        &mut self,
        Advertised { ack, edge }: Advertised,
        scale: u8,
        progress: Progress,
    ) -> Result<(), Invalid> {
        let nxt = self.nxt() + progress.written as u32 + u32::from(progress.shut);
        valid(ack.le(nxt) && ack.ge(self.nxt()))?;
        // The FIN may lie just beyond the edge.
        let edge = if edge.lt(nxt) { nxt } else { edge };
        valid(edge - nxt <= 65_535 << scale)?;
        self.window.recover(nxt, edge, ack, scale);
        if progress.shut {
            self.state = ReceiverState::Finished;
        }
        self.bytes = progress.written;
        self.rx_limit.resume(self.data_at, self.bytes as u32);
        self.writable = true;
        Ok(())
    }

    /// First sequence number of the stream.
    pub(in crate::connection) fn begin_of_stream(&self) -> Seq {
        self.nxt() - self.bytes as u32 - u32::from(!self.is_open())
    }

    /// Whether more has arrived than the guest knows.
    pub(in crate::connection) fn is_acknowledgement_behind(&self) -> bool {
        self.last_advertised().ack != self.nxt()
    }
}
