//! What all flows of one worker share: configuration, counters, memory, timers, and the lists of flows that have
//! something to do.
//!
//! Handed to every flow's methods beside the flow itself, so that a flow can borrow it while the table lends the flow.

use crate::budget::{Budget, Need};
use crate::chunk::Pool;
use crate::config::Config;
use crate::counters::Counters;
use crate::dns::Dns;
use crate::flow::FlowId;
use crate::icmp;
use crate::link::LinkCaps;
use crate::rate::Bucket;
use crate::schedule::Schedule;
use crate::slots::Slots;
use crate::tcp::answer::Habits;
use crate::tcp::isn::IsnKey;
use crate::tcp::rtt::LinkRtt;
use crate::tcp::scoreboard::Lists;
use crate::time::Instant;
use crate::timer::Wheel;
use crate::transmit::Outlet;
use crate::waiting::Waiting;
use crate::wire::ethernet::MacAddr;
use std::sync::Arc;

pub(crate) struct Env {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    pub(crate) pool: Pool,
    pub(crate) wheel: Wheel,
    pub(crate) outlet: Outlet,
    pub(crate) isn: IsnKey,
    /// Round-trip time of the guest link, shared by all its connections.
    pub(crate) rtt: LinkRtt,
    /// Flows to be served.
    pub(crate) schedule: Schedule,
    /// TCP flows that wait for memory to read from their host socket.
    pub(crate) reads: Waiting,
    /// TCP flows that wait for memory to open their window.
    pub(crate) windows: Waiting,
    /// TCP flows that owe the guest an acknowledgement at the end of this turn, each at most once.
    pub(crate) ack_due: Vec<FlowId>,
    /// Bytes of datagrams that wait for room in their host sockets.
    pub(crate) held: usize,
    /// For what connections remember of their flights.
    pub(crate) lists: Lists,
    /// How promptly destinations answer.
    pub(crate) habits: Habits,
    /// What is left of the ICMP errors that the guest may be sent.
    pub(crate) icmp_errors: Bucket,
    /// What all questions about names share.
    pub(crate) dns: Dns,
}

impl Env {
    /// For the worker of this number, which shares `budget` with the others.
    pub(crate) fn new(
        config: Config,
        caps: LinkCaps,
        isn: [u8; 16],
        budget: Arc<Budget>,
        worker: u32,
    ) -> Self {
        Self {
            reads: Waiting::new(budget.clone(), Need::Read, worker),
            windows: Waiting::new(budget.clone(), Need::Window, worker),
            pool: Pool::new(budget),
            counters: Counters::default(),
            wheel: Wheel::default(),
            outlet: Outlet {
                caps,
                mac: config.mac,
                guest_mac: config.guest_mac.unwrap_or(MacAddr::BROADCAST),
                ident: 0,
                stalled: false,
                slots: Slots::default(),
            },
            isn: IsnKey(isn),
            rtt: LinkRtt::default(),
            schedule: Schedule::default(),
            ack_due: Vec::new(),
            held: 0,
            lists: Lists::default(),
            habits: Habits::default(),
            icmp_errors: Bucket::new(icmp::ERROR_INTERVAL, icmp::ERROR_BURST),
            dns: Dns::new(&config),
            config,
        }
    }

    /// The resolver to be asked first, by its place among them.
    pub(crate) fn resolver(&self, now: Instant) -> Option<usize> {
        self.dns.preference.next(now, self.config.resolvers.len(), 0)
    }

    /// The flows with this need.
    pub(crate) fn waiting(&mut self, need: Need) -> &mut Waiting {
        match need {
            Need::Read => &mut self.reads,
            Need::Window => &mut self.windows,
        }
    }
}
