//! Crashes of engines: when another one is started, and when brodo ends instead.
//!
//! A guest whose frames crash an engine sends them again, so restarts are bounded: [`CRASHES_MAX`] within
//! [`WINDOW`].

use crate::engine::launch::Exit;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Crashes after which another engine is started, within [`WINDOW`].
const CRASHES_MAX: usize = 5;
/// Time for which a crash counts.
const WINDOW: Duration = Duration::from_secs(60);

/// Consequence of a crash.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another engine.
    Start,
    /// The end, for this reason.
    End(String),
}

/// Crashes of an instance.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    crashes: VecDeque<Instant>,
    /// The last crash as a sentence, until another engine serves.
    last: Option<String>,
}

impl Restarts {
    /// An engine has crashed.
    pub(super) fn crashed(&mut self, now: Instant, exit: Exit, fault: Option<String>) -> Next {
        self.crashes.retain(|&at| now.saturating_duration_since(at) < WINDOW);
        self.crashes.push_back(now);
        let cause = fault.unwrap_or_else(|| cause(exit));
        if self.crashes.len() > CRASHES_MAX {
            let (count, window) = (self.crashes.len(), WINDOW.as_secs());
            return Next::End(format!("the engine has crashed {count} times in {window} s, last {cause}"));
        }
        self.last = Some(format!("the engine crashed ({cause}) and was started again"));
        Next::Start
    }

    /// The sentence about the crash before the engine that serves now, once.
    pub(super) fn recovered(&mut self) -> Option<String> {
        self.last.take()
    }
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
    fn crashes_are_counted_within_a_minute() {
        let (mut restarts, start) = (Restarts::default(), Instant::now());
        for second in 0..CRASHES_MAX as u64 {
            let now = start + Duration::from_secs(second);
            assert_eq!(restarts.crashed(now, Exit::Signal(31), None), Next::Start);
        }
        assert!(restarts.recovered().is_some_and(|text| text.contains("SIGSYS")));
        assert_eq!(restarts.recovered(), None);
        assert_eq!(
            restarts.crashed(start + WINDOW, Exit::Status(1), None),
            Next::Start,
            "the first is forgotten"
        );
        let Next::End(why) = restarts.crashed(start + WINDOW, Exit::Status(1), Some("why".to_owned())) else {
            panic!("a sixth crash within a minute");
        };
        assert_eq!(why, "the engine has crashed 6 times in 60 s, last why");
    }
}
