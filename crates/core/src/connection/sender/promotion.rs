//! The sending half of a connection that is promoted: paused, gone, and back.

use super::{Cursor, Recovery, Sender, SenderState};
use crate::carried::MovedUntil;
use crate::context::Shared;
use crate::flow::FlowId;
use crate::promotion::{OurFin, SeedFields};
use crate::tcp::limiting_factor::{FactorChange, LimitingFactor};
use crate::tcp::rack::Rack;
use crate::time::Instant;
use crate::wire::tcp::Seq;

/// Window of the guest, as a seed has it.
#[derive(Debug, Clone, Copy)]
pub(in crate::connection) struct WindowFields {
    /// SND.WND, and the largest that it ever was.
    pub(in crate::connection) wnd: u32,
    pub(in crate::connection) wnd_max: u32,
    /// SND.WL1: sequence number of its last update.
    pub(in crate::connection) wl1: Seq,
    /// Its shift (Snd.Wind.Shift).
    pub(in crate::connection) scale: u8,
}

impl Sender {
    /// Reads no more from the host socket.
    pub(in crate::connection) fn pause(&mut self) {
        self.paused = true;
    }

    /// Reads again.
    pub(in crate::connection) fn go_on(&mut self) {
        self.paused = false;
    }

    /// Whether no loss is being repaired or suspected.
    pub(in crate::connection) fn is_undisturbed(&self) -> bool {
        let Self { recovery, tail_probe, board, backoff, .. } = self;
        let probing = tail_probe.is_some_and(|probe| self.una.lt(probe));
        recovery.is_none() && !probing && board.lost() + board.sacked() == 0 && *backoff == 0
    }

    /// Whether all that was read is sent and acknowledged.
    pub(in crate::connection) fn is_quiet(&self) -> bool {
        self.una == self.nxt && self.queue.is_empty()
    }

    /// Window of the guest.
    pub(in crate::connection) fn window_fields(&self) -> WindowFields {
        let Self { wnd, wnd_max, wl1, peer_scale, .. } = *self;
        WindowFields { wnd, wnd_max, wl1, scale: peer_scale.shift() }
    }

    /// A kernel socket takes over: nothing is waited for.
    pub(in crate::connection) fn leave(&mut self) {
        debug_assert!(self.is_quiet(), "nothing is in flight");
        (self.timer, self.timed, self.short_of_memory) = (None, None, false);
    }

    /// Bytes that another carrier has moved.
    pub(in crate::connection) fn add_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.wrapping_add(bytes);
    }

    /// Bytes that a carrier has moved to the guest's kernel socket, and why it has moved no more; gives the
    /// change of the limiting factor, if it is one.
    pub(in crate::connection) fn note_carried(
        &mut self,
        now: Instant,
        bytes: u64,
        until: MovedUntil,
    ) -> Option<FactorChange> {
        self.add_bytes(bytes);
        self.clock.set(now, until.factor(LimitingFactor::GuestWindow))
    }

    /// Goes on as the seed says, with what the guest has not acknowledged: `unacknowledged` from SND.UNA on,
    /// and `fin` behind it. False if memory does not suffice for it.
    pub(in crate::connection) fn resume(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        id: FlowId,
        fields: &SeedFields,
        unacknowledged: &[u8],
        fin: OurFin,
    ) -> bool {
        (self.una, self.nxt) = (Seq(fields.snd_una), Seq(fields.snd_nxt));
        (self.wnd, self.wl1, self.wl2) = (fields.snd_wnd, Seq(fields.snd_wl1), self.una);
        self.wnd_max = self.wnd_max.max(fields.wnd_max);
        (self.rack, self.recovery, self.undo, self.tail_probe) =
            (Rack::default(), None::<Recovery>, None, None);
        (self.timed, self.timer, self.backoff, self.dup_acks) = (None, None, 0, 0);
        // They count again when they are acknowledged.
        self.bytes = self.bytes.saturating_sub(unacknowledged.len() as u64);
        self.tx_limit.resume(now, self.bytes as u32);
        let pool = &mut shared.memory.pool;
        let origin = Some(self.origin(id, 0));
        if pool.push(&mut self.queue, origin, unacknowledged) < unacknowledged.len() {
            return false;
        }
        let flight = fields.flight();
        self.cursor = if flight == 0 { Cursor::FRONT } else { pool.seek(&self.queue, flight) };
        self.resume_end(fin);
        let flight = self.in_flight();
        if flight > 0 {
            self.board.take_list(&mut shared.tcp.lists);
            self.board.sent(self.una, flight, now);
            self.start_retransmission_timer(shared, now);
        }
        self.check();
        true
    }

    /// The host's stream has ended behind what is queued, as far as our FIN says it.
    fn resume_end(&mut self, fin: OurFin) {
        match fin {
            OurFin::None => return,
            OurFin::Unsent => {}
            OurFin::Sent => {
                self.enter(SenderState::FinSent);
                self.nxt += 1;
            }
            OurFin::Acknowledged => {
                self.enter(SenderState::Finished);
                (self.una, self.nxt) = (self.una + 1, self.nxt + 1);
            }
        }
        self.stream.abandon();
    }
}
