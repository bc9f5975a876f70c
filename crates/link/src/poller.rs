//! Registration with the loop: its epoll instance, as one of the loop's sources sees it, and the number that
//! an event carries.
//!
//! Flows and sources share one instance. The event of a flow's socket carries the flow's id; that of any
//! other descriptor the source it belongs to and a key by which the source tells its descriptors apart. The
//! two are kept apart by the upper half of the number: slots of flows count from 0 up, sources from the top
//! down.

use brodo_core::flow::FlowId;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Result;
use std::os::fd::{AsFd, BorrowedFd};

/// Most sources; no flow has a slot in their range.
const SOURCES_MAX: u32 = 64;

/// The origin of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// The socket of a flow.
    Flow(FlowId),
    /// A descriptor of a source, with the key of its registration.
    Source {
        /// Number of the source.
        source: u32,
        /// Key, chosen by the source.
        key: u32,
    },
}

impl Token {
    /// The number stored in epoll.
    pub fn data(self) -> u64 {
        match self {
            Self::Flow(flow) => flow.to_bits(),
            Self::Source { source, key } => {
                debug_assert!(source < SOURCES_MAX, "source {source} would be taken for a flow");
                FlowId { index: u32::MAX - source, generation: key }.to_bits()
            }
        }
    }

    /// The reverse of [`Token::data`].
    pub fn read(data: u64) -> Self {
        let flow = FlowId::from_bits(data);
        let source = u32::MAX - flow.index;
        if source < SOURCES_MAX { Self::Source { source, key: flow.generation } } else { Self::Flow(flow) }
    }
}

/// The loop's epoll instance, for the descriptors of one source.
#[derive(Debug, Clone, Copy)]
pub struct Poller<'a> {
    epoll: BorrowedFd<'a>,
    source: u32,
}

impl<'a> Poller<'a> {
    /// For source number `source`.
    pub fn new(epoll: BorrowedFd<'a>, source: u32) -> Self {
        Self { epoll, source }
    }

    fn data(self, key: u32) -> EventData {
        EventData::new_u64(Token::Source { source: self.source, key }.data())
    }

    /// Reports events of `fd` under `key` until [`Poller::remove`] or the close of the last copy of `fd`.
    ///
    /// # Errors
    /// epoll_ctl: the descriptor is registered already, cannot be waited for, or memory is short.
    pub fn add(&self, fd: impl AsFd, key: u32, events: EventFlags) -> Result<()> {
        epoll::add(self.epoll, fd, self.data(key), events)
    }

    /// Changes the events of a registered descriptor. An event that is ready already is reported at once.
    ///
    /// # Errors
    /// epoll_ctl: the descriptor is not registered.
    pub fn modify(&self, fd: impl AsFd, key: u32, events: EventFlags) -> Result<()> {
        epoll::modify(self.epoll, fd, self.data(key), events)
    }

    /// Ends the registration of a descriptor.
    ///
    /// # Errors
    /// epoll_ctl: the descriptor is not registered.
    pub fn remove(&self, fd: impl AsFd) -> Result<()> {
        epoll::delete(self.epoll, fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        let flow = FlowId { index: 70_000, generation: u32::MAX };
        for token in [
            Token::Flow(flow),
            Token::Source { source: 0, key: 0 },
            Token::Source { source: SOURCES_MAX - 1, key: u32::MAX },
        ] {
            assert_eq!(Token::read(token.data()), token);
        }
    }
}
