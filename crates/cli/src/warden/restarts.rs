//! Crashes of engines: what the next one begins with, and when brodo ends instead.
//!
//! A guest whose frames crash an engine sends them again, and what it did to the flow that crashed may have
//! been passed on, so the crashes within [`WINDOW`] count: up to [`RECOVERIES_MAX`] of them are followed by
//! an engine that goes on with all flows, then as many by one that begins without any, then brodo ends.
//!
//! An engine that was killed (SIGKILL) has not failed itself: no fault and no forbidden system call ends
//! with that signal. It counts as a crash, but the next engine always goes on with the flows, up to
//! [`KILLS_MAX`] times.

use crate::engine::launch::Exit;
use rustix::process::WaitStatus;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Crashes after which the next engine goes on with the flows, within [`WINDOW`].
const RECOVERIES_MAX: usize = 2;
/// Crashes after which another engine is started at all.
const CRASHES_MAX: usize = 5;
/// The same for engines that were killed.
const KILLS_MAX: usize = 600;
/// Time for which a crash counts.
const WINDOW: Duration = Duration::from_secs(60);
/// Number of SIGKILL.
const KILLED: i32 = 9;

/// Consequence of a crash.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another engine, with the flows of the one before.
    Recover,
    /// Another engine, without them.
    Cold,
    /// The end, for this reason.
    End(String),
}

/// Crashes of an instance.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    crashes: VecDeque<Instant>,
    kills: VecDeque<Instant>,
    /// The last crash as a sentence, and whether flows went on, until another engine serves.
    last: Option<(String, bool)>,
}

impl Restarts {
    /// An engine has crashed.
    pub(super) fn crashed(&mut self, now: Instant, exit: Exit, fault: Option<String>) -> Next {
        let killed = exit == Exit::Signal(KILLED) && fault.is_none();
        let (list, most) =
            if killed { (&mut self.kills, KILLS_MAX) } else { (&mut self.crashes, CRASHES_MAX) };
        list.retain(|&at| now.saturating_duration_since(at) < WINDOW);
        list.push_back(now);
        let count = list.len();
        let cause = fault.unwrap_or_else(|| cause(exit));
        if count > most {
            let window = WINDOW.as_secs();
            return Next::End(format!("the engine has crashed {count} times in {window} s, last {cause}"));
        }
        let recovers = killed || count <= RECOVERIES_MAX;
        self.last = Some((format!("the engine crashed ({cause}) and was started again"), recovers));
        if recovers { Next::Recover } else { Next::Cold }
    }

    /// The sentence about the crash before the engine that serves now, once. `flows` of the engine before go
    /// on, `lost` are reset.
    pub(super) fn recovered(&mut self, flows: u64, lost: u64) -> Option<String> {
        let (sentence, recovers) = self.last.take()?;
        if !recovers {
            return Some(format!("{sentence}; flows that it carried were reset"));
        }
        let goes_on = if flows == 1 { "1 flow goes on".to_owned() } else { format!("{flows} flows go on") };
        Some(match lost {
            0 => format!("{sentence}: {goes_on}"),
            1 => format!("{sentence}: {goes_on}, 1 was reset"),
            _ => format!("{sentence}: {goes_on}, {lost} were reset"),
        })
    }
}

/// The end of a process by a signal, in words.
pub(super) fn killed(end: Option<WaitStatus>) -> Option<String> {
    end?.terminating_signal().map(|signal| cause(Exit::Signal(signal)))
}

/// The end of an engine in words.
pub(super) fn cause(exit: Exit) -> String {
    match exit {
        Exit::Signal(signal) => format!("by signal {signal}{}", name(signal)),
        Exit::Status(status) => format!("with exit status {status}"),
    }
}

/// Name of a signal that ends engines, in parentheses.
fn name(signal: i32) -> &'static str {
    match signal {
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        31 => " (SIGSYS: a system call that is not allowed)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashes_within_a_minute_lead_to_a_cold_start_and_then_to_the_end() {
        let (mut restarts, start) = (Restarts::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        for second in 0..RECOVERIES_MAX as u64 {
            assert_eq!(restarts.crashed(at(second), Exit::Signal(31), None), Next::Recover);
        }
        assert!(restarts.recovered(3, 1).is_some_and(|text| text.contains("SIGSYS")));
        assert_eq!(restarts.recovered(3, 1), None);
        for second in RECOVERIES_MAX as u64..CRASHES_MAX as u64 {
            assert_eq!(restarts.crashed(at(second), Exit::Status(1), None), Next::Cold);
        }
        assert_eq!(
            restarts.crashed(start + WINDOW, Exit::Status(1), None),
            Next::Cold,
            "the first is forgotten"
        );
        let Next::End(why) = restarts.crashed(start + WINDOW, Exit::Status(1), Some("why".to_owned())) else {
            panic!("a sixth crash within a minute");
        };
        assert_eq!(why, "the engine has crashed 6 times in 60 s, last why");
        let later = start + 2 * WINDOW + Duration::from_secs(5);
        assert_eq!(restarts.crashed(later, Exit::Signal(11), None), Next::Recover, "all are forgotten");
    }

    #[test]
    fn an_engine_that_was_killed_has_not_failed() {
        let (mut restarts, now) = (Restarts::default(), Instant::now());
        for _ in 0..KILLS_MAX {
            assert_eq!(restarts.crashed(now, Exit::Signal(KILLED), None), Next::Recover);
        }
        assert!(matches!(restarts.crashed(now, Exit::Signal(KILLED), None), Next::End(_)));
        // With a fault before it, it is a crash like any other.
        let fault = || Some("a fault".to_owned());
        assert_eq!(restarts.crashed(now, Exit::Signal(KILLED), fault()), Next::Recover);
        assert_eq!(restarts.crashed(now, Exit::Signal(KILLED), fault()), Next::Recover);
        assert_eq!(restarts.crashed(now, Exit::Signal(KILLED), fault()), Next::Cold);
    }

    #[test]
    fn the_sentence_tells_what_became_of_the_flows() {
        let (mut restarts, now) = (Restarts::default(), Instant::now());
        let mut sentence = |flows, lost| {
            restarts.crashed(now, Exit::Signal(KILLED), None);
            restarts.recovered(flows, lost).unwrap_or_default()
        };
        let begin = "the engine crashed (by signal 9 (SIGKILL)) and was started again";
        assert_eq!(sentence(2, 0), format!("{begin}: 2 flows go on"));
        assert_eq!(sentence(1, 3), format!("{begin}: 1 flow goes on, 3 were reset"));
        assert_eq!(sentence(0, 1), format!("{begin}: 0 flows go on, 1 was reset"));
    }
}
