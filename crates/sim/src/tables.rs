//! The figures brodo claims, measured in virtual time and laid beside what is expected of them.
//!
//! A [`Row`] is one scenario with published or derived figures. Measuring it gives [`Figure`]s: what was expected,
//! within which tolerance, what came out, and beside it the controls: the same scenario under the other rules of
//! [`brodo_core::config::Tuning`], or under whatever else the row compares with. A figure without a bound is there to
//! be read; every other passes or fails.
//!
//! `cargo run --release -p brodo-sim -- tables` prints all rows; a test holds the same text against a committed copy
//! (`BRODO_BLESS=1` writes it anew). Both depend on nothing but the code: no clock is read and every seed is fixed.

pub mod figure;
pub(crate) mod guest_link;
mod host_side;
pub mod print;
pub mod progress;

pub use figure::{Expected, Figure, Unit};
pub use progress::Progress;

/// One scenario.
#[derive(Clone, Copy)]
pub struct Row {
    /// The name it is asked for by: a number and perhaps a letter.
    pub id: &'static str,
    /// What it shows, in a few words.
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

/// A row with what came out.
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
