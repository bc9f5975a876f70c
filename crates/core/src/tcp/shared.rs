//! State that all TCP connections of one worker share.

use super::isn::IsnKey;
use super::prompt_peers::PromptPeers;
use super::rtt::LinkRtt;
use super::scoreboard::Lists;
use crate::flow::FlowId;
use crate::time::Instant;

/// State that all TCP connections of one worker share.
#[derive(Debug)]
pub(crate) struct TcpShared {
    /// The secret of initial sequence numbers.
    pub(crate) isn: IsnKey,
    /// Round-trip time of the guest link.
    pub(crate) rtt: LinkRtt,
    /// Acknowledgements due at the end of this turn, by flow, each at most once.
    pub(crate) ack_due: Vec<FlowId>,
    /// Free lists of the scoreboards.
    pub(crate) lists: Lists,
    /// Destinations that answer promptly.
    pub(crate) prompt_peers: PromptPeers,
    /// Connections that a kernel socket has, or is to have.
    pub(crate) away: usize,
    /// A connection has found no place among them, since the last look for one that is idle.
    pub(crate) place_wanted: bool,
    /// Time of that look.
    pub(crate) place_sought_at: Instant,
}

impl TcpShared {
    /// For a new worker; `isn` is the secret of its initial sequence numbers.
    pub(crate) fn new(isn: [u8; 16]) -> Self {
        Self {
            isn: IsnKey(isn),
            rtt: LinkRtt::default(),
            ack_due: Vec::new(),
            lists: Lists::default(),
            prompt_peers: PromptPeers::default(),
            away: 0,
            place_wanted: false,
            place_sought_at: Instant::ZERO,
        }
    }
}
