//! The system calls of a socket broker that serves: everything else ends it with SIGSYS.
//!
//! It opens sockets of five kinds and passes them on; each other kind, and any use of a socket, is beyond it.
//! Each entry names the step of an end-to-end test (`cli/tests/e2e/system_calls.rs`) that fails without it,
//! or the circumstances that no test has.

use brodo_sandbox::{Alternative, SystemCall, call, socket};

/// Sockets that the warden and an engine ask for.
const SOCKETS: &[Alternative] = &[
    socket!(AF_INET, SOCK_STREAM, "start"),
    socket!(AF_INET6, SOCK_STREAM, "start"),
    socket!(AF_INET, SOCK_DGRAM, "start"),
    socket!(AF_INET6, SOCK_DGRAM, "start"),
    socket!(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG, "start"),
];

/// `fcntl`: the standard library checks descriptors before it closes them, in builds with assertions.
#[cfg(debug_assertions)]
const COMMANDS: &[Alternative] = &[brodo_sandbox::when!(1, F_GETFD, "start")];

/// `mmap`: memory that is not executable.
const NOT_EXECUTABLE: &[Alternative] =
    &[brodo_sandbox::bits!("not executable", 2, libc::PROT_EXEC, 0, "a heap without room")];

/// The list.
pub const CALLS: &[SystemCall] = &[
    call!(SYS_ppoll, "start"),
    call!(SYS_recvmsg, "start"),
    call!(SYS_sendmsg, "start"),
    call!(SYS_socket, SOCKETS, "start"),
    call!(SYS_close, "start"),
    #[cfg(debug_assertions)]
    call!(SYS_fcntl, COMMANDS, "start"),
    call!(SYS_brk, "a heap without room"),
    call!(SYS_mmap, NOT_EXECUTABLE, "a heap without room"),
    call!(SYS_mremap, "a heap without room"),
    call!(SYS_munmap, "a heap without room"),
    call!(SYS_exit_group, "the end"),
];

/// The calls of a broker.
pub(crate) fn listed() -> Vec<SystemCall> {
    brodo_sandbox::listed("broker", CALLS)
}
