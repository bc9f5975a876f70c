//! Credit of the link: whether it takes frames, and the wait until it does again.
//!
//! A link that reports credit is watched for the event only while it owes some. One that cannot (the kernel
//! was out of memory) is retried after a pause, which doubles up to a bound. A link with several ways to the
//! guest waits for the event of one of them, but not for long.

use brodo_core::time::{Duration, Instant};
use brodo_link::poller::Poller;
use brodo_link::{CreditWait, GuestLink};
use std::io;

/// First and longest pause before a retry on a link that was out of memory.
const RETRY_MIN: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(8);
/// Longest wait for one of several ways to the guest: longer than a virtual processor is off its processor
/// when the machine is busy, so that flows rarely change their way, and shorter than any peer notices.
const ONE_WAY_MAX: Duration = Duration::from_millis(10);

/// State of the link's credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Credit {
    /// The link takes frames.
    Free,
    /// Refused: an event will report credit. At the time `until`, if any, the link knows another way.
    Awaited { until: Option<Instant> },
    /// Refused without an event to come: retry at this time, after this pause.
    Retry { at: Instant, pause: Duration },
}

/// Cause of the end of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// The link has reported credit, or is to be tried again.
    Retry,
    /// The event has not come in time.
    Overdue,
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
            Credit::Awaited { until } => until,
            Credit::Free => None,
        }
    }

    /// Whether the link may take frames again: by its report, or because the pause is over. `refused` says
    /// whether it has refused a frame, perhaps since the last turn has looked.
    pub(super) fn is_over(&mut self, reported: bool, refused: bool, now: Instant) -> Option<Over> {
        let reported = reported && (self.armed || refused);
        if !reported && self.deadline().is_none_or(|at| at > now) {
            return None;
        }
        let awaited = self.is_awaited();
        if awaited {
            self.credit = Credit::Free;
        }
        Some(if awaited && !reported { Over::Overdue } else { Over::Retry })
    }

    fn is_awaited(&self) -> bool {
        matches!(self.credit, Credit::Awaited { .. })
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
            (Some(CreditWait::Event), _) => Credit::Awaited { until: None },
            (Some(CreditWait::EventAtFirst), Credit::Awaited { until: Some(until) }) => {
                Credit::Awaited { until: Some(until) }
            }
            (Some(CreditWait::EventAtFirst), _) => Credit::Awaited { until: Some(now + ONE_WAY_MAX) },
            (Some(CreditWait::Timer), Credit::Retry { at, pause }) if at > now => Credit::Retry { at, pause },
            (Some(CreditWait::Timer), before) => {
                let pause = match before {
                    Credit::Retry { pause, .. } => (pause * 2).min(RETRY_MAX),
                    Credit::Free | Credit::Awaited { .. } => RETRY_MIN,
                };
                Credit::Retry { at: now + pause, pause }
            }
        };
        // A refusal after a report requests a new event.
        let awaits = matches!(credit, Credit::Awaited { .. });
        let arm = awaits && !self.is_awaited();
        let disarm = !awaits && self.armed;
        if arm || disarm {
            link.await_credit(poller, arm)?;
            self.armed = arm;
        }
        self.credit = credit;
        Ok(())
    }
}
