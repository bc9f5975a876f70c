//! Lists of system calls as source text: an entry is one line of a macro, with the names of its constants.
//!
//! Names of constants come from the caller's `libc`. Each entry ends with the test that needs it.

use crate::SystemCall;

/// Type of a socket without its flags, for [`socket!`](crate::socket).
pub const SOCKET_TYPE: u32 = 0xf;

/// A call: its number, its uses unless all are allowed, the test that needs it.
#[macro_export]
macro_rules! call {
    ($name:ident, $needed_by:literal) => {
        $crate::call!($name, &[], $needed_by)
    };
    ($name:ident, $alternatives:expr, $needed_by:literal) => {
        $crate::SystemCall {
            name: stringify!($name),
            number: libc::$name,
            alternatives: $alternatives,
            needed_by: $needed_by,
        }
    };
}

/// A call whose argument of this index, of type int, equals a constant of the C library.
#[macro_export]
macro_rules! when {
    ($index:literal, $name:ident, $needed_by:literal) => {
        $crate::Alternative {
            name: stringify!($name),
            conditions: &[$crate::Argument::Is($index, libc::$name as u32)],
            needed_by: $needed_by,
        }
    };
}

/// A call whose argument of this index has these bits under a mask.
#[macro_export]
macro_rules! bits {
    ($name:literal, $index:literal, $mask:expr, $value:expr, $needed_by:literal) => {
        $crate::Alternative {
            name: $name,
            conditions: &[$crate::Argument::Bits($index, ($mask) as u32, ($value) as u32)],
            needed_by: $needed_by,
        }
    };
}

/// `socket`: family and type, with the protocol that the kernel chooses for both (0) or one by its name.
/// Other protocols, such as SCTP and MPTCP, are code that a call without rights has the kernel load.
#[macro_export]
macro_rules! socket {
    ($family:ident, $kind:ident, $needed_by:literal) => {
        $crate::Alternative {
            name: concat!(stringify!($family), " ", stringify!($kind)),
            conditions: &[
                $crate::Argument::Is(0, libc::$family.cast_unsigned()),
                $crate::Argument::Bits(1, $crate::SOCKET_TYPE, libc::$kind.cast_unsigned()),
                $crate::Argument::Is(2, 0),
            ],
            needed_by: $needed_by,
        }
    };
    ($family:ident, $kind:ident, $protocol:ident, $needed_by:literal) => {
        $crate::Alternative {
            name: concat!(stringify!($family), " ", stringify!($protocol)),
            conditions: &[
                $crate::Argument::Is(0, libc::$family.cast_unsigned()),
                $crate::Argument::Bits(1, $crate::SOCKET_TYPE, libc::$kind.cast_unsigned()),
                $crate::Argument::Is(2, libc::$protocol.cast_unsigned()),
            ],
            needed_by: $needed_by,
        }
    };
}

/// `setsockopt`: level and name.
#[macro_export]
macro_rules! option {
    ($level:ident, $name:ident, $needed_by:literal) => {
        $crate::Alternative {
            name: stringify!($name),
            conditions: &[
                $crate::Argument::Is(1, libc::$level.cast_unsigned()),
                $crate::Argument::Is(2, libc::$name.cast_unsigned()),
            ],
            needed_by: $needed_by,
        }
    };
}

/// `ioctl`: a request by its number, which the C library lacks.
#[macro_export]
macro_rules! request {
    ($name:literal, $number:literal, $needed_by:literal) => {
        $crate::Alternative {
            name: $name,
            conditions: &[$crate::Argument::Is(1, $number)],
            needed_by: $needed_by,
        }
    };
}

/// The list of a role.
#[cfg(not(debug_assertions))]
pub fn listed(_role: &str, calls: &[SystemCall]) -> Vec<SystemCall> {
    calls.to_vec()
}

/// The list of a role, but for the entry that a test leaves out to show that it is needed:
/// `BRODO_SYSTEM_CALLS_WITHOUT` has the role, the name of the call and that of the alternative if it is one,
/// as in `engine SYS_setsockopt IP_TOS`.
#[cfg(debug_assertions)]
pub fn listed(role: &str, calls: &[SystemCall]) -> Vec<SystemCall> {
    let mut calls = calls.to_vec();
    let left_out = std::env::var("BRODO_SYSTEM_CALLS_WITHOUT").unwrap_or_default();
    let Some(entry) = left_out.strip_prefix(role).and_then(|rest| rest.strip_prefix(' ')) else {
        return calls;
    };
    let (call, alternative) = entry.split_once(' ').unwrap_or((entry, ""));
    if let Some(it) = calls.iter_mut().find(|it| it.name == call && !alternative.is_empty()) {
        let others: Vec<_> = it.alternatives.iter().filter(|it| it.name != alternative).copied().collect();
        // No alternatives at all would allow every use.
        if !others.is_empty() {
            // Once in the life of a process.
            it.alternatives = others.leak();
            return calls;
        }
    }
    calls.retain(|it| it.name != call);
    calls
}
