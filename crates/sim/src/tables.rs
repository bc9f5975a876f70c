//! Tables: brodo's claimed figures, measured in virtual time and compared with their expectations.
//!
//! A [`Row`] is one scenario with published or derived figures. Measuring it gives [`Figure`]s: expectation,
//! tolerance, measurement, and the controls: the same scenario under the other rules of
//! [`brodo_core::config::Tuning`], or under another condition of the row. A figure without a bound is for
//! information; every other passes or fails.
//!
//! `cargo run --release -p brodo-sim -- tables` prints all rows; a test compares the same text with a
//! committed copy (`BRODO_BLESS=1` rewrites it). Both depend on the code alone: no clock is read and every
//! seed is fixed.

pub mod figure;
pub(crate) mod guest_link;
mod host_side;
pub mod progress;

pub use figure::{Expected, Figure, Unit};
pub use progress::Progress;

/// One scenario.
#[derive(Clone, Copy)]
pub struct Row {
    /// Name of the row on the command line: a number and perhaps a letter.
    pub id: &'static str,
    /// Title, in a few words.
    pub title: &'static str,
    /// The set-up, and where the expected figures come from.
    pub setup: &'static str,
    /// Runs it.
    pub measure: fn(&mut Progress) -> Vec<Figure>,
}

/// Every row, in order.
pub fn rows() -> Vec<Row> {
    [guest_link::rows(), host_side::rows()].concat()
}

/// A row with its measured figures.
pub struct Measured {
    /// The row.
    pub row: Row,
    /// Its figures.
    pub figures: Vec<Figure>,
}

impl Measured {
    /// Runs `row`.
    pub fn of(row: Row, progress: &mut Progress) -> Self {
        progress.row(row.id);
        Self { row, figures: (row.measure)(progress) }
    }

    /// Figures out of tolerance.
    pub fn failures(&self) -> usize {
        self.figures.iter().filter(|f| f.passes() == Some(false)).count()
    }
}
