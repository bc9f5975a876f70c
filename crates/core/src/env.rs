//! What all flows of one worker share: configuration, counters, memory, timers, and the lists of flows that have
//! something to do.
//!
//! Handed to every flow's methods beside the flow itself, so that a flow can borrow it while the table lends the flow.

use crate::chunk::Pool;
use crate::config::Config;
use crate::counters::Counters;
use crate::flow::FlowId;
use crate::link::LinkCaps;
use crate::tcp::isn::IsnKey;
use crate::tcp::rtt::LinkRtt;
use crate::timer::Wheel;
use crate::transmit::Outlet;
use crate::wire::ethernet::MacAddr;
use std::collections::VecDeque;

pub(crate) struct Env {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    pub(crate) pool: Pool,
    pub(crate) wheel: Wheel,
    pub(crate) outlet: Outlet,
    pub(crate) isn: IsnKey,
    /// Round-trip time of the guest link, shared by all its connections.
    pub(crate) rtt: LinkRtt,
    /// Flows to be served, each at most once (the flow remembers that it is listed).
    pub(crate) ready: VecDeque<FlowId>,
    /// TCP flows that owe the guest an acknowledgement at the end of this turn, each at most once.
    pub(crate) ack_due: Vec<FlowId>,
    /// Bytes of datagrams that wait for room in their host sockets.
    pub(crate) held: usize,
    /// Which of the host's resolvers is asked; moves on when one does not answer.
    pub(crate) resolver: usize,
}

impl Env {
    pub(crate) fn new(config: Config, caps: LinkCaps, isn: [u8; 16]) -> Self {
        Self {
            pool: Pool::new(config.memory),
            counters: Counters::default(),
            wheel: Wheel::default(),
            outlet: Outlet { caps, mac: config.mac, guest_mac: MacAddr::BROADCAST, stalled: false },
            isn: IsnKey(isn),
            rtt: LinkRtt::default(),
            ready: VecDeque::new(),
            ack_due: Vec::new(),
            held: 0,
            resolver: 0,
            config,
        }
    }
}
