//! Programs with a time limit: nothing that a test or a benchmark starts can hang it or outlive it.
//!
//! Output goes to files rather than pipes, so that a program without a reader never blocks, and so that a
//! failure can show what every program of a world has said so far.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open};
use serde_json::Value;
use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A failure: one sentence for people, followed by the output of the failed program.
#[derive(Debug, Clone)]
pub struct Failure(pub String);

impl Failure {
    /// The same, behind the failed part of a measurement.
    #[must_use]
    pub fn of(self, what: &str) -> Self {
        Self(format!("{what}: {}", self.0))
    }

    /// Its sentence, without output of programs.
    pub fn first_line(&self) -> &str {
        self.0.lines().next().unwrap_or_default()
    }

    /// The sentences of all, as the end of a measurement that went on despite them.
    pub fn of_all(failures: &[Self]) -> Result<()> {
        let lines: Vec<&str> = failures.iter().map(Self::first_line).collect();
        if lines.is_empty() { Ok(()) } else { Err(Self(lines.join("\n"))) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Failure>;

/// Adds the failed action to an error that has only the reason.
pub trait Context<T> {
    /// `what` reads as the beginning of a sentence: "cannot open FILE".
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Failure(format!("{}: {e}", what())))
    }
}

/// Deadline of events that are immediate on an idle machine: the start of a server, an address, the end of a
/// program. It ends hanging tests, and judges no speed.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Interval at which a condition is polled.
const POLL: Duration = Duration::from_millis(2);

/// Waits until `condition` yields a value; `None` when the limit has passed.
pub fn wait_until<T>(limit: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return Some(value);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(POLL);
    }
}

/// A program that has ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The command line, for messages.
    pub command: String,
    /// Exit status; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Time from start to end.
    pub elapsed: Duration,
}

impl Finished {
    /// The finished program; an error with its command line and output unless it ended with status 0.
    pub fn success(self) -> Result<Self> {
        if self.code == Some(0) { Ok(self) } else { Err(self.failure("failed")) }
    }

    /// A failure for the reason `why`, with command line, status and output of the program.
    pub fn failure(&self, why: &str) -> Failure {
        let code = self.code.map_or_else(|| "a signal".to_owned(), |code| code.to_string());
        Failure(format!(
            "{why}: {}\n  ended with {code} after {:.1?}\n  stdout: {}\n  stderr: {}",
            self.command,
            self.elapsed,
            excerpt(&self.stdout),
            excerpt(&self.stderr)
        ))
    }

    /// Standard output as one JSON value: the output of a probe.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout).map_err(|e| self.failure(&format!("no JSON ({e})")))
    }
}

/// The end of a text, short enough for a message.
fn excerpt(text: &str) -> &str {
    const BYTES_MAX: usize = 4000;
    let start = text.len().saturating_sub(BYTES_MAX);
    let start = (start..=text.len()).find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    text[start..].trim_end()
}

/// A running program. Dropping it ends it and everything it has started.
#[derive(Debug)]
pub struct Job {
    child: Child,
    command: String,
    stdout: PathBuf,
    stderr: PathBuf,
    start: Instant,
}

