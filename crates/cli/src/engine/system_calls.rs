//! The system calls of an engine that serves: everything else ends it with SIGSYS.
//!
//! The list holds for all threads and from the first byte of the guest on. Hot calls stand without
//! conditions, because the kernel's bitmap lets those pass without running the filter; calls with a wide
//! reach (`socket`, `setsockopt`, `ioctl`, `fcntl`, `mmap`) have their arguments checked. Not in it, above
//! all: `openat`, `execve`, `clone`, `bind`, `listen`, `setns`, `unshare`, `mount`, `ptrace`, `kill`.
//!
//! Each call names the step of an end-to-end test (`tests/e2e/system_calls.rs`) that ends with SIGSYS
//! without it, so that none stands here without need. Calls that only another test needs name that, and
//! calls that need another kernel or machine say so.

use brodo_sandbox::{Argument, SystemCall};

macro_rules! call {
    ($name:ident, $needed_by:literal) => {
        call!($name, &[], $needed_by)
    };
    ($name:ident, $alternatives:expr, $needed_by:literal) => {
        SystemCall {
            name: stringify!($name),
            number: libc::$name,
            alternatives: $alternatives,
            needed_by: $needed_by,
        }
    };
}

/// Type of a socket without its flags.
const SOCKET_TYPE: u32 = 0xf;

const fn socket(family: i32, kind: i32) -> [Argument; 2] {
    [Argument::Is(0, family.cast_unsigned()), Argument::Bits(1, SOCKET_TYPE, kind.cast_unsigned())]
}

/// Host sockets: TCP, UDP, and ping sockets, which are datagram sockets too.
const SOCKETS: &[&[Argument]] = &[
    &socket(libc::AF_INET, libc::SOCK_STREAM),
    &socket(libc::AF_INET6, libc::SOCK_STREAM),
    &socket(libc::AF_INET, libc::SOCK_DGRAM),
    &socket(libc::AF_INET6, libc::SOCK_DGRAM),
];

const fn option(level: i32, name: i32) -> [Argument; 2] {
    [Argument::Is(1, level.cast_unsigned()), Argument::Is(2, name.cast_unsigned())]
}

/// Options of the sockets of flows, splices and relays.
const OPTIONS: &[&[Argument]] = &[
    &option(libc::SOL_TCP, libc::TCP_NODELAY),
    &option(libc::SOL_SOCKET, libc::SO_OOBINLINE),
    &option(libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    &option(libc::SOL_SOCKET, libc::SO_LINGER),
    &option(libc::SOL_SOCKET, libc::SO_RCVBUF),
    &option(libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
    &option(libc::SOL_IP, libc::IP_RECVERR),
    &option(libc::SOL_IP, libc::IP_TOS),
    &option(libc::SOL_IP, libc::IP_TTL),
    &option(libc::SOL_IP, libc::IP_RECVTTL),
    &option(libc::SOL_IP, libc::IP_RECVTOS),
    &option(libc::SOL_IP, libc::IP_PKTINFO),
    &option(libc::SOL_IP, libc::IP_MTU_DISCOVER),
    &option(libc::SOL_IPV6, libc::IPV6_RECVERR),
    &option(libc::SOL_IPV6, libc::IPV6_TCLASS),
    &option(libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS),
    &option(libc::SOL_IPV6, libc::IPV6_RECVHOPLIMIT),
    &option(libc::SOL_IPV6, libc::IPV6_RECVTCLASS),
    &option(libc::SOL_IPV6, libc::IPV6_RECVPKTINFO),
    &option(libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER),
    &option(libc::SOL_UDP, libc::UDP_SEGMENT),
    &option(libc::SOL_UDP, libc::UDP_GRO),
];

/// `fcntl` commands.
const COMMANDS: &[&[Argument]] = &[
    // The standard library checks descriptors before it closes them, in builds with assertions.
    #[cfg(debug_assertions)]
    &[Argument::Is(1, libc::F_GETFD.cast_unsigned())],
    &[Argument::Is(1, libc::F_SETPIPE_SZ.cast_unsigned())],
];

/// `ioctl`: length of the header before each frame, set back where the guest has changed it.
const REQUESTS: &[&[Argument]] = &[&[Argument::Is(1, libc::TUNSETVNETHDRSZ as u32)]];

/// Memory that is not executable.
const NOT_EXECUTABLE: &[&[Argument]] = &[&[Argument::Bits(2, libc::PROT_EXEC as u32, 0)]];

/// Slack of timers, and no other property of the process.
const TIMER_SLACK: &[&[Argument]] = &[&[Argument::Is(0, libc::PR_SET_TIMERSLACK.cast_unsigned())]];

/// The list.
const ENGINE: &[SystemCall] = &[
    call!(SYS_prctl, TIMER_SLACK, "start"),
    call!(SYS_epoll_pwait2, "start"),
    call!(SYS_epoll_pwait, "a kernel before 5.11"),
    call!(SYS_ppoll, "start"),
    call!(SYS_read, "start"),
    call!(SYS_write, "start"),
    call!(SYS_readv, "start"),
    call!(SYS_writev, "start"),
    call!(SYS_sendto, "start"),
    call!(SYS_sendmsg, "start"),
    call!(SYS_recvfrom, "start"),
    call!(SYS_recvmsg, "start"),
    call!(SYS_futex, "start"),
    call!(SYS_sched_yield, "start"),
    call!(SYS_brk, "start"),
    call!(SYS_socket, SOCKETS, "start"),
    call!(SYS_setsockopt, OPTIONS, "start"),
    call!(SYS_connect, "start"),
    call!(SYS_close, "start"),
    call!(SYS_epoll_ctl, "a download"),
    call!(SYS_shutdown, "a download"),
    call!(SYS_mmap, NOT_EXECUTABLE, "many connections"),
    call!(SYS_mremap, "tables of many thousand flows"),
    call!(SYS_recvmmsg, "datagrams"),
    call!(SYS_fstat, "a new listener"),
    call!(SYS_accept4, "a published port"),
    call!(SYS_getpeername, "the tests `wan`"),
    call!(SYS_getsockname, "the test `a network that comes late and goes`"),
    call!(SYS_getsockopt, "a port of the guest's loopback"),
    call!(SYS_splice, "a port of the guest's loopback"),
    call!(SYS_pipe2, "a port of the guest's loopback"),
    call!(SYS_fcntl, COMMANDS, "a port of the guest's loopback"),
    call!(SYS_ioctl, REQUESTS, "a header length set by the guest"),
    call!(SYS_munmap, "the end"),
    call!(SYS_madvise, "the end"),
    call!(SYS_rt_sigprocmask, "the end"),
    call!(SYS_sigaltstack, "the end"),
    call!(SYS_exit, "the end"),
    call!(SYS_exit_group, "the end"),
    call!(SYS_restart_syscall, "a process that is stopped and continued"),
    call!(SYS_clock_gettime, "a machine without a clock in the vDSO"),
];

/// The calls of an engine.
pub(super) fn engine() -> Vec<SystemCall> {
    let without = without();
    ENGINE.iter().filter(|call| Some(call.name) != without.as_deref()).copied().collect()
}

/// Call left out for the test that each is needed.
#[cfg(debug_assertions)]
fn without() -> Option<String> {
    std::env::var("BRODO_ENGINE_WITHOUT").ok()
}

#[cfg(not(debug_assertions))]
const fn without() -> Option<String> {
    None
}
