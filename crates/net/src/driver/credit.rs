//! Credit of the link: whether it takes frames, and the wait until it does again.
//!
//! A link that reports credit is watched for the event only while it owes some. One that cannot (the kernel
//! was out of memory) is retried after a pause, which doubles up to a bound.

use brodo_core::time::{Duration, Instant};
use brodo_link::poller::Poller;
use brodo_link::{CreditWait, GuestLink};
use std::io;

/// First and longest pause before a retry on a link that was out of memory.
const RETRY_MIN: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(8);

/// State of the link's credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Credit {
    /// The link takes frames.
    Free,
    /// Refused: an event will report credit.
    Awaited,
    /// Refused without an event to come: retry at this time, after this pause.
    Retry { at: Instant, pause: Duration },
}

/// The wait for credit.
#[derive(Debug)]
pub(super) struct CreditWatch {
    pub(super) credit: Credit,
    /// Whether the link was asked for an event.
    pub(super) armed: bool,
}

impl Default for CreditWatch {
    fn default() -> Self {
        Self { credit: Credit::Free, armed: false }
    }
}

impl CreditWatch {
    /// Time of the next retry.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.credit {
            Credit::Retry { at, .. } => Some(at),
            Credit::Free | Credit::Awaited => None,
        }
    }

    /// Whether the link may take frames again: by its report, or because the pause is over.
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
        // A refusal after a report requests a new event.
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
