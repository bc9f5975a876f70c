//! Users of the tests, the program under test, and processes that do not outlive a test.

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Deadline of every event that a test waits for. Thousands of times the duration on an idle machine: it ends
/// hanging tests and judges no speed.
const PATIENCE: Duration = Duration::from_mins(3);

/// `nobody`, on every Linux.
const NOBODY: u32 = 65534;

/// User that brodo runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    Root,
    Ordinary,
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own)).is_ok_and(|uid| uid == 0)
}

/// Users that the tests can run as. Where the system has no namespaces for them, the tests print that and
/// pass, except under `CI=true`; where it has, a brodo that does not run fails them all.
pub(crate) fn users() -> &'static [User] {
    static USERS: OnceLock<&[User]> = OnceLock::new();
    USERS.get_or_init(|| {
        open_tun();
        if let Err(why) = try_system() {
            assert!(!is_ci(), "no namespaces here: {why}");
            eprintln!("*** SKIPPED: no namespaces here: {why}");
            return &[];
        }
        let trial = User::Ordinary.brodo(&["run", "--", "true"]).output().expect("brodo starts");
        let why = String::from_utf8_lossy(&trial.stderr);
        assert!(trial.status.success(), "brodo does not run: {} {why}", trial.status);
        if is_root() { &[User::Root, User::Ordinary] } else { &[User::Ordinary] }
    })
}

/// Whether nothing may be skipped.
pub(crate) fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|ci| ci == "true")
}

/// A trial of the system without brodo: an ordinary user's namespaces, with a TAP in them.
fn try_system() -> Result<(), String> {
    let words = ["unshare", "-rnm", "ip", "tuntap", "add", "mode", "tap", "trial0"];
    let output = User::Ordinary.command(&words).output().map_err(|e| e.to_string())?;
    let why = || format!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(()) } else { Err(why()) }
}

/// Some systems without udev have the TUN device closed to users.
fn open_tun() {
    let path = "/dev/net/tun";
    if let Ok(tun) = fs::metadata(path)
        && is_root()
        && tun.permissions().mode() & 0o666 != 0o666
    {
        eprintln!("*** the test gives {path} the mode 0666, as udev does");
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("root may");
    }
}

/// The program at a path that every user reaches.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let built = Path::new(env!("CARGO_BIN_EXE_brodo"));
        let reached = |path: &Path| as_nobody(&["test", "-x"]).arg(path).status().is_ok_and(|s| s.success());
        if !is_root() || reached(built) {
            return built.to_owned();
        }
        let copy = std::env::temp_dir().join("brodo-session-test");
        fs::copy(built, &copy).expect("a copy of the program");
        assert!(reached(&copy), "{} is out of reach for nobody", copy.display());
        copy
    })
}

fn as_nobody(words: &[&str]) -> Command {
    let (uid, gid) = (format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"));
    with_default_signals(&[&["setpriv", &uid, &gid, "--clear-groups", "--"], words].concat())
}

/// A command with the default disposition of every signal. Dispositions of the test run are not default under
/// nohup (SIGHUP) or in the background of a script (SIGINT, SIGQUIT), and a shell cannot trap a signal that
/// it was started to ignore.
fn with_default_signals(words: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").args(words);
    command
}

impl User {
    /// A command as this user; the wrapper execs it, so that the process id is the command's.
    pub(crate) fn command(self, words: &[&str]) -> Command {
        match self {
            Self::Ordinary if is_root() => as_nobody(words),
            _ => with_default_signals(words),
        }
    }

    /// brodo as this user.
    pub(crate) fn brodo(self, words: &[&str]) -> Command {
        let words: Vec<_> = [program_str()].iter().chain(words).copied().collect();
        let mut command = self.command(&words);
        command.stdin(Stdio::null());
        command
    }

    /// Standard output of `brodo run OPTIONS -- sh -c SCRIPT`, which must succeed with an empty standard
    /// error.
    pub(crate) fn inside(self, options: &[&str], script: &str) -> String {
        let words: Vec<_> = [&["run"], options, &["--", "sh", "-c", script]].concat();
        let output = self.brodo(&words).output().expect("brodo starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && errors.is_empty(),
            "{self:?} {words:?}: {} {errors}",
            output.status
        );
        text(&output)
    }
}

/// The program's path as a word.
pub(crate) fn program_str() -> &'static str {
    program().to_str().expect("a path in UTF-8")
}

