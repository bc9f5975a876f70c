//! Splices of promoted connections ([`crate::promotions`]): paused while the kernel socket is frozen, and
//! taken apart with the bytes that are in the pipes when the connection goes back to the stack.
//!
//! Both ends are further descriptors of sockets that the caller keeps, so what closes them here ends no
//! connection; a failure of one socket marks both for a reset (SO_LINGER 0).
//!
//! System calls: as of [`super`]; read.

use super::{Filled, Pair, Splices, Way};
use crate::inherited::progress::EndProgress;
use brodo_core::flow::FlowId;
use brodo_core::flow::info::Initiator;
use rustix::event::epoll::{self, EventData};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::retry_on_intr;

/// Bytes that were on their way when a connection was taken apart.
#[derive(Debug)]
pub(crate) struct Taken {
    /// From the initiator.
    pub(crate) from_initiator: Vec<u8>,
    /// From the responder.
    pub(crate) from_responder: Vec<u8>,
}

/// A promoted connection of another process; all in pairs, the initiator's first.
pub(crate) struct Rejoined {
    pub(crate) flow: FlowId,
    pub(crate) initiator: Initiator,
    pub(crate) ends: [OwnedFd; 2],
    pub(crate) pipes: [Option<Filled>; 2],
    /// Counts of the kernel's, and ends of the streams.
    pub(crate) progress: [EndProgress; 2],
}

impl Splices {
    /// Whether there is room for one more connection, and a pipe at least.
    pub(crate) fn has_room(&mut self) -> bool {
        if self.pairs.len() < self.max
            && self.pipes.made == 0
            && let Some(pipe) = self.pipes.take()
        {
            self.pipes.put(pipe);
        }
        self.pairs.len() < self.max && self.pipes.made > 0
    }

    /// Joins two connected sockets of a promoted connection, the initiator's first; gives the number.
    /// `None` if epoll does not take one of them.
    pub(crate) fn join_promoted(
        &mut self,
        epoll: BorrowedFd<'_>,
        flow: FlowId,
        initiator: Initiator,
        ends: [OwnedFd; 2],
        event: impl Fn(u32) -> EventData,
    ) -> Option<u32> {
        let pair = Pair { promoted: true, ..Pair::new(flow, initiator, ends) };
        self.insert(epoll, pair, event).ok()
    }

    /// Joins two sockets of a promoted connection of another process, with its pipes and what the kernel
    /// tells of both, at rest or not; gives the number. `None` if epoll does not take one of them: then the
    /// pipes are gone.
    pub(crate) fn rejoin_promoted(
        &mut self,
        epoll: BorrowedFd<'_>,
        pair: Rejoined,
        paused: bool,
        event: impl Fn(u32) -> EventData,
    ) -> Option<u32> {
        let Rejoined { flow, initiator, ends, pipes, progress } = pair;
        let made = pipes.iter().flatten().count();
        let mut pair = Pair { promoted: true, paused, ..Pair::new(flow, initiator, ends) };
        pair.go_on(pipes, &progress);
        let number = self.insert(epoll, pair, event).ok()?;
        self.pipes.made += made;
        Some(number)
    }

    /// Has a connection move nothing, or go on.
    pub(crate) fn pause(&mut self, slot: u32, flow: FlowId, paused: bool) {
        if let Some(pair) = self.pairs.get_mut(slot).filter(|pair| pair.flow == flow) {
            pair.paused = paused;
            self.list(slot);
        }
    }

    /// Bytes in the pipes of a connection, the initiator's direction first.
    pub(crate) fn held(&self, slot: u32, flow: FlowId) -> [usize; 2] {
        let pair = self.pairs.get(slot).filter(|pair| pair.flow == flow);
        pair.map_or([0; 2], |pair| pair.ways.each_ref().map(|way| way.held))
    }

    /// Takes a paused connection apart. `None` if bytes are missing, or it is no longer there.
    pub(crate) fn take(&mut self, epoll: BorrowedFd<'_>, slot: u32, flow: FlowId) -> Option<Taken> {
        self.pairs.get(slot).filter(|pair| pair.flow == flow)?;
        let Pair { ends, ways, .. } = self.pairs.remove(slot)?;
        for end in ends {
            let _ = epoll::delete(epoll, &end.fd);
        }
        let [there, back] = ways.map(|way| self.empty(way));
        Some(Taken { from_initiator: there?, from_responder: back? })
    }

    /// Takes the bytes out of a direction's pipe.
    fn empty(&mut self, way: Way) -> Option<Vec<u8>> {
        let Way { pipe: Some(pipe), held, place, .. } = way else { return Some(Vec::new()) };
        let (mut bytes, mut filled) = (vec![0; held], 0);
        while filled < held {
            match retry_on_intr(|| rustix::io::read(&pipe.from, &mut bytes[filled..])) {
                Ok(count) if count > 0 => filled += count,
                _ => {
                    self.pipes.lost();
                    return None;
                }
            }
        }
        self.pipes.give_back(pipe, place);
        Some(bytes)
    }
}
