//! The system calls of a keeper, and of the engines that it makes until they serve, beside those of an engine
//! that serves.
//!
//! The keeper reads starts, which are the warden's, makes engines and waits for them. Its table of
//! descriptors is the engine's too, so one that was taken over can put another socket in the place of the
//! warden's, but what comes of it is an engine under this list. `fcntl` has no conditions here: an engine
//! that goes on after a crash asks for thousands of descriptors whether they are open.

use brodo_sandbox::{Alternative, SystemCall, bits, call, option, socket, when};

/// `clone`: engines, with the keeper's descriptors; their threads.
const CLONES: &[Alternative] = &[
    bits!("engine", 0, u32::MAX, libc::CLONE_FILES | libc::SIGCHLD, "start"),
    bits!("thread", 0, libc::CLONE_THREAD | NAMESPACES, libc::CLONE_THREAD, "start"),
];

/// Namespaces that clone(2) makes.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// `unshare`: the question whether the process has one thread, and nothing else.
const QUESTIONS: &[Alternative] = &[when!(0, CLONE_THREAD, "start")];

/// `prctl`: death signal, names, and the way to a narrower list.
const PROPERTIES: &[Alternative] = &[
    when!(0, PR_SET_PDEATHSIG, "start"),
    when!(0, PR_SET_NAME, "start"),
    when!(0, PR_SET_NO_NEW_PRIVS, "start"),
];

/// `seccomp`: a narrower list.
const FILTERS: &[Alternative] = &[when!(0, SECCOMP_SET_MODE_FILTER, "start")];

/// `socket`: the host's network, its sockets, and the cookie of its namespace.
const SOCKETS: &[Alternative] = &[
    socket!(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE, "start"),
    socket!(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG, "start"),
    socket!(AF_UNIX, SOCK_DGRAM, "an engine that is killed"),
];

/// `ioctl`: properties of the TAP, non-blocking descriptors, indices of interfaces.
const REQUESTS: &[Alternative] = &[
    when!(1, FIONBIO, "start"),
    when!(1, TUNGETIFF, "start"),
    when!(1, TUNSETOFFLOAD, "start"),
    when!(1, TUNSETVNETLE, "start"),
    when!(1, SIOCGIFINDEX, "start"),
];

/// `setsockopt`: the question how much of a stream is unread.
const OPTIONS: &[Alternative] = &[option!(SOL_TCP, TCP_INQ, "the tests `killed`")];

/// `mprotect`: memory that is not executable.
const NOT_EXECUTABLE: &[Alternative] = &[bits!("not executable", 2, libc::PROT_EXEC, 0, "start")];

/// The list, beside that of an engine that serves.
pub(crate) const CALLS: &[SystemCall] = &[
    call!(SYS_prlimit64, "start"),
    call!(SYS_getpid, "start"),
    call!(SYS_getppid, "start"),
    call!(SYS_unshare, QUESTIONS, "start"),
    call!(SYS_clone, CLONES, "start"),
    call!(SYS_waitid, "start"),
    call!(SYS_wait4, "an engine that is killed"),
    call!(SYS_prctl, PROPERTIES, "start"),
    call!(SYS_fcntl, "start"),
    call!(SYS_setsockopt, OPTIONS, "the tests `killed`"),
    call!(SYS_ioctl, REQUESTS, "start"),
    call!(SYS_socket, SOCKETS, "start"),
    call!(SYS_bind, "start"),
    call!(SYS_eventfd2, "start"),
    call!(SYS_epoll_create1, "start"),
    call!(SYS_getrandom, "start"),
    call!(SYS_mprotect, NOT_EXECUTABLE, "start"),
    call!(SYS_rt_sigaction, "start"),
    call!(SYS_gettid, "start"),
    call!(SYS_sched_getaffinity, "start"),
    call!(SYS_seccomp, FILTERS, "start"),
    // glibc aborts if the main thread has it, registered before this list, and another does not.
    call!(SYS_rseq, "start"),
];
