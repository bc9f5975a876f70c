//! Attempts of a process that was taken over, each with the stages that stop it.

use crate::raw::call;
use brodo_sandbox::Stage::{self, Capabilities, Descriptors, Dumps, ExecutableMemory, Landlock, Limits};
use brodo_sandbox::Stage::{Namespaces, Privileges, Root, SystemCalls};
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener, UnixStream};
use std::path::PathBuf;

/// Things of the parent's that an attempt reaches for; made before the confinement.
pub(crate) struct Targets {
    pub(crate) parent: i64,
    pub(crate) abstract_name: String,
    /// Held open, so that the name is there.
    pub(crate) _listener: UnixListener,
    /// A listener of the host, and its address.
    pub(crate) server: (TcpListener, SocketAddr),
    /// A descriptor that the child is not given by name.
    pub(crate) foreign: File,
    /// A TCP socket in a network namespace that the same user has made.
    pub(crate) guest_socket: OwnedFd,
    /// Key of a shared memory segment in the parent's IPC namespace.
    pub(crate) segment: i64,
    /// The user's terminal, which the parent controls; not given to the child.
    pub(crate) terminal: Terminal,
    /// Memory at the same address in parent and child.
    pub(crate) memory: Box<u8>,
    /// A file that could be made.
    pub(crate) new_file: PathBuf,
}

/// A pseudo-terminal.
pub(crate) struct Terminal {
    /// Its other end, where the user types. Held open, so that the terminal is there.
    pub(crate) _keyboard: File,
    pub(crate) screen: OwnedFd,
}

/// Protection that stops an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The call fails with this error.
    Error(i32),
    /// The process ends with SIGSYS.
    Killed,
}
use Stop::{Error, Killed};

pub(crate) struct Attempt {
    pub(crate) name: &'static str,
    /// Stages without which it would not be possible at all: on in every run.
    pub(crate) given: &'static [Stage],
    /// Whether the process may give its connections a source.
    pub(crate) with_source: bool,
    /// The stages that stop it, each by itself. It succeeds under each other one.
    pub(crate) stopped_by: &'static [(Stage, Stop)],
    pub(crate) make: fn(&Targets) -> io::Result<()>,
}

const fn attempt(
    name: &'static str,
    stopped_by: &'static [(Stage, Stop)],
    make: fn(&Targets) -> io::Result<()>,
) -> Attempt {
    Attempt { name, given: &[], with_source: false, stopped_by, make }
}

/// An attempt of a process that may give its connections a source.
const fn with_source(attempt: &Attempt) -> Attempt {
    Attempt { with_source: true, ..*attempt }
}

/// A state of the process that stands for what it permits.
fn refused_if(condition: bool) -> io::Result<()> {
    if condition { Err(io::Error::from_raw_os_error(libc::EPERM)) } else { Ok(()) }
}

/// An address of the loopback network that no other process binds, made of the parent's process id.
fn inet(targets: &Targets, port: u16) -> [u8; 16] {
    let [_, b, c, d] = (targets.parent as u32).to_be_bytes();
    let mut address = [0; 16];
    address[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    address[2..4].copy_from_slice(&port.to_be_bytes());
    address[4..8].copy_from_slice(&[127, b, c, d]);
    address
}

fn bind(targets: &Targets, kind: i32, port: u16) -> io::Result<()> {
    let socket = call(libc::SYS_socket, [libc::AF_INET.into(), kind.into()])?;
    let address = inet(targets, port);
    call(libc::SYS_bind, [socket, address.as_ptr() as i64, 16]).map(drop)
}

fn page(protection: i32) -> io::Result<i64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    call(libc::SYS_mmap, [0, 4096, protection.into(), flags.into()])
}

