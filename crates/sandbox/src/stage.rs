//! The stages of a confinement, by name, and sets of them.
//!
//! Names are those of reports and options; the order of [`Stage::ALL`] is that of the entries, whose reasons
//! stand at the head of the crate.

use std::fmt;

/// One kind of reach that is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The user `nobody` in the place of root.
    User,
    /// New user, PID, mount, IPC, UTS and cgroup namespaces: no other process is visible, no capability is
    /// held over any namespace of the same user's.
    Namespaces,
    /// Closed: every descriptor that was not named; the standard three lead to /dev/null.
    Descriptors,
    /// The file system is one empty, read-only directory.
    Root,
    /// No core dump, and no access to memory by other processes of the same user.
    Dumps,
    /// No page becomes executable that was not from the beginning (`PR_SET_MDWE`, Linux 6.3).
    ExecutableMemory,
    /// No gain of privileges by execve (`PR_SET_NO_NEW_PRIVS`).
    Privileges,
    /// No file, no TCP bind, no abstract socket and no signal beyond the own process (Landlock).
    Landlock,
    /// Every capability set empty, and locked.
    Capabilities,
    /// No process, no core, no locked memory, no message queue; bounded descriptors and memory.
    Limits,
    /// The system calls of a list, with their arguments, and no other (seccomp).
    SystemCalls,
}

impl Stage {
    /// All, in the order in which they are entered.
    pub const ALL: [Self; 11] = [
        Self::User,
        Self::Namespaces,
        Self::Descriptors,
        Self::Root,
        Self::Dumps,
        Self::ExecutableMemory,
        Self::Privileges,
        Self::Landlock,
        Self::Capabilities,
        Self::Limits,
        Self::SystemCalls,
    ];

    /// Its name in reports and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Namespaces => "namespaces",
            Self::Descriptors => "descriptors",
            Self::Root => "root",
            Self::Dumps => "dumps",
            Self::ExecutableMemory => "executable-memory",
            Self::Privileges => "privileges",
            Self::Landlock => "landlock",
            Self::Capabilities => "capabilities",
            Self::Limits => "limits",
            Self::SystemCalls => "system-calls",
        }
    }

    /// The stage of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stages(u16);

impl Stages {
    /// All stages.
    pub const ALL: Self = Self((1 << Stage::ALL.len()) - 1);
    /// No stage.
    pub const NONE: Self = Self(0);

    /// Whether `stage` is one of them.
    pub const fn contains(self, stage: Stage) -> bool {
        self.0 & stage.bit() != 0
    }

    /// These and `stage`.
    #[must_use]
    pub const fn with(self, stage: Stage) -> Self {
        Self(self.0 | stage.bit())
    }

    /// These without `stage`.
    #[must_use]
    pub const fn without(self, stage: Stage) -> Self {
        Self(self.0 & !stage.bit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_into_them() {
        for stage in Stage::ALL {
            assert!(Stages::ALL.contains(stage));
            assert!(!Stages::NONE.contains(stage));
            assert!(Stages::NONE.with(stage).contains(stage));
            assert!(!Stages::ALL.without(stage).contains(stage));
            assert_eq!(Stage::named(stage.name()), Some(stage));
        }
        assert_eq!(Stage::ALL.into_iter().fold(Stages::NONE, Stages::with), Stages::ALL);
    }
}
