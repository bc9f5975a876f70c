//! Carried flows: conversations whose payload a carrier of the driver's moves past the stack
//! ([`crate::carried`]).
//!
//! They pass the same admission as every flow, with two differences that follow from what a forward is. A
//! forward of the guest's (`-T`, `-U`) is the user's permission to reach the host's loopback, so the floor
//! does not hold; deny rules and limits do. Outside peers and the host's loopback as peers are admitted as
//! published ports admit them.
//!
//! *Identity.* Both ends of such a flow may be loopback addresses, of which guest and host have the same. So
//! its key is a description, not an index: no frame and no packet of a published port ever leads to a carried
//! flow, which is found by its id alone.

use super::{DropReason, Flow, HostError, Io, Platform, Stack};
use crate::carried::CarriedFlow;
use crate::flow::FlowId;
use crate::flow::end::EndCause;
use crate::flow::info::{Carrier, Initiator};
use crate::flow_kind::FlowKind;

pub use crate::carried::{CarriedProgress, Released};
pub use crate::flow::info::Opening;

impl Stack {
    /// Opens a carried flow if rules, limits and the table allow it. `open` then makes what carries it and
    /// gives the carrier's number for it.
    ///
    /// # Errors
    /// The rule or bound that refuses it, or [`DropReason::HostExhausted`] or [`DropReason::Refused`] if
    /// `open` fails. It is counted.
    pub fn open_carried<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        opening: Opening,
        open: impl FnOnce(FlowId) -> Result<u32, HostError>,
    ) -> Result<FlowId, DropReason> {
        self.opening(io, |stack, io| {
            stack.admit_carried(io, opening)?;
            stack.insert_carried(io, opening, open)
        })
    }

    fn insert_carried<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        opening: Opening,
        open: impl FnOnce(FlowId) -> Result<u32, HostError>,
    ) -> Result<FlowId, DropReason> {
        let number = open(self.flows.reserve()).map_err(|error| {
            self.note_unopened(opening, EndCause::of(error), None);
            if error == HostError::Exhausted { DropReason::HostExhausted } else { DropReason::Refused }
        })?;
        let flow = Flow::Carried(CarriedFlow::new(self.flows.reserve(), number, opening, io.now));
        let list = flow.eviction_class().list(flow.eviction_group());
        let id = self.flows.insert_unindexed(list, io.now, |_| flow);
        match opening.carrier {
            Carrier::Splice => self.shared.counters.splice_opened += 1,
            Carrier::Relay => self.shared.counters.relay_opened += 1,
            Carrier::Stack | Carrier::Kernel => {
                debug_assert!(false, "a flow of the stack's begins with a packet");
            }
        }
        self.count_opened(id);
        if opening.initiator == Initiator::Guest {
            self.hold_destination(io.now, id);
        }
        self.settle(io, id);
        Ok(id)
    }

    /// Notes progress of a carried flow, which is a use of it.
    pub fn carried_progress<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        id: FlowId,
        progress: &CarriedProgress,
    ) {
        self.recorder.now = io.now;
        self.use_flow(io, id, |flow, cx, _| match flow {
            Flow::Carried(carried) => carried.progress(cx.shared, cx.now, progress),
            Flow::Tcp(connection) => connection.carried_progress(cx, progress),
            Flow::Datagram(_) | Flow::Dns(_) => {}
        });
    }

    /// Ends a carried flow whose sockets the driver has closed.
    pub fn close_carried<P: Platform>(&mut self, io: &mut Io<'_, P>, id: FlowId, cause: EndCause) {
        self.recorder.now = io.now;
        self.notify_flow(io, id, |flow, cx, _| match flow {
            Flow::Carried(carried) => carried.close(cause),
            Flow::Tcp(connection) => connection.carrier_closed(cx, cause),
            Flow::Datagram(_) | Flow::Dns(_) => {}
        });
    }

    /// Carried flows that the stack has ended since the last call. The driver closes their sockets. At most
    /// as many as the table has flows.
    pub fn take_released(&mut self) -> Vec<Released> {
        std::mem::take(&mut self.shared.released)
    }

    /// The same, of some carriers only.
    pub fn take_released_of(&mut self, carriers: &[Carrier]) -> Vec<Released> {
        self.shared.released.extract_if(.., |released| carriers.contains(&released.carrier)).collect()
    }

    /// Whether [`Stack::take_released`] would give any.
    pub fn has_released(&self) -> bool {
        !self.shared.released.is_empty()
    }
}
