//! Return of a flow from its kernel socket: checks, and the state of both halves.
//!
//! Every byte is accounted for. Toward the host: the bytes received since the promotion are those written to
//! the host's socket and those that come back unread. Toward the guest: the bytes taken from the host's
//! socket are those that the guest has acknowledged and those that come back. Sums are modulo 2^32, as
//! sequence numbers are; so no transfer is too long for them. FINs are no part of the sums: the halves take
//! them behind their last bytes.

use super::{Away, Connection};
use crate::connection::reset::ResetNumbers;
use crate::context::{Cx, Platform};
use crate::flow::end::EndCause;
use crate::host::Readiness;
use crate::promotion::{Fins, OurFin, Returned, SeedFields};
use crate::wire::tcp::Seq;

impl Away {
    /// Whether `returned` continues what left, and no byte is missing or too many.
    fn is_continued_by(&self, returned: &Returned<'_>) -> bool {
        let (left, now) = (self.seed.fields(), returned.seed.fields());
        let (Ok(unread), Ok(unacknowledged)) =
            (u32::try_from(returned.to_host.len()), u32::try_from(returned.to_guest.len()))
        else {
            return false;
        };
        let received = self.from_guest.wrapping_add(unread);
        let acknowledged = self.to_guest.wrapping_sub(unacknowledged);
        returned.seed.continues(&self.seed)
            && now.rcv_nxt == left.rcv_nxt.wrapping_add(received)
            && now.snd_una == left.snd_nxt.wrapping_add(acknowledged)
            && now.flight() <= unacknowledged
            && self.has_ends(returned, now.flight(), unacknowledged)
    }

    /// Whether the FINs are those of the streams that have ended, and have their places: one that was passed
    /// on has every byte before it passed on too.
    fn has_ends(&self, returned: &Returned<'_>, flight: u32, unacknowledged: u32) -> bool {
        let Fins { guest, ours } = returned.fins;
        let sent = match ours {
            OurFin::None | OurFin::Unsent => true,
            OurFin::Sent => flight == unacknowledged,
            OurFin::Acknowledged => unacknowledged == 0,
        };
        let passed_on = !self.guest_finished || (guest && returned.to_host.is_empty());
        sent && passed_on && self.host_finished == (ours != OurFin::None) && !(guest && self.host_finished)
    }
}

impl Connection {
    /// The flow is back, with the state of its kernel socket: the connection goes on, or is reset if that
    /// cannot be.
    pub(crate) fn returned<P: Platform>(&mut self, cx: &mut Cx<'_, P>, returned: &Returned<'_>) {
        let Some(away) = self.promotion.come_back(cx.shared) else { return };
        if away.is_setback() {
            self.promotion.set_back(cx.shared, cx.now);
        } else {
            self.promotion.forget_setbacks();
        }
        let fields = returned.seed.fields();
        self.tx.go_on();
        self.rx.thaw();
        if !away.is_continued_by(returned) || !self.restore_halves(cx, fields, returned) {
            return self.break_off(cx, fields);
        }
        if returned.fins.guest {
            self.rx.resume_end(cx.shared, away.guest_finished);
        }
        // From here on the kernel socket has no part in it, whatever is written to the host next.
        self.write_journal(&cx.shared.journal);
        cx.shared.counters.promotions_returned += 1;
        self.keep_alive.record_arrival(cx.now);
        self.tx.socket_event(Readiness { readable: true, ..Readiness::default() });
        self.rx.socket_writable();
        self.flush_to_host(cx);
        // The guest learns of the window, and answers if it has given up the connection meanwhile.
        self.list_ack(cx.shared);
        self.list_ready(cx.shared);
    }

    /// Resets both sides, with the numbers that the guest knows.
    fn break_off<P: Platform>(&mut self, cx: &mut Cx<'_, P>, fields: &SeedFields) {
        cx.shared.counters.promotions_broken += 1;
        self.cause = EndCause::NoResources;
        let numbers = ResetNumbers { seq: Seq(fields.snd_nxt), ack: Seq(fields.rcv_nxt) };
        self.reset_guest_at(cx, numbers, Seq(fields.snd_una));
    }

    /// Sets the sequence spaces, then fills both queues. False if memory does not suffice.
    fn restore_halves<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        fields: &SeedFields,
        returned: &Returned<'_>,
    ) -> bool {
        let Returned { to_guest, fins, .. } = returned;
        let sender = self.tx.resume(cx.shared, cx.now, self.id, fields, to_guest, fins.ours);
        let receiver = self.rx.resume(cx.shared, cx.now, self.id, fields, returned.to_host);
        sender && receiver
    }
}
