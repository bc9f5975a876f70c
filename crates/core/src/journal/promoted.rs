//! Record of a flow that a kernel socket has ([`crate::promotion`]): the connection as it left, and the
//! driver's words about that socket and the pipes.
//!
//! The stack's words stand still while the flow is away. With the bytes that the kernel has counted at the
//! kernel socket they tell where both streams are, so nothing is written for each byte that is spliced.
//!
//! | word | content |
//! |---|---|
//! | 14 | unsettled; kernel socket; write end and read end of the pipe of the initiator's direction |
//! | 15 | write end and read end of the pipe of the responder's direction |
//!
//! *Unsettled* is a kernel socket that the agent has been asked to start, freeze or thaw: whether it has is
//! not known, and it is to be frozen (again). Without a kernel socket nothing was started, and the connection
//! goes on by itself.
//!
//! *Exactness.* Bytes that were read from the kernel socket are in a pipe or were written to the host socket,
//! and the same the other way; a flow of which that is not true is reset.

use super::carried::DriverJournal;
use super::{Slot, get, put};
use crate::key::FlowId;

/// Words of both directions.
const WAYS: [usize; 2] = [14, 15];
/// Bits of a descriptor's number, of which Linux allows some 2^20 (fs.nr_open); a larger one is not found
/// again.
const NUMBER_BITS: u32 = 21;
const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;
const PIPE_BITS: u64 = (1 << (2 * NUMBER_BITS)) - 1;
const UNSETTLED: u64 = 1 << 63;

/// The driver's part of a promoted flow, by numbers of descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromotedRecord {
    /// The kernel socket.
    pub kernel: u32,
    /// Read end and write end of the pipe of each direction, the initiator's first.
    pub pipes: [Option<(u32, u32)>; 2],
    /// The agent was asked for something about the socket, and has not answered.
    pub unsettled: bool,
}

/// Bytes and ends of the streams between a kernel socket and a host socket, as the kernel has counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CarriedOn {
    /// Bytes that were read from the kernel socket.
    pub read: u64,
    /// Bytes that were written to it.
    pub written: u64,
    /// Bytes in the pipes: to the host, and to the guest.
    pub held: [u64; 2],
    /// FIN of the guest received, perhaps behind bytes that were not read.
    pub guest_closed: bool,
    /// The kernel socket was shut down for writing.
    pub shut: bool,
}

/// A number in its bits: one more, and 0 for none.
fn packed(number: u32) -> u64 {
    (u64::from(number) + 1).min(NUMBER_MAX)
}

/// The number in the lowest bits of a word.
fn unpacked(word: u64) -> Option<u32> {
    ((word & NUMBER_MAX) as u32).checked_sub(1)
}

fn pipe(word: u64) -> Option<(u32, u32)> {
    unpacked(word).zip(unpacked(word >> NUMBER_BITS))
}

impl PromotedRecord {
    /// The record in the slot of a flow that is away; `None` if no kernel socket was started.
    pub(super) fn read(slot: &Slot) -> Option<Self> {
        let words = WAYS.map(|at| get(slot, at));
        Some(Self {
            kernel: unpacked(words[0] >> (2 * NUMBER_BITS))?,
            pipes: words.map(pipe),
            unsettled: words[0] & UNSETTLED != 0,
        })
    }

    /// Numbers of its descriptors.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = u32> + use<> {
        let pipes = self.pipes.into_iter().flatten().flat_map(|(from, to)| [from, to]);
        [self.kernel].into_iter().chain(pipes)
    }
}

/// No kernel socket, in the slot of a flow that begins.
pub(super) fn begin(slot: &Slot) {
    for at in WAYS {
        put(slot, at, 0);
    }
}

impl DriverJournal {
    /// A flow that is away is about to have this kernel socket, which is unsettled, and no pipes.
    pub fn promoted(self, flow: FlowId, kernel: u32) {
        let Some(slot) = self.slot_of(flow) else { return };
        put(slot, WAYS[1], 0);
        put(slot, WAYS[0], packed(kernel) << (2 * NUMBER_BITS) | UNSETTLED);
    }

    /// The agent is about to be asked for something about the kernel socket, or has answered.
    pub fn promoted_unsettled(self, flow: FlowId, unsettled: bool) {
        let Some(slot) = self.slot_of(flow) else { return };
        let word = get(slot, WAYS[0]) & !UNSETTLED;
        put(slot, WAYS[0], word | if unsettled { UNSETTLED } else { 0 });
    }

    /// A direction is to use a pipe, or none any more.
    pub(super) fn promoted_pipe(self, flow: FlowId, direction: usize, ends: Option<(u32, u32)>) {
        let (Some(slot), Some(&at)) = (self.slot_of(flow), WAYS.get(direction)) else { return };
        let ends = ends.map_or(0, |(from, to)| packed(from) | packed(to) << NUMBER_BITS);
        put(slot, at, get(slot, at) & !PIPE_BITS | ends);
    }

    /// A flow that is not away any more has no kernel socket: before that is closed.
    pub fn promotion_over(self, flow: FlowId) {
        if let Some(slot) = self.slot_of(flow) {
            begin(slot);
        }
    }
}