impl Job {
    /// Starts `command`; its output goes to files in `folder`. Its standard input stays open until the job
    /// ends, so a program that waits for the end of its input lives as long as the job.
    pub fn start(mut command: Command, folder: &Path) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let line = command_line(&command);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let stdout = folder.join(format!("{number:04}.stdout"));
        let stderr = folder.join(format!("{number:04}.stderr"));
        let file = |path: &Path| File::create(path).context(|| format!("cannot create {}", path.display()));
        command.stdin(Stdio::piped()).stdout(file(&stdout)?).stderr(file(&stderr)?);
        let start = Instant::now();
        let child = command.spawn().context(|| format!("cannot start {line}"))?;
        Ok(Self { child, command: line, stdout, stderr, start })
    }

    /// The process id; of the program itself where wrappers replace themselves by it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the program has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Standard output so far.
    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// The command line and output so far, for messages.
    pub fn describe(&self) -> String {
        let (stdout, stderr) = (self.stdout(), self.stderr());
        let mut text = format!("$ {}", self.command);
        for (name, output) in [("stdout", &stdout), ("stderr", &stderr)] {
            if !output.is_empty() {
                let _ = write!(text, "\n  {name}: {}", excerpt(output));
            }
        }
        text
    }

    /// Writes a line to the program's standard input.
    pub fn write_line(&mut self, line: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().ok_or_else(|| Failure("standard input is closed".into()))?;
        writeln!(input, "{line}").context(|| format!("cannot write to {}", self.command))
    }

    /// Closes the program's standard input.
    pub fn close_stdin(&mut self) {
        self.child.stdin = None;
    }

    /// Sends a signal to the program, not to its children.
    pub fn signal(&self, signal: Signal) {
        // It may have ended already: then there is nothing to signal.
        let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
    }

    /// Asks the program to end (SIGTERM).
    pub fn ask_to_end(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Waits for the program to end; ends it and fails when the limit has passed.
    pub fn wait(&mut self, limit: Duration) -> Result<Finished> {
        let end = Instant::now() + limit;
        if self.is_running() {
            wait_for_end(&self.child, limit);
        }
        let elapsed = self.start.elapsed();
        let rest = end.saturating_duration_since(Instant::now());
        let status = wait_until(rest, || self.child.try_wait().ok().flatten());
        if status.is_none() {
            self.kill();
        }
        let finished = Finished {
            command: self.command.clone(),
            code: status.and_then(|status| status.code()),
            stdout: self.stdout(),
            stderr: self.stderr(),
            elapsed,
        };
        if status.is_none() {
            Err(finished.failure(&format!("still running after {limit:?}")))
        } else {
            Ok(finished)
        }
    }

    /// Ends the program and its descendants.
    pub fn kill(&mut self) {
        let mut family = crate::procfs::descendants(self.child.id());
        if self.is_running() {
            family.push(self.child.id());
        }
        for pid in family {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Waits for the end of a process, or until the limit has passed. Its descriptor reports the end at once, so
/// that times are exact; without one, the caller's polling remains.
fn wait_for_end(child: &Child, limit: Duration) {
    let pid = rustix::process::Pid::from_child(child);
    if let Ok(end) = pidfd_open(pid, PidfdFlags::empty()) {
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut [PollFd::new(end.as_fd(), PollFlags::POLLIN)], timeout);
    }
}

/// A command as typed in a shell.
fn command_line(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        let argument = argument.to_string_lossy();
        if argument.is_empty() || argument.contains([' ', ';', '$', '\n']) {
            let _ = write!(line, " '{argument}'");
        } else {
            let _ = write!(line, " {argument}");
        }
    }
    line
}

/// The folder on `PATH` (or the usual ones for system programs) that holds `program`.
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|folder| folder.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    //! Failures of a measurement that goes on, and the end of a program.

    use super::*;

    #[test]
    fn failures_together_are_their_first_lines() {
        assert!(Failure::of_all(&[]).is_ok());
        let failures = ["no route\n  stderr: much", "no guest"].map(|text| Failure(text.into()).of("wan 8"));
        let all = Failure::of_all(&failures).expect_err("two failures");
        assert_eq!(all.0, "wan 8: no route\nwan 8: no guest");
    }

    #[test]
    fn the_end_of_a_program_is_awaited_up_to_a_limit() {
        let folder = std::env::temp_dir().join(format!("brodo-bench-jobs-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let start = |words: &[&str]| {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            Job::start(command, &folder).expect("started")
        };
        let mut short = start(&["sh", "-c", "echo said; exit 3"]);
        let ended = short.wait(PATIENCE).expect("ended");
        assert_eq!((ended.code, &*ended.stdout), (Some(3), "said\n"));
        assert_eq!(short.wait(PATIENCE).map(|ended| ended.code).ok(), Some(Some(3)), "the second time");
        let mut long = start(&["sleep", "1000"]);
        let failure = long.wait(Duration::from_millis(1)).expect_err("it sleeps");
        assert!(failure.0.contains("still running"), "{failure}");
        assert!(!long.is_running());
        fs::remove_dir_all(&folder).expect("removed");
    }
}