pub(crate) const ATTEMPTS: &[Attempt] = &[
    attempt(
        "open a file of the system",
        &[(Root, Error(libc::ENOENT)), (Landlock, Error(libc::EACCES)), (SystemCalls, Killed)],
        |_| File::open("/etc/passwd").map(drop),
    ),
    attempt(
        "create a file",
        &[(Root, Error(libc::ENOENT)), (Landlock, Error(libc::EACCES)), (SystemCalls, Killed)],
        |targets| File::create_new(&targets.new_file).map(drop),
    ),
    attempt(
        "read the environment of the parent",
        &[
            (Namespaces, Error(libc::EACCES)),
            (Root, Error(libc::ENOENT)),
            (Landlock, Error(libc::EACCES)),
            (SystemCalls, Killed),
        ],
        |targets| File::open(format!("/proc/{}/environ", targets.parent)).map(drop),
    ),
    attempt(
        "run another program",
        &[(Root, Error(libc::ENOENT)), (Landlock, Error(libc::EACCES)), (SystemCalls, Killed)],
        |_| {
            let arguments = [c"true".as_ptr(), std::ptr::null()];
            call(libc::SYS_execve, [c"/bin/true".as_ptr() as i64, arguments.as_ptr() as i64]).map(drop)
        },
    ),
    attempt(
        "signal the parent",
        &[(Namespaces, Error(libc::ESRCH)), (Landlock, Error(libc::EPERM)), (SystemCalls, Killed)],
        |targets| call(libc::SYS_kill, [targets.parent]).map(drop),
    ),
    attempt(
        "trace the parent",
        &[(Namespaces, Error(libc::ESRCH)), (Landlock, Error(libc::EPERM)), (SystemCalls, Killed)],
        |targets| call(libc::SYS_ptrace, [libc::PTRACE_SEIZE.into(), targets.parent]).map(drop),
    ),
    attempt(
        "write into the memory of the parent",
        &[(Namespaces, Error(libc::ESRCH)), (Landlock, Error(libc::EPERM)), (SystemCalls, Killed)],
        |targets| {
            let range = [&raw const *targets.memory as i64, 1];
            let range = range.as_ptr() as i64;
            call(libc::SYS_process_vm_writev, [targets.parent, range, 1, range, 1]).map(drop)
        },
    ),
    attempt(
        "take a descriptor of the parent",
        &[(Namespaces, Error(libc::ESRCH)), (Landlock, Error(libc::EPERM)), (SystemCalls, Killed)],
        |targets| {
            let parent = call(libc::SYS_pidfd_open, [targets.parent])?;
            call(libc::SYS_pidfd_getfd, [parent, 0]).map(drop)
        },
    ),
    attempt(
        "hold the parent by a pidfd",
        &[(Namespaces, Error(libc::ESRCH)), (SystemCalls, Killed)],
        |targets| call(libc::SYS_pidfd_open, [targets.parent]).map(drop),
    ),
    attempt(
        "connect to an abstract socket of the host",
        &[(Landlock, Error(libc::EPERM)), (SystemCalls, Killed)],
        |targets| {
            let address = net::SocketAddr::from_abstract_name(&targets.abstract_name)?;
            UnixStream::connect_addr(&address).map(drop)
        },
    ),
    attempt(
        "attach shared memory of the host",
        &[(Namespaces, Error(libc::ENOENT)), (SystemCalls, Killed)],
        |targets| call(libc::SYS_shmget, [targets.segment, 4096, 0o600]).map(drop),
    ),
    attempt("bind a TCP port", &[(Landlock, Error(libc::EACCES)), (SystemCalls, Killed)], |targets| {
        bind(targets, libc::SOCK_STREAM, 0)
    }),
    with_source(&attempt("bind a TCP port of the kernel's choice", &[(SystemCalls, Killed)], |targets| {
        bind(targets, libc::SOCK_STREAM, 0)
    })),
    with_source(&attempt(
        "bind a TCP port of its own choice",
        &[(Landlock, Error(libc::EACCES)), (SystemCalls, Killed)],
        |targets| bind(targets, libc::SOCK_STREAM, 4711),
    )),
    attempt("bind a UDP port", &[(SystemCalls, Killed)], |targets| bind(targets, libc::SOCK_DGRAM, 0)),
    attempt("listen without bind", &[(SystemCalls, Killed)], |_| {
        let socket = call(libc::SYS_socket, [libc::AF_INET.into(), libc::SOCK_STREAM.into()])?;
        call(libc::SYS_listen, [socket, 1]).map(drop)
    }),
    attempt("open a netlink socket", &[(SystemCalls, Killed)], |_| {
        call(libc::SYS_socket, [libc::AF_NETLINK.into(), libc::SOCK_RAW.into()]).map(drop)
    }),
    attempt("open a socket of another protocol", &[(SystemCalls, Killed)], |_| {
        let (stream, datagram) = (libc::SOCK_STREAM, libc::SOCK_DGRAM);
        let missing = [libc::EPROTONOSUPPORT, libc::ENOPROTOOPT].map(Some);
        for (kind, protocol) in
            [(stream, libc::IPPROTO_SCTP), (stream, libc::IPPROTO_MPTCP), (datagram, libc::IPPROTO_UDPLITE)]
        {
            let socket = call(libc::SYS_socket, [libc::AF_INET.into(), kind.into(), protocol.into()]);
            // A kernel without the protocol, or with it switched off, answers so itself.
            if let Err(error) = socket
                && !missing.contains(&error.raw_os_error())
            {
                return Err(error);
            }
        }
        Ok(())
    }),
    // The rings count as locked memory.
    attempt("set up io_uring", &[(Limits, Error(libc::ENOMEM)), (SystemCalls, Killed)], |_| {
        let parameters = [0u8; 120];
        call(libc::SYS_io_uring_setup, [4, parameters.as_ptr() as i64]).map(drop)
    }),
    attempt("handle page faults", &[(SystemCalls, Killed)], |_| {
        const USER_MODE_ONLY: i64 = 1;
        call(libc::SYS_userfaultfd, [USER_MODE_ONLY]).map(drop)
    }),
    attempt("open a keyring", &[(SystemCalls, Killed)], |_| {
        const JOIN_SESSION: i64 = 1;
        call(libc::SYS_keyctl, [JOIN_SESSION]).map(drop)
    }),
    attempt("make a user namespace", &[(Namespaces, Error(libc::EPERM)), (SystemCalls, Killed)], |_| {
        call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into()]).map(drop)
    }),
    attempt(
        "configure a guest's socket with the rights of its owner",
        &[(Namespaces, Error(libc::EPERM)), (SystemCalls, Killed)],
        |targets| {
            let (socket, on) = (i64::from(targets.guest_socket.as_raw_fd()), 1u32);
            let level = libc::IPPROTO_TCP.into();
            call(libc::SYS_setsockopt, [socket, level, libc::TCP_REPAIR.into(), &raw const on as i64, 4])
                .map(drop)
        },
    ),
    Attempt {
        given: &[Namespaces],
        with_source: false,
        ..attempt(
            "use a capability over its own namespaces",
            &[(Capabilities, Error(libc::EPERM)), (SystemCalls, Killed)],
            |_| call(libc::SYS_sethostname, [c"villain".as_ptr() as i64, 7]).map(drop),
        )
    },
    attempt(
        "use a descriptor that it was not given",
        &[(Descriptors, Error(libc::EBADF)), (SystemCalls, Killed)],
        |targets| call(libc::SYS_fcntl, [targets.foreign.as_raw_fd().into(), libc::F_GETFD.into()]).map(drop),
    ),
    attempt(
        "type into the user's terminal",
        &[(Descriptors, Error(libc::EBADF)), (SystemCalls, Killed)],
        |targets| {
            let (terminal, key) = (i64::from(targets.terminal.screen.as_raw_fd()), c"x".as_ptr() as i64);
            match call(libc::SYS_ioctl, [terminal, libc::TIOCSTI as i64, key]) {
                // The terminal's own answer, where the administrator forbids it (dev.tty.legacy_tiocsti) or
                // another process controls it.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EIO | libc::EPERM)) => Ok(()),
                answer => answer.map(drop),
            }
        },
    ),
    attempt(
        "make memory executable",
        &[(ExecutableMemory, Error(libc::EACCES)), (SystemCalls, Killed)],
        |_| {
            let page = page(libc::PROT_READ | libc::PROT_WRITE)?;
            let protection = libc::PROT_READ | libc::PROT_EXEC;
            call(libc::SYS_mprotect, [page, 4096, protection.into()]).map(drop)
        },
    ),
    attempt("lock memory", &[(Limits, Error(libc::EPERM)), (SystemCalls, Killed)], |_| {
        let page = page(libc::PROT_READ | libc::PROT_WRITE)?;
        call(libc::SYS_mlock, [page, 4096]).map(drop)
    }),
    attempt("fork", &[(Limits, Error(libc::EAGAIN)), (SystemCalls, Killed)], |_| {
        match call(libc::SYS_clone, [libc::SIGCHLD.into()])? {
            0 => std::process::exit(0),
            _ => Ok(()),
        }
    }),
    attempt("leave a core", &[(Dumps, Error(libc::EPERM)), (SystemCalls, Killed)], |_| {
        refused_if(call(libc::SYS_prctl, [libc::PR_GET_DUMPABLE.into()])? == 0)
    }),
    attempt(
        "gain privileges by execve",
        &[(Privileges, Error(libc::EPERM)), (Landlock, Error(libc::EPERM)), (SystemCalls, Killed)],
        |_| refused_if(call(libc::SYS_prctl, [libc::PR_GET_NO_NEW_PRIVS.into()])? == 1),
    ),
];

/// The work that stays possible under all stages. The connection is left open: closing it would take calls
/// that only this standard library's debug assertions make.
pub(crate) const WORK: Attempt =
    attempt("connect", &[], |targets| TcpStream::connect(targets.server.1).map(std::mem::forget));
