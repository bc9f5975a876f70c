//! The receiving half behind a gate ([`crate::gate`]): in-order bytes stay in the queue until the gate has
//! read them and lets them leave.

use super::{Receiver, ReceiverState};
use crate::context::Shared;
use crate::gate::{GATES_MAX, Gate, Outcome};
use crate::memory::chunk::SLICES_MAX;
use crate::policy::Checks;
use crate::policy::Named;
use crate::policy::SharedPolicy;
use crate::policy::Telling;
use crate::snapshot::saved::{Invalid, valid};
use crate::snapshot::v1::GateV1;
use crate::time::Instant;
use std::io::IoSlice;
use std::sync::Arc;

/// A gate, with its place in the queue.
#[derive(Debug)]
pub(super) struct Gated {
    gate: Gate,
    /// Bytes of the queue, from its front, that the gate has read, and that may leave.
    read: u32,
    released: u32,
}

impl Gated {
    /// Bytes that may leave, from the front of the queue.
    pub(super) fn released(&self) -> u32 {
        self.released
    }

    /// Lets the gate read the next bytes of the queue, as far as it goes on.
    fn inspect(&mut self, now: Instant, policy: &SharedPolicy, mut bytes: &[u8]) -> Outcome {
        while !bytes.is_empty() {
            let (taken, outcome) = self.gate.read(now, policy, bytes);
            debug_assert!(taken > 0, "a gate takes a byte at least");
            self.read += taken as u32;
            bytes = &bytes[taken..];
            match outcome {
                Outcome::Hold => {}
                Outcome::Release => self.released = self.read,
                Outcome::Refuse | Outcome::Open => return outcome,
            }
        }
        Outcome::Hold
    }

    /// So many bytes have left.
    pub(super) fn written(&mut self, bytes: u32) {
        debug_assert!(bytes <= self.released && self.released <= self.read, "held bytes stay");
        self.read -= bytes;
        self.released -= bytes;
    }
}

impl Receiver {
    /// Closes the way to the host socket by a gate.
    pub(in crate::connection) fn set_gate(&mut self, shared: &mut Shared, gate: Gate) {
        debug_assert!(self.bytes == 0 && self.gate.is_none(), "a gate is there from the first byte on");
        shared.closed_gates += u32::from(gate.is_closed());
        self.gate = Some(Box::new(Gated { gate, read: 0, released: 0 }));
    }

