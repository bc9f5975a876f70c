//! Stage `system-calls`: a list of allowed system calls, with their arguments (seccomp(2)).
//!
//! A call that is not in the list ends the process with SIGSYS. Two filters are installed: the other one
//! answers ENOSYS to calls that a C library uses if they are there ([`PROBED`]), so that a newer library than
//! the one tested with does not end the process. The kernel runs a filter for a call only if its bitmap does
//! not say that the answer is "allow" whatever the arguments: hot calls stand in the list without arguments.
//!
//! *Inheritance.* A child has the filters of its parent and may add its own; a call is made only if all allow
//! it. So the list of a process that makes others has all that these may do, and one that only narrows an
//! inherited list costs a run of both programs for each call with conditions.
//!
//! On another architecture than x86-64, aarch64 and riscv64 the stage is missing: seccompiler has no table.

pub(crate) mod list;

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

/// The filters: the list, and before it, if it is not empty, the calls of `absent` that seem not to be there
/// unless they are listed. A call that is listed several times is allowed if one entry allows it.
fn programs(
    calls: &[SystemCall],
    absent: &[i64],
    on_violation: OnViolation,
) -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let is_listed = |number: i64| calls.iter().any(|call| call.number == number);
    let absent: BTreeMap<_, _> =
        absent.iter().filter(|it| !is_listed(**it)).map(|number| (*number, Vec::new())).collect();
    let mut allowed = absent.clone();
    for call in calls {
        let others = allowed.remove(&call.number);
        let is_free = call.alternatives.is_empty() || others.as_ref().is_some_and(Vec::is_empty);
        let mut either = others.unwrap_or_default();
        either.extend(rules(call)?);
        // No rules at all allow every use.
        allowed.insert(call.number, if is_free { Vec::new() } else { either });
    }
    let violation = match on_violation {
        OnViolation::Kill => SeccompAction::KillProcess,
        OnViolation::Log => SeccompAction::Log,
    };
    let listed = program(allowed, violation, SeccompAction::Allow)?;
    if absent.is_empty() {
        return Ok(vec![listed]);
    }
    let error = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    Ok(vec![program(absent, SeccompAction::Allow, error)?, listed])
}

/// Allows `calls` to all threads of the process, and no other.
pub(crate) fn allow_only(calls: &[SystemCall], on_violation: OnViolation) -> io::Result<()> {
    install(calls, &PROBED, on_violation)
}

/// The same for a process that makes neither threads nor processes: there no C library probes for calls.
pub(crate) fn allow_one_thread_only(calls: &[SystemCall], on_violation: OnViolation) -> io::Result<()> {
    install(calls, &[], on_violation)
}

/// The list comes last: the calls that install a filter need not be in it.
fn install(calls: &[SystemCall], absent: &[i64], on_violation: OnViolation) -> io::Result<()> {
    for program in programs(calls, absent, on_violation).map_err(io::Error::other)? {
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
        let plain = crate::call!(SYS_write, "this test");
        let installed = |calls: &[SystemCall]| programs(calls, &PROBED, OnViolation::Kill).unwrap();
        let both = installed(&[plain, socket]);
        assert_eq!(both.len(), 2);
        assert!(both[1].len() > installed(&[plain])[1].len());
    }

    #[test]
    fn of_several_entries_of_a_call_one_is_enough() {
        const BOTH: &[Alternative] = &[
            crate::socket!(AF_INET, SOCK_STREAM, "this test"),
            crate::socket!(AF_INET6, SOCK_STREAM, "this test"),
        ];
        let of = |alternatives| SystemCall { alternatives, ..crate::call!(SYS_socket, "this test") };
        let (ipv4, ipv6, both, free) = (of(&BOTH[..1]), of(&BOTH[1..]), of(BOTH), of(&[]));
        let program = |calls: &[SystemCall]| {
            format!("{:?}", programs(calls, &[], OnViolation::Kill).expect("a program"))
        };
        assert_eq!(program(&[ipv4, ipv6]), program(&[both]));
        assert_eq!(program(&[ipv4, free]), program(&[free]));
        assert_eq!(program(&[free, ipv6]), program(&[free]));
        assert_ne!(program(&[both]), program(&[free]));
    }

    #[test]
    fn a_listed_call_is_there() {
        let calls = [crate::call!(SYS_membarrier, "this test")];
        let absent = |calls: &[SystemCall]| programs(calls, &PROBED, OnViolation::Kill).unwrap().remove(0);
        assert!(absent(&calls).len() < absent(&[]).len());
    }
}
