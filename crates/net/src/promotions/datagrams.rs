//! Datagrams that fill the transmit queue of the guest's interface go to a queue of their own for a while.
//!
//! ```text
//!             flood          queue               read empty for CALM, steered no longer
//!  Interface ------> Asked ----------> Diverted ------------------------------------------> Interface
//!      ^               | refused: not again before PAUSE
//!      +---------------+
//! ```
//!
//! The agent steers them ([`crate::promotion::datagram_queue`]); the driver takes them from the TAP
//! ([`DivertedQueue`]): one batch per turn, after the frames of the interface. So the interface has room for
//! all else, and a flood is dropped where only datagrams are. Earlier ones, on the interface, are read first,
//! as far as [`ORDER_MAX`] allows.
//!
//! When the process ends its channel does, and the agent lets datagrams go to the interface again.
//!
//! System calls: readv, `epoll_ctl`.

use super::DATAGRAMS;
use crate::promotion::Refused;
use crate::promotion::client::PromotionAgent;
use crate::source::SourceId;
use brodo_core::link::FRAME_MAX;
use brodo_core::time::{Duration, Instant};
use brodo_link::batch::Batch;
use brodo_link::tap::Tap;
use brodo_link::{EventFlags, GuestLink, Taken};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// Time in which the queue was read empty in every turn, after which datagrams rejoin the interface.
const CALM: Duration = Duration::from_secs(3);
/// Time after the steering's end in which what is left in the queue is taken.
const DRAIN: Duration = Duration::from_millis(20);
/// Wait before the next attempt after one that was refused.
const PAUSE: Duration = Duration::from_secs(10);
/// Interval between two questions for the queue's drops.
const DROPS_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for the interface to be read empty before the queue is read.
const ORDER_MAX: Duration = Duration::from_millis(20);
/// Most frames of an earlier diversion that are dropped: brodo's default length of a TAP's queue.
const LEFT_MAX: usize = 4096;

/// End of a diversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Not yet.
    No,
    /// The agent is to end the steering.
    Asked,
    /// Steered no longer, and read until then.
    At(Instant),
}

/// The queue in use.
#[derive(Debug)]
pub(crate) struct DivertedQueue {
    tap: Tap,
    /// It may have frames.
    readable: bool,
    /// Until when frames of the interface are older; none once it was read empty.
    wait_until: Option<Instant>,
    /// The last turn in which it was not read empty, or its begin.
    full_at: Instant,
    /// For the next question for its drops.
    drops_at: Instant,
    ending: Ending,
    /// It cannot be read any more.
    broken: bool,
}

#[derive(Debug)]
enum State {
    Interface { not_before: Instant },
    Asked,
    Diverted(DivertedQueue),
}

/// The way of the guest's datagrams.
#[derive(Debug)]
pub(super) struct Datagrams {
    state: State,
    /// Datagrams that the queue has dropped, since they were last taken.
    dropped: u64,
    /// The agent's count of them, as last known.
    counted: Option<u64>,
    /// A queue that could not be opened is the agent's to take back.
    give_back: bool,
}

impl Datagrams {
    pub(super) fn new() -> Self {
        let state = State::Interface { not_before: Instant::ZERO };
        Self { state, dropped: 0, counted: None, give_back: false }
    }

    pub(super) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// The queue has frames.
    pub(super) fn ready(&mut self) {
        if let State::Diverted(queue) = &mut self.state {
            queue.readable = true;
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Diverted(queue) => match queue.ending {
                Ending::No => Some(queue.full_at + CALM),
                Ending::Asked => None,
                Ending::At(at) => Some(at),
            },
            State::Interface { .. } | State::Asked => None,
        }
    }

    /// An answer to a request for the queue, or for its drops; true if datagrams have the queue now.
    pub(super) fn diverted(
        &mut self,
        now: Instant,
        epoll: BorrowedFd<'_>,
        queue: Result<Option<OwnedFd>, Refused>,
        dropped: u64,
    ) -> bool {
        self.count(dropped);
        if !matches!(self.state, State::Asked) {
            return false;
        }
        let opened = queue.ok().flatten().and_then(|tap| DivertedQueue::open(tap, epoll, now).ok());
        let is_open = opened.is_some();
        self.give_back = !is_open;
        self.state = opened.map_or(State::Interface { not_before: now + PAUSE }, State::Diverted);
        is_open
    }

    /// The answer to the end of a diversion.
    pub(super) fn rejoined(&mut self, now: Instant, dropped: u64) {
        self.count(dropped);
        if let State::Diverted(queue) = &mut self.state {
            queue.ending = Ending::At(now + DRAIN);
        }
    }

    fn count(&mut self, dropped: u64) {
        let before = self.counted.replace(dropped).unwrap_or(dropped);
        self.dropped += dropped.saturating_sub(before);
    }

