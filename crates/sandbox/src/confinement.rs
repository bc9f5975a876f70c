//! A wish for confinement, as the user's options have it for all processes.

use crate::{OnViolation, Stage, Stages, SystemCall, raw, system_calls};
use std::io;

/// Stages that are wanted, and the consequences of what goes against them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confinement {
    /// The stages.
    pub stages: Stages,
    /// Consequence of a system call that is not allowed.
    pub on_violation: OnViolation,
    /// Whether a stage that the system refuses is an error.
    pub required: bool,
}

impl Confinement {
    /// Everything, as far as the system has it.
    pub const ON: Self = Self { stages: Stages::ALL, on_violation: OnViolation::Kill, required: false };

    /// The stage `system-calls` for a process that makes neither threads nor processes, and no report: allows
    /// `calls`, and no other. The system refuses it to all processes or to none, so the report of another one
    /// tells of that.
    ///
    /// # Errors
    /// It is refused, and required.
    pub fn allow_only(self, calls: &[SystemCall]) -> io::Result<()> {
        if !self.stages.contains(Stage::SystemCalls) {
            return Ok(());
        }
        raw::default_faults();
        let refused = system_calls::allow_one_thread_only(calls, self.on_violation);
        if self.required { refused } else { Ok(()) }
    }
}
