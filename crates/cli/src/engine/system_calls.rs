//! The system calls of an engine that serves: everything else ends it with SIGSYS.
//!
//! The list holds for all threads and from the first byte of the guest on. Hot calls stand without
//! conditions, because the kernel's bitmap lets those pass without running the filter; calls with a wide
//! reach (`socket`, `setsockopt`, `ioctl`, `fcntl`, `mmap`) have their arguments checked. Not in it, above
//! all: `openat`, `execve`, `clone`, `bind`, `listen`, `setns`, `unshare`, `mount`, `ptrace`, `kill`.
//!
//! Each call and each use of one names the step of an end-to-end test (`tests/e2e/system_calls.rs`) that ends
//! with SIGSYS without it, so that none stands here without need. Entries that only another test needs name
//! that, and those that need another kernel or machine say so.

use brodo_net::sockets::Outbound;
use brodo_sandbox::{Alternative, Argument, SystemCall};

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

/// A call whose argument of this index, of type int, equals a constant of the C library.
macro_rules! when {
    ($index:literal, $name:ident, $needed_by:literal) => {
        Alternative {
            name: stringify!($name),
            conditions: &[Argument::Is($index, libc::$name as u32)],
            needed_by: $needed_by,
        }
    };
}

/// Type of a socket without its flags.
const SOCKET_TYPE: u32 = 0xf;

/// `socket`: family and type.
macro_rules! socket {
    ($family:ident, $kind:ident, $needed_by:literal) => {
        Alternative {
            name: concat!(stringify!($family), " ", stringify!($kind)),
            conditions: &[
                Argument::Is(0, libc::$family.cast_unsigned()),
                Argument::Bits(1, SOCKET_TYPE, libc::$kind.cast_unsigned()),
            ],
            needed_by: $needed_by,
        }
    };
}

/// Host sockets: TCP, UDP, and ping sockets, which are datagram sockets too.
const SOCKETS: &[Alternative] = &[
    socket!(AF_INET, SOCK_STREAM, "start"),
    socket!(AF_INET6, SOCK_STREAM, "an upload"),
    socket!(AF_INET, SOCK_DGRAM, "datagrams"),
    socket!(AF_INET6, SOCK_DGRAM, "datagrams over IPv6"),
];

/// `setsockopt`: level and name.
macro_rules! option {
    ($level:ident, $name:ident, $needed_by:literal) => {
        Alternative {
            name: stringify!($name),
            conditions: &[
                Argument::Is(1, libc::$level.cast_unsigned()),
                Argument::Is(2, libc::$name.cast_unsigned()),
            ],
            needed_by: $needed_by,
        }
    };
}

/// Options of the sockets of flows, splices and relays.
const OPTIONS: &[Alternative] = &[
    option!(SOL_TCP, TCP_NODELAY, "a download"),
    option!(SOL_TCP, TCP_REPAIR_QUEUE, "a promoted download that comes back"),
    option!(SOL_SOCKET, SO_OOBINLINE, "start"),
    option!(SOL_SOCKET, SO_KEEPALIVE, "a keep-alive probe"),
    option!(SOL_SOCKET, SO_LINGER, "a reset"),
    option!(SOL_SOCKET, SO_RCVBUF, "datagrams"),
    option!(SOL_SOCKET, SO_RXQ_OVFL, "datagrams"),
    option!(SOL_IP, IP_RECVERR, "datagrams"),
    option!(SOL_IP, IP_TOS, "header fields of datagrams"),
    option!(SOL_IP, IP_TTL, "header fields of datagrams"),
    option!(SOL_IP, IP_RECVTOS, "datagrams"),
    option!(SOL_IP, IP_PKTINFO, "datagrams of the host's loopback"),
    option!(SOL_IP, IP_MTU_DISCOVER, "datagrams"),
    option!(SOL_IPV6, IPV6_RECVERR, "datagrams over IPv6"),
    option!(SOL_IPV6, IPV6_TCLASS, "header fields of datagrams"),
    option!(SOL_IPV6, IPV6_UNICAST_HOPS, "header fields of datagrams"),
    option!(SOL_IPV6, IPV6_RECVTCLASS, "datagrams over IPv6"),
    option!(SOL_IPV6, IPV6_RECVPKTINFO, "datagrams of the host's loopback over IPv6"),
    option!(SOL_IPV6, IPV6_MTU_DISCOVER, "datagrams over IPv6"),
    option!(SOL_UDP, UDP_GRO, "datagrams"),
];

/// `fcntl`: command.
const COMMANDS: &[Alternative] = &[
    // The standard library checks descriptors before it closes them, in builds with assertions.
    #[cfg(debug_assertions)]
    when!(1, F_GETFD, "start"),
    when!(1, F_SETPIPE_SZ, "a port of the guest's loopback"),
    when!(1, F_DUPFD_CLOEXEC, "a promoted download that comes back"),
];

