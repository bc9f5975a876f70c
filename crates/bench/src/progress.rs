//! Progress of a measurement: one line, rewritten in place on a terminal; elsewhere a line for each result.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// A terminal's narrowest usual width, less one.
const COLUMNS: usize = 79;

/// Time done and planned.
#[derive(Debug)]
pub struct Progress {
    planned: Duration,
    done: Duration,
    start: Instant,
    terminal: bool,
}

impl Progress {
    /// Prints the estimated duration of the whole measurement.
    pub fn new(planned: Duration) -> Self {
        eprintln!("This takes about {}.", words(planned));
        let terminal = std::io::stderr().is_terminal();
        Self { planned, done: Duration::ZERO, start: Instant::now(), terminal }
    }

    /// Start of a step.
    pub fn begin(&mut self, what: &str) {
        if self.terminal {
            let share = self.done.as_secs_f64() / self.planned.as_secs_f64().max(1e-9);
            let percent = (100.0 * share).min(99.0);
            let left = words(self.left());
            let line = format!("[{percent:2.0} %, {left} left] {what}");
            // Cursor to the line's beginning, then clear to its end; a line that is broken could not be
            // written over.
            eprint!("\r\x1b[2K{line:.COLUMNS$}");
            let _ = std::io::stderr().flush();
        }
    }

    /// End of a step with this planned duration, and its result if it has one.
    pub fn done(&mut self, planned: Duration, result: &str) {
        self.done += planned;
        if !self.terminal && !result.is_empty() {
            eprintln!("{result}");
        }
    }

    /// A message that stays on the terminal.
    pub fn remark(&self, text: &str) {
        if self.terminal {
            eprint!("\r\x1b[2K");
        }
        eprintln!("{text}");
    }

    /// Estimate from the time that the finished work took.
    fn left(&self) -> Duration {
        let rest = self.planned.saturating_sub(self.done);
        let done = self.done.as_secs_f64();
        let pace = if done > 0.0 { self.start.elapsed().as_secs_f64() / done } else { 1.0 };
        rest.mul_f64(pace)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            eprint!("\r\x1b[2K");
        }
    }
}

/// A duration for people.
pub fn words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 90 { format!("{seconds} s") } else { format!("{} min", (seconds + 30) / 60) }
}
