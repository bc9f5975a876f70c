//! Stage `system-calls`: a list of allowed system calls, with their arguments (seccomp(2)).
//!
//! A call that is not in the list ends the process with SIGSYS. Two filters are installed: the second
//! answers ENOSYS to calls that a C library uses if they are there ([`PROBED`]), so that a newer library than
//! the one tested with does not end the process. The kernel runs a filter for a call only if its bitmap does
//! not say that the answer is "allow" whatever the arguments: hot calls stand in the list without arguments.
//!
//! On another architecture than x86-64, aarch64 and riscv64 the stage is missing: seccompiler has no table.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter_all_threads,
};
use std::collections::BTreeMap;
use std::io;

/// An allowed system call.
#[derive(Debug, Clone, Copy)]
pub struct SystemCall {
    /// Its name.
    pub name: &'static str,
    /// Its number, `libc::SYS_*`.
    pub number: i64,
    /// Alternatives, one of which must hold. Without any the call is allowed with all arguments.
    pub alternatives: &'static [Alternative],
    /// The reason it is in the list: the test that does not pass without it.
    pub needed_by: &'static str,
}

/// One use of a call with a wide reach.
#[derive(Debug, Clone, Copy)]
pub struct Alternative {
    /// Name of the use, unique in its call.
    pub name: &'static str,
    /// Conditions, all of which must hold.
    pub conditions: &'static [Argument],
    /// The reason it is in the list: the test that does not pass without it.
    pub needed_by: &'static str,
}

/// A condition on an argument. The lower 32 bits are compared: arguments of type int, which are all that are
/// worth a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    /// The argument of this index, from 0, equals the value.
    Is(u8, u32),
    /// The bits of a mask are those of the value: argument, mask, value.
    Bits(u8, u32, u32),
}

/// Consequence of a call that is not allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnViolation {
    /// The process ends with SIGSYS.
    #[default]
    Kill,
    /// The call is made, and stands in the kernel's audit log.
    Log,
}

/// Calls that C libraries make if the kernel has them, and do without.
const PROBED: [i64; 5] =
    [libc::SYS_rseq, libc::SYS_set_robust_list, libc::SYS_clone3, libc::SYS_membarrier, libc::SYS_statx];

fn condition(argument: Argument) -> Result<SeccompCondition, seccompiler::BackendError> {
    let (index, operator, value) = match argument {
        Argument::Is(index, value) => (index, SeccompCmpOp::Eq, value),
        Argument::Bits(index, mask, value) => (index, SeccompCmpOp::MaskedEq(mask.into()), value),
    };
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value.into())
}

fn rules(call: &SystemCall) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let rule = |it: &Alternative| {
        SeccompRule::new(it.conditions.iter().map(|&argument| condition(argument)).collect::<Result<_, _>>()?)
    };
    call.alternatives.iter().map(rule).collect()
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    SeccompFilter::new(rules, otherwise, listed, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// The filters: the list, and the calls that seem not to be there.
fn programs(
    calls: &[SystemCall],
    on_violation: OnViolation,
) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let probed = || PROBED.into_iter().map(|number| (number, Vec::new()));
    let mut allowed: BTreeMap<_, _> = probed().collect();
    for call in calls {
        debug_assert!(!allowed.contains_key(&call.number), "call {} is listed twice", call.number);
        allowed.insert(call.number, rules(call)?);
    }
    let violation = match on_violation {
        OnViolation::Kill => SeccompAction::KillProcess,
        OnViolation::Log => SeccompAction::Log,
    };
    let absent = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let listed = program(allowed, violation, SeccompAction::Allow)?;
    Ok([program(probed().collect(), SeccompAction::Allow, absent)?, listed])
}

/// Allows `calls` to all threads of the process, and no other.
///
/// The list comes last: the calls that install a filter need not be in it.
pub(crate) fn allow_only(calls: &[SystemCall], on_violation: OnViolation) -> io::Result<()> {
    for program in programs(calls, on_violation).map_err(io::Error::other)? {
        apply_filter_all_threads(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_becomes_two_programs() {
        let socket = SystemCall {
            name: "socket",
            number: libc::SYS_socket,
            alternatives: &[
                Alternative {
                    name: "stream",
                    conditions: &[Argument::Is(0, 2), Argument::Bits(1, 0xf, 1)],
                    needed_by: "this test",
                },
                Alternative { name: "IPv6", conditions: &[Argument::Is(0, 10)], needed_by: "this test" },
            ],
            needed_by: "this test",
        };
        let plain =
            SystemCall { name: "write", number: libc::SYS_write, alternatives: &[], needed_by: "this test" };
        let [absent, listed] = programs(&[plain, socket], OnViolation::Kill).unwrap();
        assert!(!absent.is_empty());
        let [_, shorter] = programs(&[plain], OnViolation::Kill).unwrap();
        assert!(listed.len() > shorter.len());
    }
}
