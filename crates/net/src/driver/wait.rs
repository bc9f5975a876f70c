//! Waiting: epoll with a resolution of nanoseconds, busy polling before a sleep, and the time of the turn.
//!
//! A worker without work sleeps until its next deadline, or without a time-out. Between two busy polls
//! ([`BusyPoll`]) it yields the processor to others.

use super::busy_poll::BusyPoll;
use crate::captured_link::Moved;
use crate::clock::Clock;
use crate::command::Activity;
use crate::sys::{self, Events};
use brodo_core::time::{Duration, Instant};
use brodo_link::FailedCall;
use rustix::event::epoll;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Events taken per wait; more come with the next.
const EVENTS: usize = 128;
/// Interval between two turns, asleep or not, after which answers of the guest may be waiting on the link.
const PAUSE: Duration = Duration::from_millis(5);

/// The wait of one worker.
pub(super) struct Waiter {
    pub(super) clock: Clock,
    /// The time of this turn.
    pub(super) now: Instant,
    /// Time for which the machine has been suspended, as of the last sleep.
    pub(super) suspended: Duration,
    pub(super) events: Events,
    pub(super) activity: Activity,
    /// Whether epoll_pwait2 is available.
    pub(super) nanoseconds: bool,
    busy_poll: BusyPoll,
}

impl Waiter {
    /// A wait with up to `busy_poll` of busy polling before a sleep.
    pub(super) fn new(clock: Clock, busy_poll: Duration) -> Self {
        Self {
            clock,
            now: clock.now(),
            suspended: Duration::ZERO,
            events: Events(Vec::with_capacity(EVENTS)),
            activity: Activity::default(),
            nanoseconds: true,
            busy_poll: BusyPoll::new(busy_poll),
        }
    }

    /// Fills `events` and sets the time: does not wait if the worker is busy, otherwise until `deadline`.
    /// `moved` is the traffic of the turn before. True after a pause.
    pub(super) fn wait(
        &mut self,
        epoll: BorrowedFd<'_>,
        busy: bool,
        deadline: Option<Instant>,
        moved: Moved,
    ) -> Result<bool, FailedCall> {
        self.activity.turns += 1;
        self.busy_poll.turned(moved);
        if busy {
            return self.take_events(epoll, Some(Duration::ZERO));
        }
        let idle = self.clock.now();
        let mut paused = false;
        if let Some(until) = self.busy_poll.until(idle) {
            let until = deadline.map_or(until, |at| at.min(until));
            while self.now < until {
                self.activity.polls += 1;
                paused |= self.take_events(epoll, Some(Duration::ZERO))?;
                if !self.events.0.is_empty() {
                    self.activity.polled += 1;
                    self.busy_poll.resumed(self.now - idle);
                    return Ok(paused);
                }
                // The program that will answer may need this processor for it.
                std::thread::yield_now();
            }
        }
        self.activity.sleeps += 1;
        paused |= self.take_events(epoll, deadline.map(|at| at.since(self.now)))?;
        self.suspended = self.clock.suspended();
        self.busy_poll.resumed(self.now - idle);
        Ok(paused)
    }

    /// Waits for events for at most `timeout`; sets the time. True after a pause.
    fn take_events(&mut self, epoll: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool, FailedCall> {
        let waited = if self.nanoseconds {
            sys::epoll_wait(epoll, &mut self.events.0, timeout)
        } else {
            wait_ms(epoll, &mut self.events.0, timeout)
        };
        match waited {
            Ok(()) => {}
            Err(Errno::INTR) => self.events.0.clear(),
            // Before Linux 5.11, or a seccomp profile of that age.
            Err(Errno::NOSYS | Errno::PERM) if self.nanoseconds => {
                self.nanoseconds = false;
                self.events.0.clear();
            }
            Err(e) => return Err(FailedCall { call: "epoll_wait", error: e.into() }),
        }
        let before = std::mem::replace(&mut self.now, self.clock.now());
        Ok(self.now - before >= PAUSE)
    }
}

/// Waits with a resolution of milliseconds, rounded up so that no deadline is met too early.
fn wait_ms(
    epoll: BorrowedFd<'_>,
    events: &mut Vec<epoll::Event>,
    timeout: Option<Duration>,
) -> rustix::io::Result<()> {
    let timeout = timeout.map(|t| rustix::time::Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    events.clear();
    epoll::wait(epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()).map(drop)
}
