//! The system calls of a promotion agent that serves: everything else ends it with SIGSYS.
//!
//! With CAP_NET_ADMIN over the guest's namespaces it could do a lot there; what is left are TCP sockets in
//! repair mode, one TAP, and messages on the netlink sockets that it has. Each entry names the step of an
//! end-to-end test (`cli/tests/e2e/system_calls.rs`) that fails without it, or the circumstances that this
//! one lacks.

use brodo_sandbox::{Alternative, SystemCall, bits, call, option, socket, when};

/// Sockets of promoted flows.
const SOCKETS: &[Alternative] = &[
    socket!(AF_INET, SOCK_STREAM, "a promoted download that comes back"),
    socket!(AF_INET6, SOCK_STREAM, "a promoted download over IPv6"),
];

/// `setsockopt`: options of these sockets, most of them in repair mode.
const OPTIONS: &[Alternative] = &[
    option!(SOL_IP, IP_TRANSPARENT, "a promoted download that comes back"),
    option!(SOL_IPV6, IPV6_TRANSPARENT, "a promoted download over IPv6"),
    option!(SOL_SOCKET, SO_KEEPALIVE, "a promoted download that comes back"),
    option!(SOL_SOCKET, SO_OOBINLINE, "a promoted download that comes back"),
    option!(SOL_SOCKET, SO_ATTACH_FILTER, "a promoted download that comes back"),
    option!(
        SOL_SOCKET,
        SO_DETACH_FILTER,
        "the test `a frozen socket is read out exactly and the flow goes on`"
    ),
    option!(SOL_TCP, TCP_CONGESTION, "a promoted download that comes back"),
    option!(SOL_TCP, TCP_REPAIR, "a promoted download that comes back"),
    option!(SOL_TCP, TCP_REPAIR_QUEUE, "a promoted download that comes back"),
    option!(SOL_TCP, TCP_QUEUE_SEQ, "a promoted download that comes back"),
    option!(SOL_TCP, TCP_MAXSEG, "a promoted download that comes back"),
    option!(SOL_TCP, TCP_REPAIR_OPTIONS, "a promoted download that comes back"),
    option!(SOL_TCP, TCP_REPAIR_WINDOW, "a promoted download that comes back"),
];

/// `membarrier`: the wait for packets that are on their way.
const BARRIERS: &[Alternative] = &[when!(0, MEMBARRIER_CMD_GLOBAL, "a promoted download that comes back")];

/// `fcntl`: a copy of a socket that is to be frozen.
const COMMANDS: &[Alternative] = &[
    // The standard library checks descriptors before it closes them, in builds with assertions.
    #[cfg(debug_assertions)]
    when!(1, F_GETFD, "a promoted download that comes back"),
    when!(1, F_DUPFD_CLOEXEC, "a promoted download that comes back"),
    when!(1, F_GETFL, "a flood of datagrams"),
    when!(1, F_SETFL, "a flood of datagrams"),
];

/// `ioctl`: the queue of datagrams becomes an interface.
const REQUESTS: &[Alternative] = &[
    when!(1, TUNGETFEATURES, "a flood of datagrams"),
    when!(1, TUNSETIFF, "a flood of datagrams"),
    when!(1, TUNGETIFF, "a flood of datagrams"),
    when!(1, TUNSETVNETHDRSZ, "a flood of datagrams"),
    when!(1, TUNSETVNETLE, "a flood of datagrams"),
    when!(1, TUNSETOFFLOAD, "a flood of datagrams"),
    when!(1, SIOCGIFINDEX, "a flood of datagrams"),
];

/// `mmap`: memory that is not executable.
const NOT_EXECUTABLE: &[Alternative] =
    &[bits!("not executable", 2, libc::PROT_EXEC, 0, "a heap without room")];

/// The list.
pub const CALLS: &[SystemCall] = &[
    call!(SYS_ppoll, "start"),
    call!(SYS_recvmsg, "start"),
    call!(SYS_sendmsg, "start"),
    call!(SYS_sendto, "a promoted download that comes back"),
    call!(SYS_recvfrom, "a promoted download that comes back"),
    call!(SYS_socket, SOCKETS, "a promoted download that comes back"),
    call!(SYS_setsockopt, OPTIONS, "a promoted download that comes back"),
    call!(SYS_getsockopt, "a promoted download that comes back"),
    call!(SYS_ioctl, REQUESTS, "a flood of datagrams"),
    call!(SYS_getsockname, "a flood of datagrams"),
    call!(SYS_bind, "a promoted download that comes back"),
    call!(SYS_connect, "a promoted download that comes back"),
    call!(SYS_membarrier, BARRIERS, "a promoted download that comes back"),
    call!(SYS_close, "a promoted download that comes back"),
    call!(SYS_fcntl, COMMANDS, "a promoted download that comes back"),
    call!(SYS_brk, "a heap without room"),
    call!(SYS_mmap, NOT_EXECUTABLE, "a heap without room"),
    call!(SYS_mremap, "a heap without room"),
    call!(SYS_munmap, "a heap without room"),
    call!(SYS_exit_group, "the end"),
    call!(SYS_clock_gettime, "a machine without a clock in the vDSO"),
];

/// The calls of an agent.
pub(crate) fn listed() -> Vec<SystemCall> {
    brodo_sandbox::listed("agent", CALLS)
}
