//! The receiving half of a recovered connection ([`crate::journal`]).

use super::{Receiver, ReceiverState, origin};
use crate::flow::FlowId;
use crate::journal::{Progress, TcpState};
use crate::memory::chunk::Pool;
use crate::snapshot::saved::{Invalid, Saved, valid};
use crate::tcp::window::Advertised;
use crate::wire::tcp::Seq;

impl Receiver {
    /// State of a half of flow `id` of whose stream the host socket has taken so much. Bytes received beyond
    /// that, and acknowledged perhaps, are taken from the pool.
    ///
    /// # Errors
    /// [`Invalid`] if it is not there, or the record contradicts itself; some of it may be held then.
    pub(in crate::connection) fn recover_from(
        &mut self,
        pool: &mut Pool,
        id: FlowId,
        record: &TcpState,
        progress: Progress,
    ) -> Result<(), Invalid> {
        let Advertised { ack, edge } = record.advertised;
        let written = self.nxt() + progress.written as u32;
        let recorded = ReceiverState::restore(record.rx)?;
        // Behind the last byte of the stream so far, and RCV.NXT, which a FIN moves too.
        let (end, nxt) = if progress.shut {
            (written, written + 1)
        } else if recorded == ReceiverState::Open {
            let end = newest([written, ack, record.rx_nxt]);
            (end, end)
        } else {
            (record.rx_nxt - 1, record.rx_nxt)
        };
        valid(ack.le(nxt) && written.le(end))?;
        // The FIN may lie just beyond the edge.
        let edge = if edge.lt(nxt) { nxt } else { edge };
        valid(edge - nxt <= 65_535 << record.scale)?;
        if written != end {
            pool.claim(&mut self.queue, origin(id, written), end)?;
        }
        self.window.recover(nxt, edge, ack, record.scale);
        self.state = match recorded {
            _ if progress.shut => ReceiverState::Finished,
            ReceiverState::Open => ReceiverState::Open,
            // The host socket is still to be shut down.
            ReceiverState::Finishing | ReceiverState::Finished => ReceiverState::Finishing,
        };
        self.bytes = progress.written + u64::from(self.queue.len());
        self.rx_limit.resume(self.data_at, self.bytes as u32);
        // An event of the socket, which is registered anew, begins to pass on what is held.
        self.writable = self.queue.is_empty() && self.state != ReceiverState::Finishing;
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

/// The highest of sequence numbers that lie close together.
fn newest(all: [Seq; 3]) -> Seq {
    let [first, rest @ ..] = all;
    rest.into_iter().fold(first, |newest, seq| if seq.gt(newest) { seq } else { newest })
}
