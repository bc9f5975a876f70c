//! A flow of datagrams behind a gate ([`crate::gate::quic`]).

use super::{DatagramFlow, datagram_size};
use crate::context::{Cx, Platform, Shared};
use crate::destination;
use crate::flow::end::EndCause;
use crate::gate::quic::{Fate, QuicGate};
use crate::gate::{GATES_MAX, Subject};
use crate::host::{IcmpCause, IpHeaderFields, SocketId};
use crate::icmp;
use crate::snapshot::saved::{Invalid, valid};
use crate::snapshot::v1::QuicGateV1;
use crate::time::Instant;
use std::io::IoSlice;

impl DatagramFlow {
    /// The flow with a closed gate before it.
    pub(crate) fn behind_gate(mut self, shared: &mut Shared, subject: Subject) -> Self {
        shared.quic_gates += 1;
        self.gate = Some(Box::new(QuicGate::new(subject)));
        self
    }

    /// Whether a gate reads its datagrams.
    pub(crate) fn is_gated(&self) -> bool {
        self.gate.is_some()
    }

    /// Saved form of the gate.
    pub(crate) fn save_gate(&self) -> Option<QuicGateV1<'_>> {
        self.gate.as_ref().map(|gate| gate.save())
    }

    /// Takes a gate of a saved form.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts itself, there is no policy, or no place for one more.
    pub(crate) fn restore_gate(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        saved: &QuicGateV1<'_>,
    ) -> Result<(), Invalid> {
        valid(shared.config.rules.shared.is_some() && shared.quic_gates < GATES_MAX)?;
        let remote = destination::judged_as(&shared.config, self.key.remote.into());
        let gate = QuicGate::restore(now, self.key.guest.into(), remote, saved)?;
        self.gate = Some(Box::new(gate));
        shared.quic_gates += 1;
        Ok(())
    }

    /// Time at which the gate refuses.
    pub(super) fn gate_deadline(&self) -> Option<Instant> {
        self.gate.as_ref()?.deadline()
    }

    /// The time of the gate is over.
    pub(super) fn gate_timed_out(&mut self) {
        if let Some(gate) = &mut self.gate {
            gate.time_out();
        }
        (self.cause, self.ended) = (EndCause::Denied, true);
    }

    /// Gives the gate's place back.
    pub(super) fn drop_gate(&mut self, shared: &mut Shared) {
        shared.quic_gates -= u32::from(self.gate.is_some());
        self.gate = None;
    }

    /// Sends datagrams as [`DatagramFlow::transmit`] does, after the gate has read them.
    pub(super) fn send_gated<'p, P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        socket: SocketId,
        data: &mut [IoSlice<'_>],
        segment: Option<u16>,
        fields: IpHeaderFields,
        packet: impl Fn(usize) -> &'p [u8],
    ) {
        let Some(policy) = cx.shared.config.rules.shared.clone() else { return };
        let Some(gate) = &self.gate else { return };
        let size = datagram_size(data.iter().map(|slice| slice.len()).sum(), segment);
        if !data.iter().all(|slice| slice.is_empty())
            && data.iter().flat_map(|slice| slice.chunks(size)).all(|datagram| gate.is_past(datagram))
        {
            return self.transmit(cx, socket, data, segment, fields, packet);
        }
        // A datagram without a byte says nothing.
        for (n, datagram) in data.iter().flat_map(|slice| slice.chunks(size)).enumerate() {
            let Some(gate) = &mut self.gate else { return };
            let fate = match gate.read(cx.now, &policy, datagram) {
                Fate::Hold => gate.hold(cx.now, datagram, fields),
                fate => fate,
            };
            match fate {
                Fate::Hold => {}
                Fate::Pass => {
                    for held in gate.release() {
                        let payload = &mut [IoSlice::new(&held.payload)];
                        self.transmit(cx, socket, payload, None, held.fields, |_| packet(n));
                    }
                    let payload = &mut [IoSlice::new(datagram)];
                    self.transmit(cx, socket, payload, None, fields, |_| packet(n));
                }
                Fate::Refuse => {
                    icmp::send_error(cx, IcmpCause::Prohibited, None, packet(n));
                    (self.cause, self.ended) = (EndCause::Denied, true);
                    return;
                }
            }
        }
    }
}
