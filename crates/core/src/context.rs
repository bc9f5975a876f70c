//! The context of one call into the stack: the time, what the platform provides, and the state that all
//! flows share.
//!
//! A driver gives each entry point of [`crate::stack::Stack`] an [`Io`]: the time of the turn, the guest
//! link, the host's sockets and the observer. The stack adds the state that the flows of one worker
//! share and hands a [`Cx`] to the methods of a flow, so that a flow can use it while the table lends
//! the flow. [`Shared`] has narrow parts: a function that needs one of them takes that part.
//!
//! [`Platform`] names the three implementations as one type parameter; everything is monomorphised,
//! nothing is boxed.

use crate::config::{Config, Keys};
use crate::counters::Counters;
use crate::dns::Dns;
use crate::egress::{Egress, TxState};
use crate::flow::info::Released;
use crate::host::Host;
use crate::journal::Journal;
use crate::link::{Link, LinkCaps};
use crate::memory::Memory;
use crate::memory::budget::Budget;
use crate::rate::Bucket;
use crate::schedule::Schedule;
use crate::services::icmp_error;
use crate::standing_queue::StandingQueue;
use crate::tcp::shared::TcpShared;
use crate::time::Instant;
use crate::timer::Wheel;
use crate::trace::Observer;
use std::net::IpAddr;
use std::sync::Arc;

/// Platform of a driver: a guest link, host sockets, and an observer.
pub trait Platform {
    /// Toward the guest.
    type Link: Link;
    /// Toward the host's network.
    type Host: Host;
    /// Receiver of trace events.
    type Observer: Observer;
}

/// Environment of one call of the driver into the stack.
pub struct Io<'a, P: Platform> {
    /// The time of this loop turn.
    pub now: Instant,
    /// Toward the guest.
    pub link: &'a mut P::Link,
    /// Toward the host.
    pub host: &'a mut P::Host,
    /// Receiver of trace events.
    pub observer: &'a mut P::Observer,
}

impl<P: Platform> Io<'_, P> {
    /// Context for the methods of a flow: this environment with the shared state.
    #[inline]
    pub(crate) fn cx<'b>(&'b mut self, shared: &'b mut Shared) -> Cx<'b, P> {
        Cx { now: self.now, link: self.link, host: self.host, observer: self.observer, shared }
    }
}

/// The context of a flow's method.
pub(crate) struct Cx<'a, P: Platform> {
    /// The time of this loop turn.
    pub(crate) now: Instant,
    /// Toward the guest.
    pub(crate) link: &'a mut P::Link,
    /// Toward the host.
    pub(crate) host: &'a mut P::Host,
    /// Receiver of trace events.
    pub(crate) observer: &'a mut P::Observer,
    /// State shared by all flows of the worker.
    pub(crate) shared: &'a mut Shared,
}

impl<P: Platform> Cx<'_, P> {
    /// The way to the guest.
    #[inline]
    pub(crate) fn egress(&mut self) -> Egress<'_, P::Link> {
        let Shared { tx, counters, journal, .. } = &mut *self.shared;
        Egress { tx, counters, journal, link: self.link }
    }
}

/// State shared by all flows of one worker.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    /// Payload memory, and the flows parked for it.
    pub(crate) memory: Memory,
    pub(crate) timers: Wheel,
    /// Flows to be served.
    pub(crate) ready: Schedule,
    /// The way to the guest: link capabilities, MAC addresses, credit.
    pub(crate) tx: TxState,
    /// Frames of the guest that wait on the link.
    pub(crate) standing_queue: StandingQueue,
    /// State shared by TCP connections.
    pub(crate) tcp: TcpShared,
    /// Bytes of datagrams queued for host sockets without room.
    pub(crate) datagrams_held: usize,
    /// Rate limit of ICMP errors to the guest.
    pub(crate) icmp_errors: Bucket,
    /// Carried flows that were ended here, for the driver to close their sockets.
    pub(crate) released: Vec<Released>,
    /// Connections behind a closed gate.
    pub(crate) closed_gates: u32,
    /// Flows of QUIC behind gates, which read as long as the flow lives.
    pub(crate) quic_gates: u32,
    /// State shared by DNS queries: cache, host entries, resolver preference.
    pub(crate) dns: Dns,
    /// Records of the flows for a recovery.
    pub(crate) journal: Journal,
}

impl Shared {
    /// State of worker number `worker`, which shares `budget` with the others.
    pub(crate) fn new(config: Config, caps: LinkCaps, keys: &Keys, budget: Arc<Budget>, worker: u32) -> Self {
        Self {
            memory: Memory::new(budget, worker),
            counters: Counters::default(),
            timers: Wheel::default(),
            ready: Schedule::default(),
            tx: TxState::new(&config, caps),
            standing_queue: StandingQueue::default(),
            tcp: TcpShared::new(keys.isn),
            datagrams_held: 0,
            released: Vec::new(),
            closed_gates: 0,
            quic_gates: 0,
            icmp_errors: Bucket::new(icmp_error::INTERVAL, icmp_error::BURST),
            dns: Dns::new(&config, keys.dns),
            journal: Journal::default(),
            config,
        }
    }

    /// Longest packet to the guest, in bytes: by the MTU, and by the buffers of its driver.
    pub(crate) fn packet_max(&self) -> u16 {
        self.tx.caps.packet_max.map_or(self.config.mtu, |most| most.min(self.config.mtu))
    }

    /// Longest packet of a datagram to `guest` that is not fragmented, in bytes: by the link, and over IPv6
    /// by the MTU reported of paths within the guest. Over IPv4 the guest's own routers fragment.
    pub(crate) fn datagram_mtu(&self, now: Instant, guest: IpAddr) -> u16 {
        let reported = self.tx.across.path_mtu(now).filter(|_| guest.is_ipv6());
        reported.map_or(self.packet_max(), |reported| reported.min(self.packet_max()))
    }

    /// Index of the upstream resolver to connect to first.
    pub(crate) fn resolver(&self, now: Instant) -> Option<usize> {
        self.dns.preference.next_to_connect(now, self.config.resolvers.len(), 0)
    }

    /// The same for questions over TCP: the one whose answer was cut lately, because the guest asks it again
    /// (RFC 7766, section 5), and those before it may know nothing of the name.
    pub(crate) fn resolver_of_questions(&self, now: Instant) -> Option<usize> {
        let count = self.config.resolvers.len();
        let cut = self.tx.across.cut_by(now);
        let cut = cut.filter(|&r| r < count && !self.dns.preference.refuses_connects(r, now));
        cut.or_else(|| self.resolver(now))
    }
}