    /// The queue, while datagrams have it.
    pub(super) fn queue(&mut self) -> Option<&mut DivertedQueue> {
        match &mut self.state {
            State::Diverted(queue) => Some(queue),
            State::Interface { .. } | State::Asked => None,
        }
    }

    /// One turn. `flooded`: datagrams fill the queue of the interface.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        flooded: bool,
        agent: &mut PromotionAgent,
        epoll: BorrowedFd<'_>,
    ) {
        if std::mem::take(&mut self.give_back) {
            // Without it the agent steers to a queue that is not read.
            let _ = agent.rejoin();
        }
        match &mut self.state {
            State::Interface { not_before } if flooded && now >= *not_before => {
                let asked = agent.divert();
                self.state = asked.map_or(State::Interface { not_before: now + PAUSE }, |()| State::Asked);
            }
            State::Interface { .. } | State::Asked => {}
            State::Diverted(queue) => {
                queue.follow(now, agent);
                let is_over = matches!(queue.ending, Ending::At(at) if now >= at);
                // The guest may have deleted it.
                let is_gone = queue.broken || queue.tap.gone();
                if is_over || is_gone {
                    // The agent has it open too.
                    let _ = rustix::event::epoll::delete(epoll, queue.tap.as_fd());
                    let pause = if is_gone { PAUSE } else { Duration::ZERO };
                    self.state = State::Interface { not_before: now + pause };
                }
                if is_gone {
                    let _ = agent.rejoin();
                }
            }
        }
    }
}

impl DivertedQueue {
    /// Opens the queue, and drops what an earlier diversion has left there: no more than a queue's length,
    /// because the flood may come by it already.
    fn open(tap: OwnedFd, epoll: BorrowedFd<'_>, now: Instant) -> Result<Self, Errno> {
        SourceId::Promotions.poller(epoll).add(&tap, DATAGRAMS, EventFlags::IN | EventFlags::ET)?;
        let mut queue = Self {
            tap: Tap::only_to_take(tap),
            readable: true,
            wait_until: Some(now + ORDER_MAX),
            full_at: now,
            drops_at: now + DROPS_INTERVAL,
            ending: Ending::No,
            broken: false,
        };
        let mut frame = vec![0; FRAME_MAX];
        for _ in 0..LEFT_MAX {
            if !queue.tap.recv(&mut frame).is_ok_and(|frame| frame.is_some()) {
                break;
            }
        }
        Ok(queue)
    }

    /// Asks for the end of the diversion, or for the drops.
    fn follow(&mut self, now: Instant, agent: &mut PromotionAgent) {
        if self.ending == Ending::No && now - self.full_at >= CALM {
            if agent.rejoin().is_ok() {
                self.ending = Ending::Asked;
            } else {
                // Without the agent it goes on.
                self.full_at = now;
            }
        }
        if self.readable && self.ending == Ending::No && now >= self.drops_at {
            self.drops_at = now + DROPS_INTERVAL;
            // A question that cannot be sent is put again.
            let _ = agent.divert();
        }
    }

    /// Whether it is to be read in this turn.
    pub(crate) fn is_due(&mut self, now: Instant, link_read: bool) -> bool {
        self.wait_until = self.wait_until.filter(|until| !link_read && now < *until);
        self.readable && self.wait_until.is_none()
    }

    /// Whether it may have more.
    pub(crate) fn is_readable(&self) -> bool {
        self.readable
    }

    /// Takes frames.
    pub(crate) fn take(&mut self, batch: &mut Batch<'_>, now: Instant) {
        let left = self.tap.take(batch);
        self.broken |= left.is_err();
        self.readable = matches!(left, Ok(Taken::Some));
        if self.readable {
            self.full_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::epoll::{self, CreateFlags};
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
    use std::fs::File;

    #[test]
    fn a_queue_that_cannot_be_opened_is_given_back() {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut agent = PromotionAgent::on(ours).unwrap();
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let mut datagrams = Datagrams::new();
        let now = Instant::from_ns(7);

        datagrams.turn(now, true, &mut agent, epoll.as_fd());
        // A file has no events.
        let file = File::open("/proc/self/exe").unwrap();
        assert!(!datagrams.diverted(now, epoll.as_fd(), Ok(Some(file.into())), 5));
        datagrams.turn(now, true, &mut agent, epoll.as_fd());
        assert!(datagrams.queue().is_none() && datagrams.deadline().is_none());

        let kinds = std::iter::from_fn(|| {
            let mut request = [0; 256];
            rustix::net::recv(&theirs, &mut request, RecvFlags::DONTWAIT).ok().map(|_| request[0])
        });
        // Divert, rejoin, and no second attempt so soon.
        assert_eq!(kinds.collect::<Vec<_>>(), [8, 9]);
    }
}
