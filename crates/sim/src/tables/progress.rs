//! Progress on standard error, if that is a terminal: a table of all rows takes a while.

use std::io::{IsTerminal, Write};

/// Prints the running row, or is silent.
pub struct Progress {
    shown: bool,
    row: &'static str,
}

impl Progress {
    /// Shown if standard error is a terminal.
    pub fn on_terminal() -> Self {
        Self { shown: std::io::stderr().is_terminal(), row: "" }
    }

    /// Never shown.
    pub fn silent() -> Self {
        Self { shown: false, row: "" }
    }

    /// A row begins.
    pub fn row(&mut self, id: &'static str) {
        self.row = id;
    }

    /// One run of the row begins.
    pub fn run(&mut self, what: &str) {
        if self.shown {
            // Progress is optional: a write error is ignored.
            let _ = write!(std::io::stderr(), "\r\x1b[K{}: {what}", self.row);
        }
    }

    /// Clears the line at the end.
    pub fn done(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
