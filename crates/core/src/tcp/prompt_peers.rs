//! Prompt peers: the destinations whose requests are answered so promptly that an acknowledgement may wait
//! for the answer ([`super::delayed_ack`]).
//!
//! A destination is prompt once its last [`NEED_MIN`] requests were each one segment and were answered in
//! time. A guest that writes a request in two pieces holds the second one back until the first is
//! acknowledged (Nagle), and so does one whose congestion window is small: there both sides wait for the
//! acknowledgement. Such requests are more than one segment, so they never make a destination prompt. A late
//! answer begins the count anew. If the guest then sends more before the answer, it was waiting for the
//! acknowledgement: that doubles the count needed, up to [`NEED_MAX`], so that a guest whose requests change
//! every few times waits for one in a hundred.
//!
//! The record belongs to a destination, not to a connection: that makes the first request of a short
//! connection, and its FIN, cheap.

use crate::flow::Endpoint;
use crate::snapshot::saved::{Invalid, Saved, saved_struct};
use crate::snapshot::v1::{PromptPeerV1, PromptnessV1};
use std::net::IpAddr;

/// Streak of prompt answers that makes a destination prompt: at first, and after repeated harm.
const NEED_MIN: u8 = 4;
const NEED_MAX: u8 = 128;
/// Size of the table of destinations, as a power of two; destinations whose hashes meet take turns.
const DESTINATIONS_BITS: u32 = 9;

/// Record of one destination's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Promptness {
    /// Requests in a row that were one segment and were answered promptly, up to 255.
    streak: u8,
    /// Streak that makes it prompt.
    need: u8,
}

impl Promptness {
    const NONE: Self = Self { streak: 0, need: NEED_MIN };

    /// Whether the destination is prompt.
    pub(crate) fn is_prompt(self) -> bool {
        self.streak >= self.need
    }

    /// Prompt answer to a request of one segment.
    pub(crate) fn record_prompt(&mut self) {
        self.streak = self.streak.saturating_add(1);
        if self.streak == u8::MAX {
            self.need = NEED_MIN;
        }
    }

    /// Late answer, or one to a request of several segments.
    pub(crate) fn record_late(&mut self) {
        self.streak = 0;
    }

    /// Harm: the guest held data back until the delayed acknowledgement came.
    pub(crate) fn record_harm(&mut self) {
        *self = Self { streak: 0, need: self.need.saturating_mul(2).min(NEED_MAX) };
    }
}

/// Records by destination, in a table of fixed size.
#[derive(Debug)]
pub(crate) struct PromptPeers(Box<[(u32, Promptness)]>);

impl Default for PromptPeers {
    fn default() -> Self {
        Self(vec![(0, Promptness::NONE); 1 << DESTINATIONS_BITS].into_boxed_slice())
    }
}

impl PromptPeers {
    /// Record of `remote`; an empty one if it is not remembered.
    pub(crate) fn of(&self, remote: &Endpoint) -> Promptness {
        let mark = mark(remote);
        let (known, record) = self.0[place(mark)];
        if known == mark { record } else { Promptness::NONE }
    }

    /// Keeps the record of `remote`, in the place of any other.
    pub(crate) fn keep(&mut self, remote: &Endpoint, record: Promptness) {
        let mark = mark(remote);
        self.0[place(mark)] = (mark, record);
    }
}

/// Hash of a destination. A guest that makes two meet spoils only its own acknowledgements.
fn mark(remote: &Endpoint) -> u32 {
    let address = match remote.ip() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() ^ (ip.to_bits() >> 64)) as u64,
    };
    let mixed = (address ^ (u64::from(remote.port()) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}

/// Place in the table. A multiplication carries differences upward: the highest bits depend on all others.
const fn place(mark: u32) -> usize {
    (mark >> (u32::BITS - DESTINATIONS_BITS)) as usize
}

saved_struct!(Promptness as PromptnessV1 { streak, need } if |record| {
    (NEED_MIN..=NEED_MAX).contains(&record.need)
});

/// Only records that say something.
impl Saved<Vec<PromptPeerV1>> for PromptPeers {
    fn save(&self) -> Vec<PromptPeerV1> {
        let known = self.0.iter().filter(|(mark, record)| *mark != 0 || *record != Promptness::NONE);
        known.map(|(mark, record)| PromptPeerV1 { mark: *mark, promptness: record.save() }).collect()
    }

    fn restore(saved: Vec<PromptPeerV1>) -> Result<Self, Invalid> {
        let mut peers = Self::default();
        for PromptPeerV1 { mark, promptness } in saved {
            peers.0[place(mark)] = (mark, Promptness::restore(promptness)?);
        }
        Ok(peers)
    }
}

#[cfg(test)]
mod tests;
