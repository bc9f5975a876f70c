//! Flows that a carrier other than the stack moves: splices and relays.
//!
//! The driver owns their sockets and copies their payload; the flow table has their key, traffic, idle time
//! and end, so that they are admitted, listed, counted, timed out and evicted as any flow. The driver reports
//! progress and end; a flow that the stack ends is released to the driver ([`Released`]), which closes its
//! sockets.
//!
//! *Time-outs.* A relayed conversation ends as a datagram flow does, when it has been silent for long. A
//! splice has none: its ends are two kernels' TCP, which know of each other's death.

use crate::context::{Cx, Platform, Shared};
use crate::flow::end::EndCause;
pub use crate::flow::info::Released;
use crate::flow::info::{Carrier, FlowInfo, FlowState, Initiator, Opening, Traffic};
use crate::flow::table::Keyed;
use crate::flow::{EvictionClass, EvictionRank, FlowId, FlowKey, Protocol};
use crate::flow_kind::{Buffers, FlowKind};
use crate::host::{Readiness, SocketId};
use crate::journal::Journal;
use crate::journal::carried::CarriedState;
use crate::snapshot::saved::{Invalid, Saved, valid};
use crate::snapshot::v1::CarriedV1;
use crate::tcp::State;
use crate::tcp::limiting_factor::LimitingFactor;
use crate::time::{Duration, Instant};

/// Idle time after which a splice may be evicted, as a TCP connection of the stack, and a relayed
/// conversation, as a datagram flow.
const SPLICE_DORMANT_AFTER: Duration = Duration::from_secs(300);
const RELAY_DORMANT_AFTER: Duration = Duration::from_secs(30);

/// Cause for which a direction of a carried flow has moved no more in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MovedUntil {
    /// The sender's socket was empty.
    #[default]
    Empty,
    /// The turn was over.
    TurnOver,
    /// The receiver's socket was full.
    Full,
}

impl MovedUntil {
    /// The limiting factor of that direction, whose receiver's full socket has the name `full`.
    pub(crate) const fn factor(self, full: LimitingFactor) -> LimitingFactor {
        match self {
            Self::Empty => LimitingFactor::Application,
            Self::TurnOver => LimitingFactor::OurLimit,
            Self::Full => full,
        }
    }
}

/// Progress of a carried flow since the last report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CarriedProgress {
    /// The connection toward the responder is open, from now on or already.
    pub connected: bool,
    /// The initiator's stream has ended, and the responder has its FIN, from now on or already.
    pub initiator_finished: bool,
    /// The responder's stream has ended, and the initiator has its FIN, from now on or already.
    pub responder_finished: bool,
    /// Traffic from the side that began the flow.
    pub from_initiator: Traffic,
    /// Traffic from the other side.
    pub from_responder: Traffic,
    /// Segments that a kernel socket has sent to the guest again.
    pub retransmissions: u32,
    /// Ends of the last turn's moves, from the initiator and from the responder.
    pub until: [MovedUntil; 2],
}

impl CarriedProgress {
    /// Adds what came after it.
    pub fn add(&mut self, later: &Self) {
        let Self { connected, initiator_finished, responder_finished, .. } = *later;
        self.connected |= connected;
        self.initiator_finished |= initiator_finished;
        self.responder_finished |= responder_finished;
        self.from_initiator += later.from_initiator;
        self.from_responder += later.from_responder;
        self.retransmissions += later.retransmissions;
        self.until = later.until;
    }
}

/// A carried flow with which the driver goes on after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumed {
    /// The carrier's number for it.
    pub number: u32,
    /// Bytes of a splice that were ever moved from the initiator, and from the responder.
    pub moved: Option<[u64; 2]>,
}

/// One carried flow.
#[derive(Debug)]
pub(crate) struct CarriedFlow {
    id: FlowId,
    number: u32,
    opening: Opening,
    opened_at: Instant,
    used_at: Instant,
    /// Connected, or answered by a datagram.
    answered: bool,
    /// A splice's streams that have ended.
    initiator_finished: bool,
    responder_finished: bool,
    /// Duration of the connect, of a splice.
    connect: Option<Duration>,
    from_initiator: Traffic,
    from_responder: Traffic,
    ended: bool,
    /// The driver has closed it and needs no notice.
    closed: bool,
    pub(crate) cause: EndCause,
}

