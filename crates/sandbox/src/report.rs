//! The report on a confinement: stages in force, and those missing with their reasons.

use crate::{Stage, Stages};
use std::fmt;
use std::io;

/// A stage that is not in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The stage.
    pub stage: Stage,
    /// Error of the system call that was refused, or that the stage was not wanted.
    pub reason: String,
}

/// Gaps of a confinement. Without any it is full.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    gaps: Vec<Gap>,
}

impl Report {
    /// Whether every stage is in force.
    pub fn is_full(&self) -> bool {
        self.gaps.is_empty()
    }

    /// The stages that are not, in the order in which they were tried.
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Enters a stage by `step` if it is wanted, and notes what comes of it.
    pub(crate) fn run(&mut self, wanted: Stages, stage: Stage, step: impl FnOnce() -> io::Result<()>) {
        if !wanted.contains(stage) {
            self.add(stage, "off");
        } else if let Err(error) = step() {
            self.add(stage, &error.to_string());
        }
    }

    /// Notes a gap. Of a stage that parent and child enter the first one stands for both.
    pub(crate) fn add(&mut self, stage: Stage, reason: &str) {
        if self.gaps.iter().all(|gap| gap.stage != stage) {
            self.gaps.push(Gap { stage, reason: reason.to_owned() });
        }
    }
}

/// `full`, or `partial (STAGE: REASON; ...)`.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_full() {
            return f.write_str("full");
        }
        f.write_str("partial (")?;
        for (number, Gap { stage, reason }) in self.gaps.iter().enumerate() {
            let separator = if number == 0 { "" } else { "; " };
            write!(f, "{separator}{stage}: {reason}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_gaps_and_their_reasons() {
        let mut report = Report::default();
        report.run(Stages::ALL, Stage::Root, || Ok(()));
        assert_eq!(report.to_string(), "full");
        report.run(Stages::ALL, Stage::Landlock, || Err(io::Error::from_raw_os_error(38)));
        report.run(Stages::NONE, Stage::Limits, || unreachable!("a stage that is off is not entered"));
        assert_eq!(report.gaps().len(), 2);
        let text = report.to_string();
        assert!(text.starts_with("partial (landlock: Function not implemented"), "{text}");
        assert!(text.ends_with("; limits: off)"), "{text}");
        report.run(Stages::NONE, Stage::Limits, || unreachable!("a stage that is off is not entered"));
        assert_eq!(report.to_string(), text, "each gap stands there once");
    }
}
