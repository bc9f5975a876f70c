//! The sources of one worker, and the order of their turns.

use super::extra::ExtraDescriptors;
use super::waker::Waker;
use crate::forward::Forwards;
use crate::host_network::HostNetSubscription;
use crate::promotions::Promotions;
use crate::source::{Source, SourceId, Turn};
use crate::txqueuelen::TxQueueLenFollower;
use brodo_core::time::Instant;
use brodo_link::GuestLink;
use std::io;
use std::os::fd::BorrowedFd;

/// All sources of a worker but the link, which is the loop's own.
pub(super) struct Sources {
    pub(super) waker: Waker,
    pub(super) txqueuelen: Option<TxQueueLenFollower>,
    pub(super) host_network: Option<HostNetSubscription>,
    pub(super) forwards: Option<Box<Forwards>>,
    pub(super) promotions: Option<Box<Promotions>>,
    pub(super) extra: ExtraDescriptors,
}

impl Sources {
    /// A source by its name, if this worker has it.
    pub(super) fn get<L: GuestLink>(&mut self, id: SourceId) -> Option<&mut dyn Source<L>> {
        match id {
            SourceId::Link => None,
            SourceId::Waker => Some(&mut self.waker),
            SourceId::TxQueueLen => self.txqueuelen.as_mut().map(|it| it as _),
            SourceId::HostNetwork => self.host_network.as_mut().map(|it| it as _),
            SourceId::Forwards => self.forwards.as_deref_mut().map(|it| it as _),
            SourceId::Promotions => self.promotions.as_deref_mut().map(|it| it as _),
            SourceId::Extra => Some(&mut self.extra),
        }
    }

    /// Registers the descriptors of all sources.
    ///
    /// # Errors
    /// epoll_ctl failed.
    pub(super) fn register<L: GuestLink>(&mut self, epoll: BorrowedFd<'_>) -> io::Result<()> {
        for id in SourceId::ALL {
            if let Some(source) = self.get::<L>(id) {
                source.register(id.poller(epoll))?;
            }
        }
        Ok(())
    }

    /// Closes pipes that are kept for reuse.
    pub(super) fn give_up_idle_pipes(&mut self) {
        if let Some(forwards) = &mut self.forwards {
            forwards.give_up_idle_pipes();
        }
        if let Some(promotions) = &self.promotions {
            promotions.give_up_idle_pipes();
        }
    }

    /// The earliest deadline of all.
    pub(super) fn deadline<L: GuestLink>(&mut self) -> Option<Instant> {
        SourceId::ALL.into_iter().filter_map(|id| self.get::<L>(id)?.deadline()).min()
    }

    /// Turns before frames are taken: sources that change the answers to frames, and that of older frames.
    pub(super) fn turn_before_frames<L: GuestLink>(&mut self, turn: &mut Turn<'_, L>) {
        for id in [SourceId::TxQueueLen, SourceId::HostNetwork, SourceId::Waker] {
            if let Some(source) = self.get(id) {
                source.turn(turn);
            }
        }
    }

    /// Turns after the events of sockets, before flows are served: sources that begin flows, or carry them.
    /// True if more work is ready.
    pub(super) fn turn_before_flows<L: GuestLink>(&mut self, turn: &mut Turn<'_, L>) -> bool {
        let mut busy = false;
        for id in [SourceId::Forwards, SourceId::Promotions] {
            busy |= self.get(id).is_some_and(|source| source.turn(turn));
        }
        busy
    }
}