impl CarriedFlow {
    /// A flow that begins at `now`; `number` is the carrier's.
    pub(crate) fn new(id: FlowId, number: u32, opening: Opening, now: Instant) -> Self {
        Self {
            id,
            number,
            opening,
            opened_at: now,
            used_at: now,
            answered: false,
            initiator_finished: false,
            responder_finished: false,
            connect: None,
            from_initiator: Traffic::default(),
            from_responder: Traffic::default(),
            ended: false,
            closed: false,
            cause: EndCause::TimedOut,
        }
    }

    /// Adds moved payload to the counts.
    pub(crate) fn progress(&mut self, shared: &mut Shared, now: Instant, progress: &CarriedProgress) {
        let CarriedProgress { connected, from_initiator, from_responder, .. } = progress;
        self.used_at = now;
        self.initiator_finished |= progress.initiator_finished;
        self.responder_finished |= progress.responder_finished;
        self.from_initiator += *from_initiator;
        self.from_responder += *from_responder;
        let bytes = from_initiator.bytes + from_responder.bytes;
        match self.opening.carrier {
            Carrier::Splice => shared.counters.splice_bytes += bytes,
            Carrier::Relay | Carrier::Stack | Carrier::Kernel => shared.counters.relay_bytes += bytes,
        }
        if *connected && self.connect.is_none() {
            self.connect = Some(now - self.opened_at);
        }
        self.answered |= *connected || from_responder.packets > 0;
    }

    /// The driver has closed its sockets.
    pub(crate) fn close(&mut self, cause: EndCause) {
        (self.ended, self.closed, self.cause) = (true, true, cause);
    }

    /// Writes the stack's part of its record.
    pub(crate) fn write_journal(&self, journal: &Journal) {
        let Self { id, opening, opened_at, answered, connect, from_initiator, from_responder, .. } = *self;
        let Opening { key, initiator, .. } = opening;
        let state = CarriedState { initiator, answered, connect, from_initiator, from_responder };
        journal.carried(id, &key, opened_at, &state);
    }

    /// A flow that has outlived a crash, as `resumed` by the driver.
    pub(crate) fn recover(
        id: FlowId,
        key: FlowKey,
        opened_at: Instant,
        state: &CarriedState,
        resumed: &Resumed,
        now: Instant,
    ) -> Self {
        let CarriedState { initiator, answered, connect, from_initiator, from_responder } = *state;
        let carrier = if key.protocol == Protocol::Tcp { Carrier::Splice } else { Carrier::Relay };
        let opening = Opening { key, initiator, carrier };
        let mut flow = Self {
            opened_at,
            used_at: now,
            answered,
            connect,
            from_initiator,
            from_responder,
            ..Self::new(id, resumed.number, opening, now)
        };
        if let Some([initiator, responder]) = resumed.moved {
            flow.from_initiator.bytes = initiator;
            flow.from_responder.bytes = responder;
        }
        flow
    }

    fn is_relay(&self) -> bool {
        self.opening.carrier == Carrier::Relay
    }

    fn state(&self) -> FlowState {
        match (self.opening.key.protocol, self.answered) {
            (Protocol::Tcp, true) => FlowState::Tcp(self.tcp_state()),
            (Protocol::Tcp, false) => FlowState::Tcp(State::SynSent),
            (_, true) => FlowState::Active,
            (_, false) => FlowState::Unanswered,
        }
    }

    /// State of an open splice toward the guest, as far as the streams' ends tell it.
    fn tcp_state(&self) -> State {
        let finished = [self.initiator_finished, self.responder_finished];
        let [guest, host] = match self.opening.initiator {
            Initiator::Guest => finished,
            Initiator::Peer => [finished[1], finished[0]],
        };
        State::of_ends(guest, host)
    }

    fn timeout(&self, shared: &Shared) -> Duration {
        let timeouts = &shared.config.timeouts;
        if self.answered { timeouts.udp_stream } else { timeouts.udp_single }
    }
}

impl Keyed for CarriedFlow {
    fn key(&self) -> &FlowKey {
        &self.opening.key
    }
}

impl FlowKind for CarriedFlow {
    fn initiator(&self) -> Initiator {
        self.opening.initiator
    }

    /// None: its sockets are the carrier's.
    fn socket(&self) -> Option<SocketId> {
        None
    }

    fn info(&self, _: &Shared, now: Instant) -> FlowInfo {
        let (from_guest, to_guest) = match self.opening.initiator {
            Initiator::Guest => (self.from_initiator, self.from_responder),
            Initiator::Peer => (self.from_responder, self.from_initiator),
        };
        FlowInfo {
            carrier: self.opening.carrier,
            state: self.state(),
            age: now - self.opened_at,
            from_guest,
            to_guest,
            connect: self.connect,
            ..FlowInfo::blank(self.id, self.opening.key, self.opening.initiator)
        }
    }

