//! Kernels, and policies of administrators, that lack something: system calls that fail as they do there.

use brodo_sandbox::Argument;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::io;

/// A kernel, or a policy of its administrator's, that lacks something.
pub(crate) struct Kernel {
    pub(crate) lacks: &'static str,
    /// The system call that fails, under a condition on its arguments, and its error.
    call: i64,
    condition: &'static [Argument],
    error: i32,
    /// The report of a confinement there.
    pub(crate) report: &'static str,
}

pub(crate) const KERNELS: &[Kernel] = &[
    Kernel {
        lacks: "Landlock",
        call: libc::SYS_landlock_create_ruleset,
        condition: &[],
        error: libc::ENOSYS,
        report: "partial (landlock: not in this kernel, or disabled)",
    },
    Kernel {
        lacks: "PR_SET_MDWE",
        call: libc::SYS_prctl,
        condition: &[Argument::Is(0, 65)],
        error: libc::EINVAL,
        report: "partial (executable-memory: Invalid argument (os error 22))",
    },
    Kernel {
        lacks: "user namespaces for ordinary users",
        call: libc::SYS_clone,
        condition: &[Argument::Bits(
            0,
            libc::CLONE_NEWUSER.cast_unsigned(),
            libc::CLONE_NEWUSER.cast_unsigned(),
        )],
        error: libc::EPERM,
        report: "partial (namespaces: Operation not permitted (os error 1); \
                 root: Operation not permitted (os error 1))",
    },
];

impl Kernel {
    /// Makes the calling process one on such a kernel.
    pub(crate) fn pretend(&self) -> io::Result<()> {
        let conditions = self.condition.iter().map(|argument| {
            let (index, operator, value) = match *argument {
                Argument::Is(index, value) => (index, SeccompCmpOp::Eq, value),
                Argument::Bits(index, mask, value) => (index, SeccompCmpOp::MaskedEq(mask.into()), value),
            };
            SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value.into())
        });
        let failing = || -> Result<BpfProgram, seccompiler::BackendError> {
            let conditions: Vec<_> = conditions.collect::<Result<_, _>>()?;
            let rules = if conditions.is_empty() { vec![] } else { vec![SeccompRule::new(conditions)?] };
            let error = SeccompAction::Errno(self.error.cast_unsigned());
            let architecture = std::env::consts::ARCH.try_into()?;
            SeccompFilter::new([(self.call, rules)].into(), SeccompAction::Allow, error, architecture)?
                .try_into()
        };
        seccompiler::apply_filter(&failing().map_err(io::Error::other)?).map_err(io::Error::other)
    }
}
