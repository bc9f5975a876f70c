//! The link's credit: whether it takes frames, and the wait until it does again.
//!
//! A link that reports credit is asked for the event only while it owes some. One that cannot (the kernel was
//! out of memory) is tried again after a pause, which doubles up to a bound.

use brodo_core::time::{Duration, Instant};
use brodo_link::poller::Poller;
use brodo_link::{CreditWait, GuestLink};
use std::io;

/// First and longest pause before a link that was out of memory is tried again.
const RETRY_MIN: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(8);

/// How the link's credit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Credit {
    /// It takes frames.
    Free,
    /// It does not, and an event will tell when it does.
    Awaited,
    /// It does not, and is to be tried again at this time, after this pause.
    Retry { at: Instant, pause: Duration },
}

/// The wait for credit.
#[derive(Debug)]
pub(super) struct CreditWatch {
    pub(super) credit: Credit,
    /// The link was asked for an event.
    pub(super) armed: bool,
}

impl Default for CreditWatch {
    fn default() -> Self {
        Self { credit: Credit::Free, armed: false }
    }
}

impl CreditWatch {
    /// The time at which the link is to be tried again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.credit {
            Credit::Retry { at, .. } => Some(at),
            Credit::Free | Credit::Awaited => None,
        }
    }

    /// Whether the link may take frames again: it has said so, or its pause is over.
    pub(super) fn is_over(&mut self, reported: bool, now: Instant) -> bool {
        let over = (reported && self.armed) || self.deadline().is_some_and(|at| at <= now);
        if over && self.credit == Credit::Awaited {
            self.credit = Credit::Free;
        }
        over
    }

    /// Begins or ends the wait after a turn.
    ///
    /// # Errors
    /// epoll_ctl failed.
    pub(super) fn follow(
        &mut self,
        link: &mut impl GuestLink,
        poller: Poller<'_>,
        now: Instant,
    ) -> io::Result<()> {
        let credit = match (link.credit_wait(), self.credit) {
            (None, _) => Credit::Free,
            (Some(CreditWait::Event), _) => Credit::Awaited,
            (Some(CreditWait::Timer), Credit::Retry { at, pause }) if at > now => Credit::Retry { at, pause },
            (Some(CreditWait::Timer), before) => {
                let pause = match before {
                    Credit::Retry { pause, .. } => (pause * 2).min(RETRY_MAX),
                    Credit::Free | Credit::Awaited => RETRY_MIN,
                };
                Credit::Retry { at: now + pause, pause }
            }
        };
        // Refused again after a report, it is asked again.
        let arm = credit == Credit::Awaited && self.credit != Credit::Awaited;
        let disarm = credit != Credit::Awaited && self.armed;
        if arm || disarm {
            link.await_credit(poller, arm)?;
            self.armed = arm;
        }
        self.credit = credit;
        Ok(())
    }
}