/// `ioctl`: a request by its number, which the C library lacks.
macro_rules! request {
    ($name:literal, $number:literal, $needed_by:literal) => {
        Alternative { name: $name, conditions: &[Argument::Is(1, $number)], needed_by: $needed_by }
    };
}

/// `ioctl`: length of the header before each frame, set back where the guest has changed it; bytes in the
/// queues of a kernel socket.
const REQUESTS: &[Alternative] = &[
    when!(1, TUNSETVNETHDRSZ, "a header length set by the guest"),
    when!(1, FIONREAD, "a promoted download that comes back"),
    when!(1, TIOCOUTQ, "a promoted download that comes back"),
    request!("SIOCOUTQNSD", 0x894b, "a promoted download that comes back"),
];

/// `mmap`: memory that is not executable.
const NOT_EXECUTABLE: &[Alternative] = &[Alternative {
    name: "not executable",
    conditions: &[Argument::Bits(2, libc::PROT_EXEC as u32, 0)],
    needed_by: "many connections",
}];

/// `prctl`: slack of timers, and no other property of the process.
const TIMER_SLACK: &[Alternative] = &[when!(0, PR_SET_TIMERSLACK, "start")];

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
    call!(SYS_brk, "any step"),
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
    call!(SYS_munmap, "any step"),
    call!(SYS_madvise, "start"),
    call!(SYS_rt_sigprocmask, "the end"),
    call!(SYS_sigaltstack, "the end"),
    call!(SYS_exit, "the end"),
    call!(SYS_exit_group, "the end"),
    call!(SYS_restart_syscall, "a process that is stopped and continued"),
    call!(SYS_clock_gettime, "a machine without a clock in the vDSO"),
];

/// Option of sockets that leave by an interface (`--outbound %NAME`), which that option's session test needs.
const BIND_TO_DEVICE: Alternative = Alternative {
    name: "SO_BINDTODEVICE",
    conditions: &[
        Argument::Is(1, libc::SOL_SOCKET.cast_unsigned()),
        Argument::Is(2, libc::SO_BINDTODEVICE.cast_unsigned()),
    ],
    needed_by: "--outbound",
};

/// Option of sockets that leave from an address (`--outbound ADDRESS`).
const BIND_NO_PORT: Alternative = Alternative {
    name: "IP_BIND_ADDRESS_NO_PORT",
    conditions: &[
        Argument::Is(1, libc::SOL_IP.cast_unsigned()),
        Argument::Is(2, libc::IP_BIND_ADDRESS_NO_PORT.cast_unsigned()),
    ],
    needed_by: "--outbound",
};

/// Their binding to it.
const BIND: SystemCall =
    SystemCall { name: "SYS_bind", number: libc::SYS_bind, alternatives: &[], needed_by: "--outbound" };

/// The calls of an engine, with those for a source of its sockets if they have one.
pub(super) fn engine(outbound: &Outbound) -> Vec<SystemCall> {
    let mut calls = usual();
    let device = outbound.names_interface().then_some(BIND_TO_DEVICE);
    let address = outbound.binds().then_some(BIND_NO_PORT);
    calls.extend(address.map(|_| BIND));
    let options: Vec<_> = device.into_iter().chain(address).collect();
    if !options.is_empty()
        && let Some(call) = calls.iter_mut().find(|call| call.number == libc::SYS_setsockopt)
    {
        // Once in the life of a process.
        call.alternatives = [call.alternatives, &options].concat().leak();
    }
    calls
}

/// The calls of every engine.
#[cfg(not(debug_assertions))]
fn usual() -> Vec<SystemCall> {
    ENGINE.to_vec()
}

/// The calls of every engine, but for the call or the alternative, as in `SYS_setsockopt IP_TOS`, that is
/// left out for the test that each is needed.
#[cfg(debug_assertions)]
fn usual() -> Vec<SystemCall> {
    let without = std::env::var("BRODO_ENGINE_WITHOUT").unwrap_or_default();
    let (call, alternative) = without.split_once(' ').unwrap_or((&without, ""));
    let mut calls = ENGINE.to_vec();
    if alternative.is_empty() {
        calls.retain(|it| it.name != call);
    } else if let Some(it) = calls.iter_mut().find(|it| it.name == call) {
        let others: Vec<_> = it.alternatives.iter().filter(|it| it.name != alternative).copied().collect();
        // No alternatives at all would allow every use.
        if others.is_empty() {
            calls.retain(|it| it.name != call);
        } else {
            // Once in the life of a process.
            it.alternatives = others.leak();
        }
    }
    calls
}
