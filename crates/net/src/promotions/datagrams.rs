//! Datagrams that fill the transmit queue of the guest's interface go to a queue of their own for a while.
//!
//! ```text
//!             flood          queue               read empty for CALM, steered no longer
//!  Interface ------> Asked ----------> Diverted ------------------------------------------> Interface
//!      ^               | refused: not again before PAUSE
//!      +---------------+
//! ```
//!
//! The agent steers them ([`crate::promotion::datagram_queue`]); this side takes them from the TAP: one batch
//! per turn, after the frames of the interface. So the interface has room for all else, and what is too much
//! is dropped where only datagrams are. Those that were on the interface before are read first, as far as
//! [`ORDER_MAX`] allows.
//!
//! When the process ends its channel does, and the agent lets datagrams go to the interface again.
//!
//! System calls: readv, `epoll_ctl`.

use super::DATAGRAMS;
use crate::driver::intake::{has_room, pass};
use crate::promotion::Refused;
use crate::promotion::client::PromotionAgent;
use crate::source::{SourceId, Turn};
use brodo_core::link::FRAME_MAX;
use brodo_core::time::{Duration, Instant};
use brodo_link::batch::{ARENA_LEN, BATCH_BYTES, Batch};
use brodo_link::tap::Tap;
use brodo_link::{EventFlags, FailedCall, GuestLink, Taken};
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
struct Queue {
    tap: Tap,
    arena: Box<[u8]>,
    /// It may have frames.
    readable: bool,
    /// Until when frames of the interface are older; none once it was read empty.
    wait_until: Option<Instant>,
    /// The last turn in which it was not read empty, or its begin.
    full_at: Instant,
    /// For the next question for its drops.
    drops_at: Instant,
    ending: Ending,
}

#[derive(Debug)]
enum State {
    Interface { not_before: Instant },
    Asked,
    Diverted(Queue),
}

/// The way of the guest's datagrams.
#[derive(Debug)]
pub(super) struct Datagrams {
    state: State,
    /// Datagrams that the queue has dropped, since they were last taken.
    dropped: u64,
    /// The agent's count of them, as last known.
    counted: Option<u64>,
}

impl Datagrams {
    pub(super) fn new() -> Self {
        let state = State::Interface { not_before: Instant::ZERO };
        Self { state, dropped: 0, counted: None }
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
        let opened = queue.ok().flatten().and_then(|tap| Queue::open(tap, epoll, now).ok());
        let is_open = opened.is_some();
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

    /// One turn; true if more frames are waiting.
    pub(super) fn turn<L: GuestLink>(
        &mut self,
        turn: &mut Turn<'_, L>,
        agent: &mut PromotionAgent,
        epoll: BorrowedFd<'_>,
    ) -> bool {
        let now = turn.now;
        match &mut self.state {
            State::Interface { not_before } if turn.flooded && now >= *not_before => {
                let asked = agent.divert();
                self.state = asked.map_or(State::Interface { not_before: now + PAUSE }, |()| State::Asked);
                false
            }
            State::Interface { .. } | State::Asked => false,
            State::Diverted(queue) => {
                queue.follow(now, agent);
                let taken = queue.take(turn);
                let is_over = matches!(queue.ending, Ending::At(at) if now >= at);
                // The guest may have deleted it.
                let is_gone = taken.is_err() || queue.tap.gone();
                if is_over || is_gone {
                    // The agent has it open too.
                    let _ = rustix::event::epoll::delete(epoll, queue.tap.as_fd());
                    let pause = if is_gone { PAUSE } else { Duration::ZERO };
                    self.state = State::Interface { not_before: now + pause };
                }
                if is_gone {
                    let _ = agent.rejoin();
                }
                !is_gone && taken.unwrap_or(false)
            }
        }
    }
}

impl Queue {
    /// Opens the queue, and drops what an earlier diversion has left there.
    fn open(tap: OwnedFd, epoll: BorrowedFd<'_>, now: Instant) -> Result<Self, Errno> {
        SourceId::Promotions.poller(epoll).add(&tap, DATAGRAMS, EventFlags::IN | EventFlags::ET)?;
        let mut queue = Self {
            tap: Tap::only_to_take(tap),
            arena: vec![0; ARENA_LEN].into_boxed_slice(),
            readable: true,
            wait_until: Some(now + ORDER_MAX),
            full_at: now,
            drops_at: now + DROPS_INTERVAL,
            ending: Ending::No,
        };
        while queue.tap.recv(&mut queue.arena).is_ok_and(|frame| frame.is_some()) {}
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

    /// Takes one batch; true if more is waiting.
    fn take<L: GuestLink>(&mut self, turn: &mut Turn<'_, L>) -> Result<bool, FailedCall> {
        self.wait_until = self.wait_until.filter(|until| !turn.link_read && turn.now < *until);
        if !self.readable || self.wait_until.is_some() {
            return Ok(self.readable);
        }
        let worker = turn.worker;
        if !has_room(worker) {
            return Ok(false);
        }
        let (stack, mut io) = turn.stack();
        let bytes_max = stack.turn_bytes(io.now).min(BATCH_BYTES);
        let mut batch = Batch::new(&mut self.arena[..bytes_max + FRAME_MAX], true);
        self.readable = self.tap.take(&mut batch)? == Taken::Some;
        io.link.capture_taken(batch.frames());
        pass(worker, stack, &mut io, batch.frames());
        if self.readable {
            self.full_at = io.now;
        }
        Ok(self.readable)
    }
}
