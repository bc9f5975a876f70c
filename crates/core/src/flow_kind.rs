//! The trait of all kinds of flow. Each kind implements it in its own file; the stack dispatches over the
//! kinds in `stack/dispatch.rs`.

use crate::context::{Cx, Platform, Shared};
use crate::flow::end::EndCause;
use crate::flow::info::{FlowInfo, Initiator};
use crate::flow::table::Keyed;
use crate::flow::{EvictionClass, EvictionRank};
use crate::host::{Readiness, SocketId};
use crate::inbox::Inbox;
use crate::policy::{Checks, Held, Named};
use crate::time::{Duration, Instant};
use std::sync::Arc;

/// Buffers of a worker that flows use while they are served.
pub(crate) struct Buffers {
    /// Datagrams on their way to the guest.
    pub(crate) inbox: Inbox,
    /// Room for any packet.
    pub(crate) scratch: Box<[u8]>,
    /// A frame of the guest's whose end the link had left unread.
    pub(crate) read: Vec<u8>,
}

/// Methods of every kind of flow.
pub(crate) trait FlowKind: Keyed {
    /// The side that began it.
    fn initiator(&self) -> Initiator;

    /// Its socket on the host, if it has exactly one.
    fn socket(&self) -> Option<SocketId>;

    /// Its record at `now`, without its idle time.
    fn info(&self, shared: &Shared, now: Instant) -> FlowInfo;

    /// Bytes that it takes beside itself and its payload.
    fn allocated(&self) -> usize;

    /// The list of the table in which it stands.
    fn eviction_class(&self) -> EvictionClass;

    /// Its rank among candidates for eviction after `idle`; `None` if it must not be evicted.
    fn eviction_rank(&self, idle: Duration) -> Option<EvictionRank>;

    /// Whether it is over and is to be removed.
    fn has_ended(&self) -> bool;

    /// The rule or reason by which a gate has refused it.
    fn refused_by(&self) -> Option<&Arc<str>> {
        None
    }

    /// The server that it has named at a gate.
    fn named(&self) -> Option<&Named> {
        None
    }

    /// The checks of a gate that holds it back: it will be judged by the name that it says.
    fn checks_at_gate(&self) -> Option<Checks> {
        None
    }

    /// Whether a gate holds it back.
    fn is_at_gate(&self) -> bool {
        self.checks_at_gate().is_some()
    }

    /// Payload bytes that it has moved from the guest and to it, of which a rule may limit the number.
    fn moved(&self) -> [u64; 2] {
        [0; 2]
    }

    /// Puts it under limits: it stays with the stack, and offers windows of at most so many bytes.
    fn limit(&mut self, _window_max: u32) {}

    /// Takes it out of limits.
    fn unlimit(&mut self) {}

    /// Holds back its bytes from the guest or to it, or no more.
    fn hold_back<P: Platform>(&mut self, _: &mut Cx<'_, P>, _: Held) {}

    /// Ends it, because a policy that was changed denies it or its limits are reached.
    fn revoke<P: Platform>(&mut self, cx: &mut Cx<'_, P>, cause: EndCause);

    /// Notes the readiness of its host socket.
    fn socket_event<P: Platform>(&mut self, cx: &mut Cx<'_, P>, ready: Readiness);

    /// Has its turn, within the bounds of [`crate::schedule`].
    fn serve<P: Platform>(&mut self, cx: &mut Cx<'_, P>, buffers: &mut Buffers);

    /// Acts on its timer, which may have fired early.
    fn expire<P: Platform>(&mut self, cx: &mut Cx<'_, P>);

    /// Acts on a reset of the guest's network device.
    fn guest_reset<P: Platform>(&mut self, _: &mut Cx<'_, P>) {}

    /// Acts on a change of the host's network.
    fn network_changed<P: Platform>(&mut self, cx: &mut Cx<'_, P>);

    /// Brings its timer and its account of memory up to date, after every access.
    fn reschedule(&mut self, shared: &mut Shared);

    /// Gives back sockets and memory, before removal, and counts its end.
    fn dispose<P: Platform>(&mut self, cx: &mut Cx<'_, P>);
}
