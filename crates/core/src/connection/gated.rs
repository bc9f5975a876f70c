//! A connection behind a gate ([`crate::gate`]): the host's stream waits until the gate is open, and a
//! refused connection ends toward both sides.

use super::Connection;
use super::sender::SenderState;
use crate::context::{Cx, Platform, Shared};
use crate::destination;
use crate::flow::end::EndCause;
use crate::gate::Gate;
use crate::host::{Close, Host};
use crate::snapshot::saved::{Invalid, valid};
use crate::snapshot::v1::GateV1;
use crate::time::Instant;

impl Connection {
    /// Whether what the guest sends is read before it leaves: by a gate, whatever its state, or by the DNS
    /// service.
    pub(crate) fn is_gated(&self) -> bool {
        self.rx.is_gated() || self.is_dns()
    }

    /// Saved form of the gate, if there is one that is saved.
    pub(crate) fn save_gate(&self) -> Option<GateV1<'_>> {
        self.rx.save_gate()
    }

    /// Whether a hand-over would end the connection: the DNS service reads it, or a gate has refused it.
    pub(crate) fn ends_with_handover(&self) -> bool {
        self.is_dns() || self.rx.refusal().is_some()
    }

    /// Whether a hand-over leaves out a gate, which only looks on.
    pub(crate) fn is_observed(&self) -> bool {
        self.rx.is_observed()
    }

    /// Takes a gate of a saved form.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts itself or the connection; [`Connection::release`] gives its place back.
    pub(crate) fn restore_gate(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        saved: &GateV1<'_>,
    ) -> Result<(), Invalid> {
        let remote = destination::judged_as(&shared.config, self.key.remote.into());
        let gate = Gate::restore(now, self.key.guest.into(), remote, saved)?;
        // A closed gate has let nothing pass either way, and has its time from the SYN-ACK on.
        let is_timed = gate.deadline().is_some() || self.tx.is_connecting();
        valid(!gate.is_closed() || (is_timed && self.tx.is_untouched()))?;
        self.rx.restore_gate(shared, now, gate, saved.released)?;
        self.wait_for_gate();
        Ok(())
    }

    /// While the gate is closed nothing is read from the host socket.
    pub(super) fn wait_for_gate(&mut self) {
        if self.rx.is_gate_closed() {
            self.tx.pause();
            self.is_waiting_for_gate = true;
        }
    }

    /// Acts on what the gate has found since the last time.
    pub(super) fn look_at_gate<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.rx.refusal().is_some() {
            self.refuse_at_gate(cx);
        } else if self.is_waiting_for_gate && !self.rx.is_gate_closed() {
            self.is_waiting_for_gate = false;
            self.tx.go_on();
            self.list_or_watch(cx);
        }
    }

    /// Looks for an error of the host socket, which a closed gate keeps every read and write from meeting.
    pub(super) fn check_error_at_gate<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if let Some(error) = self.socket.and_then(|socket| cx.host.tcp_error(socket)) {
            self.host_failed(cx.shared, error);
        }
    }

    /// Refusal: the host's peer, which got no byte of what is refused, is reset. A guest that has shaken
    /// hands gets an answer and the end of the stream; after a first name, where the server may have
    /// answered, a reset.
    fn refuse_at_gate<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.cause == EndCause::Denied {
            return;
        }
        self.cause = EndCause::Denied;
        let rules = cx.shared.config.rules.shared.as_ref().map(|policy| policy.rules());
        let last_words = rules.and_then(|rules| self.rx.last_words(&rules.source().telling));
        let last_words = last_words.filter(|_| self.tx.state() == SenderState::Open);
        let Some(last_words) = last_words else { return self.reset_guest(cx) };
        self.close_socket(cx, Close::Reset);
        self.rx.stop(cx.shared);
        self.tx.conclude(cx.shared, &last_words);
        self.list_ready(cx.shared);
    }
}