    fn allocated(&self) -> usize {
        0
    }

    fn eviction_class(&self) -> EvictionClass {
        if self.answered { EvictionClass::InUse } else { EvictionClass::Unanswered }
    }

    /// As of a connection or a conversation of the stack: a splice in use is not evicted.
    fn eviction_rank(&self, idle: Duration) -> Option<EvictionRank> {
        let dormant_after = if self.is_relay() { RELAY_DORMANT_AFTER } else { SPLICE_DORMANT_AFTER };
        match self.eviction_class() {
            EvictionClass::InUse if idle >= dormant_after => Some(EvictionRank(EvictionClass::Dormant, idle)),
            EvictionClass::InUse if !self.is_relay() => None,
            class => Some(EvictionRank(class, idle)),
        }
    }

    fn has_ended(&self) -> bool {
        self.ended
    }

    /// No event of a carrier's socket comes here.
    fn socket_event<P: Platform>(&mut self, _: &mut Cx<'_, P>, _: Readiness) {}

    /// No payload of a carrier passes the stack.
    fn serve<P: Platform>(&mut self, _: &mut Cx<'_, P>, _: &mut Buffers) {}

    fn expire<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.is_relay() && cx.now - self.used_at >= self.timeout(cx.shared) {
            self.cause = if self.answered { EndCause::Finished } else { EndCause::TimedOut };
            self.ended = true;
        }
    }

    /// Loopbacks stay.
    fn network_changed<P: Platform>(&mut self, _: &mut Cx<'_, P>) {}

    fn revoke<P: Platform>(&mut self, _: &mut Cx<'_, P>, cause: EndCause) {
        (self.cause, self.ended) = (cause, true);
    }

    fn reschedule(&mut self, shared: &mut Shared) {
        if self.is_relay() {
            shared.timers.arm(self.id, self.used_at + self.timeout(shared));
        }
        self.write_journal(&shared.journal);
    }

    fn dispose<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if !self.closed {
            let Opening { carrier, .. } = self.opening;
            cx.shared.released.push(Released { flow: self.id, carrier, number: self.number });
        }
        cx.shared.counters.carried_closed += 1;
    }
}
/// For a snapshot.
impl CarriedFlow {
    /// Saved form.
    pub(crate) fn save(&self) -> CarriedV1 {
        let Self { id: _, number, opening, opened_at, used_at, answered, connect, .. } = self;
        let Self { from_initiator, from_responder, initiator_finished, responder_finished, .. } = self;
        let Self { ended, closed, cause, .. } = self;
        debug_assert!(!ended && !closed, "a flow that is over is removed at once");
        let Opening { key: _, initiator, carrier } = opening;
        CarriedV1 {
            number: *number,
            initiator: initiator.save(),
            carrier: carrier.save(),
            opened_at: opened_at.save(),
            used_at: used_at.save(),
            answered: *answered,
            connect: connect.save(),
            from_initiator: from_initiator.save(),
            from_responder: from_responder.save(),
            initiator_finished: *initiator_finished,
            responder_finished: *responder_finished,
            cause: cause.save(),
        }
    }

    /// Flow of a saved form; `number` is the carrier's present number for it.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts itself.
    pub(crate) fn restore(id: FlowId, key: FlowKey, number: u32, saved: &CarriedV1) -> Result<Self, Invalid> {
        let carrier = Carrier::restore(saved.carrier)?;
        valid(match carrier {
            Carrier::Stack | Carrier::Kernel => false,
            Carrier::Splice => key.protocol == Protocol::Tcp,
            Carrier::Relay => key.protocol == Protocol::Udp,
        })?;
        Ok(Self {
            id,
            number,
            opening: Opening { key, initiator: Initiator::restore(saved.initiator)?, carrier },
            opened_at: Instant::restore(saved.opened_at)?,
            used_at: Instant::restore(saved.used_at)?,
            answered: saved.answered,
            connect: Saved::restore(saved.connect)?,
            from_initiator: Traffic::restore(saved.from_initiator)?,
            from_responder: Traffic::restore(saved.from_responder)?,
            initiator_finished: saved.initiator_finished,
            responder_finished: saved.responder_finished,
            ended: false,
            closed: false,
            cause: EndCause::restore(saved.cause)?,
        })
    }
}
