//! Attempts of a process that was taken over, under all stages and under each alone.
//!
//! Each attempt must succeed without a stage (else it would prove nothing), be stopped by exactly the stages
//! of its row in `attempts.rs` when each is alone, and be stopped when all are on. The program is its own
//! villain: it starts itself as an ordinary user, and that process, the *parent*, makes the confined child
//! and prints how the child ended.

mod attempts;
mod kernels;
mod raw;

use attempts::{ATTEMPTS, Attempt, Stop, Targets, Terminal, WORK};
use brodo_sandbox::{
    Alternative, Argument, Bond, Limits, OnViolation, Parent, Stage, Stages, SystemCall, TcpBind, enter,
    seal, spawn,
};
use kernels::{KERNELS, Kernel};
use libtest_mimic::{Arguments, Failed, Trial};
use nix::sched::{CloneFlags, unshare};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

/// Name of the attempt that a parent's child makes, and the names of its stages.
const ATTEMPT: &str = "BRODO_VILLAIN_ATTEMPT";
const STAGES: &str = "BRODO_VILLAIN_STAGES";
/// Name of the kernel on which it is made, of [`KERNELS`].
const LACKS: &str = "BRODO_VILLAIN_LACKS";
/// Argument of the process that has a network namespace of its own.
const GUEST: &str = "--guest";
const NOBODY: u32 = 65534;

/// Calls without which the attempts and the end of their process would be impossible, and in general form
/// those of an engine: sockets of the host and connections from them.
const CALLS: &[SystemCall] = &[
    plain(libc::SYS_exit_group),
    plain(libc::SYS_connect),
    plain(libc::SYS_write),
    plain(libc::SYS_brk),
    plain(libc::SYS_munmap),
    SystemCall {
        name: "socket",
        number: libc::SYS_socket,
        alternatives: &[
            brodo_sandbox::socket!(AF_INET, SOCK_STREAM, "connect"),
            brodo_sandbox::socket!(AF_INET, SOCK_DGRAM, "bind a UDP port"),
        ],
        needed_by: WORK.name,
    },
    SystemCall {
        name: "mmap",
        number: libc::SYS_mmap,
        alternatives: &[only("not executable", &[Argument::Bits(2, libc::PROT_EXEC as u32, 0)])],
        needed_by: "lock memory",
    },
];

const fn only(name: &'static str, conditions: &'static [Argument]) -> Alternative {
    Alternative { name, conditions, needed_by: WORK.name }
}

const fn plain(number: i64) -> SystemCall {
    SystemCall { name: "", number, alternatives: &[], needed_by: WORK.name }
}

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == GUEST) {
        return guest();
    }
    if let (Ok(attempt), Ok(stages)) = (std::env::var(ATTEMPT), std::env::var(STAGES)) {
        let ended =
            parent(&attempt, stages.split(' ').filter_map(Stage::named).fold(Stages::NONE, Stages::with));
        println!("{}", ended.unwrap_or_else(|error| format!("set-up failed: {error}")));
        return ExitCode::SUCCESS;
    }
    let mut trials: Vec<Trial> = ATTEMPTS.iter().map(|it| Trial::test(it.name, || check(it))).collect();
    trials.push(Trial::test("connections stay possible under all stages", || {
        expect(WORK.name, Stages::ALL, "allowed; confinement full")
    }));
    trials.extend(
        KERNELS
            .iter()
            .map(|kernel| Trial::test(format!("on a kernel without {}", kernel.lacks), || lacking(kernel))),
    );
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The process that makes a socket in a network namespace of its own, puts it in the place of its standard
/// input and waits for its end.
fn guest() -> ExitCode {
    let made = unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).is_ok();
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
    if !made || socket.is_ok_and(|socket| rustix::stdio::dup2_stdin(socket).is_err()) {
        return ExitCode::FAILURE;
    }
    println!("ready");
    std::thread::sleep(std::time::Duration::MAX);
    ExitCode::SUCCESS
}

/// Confinement goes as far as such a kernel lets it, and says what is missing.
fn lacking(kernel: &Kernel) -> Result<(), Failed> {
    let expected = format!("allowed; confinement {}", kernel.report);
    expect_on(Some(kernel), WORK.name, Stages::ALL, &expected)
}

/// Checks the row of an attempt.
fn check(attempt: &Attempt) -> Result<(), Failed> {
    let given = attempt.given.iter().copied().fold(Stages::NONE, Stages::with);
    expect(attempt.name, given, "allowed")?;
    for stage in Stage::ALL {
        // The empty root is mounted in a mount namespace of the process's own.
        let base = if stage == Stage::Root { given.with(Stage::Namespaces) } else { given };
        let row =
            |wanted| attempt.stopped_by.iter().find(|(stage, _)| *stage == wanted).map(|(_, stop)| *stop);
        let before = Stage::ALL.into_iter().filter(|&it| base.contains(it)).find_map(row);
        match row(stage).or(before) {
            _ if given.contains(stage) => {}
            Some(stop) => expect(attempt.name, base.with(stage), &words(stop))?,
            None => expect(attempt.name, base.with(stage), "allowed")?,
        }
    }
    expect(attempt.name, Stages::ALL, "ended by signal 31; confinement full")
}

fn words(stop: Stop) -> String {
    match stop {
        Stop::Error(number) => format!("error {number}"),
        Stop::Killed => format!("ended by signal {}", libc::SIGSYS),
    }
}

