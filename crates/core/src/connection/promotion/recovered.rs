//! A promoted flow after a crash: the connection as it left, and away again.
//!
//! Its record says where both streams were when it left, the kernel how many bytes have passed since: those
//! that were read from one socket are in a pipe or were written to the other ([`crate::journal::promoted`]).
//! So it is recovered as if nothing had passed, which needs no payload because it was quiet, and then leaves.

use super::{Away, Bulky, Candidate, Phase, Stage};
use crate::connection::Connection;
use crate::context::Shared;
use crate::host::SocketId;
use crate::journal::promoted::CarriedOn;
use crate::journal::{Progress, Record, TcpState};
use crate::snapshot::saved::{Invalid, valid};
use crate::time::Instant;

/// A promoted flow as a crash has left it.
pub(crate) struct KeptFlow<'a> {
    /// The connection as it left.
    pub(crate) state: &'a TcpState,
    /// The kernel socket may be frozen, or not started.
    pub(crate) unsettled: bool,
    /// Of the host socket.
    pub(crate) progress: Progress,
    /// Of the kernel socket.
    pub(crate) carried: CarriedOn,
}

/// Progress of the host socket when the connection left, if no byte since then is missing.
fn at_departure(kept: &KeptFlow<'_>) -> Result<Progress, Invalid> {
    let KeptFlow { state, unsettled: _, progress, carried } = kept;
    let [for_host, for_guest] = carried.held;
    let to_host = carried.read.checked_sub(for_host);
    let from_host = carried.written.checked_add(for_guest);
    let left = |now: u64, since: Option<u64>| since.and_then(|since| now.checked_sub(since)).ok_or(Invalid);
    let (written, read) = (left(progress.written, to_host)?, left(progress.read, from_host)?);
    valid(state.rx_begin + written as u32 == state.rx_nxt)?;
    valid(state.tx_begin + read as u32 == state.tx_end && state.una == state.tx_end)?;
    // No end of a stream was passed on before its last byte.
    valid(!progress.shut || (carried.guest_closed && for_host == 0))?;
    valid(!carried.shut || (progress.peer_closed && for_guest == 0))?;
    Ok(Progress { written, read, shut: false, peer_closed: false })
}

impl Connection {
    /// Connection of the record of a flow that a kernel socket has.
    ///
    /// # Errors
    /// [`Invalid`] if bytes of a stream are gone, or the record contradicts itself: the flow is to be reset.
    /// Then it holds no memory.
    pub(crate) fn recover_away(
        shared: &mut Shared,
        now: Instant,
        record: &Record,
        kept: &KeptFlow<'_>,
    ) -> Result<Self, Invalid> {
        let left = at_departure(kept)?;
        let &KeptFlow { state, unsettled, progress, carried } = kept;
        let socket = state.socket.map(SocketId);
        let mut connection = Self::recover(shared, now, record, socket, state, left)?;
        if !connection.is_promotable() || connection.rx.held() > 0 || !connection.tx.is_quiet() {
            connection.release(shared);
            return Err(Invalid);
        }
        let Ok(seed) = connection.tcp_seed() else {
            connection.release(shared);
            return Err(Invalid);
        };
        let (up, down) = (progress.written - left.written, carried.written);
        let away = Away {
            stage: if unsettled { Stage::Returning } else { Stage::Carried { since: now } },
            seed,
            from_guest: up as u32,
            to_guest: down as u32,
            guest_finished: progress.shut,
            host_finished: carried.shut,
            wanted: None,
            moved_at: now,
            strays: 0,
        };
        connection.leave_again(shared, now, away);
        connection.rx.add_bytes(up);
        connection.tx.add_bytes(down);
        Ok(connection)
    }

    /// Leaves for a kernel socket that has the flow already.
    fn leave_again(&mut self, shared: &mut Shared, now: Instant, away: Away) {
        let candidate = Candidate::new(now, self.rx.bytes() + self.tx.bytes());
        self.promotion.0 = Some(Box::new(Bulky { candidate, phase: Phase::Away(away) }));
        shared.tcp.away += 1;
        self.tx.pause();
        self.rx.freeze();
        self.tx.leave();
        self.rx.leave(shared);
    }
}
