//! State that all TCP connections of one worker share.

use super::isn::IsnKey;
use super::prompt_peers::PromptPeers;
use super::rtt::LinkRtt;
use super::scoreboard::Lists;
use crate::flow::FlowId;

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
        }
    }
}