/// Makes an attempt under `stages` and compares how it ended.
fn expect(attempt: &str, stages: Stages, expected: &str) -> Result<(), Failed> {
    expect_on(None, attempt, stages, expected)
}

fn expect_on(kernel: Option<&Kernel>, attempt: &str, stages: Stages, expected: &str) -> Result<(), Failed> {
    let names: Vec<_> = Stage::ALL.into_iter().filter(|&it| stages.contains(it)).map(Stage::name).collect();
    let mut command = Command::new("/proc/self/exe");
    command.env(ATTEMPT, attempt).env(STAGES, names.join(" ")).current_dir("/");
    if let Some(kernel) = kernel {
        command.env(LACKS, kernel.lacks);
    }
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let got = text.trim_end();
    if got.strip_prefix(expected).is_some_and(|rest| rest.is_empty() || rest.starts_with("; ")) {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{attempt} under [{}]: {got}, expected: {expected}\n{errors}", names.join(" ")).into())
}

/// Prepares what attempts reach for, makes the confined child and says how it ended.
fn parent(name: &str, stages: Stages) -> io::Result<String> {
    let mut guest = Command::new("/proc/self/exe").arg(GUEST).stdout(Stdio::piped()).spawn()?;
    let lacks = std::env::var(LACKS).unwrap_or_default();
    let kernel = KERNELS.iter().find(|kernel| kernel.lacks == lacks);
    let ended = prepare(&mut guest).and_then(|targets| {
        kernel.map_or(Ok(()), Kernel::pretend)?;
        Ok(targets)
    });
    let ended = ended.and_then(|targets| confined(name, stages, &targets));
    guest.kill()?;
    guest.wait()?;
    ended
}

fn prepare(guest: &mut Child) -> io::Result<Targets> {
    let id = std::process::id();
    let abstract_name = format!("brodo-villain-{id}");
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_name)?)?;
    let server = TcpListener::bind("127.0.0.1:0")?;
    let address = server.local_addr()?;
    let segment = i64::from(id);
    raw::call(libc::SYS_shmget, [segment, 4096, (libc::IPC_CREAT | 0o600).into()])?;
    Ok(Targets {
        parent: id.into(),
        abstract_name,
        _listener: listener,
        server: (server, address),
        foreign: File::open("/dev/null")?,
        guest_socket: socket_of(guest)?,
        terminal: terminal()?,
        memory: Box::new(0),
        segment,
        new_file: std::env::temp_dir().join(format!("brodo-villain-{id}")),
    })
}

/// A new terminal.
fn terminal() -> io::Result<Terminal> {
    const TIOCGPTPEER: i64 = 0x5441;
    let keyboard = File::options().read(true).write(true).open("/dev/ptmx")?;
    let (number, unlocked) = (i64::from(keyboard.as_raw_fd()), 0i32);
    raw::call(libc::SYS_ioctl, [number, libc::TIOCSPTLCK as i64, &raw const unlocked as i64])?;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    let screen = raw::call(libc::SYS_ioctl, [number, TIOCGPTPEER, flags.into()])?;
    Ok(Terminal { _keyboard: keyboard, screen: raw::owned(screen) })
}

/// The socket that a guest has in the place of its standard input.
fn socket_of(guest: &mut Child) -> io::Result<OwnedFd> {
    let mut ready = [0; 6];
    guest.stdout.as_mut().expect("a pipe").read_exact(&mut ready)?;
    let pid = Pid::from_raw(guest.id() as i32).expect("a process number");
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(pidfd_getfd(handle, 0, PidfdGetfdFlags::empty())?)
}

fn confined(name: &str, stages: Stages, targets: &Targets) -> io::Result<String> {
    let attempt = ATTEMPTS.iter().chain([&WORK]).find(|it| it.name == name).ok_or(io::ErrorKind::NotFound)?;
    let (mut report, reporter) = io::pipe()?;
    let child = spawn(stages, Parent::Caller, Bond::Life, |mut report| {
        let kept = [targets.guest_socket.as_fd(), reporter.as_fd()];
        let bind = if attempt.with_source { TcpBind::PortZero } else { TcpBind::Denied };
        enter(stages, &kept, bind, &mut report);
        let limits = Limits { open_files: 64, data_bytes: 1 << 30 };
        seal(stages, &limits, CALLS, OnViolation::Kill, &mut report);
        if (&reporter).write_all(format!("; confinement {report}").as_bytes()).is_err() {
            return 255;
        }
        match (attempt.make)(targets) {
            Ok(()) => 0,
            Err(error) => error.raw_os_error().unwrap_or(254),
        }
    })?;
    drop(reporter);
    let status = child.wait()?;
    let mut text = match (status.exit_status(), status.terminating_signal()) {
        (Some(0), _) => "allowed".to_owned(),
        (Some(error), _) => format!("error {error}"),
        (None, signal) => format!("ended by signal {}", signal.unwrap_or_default()),
    };
    report.read_to_string(&mut text)?;
    raw::call(libc::SYS_shmctl, [shared_segment(targets.segment)?, libc::IPC_RMID.into(), 0])?;
    // Present only where the attempt was to succeed.
    let _ = std::fs::remove_file(&targets.new_file);
    Ok(text)
}

/// The number of the segment with this key.
fn shared_segment(key: i64) -> io::Result<i64> {
    raw::call(libc::SYS_shmget, [key, 4096, 0o600, 0])
}