    /// Saved form of the gate, if it has one.
    pub(in crate::connection) fn save_gate(&self) -> Option<GateV1<'_>> {
        let gated = self.gate.as_ref()?;
        gated.gate.save(gated.released)
    }

    /// Whether a gate only looks on.
    pub(in crate::connection) fn is_observed(&self) -> bool {
        self.gate.as_ref().is_some_and(|gated| gated.gate.is_observer())
    }

    /// Takes a gate of a saved form, with the queue behind it: the gate reads again what it holds.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts the queue, there is no policy, or no place for one more closed gate.
    /// [`Receiver::clear`] gives its place back.
    pub(in crate::connection) fn restore_gate(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        gate: Gate,
        released: u32,
    ) -> Result<(), Invalid> {
        let closed = gate.is_closed();
        valid(released <= self.queue.len() && shared.config.rules.shared.is_some())?;
        valid(!closed || shared.closed_gates < GATES_MAX)?;
        shared.closed_gates += u32::from(closed);
        self.gate = Some(Box::new(Gated { gate, read: released, released }));
        self.inspect(shared, now);
        valid(self.refusal().is_none())
    }

    /// The guest may send from `now` on.
    pub(in crate::connection) fn begin_gate(&mut self, now: Instant) {
        if let Some(gated) = &mut self.gate {
            gated.gate.begin(now);
        }
    }

    /// Whether there is a gate: closed, watching, or one that has refused the connection.
    pub(in crate::connection) fn is_gated(&self) -> bool {
        self.gate.is_some()
    }

    /// Whether a gate lets nothing pass, either way.
    pub(in crate::connection) fn is_gate_closed(&self) -> bool {
        self.gate.as_ref().is_some_and(|gated| gated.gate.is_closed())
    }

    /// The checks of a closed gate.
    pub(in crate::connection) fn checks_at_gate(&self) -> Option<Checks> {
        self.gate.as_ref().filter(|gated| gated.gate.is_closed()).map(|gated| gated.gate.checks())
    }

    /// The server that the guest has named.
    pub(in crate::connection) fn named(&self) -> Option<&Named> {
        self.named.as_deref().or_else(|| self.gate.as_ref()?.gate.named())
    }

    /// Sets the server that the guest had named before a hand-over.
    pub(in crate::connection) fn restore_named(&mut self, named: Named) {
        self.named = Some(Box::new(named));
    }

    /// Time at which a closed gate refuses.
    pub(in crate::connection) fn gate_deadline(&self) -> Option<Instant> {
        self.gate.as_ref()?.gate.deadline()
    }

    /// The rule or reason by which the gate has refused the connection.
    pub(in crate::connection) fn refusal(&self) -> Option<&Arc<str>> {
        self.gate.as_ref()?.gate.refusal()
    }

    /// The refusal in the protocol that the guest speaks; none after a pass.
    pub(in crate::connection) fn last_words(&self, telling: &Telling) -> Option<Vec<u8>> {
        self.gate.as_ref()?.gate.last_words(telling)
    }

    /// The guest's stream has ended, or the time of a closed gate: without a name, or with bytes that are
    /// held, that is a refusal.
    pub(in crate::connection) fn end_gate(&mut self, shared: &mut Shared, timed_out: bool) {
        let Some(gated) = &mut self.gate else { return };
        let closed = gated.gate.is_closed();
        let holds = closed || gated.released < self.queue.len();
        if gated.gate.refusal().is_none() && holds {
            if timed_out {
                gated.gate.time_out();
            } else {
                gated.gate.end();
            }
            shared.closed_gates -= u32::from(closed);
        }
    }

    /// Lets the gate read what has come in order since the last time. If it refuses the connection, none of
    /// that leaves.
    pub(super) fn inspect(&mut self, shared: &mut Shared, now: Instant) {
        let Some(gated) = &mut self.gate else { return };
        let Some(policy) = shared.config.rules.shared.clone() else { return };
        let (closed, released) = (gated.gate.is_closed(), gated.released);
        while gated.read < self.queue.len() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let pool = &shared.memory.pool;
            let from = pool.seek(&self.queue, gated.read);
            let (count, ..) = pool.slices(&self.queue, from, u32::MAX, &mut slices);
            for slice in &slices[..count] {
                match gated.inspect(now, &policy, slice) {
                    Outcome::Hold | Outcome::Release => {}
                    Outcome::Refuse => {
                        shared.closed_gates -= u32::from(closed);
                        gated.released = released;
                        if closed {
                            gated.gate.has_passed_nothing();
                        }
                        return;
                    }
                    Outcome::Open => {
                        shared.closed_gates -= u32::from(closed);
                        self.named = self.gate.take().and_then(|gated| gated.gate.into_named());
                        return;
                    }
                }
            }
        }
        if closed && !gated.gate.is_closed() {
            shared.closed_gates -= 1;
        }
    }

    /// Ends the stream of a connection that the gate has refused: nothing more is taken.
    pub(in crate::connection) fn stop(&mut self, shared: &mut Shared) {
        let gate = self.gate.take();
        self.clear(shared);
        self.gate = gate;
        self.state = ReceiverState::Finished;
    }

    /// Removes the gate, but not the reason of a refusal.
    pub(super) fn drop_gate(&mut self, shared: &mut Shared) {
        if let Some(gated) = &self.gate {
            shared.closed_gates -= u32::from(gated.gate.is_closed());
        }
        self.gate = self.gate.take_if(|gated| gated.gate.refusal().is_some());
    }
}
