//! The system calls of an engine that serves.
//!
//! The list holds for all threads and from the first byte of the guest on. Hot calls stand without
//! conditions, because the kernel's bitmap lets those pass without running the filter; calls with a wide
//! reach (`socket`, `setsockopt`, `ioctl`, `fcntl`, `mmap`) have their arguments checked. Not in it, above
//! all: `openat`, `execve`, `clone`, `listen`, `setns`, `unshare`, `mount`, `ptrace`, `kill`.

use brodo_sandbox::{Alternative, Argument, SystemCall, bits, call, option, request, socket, when};

/// Host sockets: TCP, UDP, and ping sockets.
const SOCKETS: &[Alternative] = &[
    socket!(AF_INET, SOCK_STREAM, "start"),
    socket!(AF_INET6, SOCK_STREAM, "an upload"),
    socket!(AF_INET, SOCK_DGRAM, "datagrams"),
    socket!(AF_INET6, SOCK_DGRAM, "datagrams over IPv6"),
    socket!(AF_INET, SOCK_DGRAM, IPPROTO_ICMP, "a ping"),
    socket!(AF_INET6, SOCK_DGRAM, IPPROTO_ICMPV6, "a ping over IPv6"),
];

/// Options of the sockets of flows, splices and relays.
const OPTIONS: &[Alternative] = &[
    option!(SOL_TCP, TCP_NODELAY, "a download"),
    option!(SOL_TCP, TCP_REPAIR_QUEUE, "a promoted download that comes back"),
    option!(SOL_SOCKET, SO_OOBINLINE, "start"),
    option!(SOL_SOCKET, SO_KEEPALIVE, "a keep-alive probe"),
    option!(SOL_SOCKET, SO_LINGER, "a reset"),
    option!(SOL_SOCKET, SO_RCVBUF, "datagrams"),
    option!(SOL_SOCKET, SO_RXQ_OVFL, "datagrams"),
    option!(SOL_SOCKET, SO_REUSEPORT, "datagrams"),
    option!(SOL_SOCKET, SO_BROADCAST, "datagrams to groups"),
    option!(SOL_IP, IP_RECVERR, "datagrams"),
    option!(SOL_IP, IP_TOS, "header fields of datagrams"),
    option!(SOL_IP, IP_TTL, "header fields of datagrams"),
    option!(SOL_IP, IP_RECVTOS, "datagrams"),
    option!(SOL_IP, IP_PKTINFO, "datagrams of the host's loopback"),
    option!(SOL_IP, IP_MTU_DISCOVER, "datagrams"),
    option!(SOL_IP, IP_MULTICAST_TTL, "datagrams to groups"),
    option!(SOL_IP, IP_MULTICAST_ALL, "datagrams to groups"),
    option!(SOL_IPV6, IPV6_RECVERR, "datagrams over IPv6"),
    option!(SOL_IPV6, IPV6_V6ONLY, "datagrams over IPv6"),
    option!(SOL_IPV6, IPV6_TCLASS, "header fields of datagrams"),
    option!(SOL_IPV6, IPV6_UNICAST_HOPS, "header fields of datagrams"),
    option!(SOL_IPV6, IPV6_RECVTCLASS, "datagrams over IPv6"),
    option!(SOL_IPV6, IPV6_RECVPKTINFO, "datagrams of the host's loopback over IPv6"),
    option!(SOL_IPV6, IPV6_MTU_DISCOVER, "datagrams over IPv6"),
    option!(SOL_IPV6, IPV6_MULTICAST_HOPS, "datagrams to groups"),
    IPV6_MULTICAST_ALL,
    option!(SOL_UDP, UDP_GRO, "datagrams"),
];

/// `setsockopt` with a name that the libc crate lacks.
const IPV6_MULTICAST_ALL: Alternative = Alternative {
    name: "IPV6_MULTICAST_ALL",
    conditions: &[
        Argument::Is(1, libc::SOL_IPV6.cast_unsigned()),
        Argument::Is(2, brodo_net::sockets::IPV6_MULTICAST_ALL.cast_unsigned()),
    ],
    needed_by: "datagrams to groups",
};

/// `fcntl`: command.
const COMMANDS: &[Alternative] = &[
    // The standard library checks descriptors before it closes them, in builds with assertions.
    #[cfg(debug_assertions)]
    when!(1, F_GETFD, "start"),
    when!(1, F_GETFL, "a flood of datagrams"),
    when!(1, F_SETPIPE_SZ, "a port of the guest's loopback"),
    when!(1, F_DUPFD_CLOEXEC, "a promoted download that comes back"),
];

/// `ioctl`: length of the header before each frame, set back where the guest has changed it; bytes in the
/// queues of a kernel socket.
const REQUESTS: &[Alternative] = &[
    when!(1, TUNSETVNETHDRSZ, "a header length set by the guest"),
    when!(1, FIONREAD, "a promoted download that comes back"),
    when!(1, TIOCOUTQ, "a promoted download that comes back"),
    request!("SIOCOUTQNSD", 0x894b, "a promoted download that comes back"),
];

/// `mmap`: memory that is not executable.
const NOT_EXECUTABLE: &[Alternative] = &[bits!("not executable", 2, libc::PROT_EXEC, 0, "many connections")];

/// `prctl`: slack of timers, and no other property of the process.
const TIMER_SLACK: &[Alternative] = &[when!(0, PR_SET_TIMERSLACK, "start")];

/// The list.
pub(crate) const CALLS: &[SystemCall] = &[
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
    // Ports of the guest's UDP flows; not with `--udp-source-ports any`.
    call!(SYS_bind, "datagrams"),
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