/// Standard output of a process.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A process whose lines are read while it runs, and which is killed with its test.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        // A thread, so that a line that does not come fails the test instead of stopping it.
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stdin(&mut self) -> &mut std::process::ChildStdin {
        self.child.stdin.as_mut().expect("piped")
    }

    /// Standard input, whose end the process sees once this is dropped.
    pub(crate) fn take_stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// Next line of output.
    pub(crate) fn line(&mut self) -> String {
        self.line_with("")
    }

    /// First further line of output that contains `part`.
    pub(crate) fn line_with(&mut self, part: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(part) => return line,
                Ok(line) => seen.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    panic!("waits for '{part}' after {seen:#?}\n{}", processes())
                }
                Err(RecvTimeoutError::Disconnected) => panic!("ended without '{part}' after {seen:#?}"),
            }
        }
    }

    /// Sends a signal by name.
    pub(crate) fn kill(&self, signal: &str) {
        kill(self.id(), signal);
    }

    /// Signals all processes of the group that this one leads; there may be none left.
    pub(crate) fn kill_group(&self, signal: &str) {
        let group = format!("-{}", self.id());
        let sent = Command::new("kill").args(["-s", signal, "--", &group]).stderr(Stdio::null()).status();
        sent.expect("kill runs");
    }

    /// Exit status, once the process has ended.
    pub(crate) fn status(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("the process has ended", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Wait channels of brodo and its children, for the message of a timed-out wait.
fn processes() -> String {
    let list = Command::new("ps").args(["-eo", "pid,ppid,pgid,stat,wchan:24,args"]).output();
    let list = list.map(|output| text(&output)).unwrap_or_default();
    let lines: Vec<_> =
        list.lines().filter(|line| line.contains("brodo") || line.contains("sleep")).collect();
    lines.join("\n")
}

/// Sends a signal by name to one process.
pub(crate) fn kill(process: u32, signal: &str) {
    let sent = Command::new("kill").args(["-s", signal, &process.to_string()]).status();
    assert!(sent.expect("kill runs").success(), "kill -s {signal} {process}");
}

/// Whether a process exists and is no zombie.
pub(crate) fn lives(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// Waits until `holds` is true; `what` names the event.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A folder that every user may write to, removed at the test's end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("brodo-session-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("its mode");
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a path in UTF-8").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `brodo WORDS --instance SOCKET`: exit status, output, errors.
pub(crate) fn asked(user: User, socket: &str, words: &[&str]) -> (Option<i32>, String, String) {
    let words = [words, &["--instance", socket]].concat();
    let output = user.brodo(&words).output().expect("brodo starts");
    (output.status.code(), text(&output), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The same with `--json`; it must succeed. One value for each line.
pub(crate) fn json(user: User, socket: &str, words: &[&str]) -> Vec<Value> {
    let (status, out, errors) = asked(user, socket, &[words, &["--json"]].concat());
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{words:?}");
    json_lines(&out)
}

/// The value of each line.
pub(crate) fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

/// Number of engines that have crashed; 0 while an end is being noticed, when nothing can be asked.
pub(crate) fn crashes(user: User, socket: &str) -> u64 {
    let (status, out, _) = asked(user, socket, &["status", "--json"]);
    let value: Option<Value> = serde_json::from_str(&out).ok().filter(|_| status == Some(0));
    value.and_then(|value| value["crashes"].as_u64()).unwrap_or_default()
}

/// A port of the host's loopback on which nothing listens.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port()
}

/// Echoes each line of a connection.
pub(crate) fn echo(stream: TcpStream) {
    let (mut lines, mut line) = (BufReader::new(stream), String::new());
    while lines.read_line(&mut line).is_ok_and(|count| count > 0) {
        if lines.get_mut().write_all(line.as_bytes()).is_err() {
            return;
        }
        line.clear();
    }
}

/// A server on the host's loopback, each of whose connections has a thread; its port.
pub(crate) fn serve<S: Fn(TcpStream) + Send + Sync + 'static>(of_connection: S) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its number").port();
    let of_connection = Arc::new(of_connection);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let of_connection = of_connection.clone();
            thread::spawn(move || of_connection(stream));
        }
    });
    port
}
