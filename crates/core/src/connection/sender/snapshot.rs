//! The sending half in a snapshot: its saved form, and the rules that a restored one obeys.

use super::{Sender, SenderState, Timer};
use crate::flow::FlowId;
use crate::memory::chunk::{ByteQueue, Cursor, Pool};
use crate::snapshot::saved::{Invalid, Saved, is_count, is_small_count, saved_enum, valid};
use crate::snapshot::v1::SenderV1;
use crate::tcp::autosize::Limit;
use crate::tcp::host_stream::HostStream;
use crate::tcp::limiting_factor::LimitingClock;
use crate::tcp::rack::Rack;
use crate::tcp::scoreboard::Scoreboard;
use crate::tcp::window::PeerScale;
use crate::trace::{Direction, Resend};
use crate::wire::tcp::Seq;

/// Largest window that a guest can offer (RFC 7323, 2.2).
const WINDOW_MAX: u32 = 65_535 << 14;

saved_enum!(SenderState {
    Connecting = 0, SynSent = 1, SynAckSent = 2, Open = 3, FinSent = 4, Finished = 5,
});
saved_enum!(Timer { Retransmit = 0, TailProbe = 1, Reorder = 2, Window = 3 });
saved_enum!(Resend { Rack = 0, TailProbe = 1, Timeout = 2, Duplicates = 3 });

impl Sender {
    /// Saved form, with slices of the pool's memory.
    pub(in crate::connection) fn save<'p>(&self, pool: &'p Pool) -> SenderV1<'p> {
        let Self { state, una, nxt, wnd, wnd_max, wl1, wl2, peer_scale, mss, tx_limit, .. } = self;
        let Self { memory_cap, queue, cursor: _, stream, paused: _, short_of_memory, memory_listed, .. } =
            self;
        let Self { timed, timer, backoff, board, rack, sack, dup_acks, recovery, undo, .. } = self;
        let Self { tail_probe, clock, bytes, retransmissions, .. } = self;
        SenderV1 {
            state: state.save(),
            una: una.save(),
            nxt: nxt.save(),
            wnd: *wnd,
            wnd_max: *wnd_max,
            wl1: wl1.save(),
            wl2: wl2.save(),
            scale: peer_scale.shift(),
            peer_scales: peer_scale.offered().is_some(),
            mss: *mss,
            tx_limit: tx_limit.saved(),
            memory_cap: *memory_cap,
            queue: pool.save(queue),
            stream: stream.save(),
            short_of_memory: *short_of_memory,
            memory_listed: *memory_listed,
            timed: timed.save(),
            timer: timer.save(),
            backoff: *backoff,
            board: board.save(),
            rack: rack.save(),
            sack: *sack,
            dup_acks: *dup_acks,
            recovery: recovery.save(),
            undo: undo.save(),
            tail_probe: tail_probe.save(),
            clock: clock.save(),
            bytes: *bytes,
            retransmissions: *retransmissions,
        }
    }

    /// Sender of a saved form, without its payload ([`Sender::restore_payload`]). `mss_max` is the largest
    /// payload of a segment on this link.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts itself.
    pub(in crate::connection) fn restore(saved: &SenderV1<'_>, mss_max: u16) -> Result<Self, Invalid> {
        let (una, nxt) = (Seq(saved.una), Seq(saved.nxt));
        let sender = Self {
            state: SenderState::restore(saved.state)?,
            una,
            nxt,
            wnd: saved.wnd,
            wnd_max: saved.wnd_max,
            wl1: Seq(saved.wl1),
            wl2: Seq(saved.wl2),
            peer_scale: PeerScale::new(saved.peer_scales.then_some(saved.scale)),
            mss: saved.mss,
            tx_limit: Limit::from_saved(Direction::Send, u32::MAX, saved.tx_limit)?,
            memory_cap: saved.memory_cap,
            queue: ByteQueue::new(),
            cursor: Cursor::FRONT,
            stream: HostStream::restore(saved.stream)?,
            paused: false,
            held_by_rate: false,
            doubt: None,
            short_of_memory: saved.short_of_memory,
            memory_listed: false,
            timed: Saved::restore(saved.timed)?,
            timer: Saved::restore(saved.timer)?,
            backoff: saved.backoff,
            board: Scoreboard::restore(una, nxt, saved.board.clone())?,
            rack: Rack::restore(saved.rack)?,
            sack: saved.sack,
            dup_acks: saved.dup_acks,
            recovery: Saved::restore(saved.recovery)?,
            undo: Saved::restore(saved.undo)?,
            tail_probe: Saved::restore(saved.tail_probe)?,
            clock: LimitingClock::restore(saved.clock)?,
            bytes: saved.bytes,
            retransmissions: saved.retransmissions,
        };
        valid(saved.mss > 0 && saved.mss <= mss_max && saved.scale <= 14)?;
        valid(saved.wnd <= WINDOW_MAX && saved.wnd_max <= WINDOW_MAX)?;
        valid(is_count(saved.bytes) && is_small_count(saved.retransmissions))?;
        let within = |limit: u32| limit <= saved.tx_limit.max && limit >= saved.tx_limit.initial;
        valid(saved.undo.is_none_or(|undo| within(undo.limit)))?;
        valid(sender.is_flight_consistent(saved.queue.len()))?;
        Ok(sender)
    }

    /// Whether the flight, the bytes held and the timer agree with the state of the stream.
    fn is_flight_consistent(&self, held: usize) -> bool {
        use SenderState as S;
        let flight = self.nxt - self.una;
        if flight < 0 || held > 1 << 30 {
            return false;
        }
        let (flight, on_board) = (flight as usize, self.board.len() as usize);
        let timer = self.timer.map(|(_, timer)| timer);
        let runs = match timer {
            None | Some(Timer::Window) => flight == 0,
            Some(Timer::Retransmit | Timer::TailProbe | Timer::Reorder) => flight > 0,
        };
        let ended = self.stream.has_ended();
        runs && match self.state {
            S::Connecting => flight + held + on_board == 0 && timer.is_none(),
            S::SynSent | S::SynAckSent => {
                flight <= 1 && held + on_board == 0 && matches!(timer, None | Some(Timer::Retransmit))
            }
            S::Open => on_board == flight && flight <= held,
            S::FinSent => on_board == flight && flight == held + 1 && ended,
            S::Finished => flight + held + on_board == 0 && ended && timer.is_none(),
        }
    }

    /// Takes the payload of the saved form. [`Sender::clear`] undoes it, also after an error.
    ///
    /// # Errors
    /// [`Invalid`] if memory does not suffice.
    pub(in crate::connection) fn restore_payload(
        &mut self,
        pool: &mut Pool,
        id: FlowId,
        saved: &SenderV1<'_>,
    ) -> Result<(), Invalid> {
        let origin = Some(self.origin(id, 0));
        pool.restore(&mut self.queue, origin, &saved.queue)?;
        let sent = self.in_flight().min(self.queue.len());
        self.cursor = if sent == 0 { Cursor::FRONT } else { pool.seek(&self.queue, sent) };
        Ok(())
    }

    /// Listed among the flows parked for a read.
    pub(in crate::connection) fn restore_listed(&mut self) {
        self.memory_listed = true;
    }
}
