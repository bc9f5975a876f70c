//! Attachment: the daemon that serves one interface of one container, found again by its PID file.
//!
//! The file is `NETWORK/CONTAINER:INTERFACE.pid` in a folder of the plugin's own. A process counts as the
//! attachment's only if its command line names that file, so a process id that is in use again for another
//! program is never signalled. A daemon also ends by itself when its namespace is gone; its file then stays
//! until the runtime asks for the end.
//!
//! Until the daemon serves, its file is empty, and the process is looked for among all: the one that leads a
//! session of its own, as a daemon does, and has the file in its command line. So the runtime may ask for the
//! end of a start under way, even if it has killed the plugin that waits for it. A start holds an exclusive
//! lock of its file, so that there is one at a time, whose file no other one empties.
//!
//! The network's folder goes with its last file, and after a failed start. A start holds a shared lock of the
//! folder above (flock), so that none loses its folder to the end of another attachment.

use brodo_control::instance;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

/// Folder of root's attachments; that of others is in the folder of control sockets.
const FOLDER: &str = "/run/brodo";
/// This program, whatever its path leads to by now.
const PROGRAM: &str = "/proc/self/exe";
/// Longest end of a daemon after SIGTERM, in seconds.
const END_MAX_S: i64 = 5;
/// Longest wait for the daemon of a start under way, and time between two looks at it.
const START_MAX: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);
/// Suffix of a PID file.
const SUFFIX: &str = ".pid";

/// The attachments of one network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attachments {
    folder: PathBuf,
}

/// A container's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) container: String,
    pub(super) interface: String,
}

impl Key {
    /// Whether both parts may be in the name of a file.
    pub(super) fn is_valid(&self) -> bool {
        is_name(&self.container) && !self.interface.is_empty() && !self.interface.contains(['/', ':'])
    }

    fn file_name(&self) -> String {
        format!("{}:{}{SUFFIX}", self.container, self.interface)
    }

    fn of_file(name: &str) -> Option<Self> {
        let (container, interface) = name.strip_suffix(SUFFIX)?.split_once(':')?;
        Some(Self { container: container.to_owned(), interface: interface.to_owned() })
    }
}

/// Whether `name` is one of a container or a network, as CNI defines them.
pub(super) fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

impl Attachments {
    /// Those of a `network` of the plugin `kind`. The folder is made when the first one starts.
    ///
    /// # Errors
    /// No folder for files of this user can be made.
    pub(super) fn of(kind: &str, network: &str) -> io::Result<Self> {
        let make = |folder: &Path| DirBuilder::new().recursive(true).mode(0o700).create(folder);
        let system = Path::new(FOLDER);
        let base = match make(system).and_then(|()| instance::check(system)) {
            Ok(()) => system.to_owned(),
            Err(_) => instance::folder()?,
        };
        Ok(Self { folder: base.join(kind).join(network) })
    }

    #[cfg(test)]
    fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    fn pid_file(&self, key: &Key) -> PathBuf {
        self.folder.join(key.file_name())
    }

    /// All, running or not.
    pub(super) fn all(&self) -> Vec<Key> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| Key::of_file(entry.file_name().to_str()?)).collect()
    }

    /// Whether the daemon of `key` runs.
    pub(super) fn is_running(&self, key: &Key) -> bool {
        self.process(key).is_some()
    }

    /// Starts the daemon with the words of `brodo attach`, and returns once it serves.
    ///
    /// # Errors
    /// brodo's own sentence, or that one runs already.
    pub(super) fn start(&self, key: &Key, words: &[OsString]) -> Result<(), String> {
        let failed = |error: io::Error| format!("start brodo: {error}");
        let folder = self.locked_folder().map_err(failed)?;
        let lock = self.lock(key).map_err(failed)?;
        if lock.is_none() || self.is_running(key) {
            return Err(format!("{} of {} is attached already", key.interface, key.container));
        }
        let started = self.served(key, words);
        if started.is_err() && !self.is_running(key) {
            self.forget(&folder, key);
        }
        started
    }

    /// The PID file, made and locked as long as the returned file is open; none if another start has it.
    fn lock(&self, key: &Key) -> io::Result<Option<File>> {
        let path = self.pid_file(key);
        let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // Of a start that has failed meanwhile.
            Ok(()) if file.metadata()?.nlink() == 0 => Ok(None),
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether a start is under way.
    fn is_starting(&self, key: &Key) -> bool {
        let file = File::open(self.pid_file(key));
        file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK))
    }

    /// The folder of the network, made and locked: it stays as long as the returned file is open.
    fn locked_folder(&self) -> io::Result<File> {
        let make = |folder: &Path| DirBuilder::new().recursive(true).mode(0o700).create(folder);
        let above = self.folder.parent().unwrap_or(&self.folder);
        make(above)?;
        let lock = File::open(above)?;
        flock(&lock, FlockOperation::LockShared)?;
        make(&self.folder)?;
        Ok(lock)
    }

    /// Removes the PID file of `key`, and the folder if that was the last and no start is under way.
    fn forget(&self, above: &File, key: &Key) {
        let _ = fs::remove_file(self.pid_file(key));
        if flock(above, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Fails while there are others.
            let _ = fs::remove_dir(&self.folder);
        }
    }

    /// Executes the daemon, and returns once it serves.
    fn served(&self, key: &Key, words: &[OsString]) -> Result<(), String> {
        let failed = |error: io::Error| format!("start brodo: {error}");
        let output = Command::new(PROGRAM)
            .arg("attach")
            .arg("--daemon")
            .arg(self.identity(key))
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()
            .map_err(failed)?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(if text.is_empty() { format!("brodo ended with {}", output.status) } else { text })
    }

    /// Ends the daemon of `key`, if there is one, and forgets it.
    pub(super) fn end(&self, key: &Key) {
        if let Some(process) = self.awaited(key) {
            let _ = pidfd_send_signal(&process, Signal::TERM);
            let patience = Timespec { tv_sec: END_MAX_S, tv_nsec: 0 };
            let mut ended = [PollFd::new(&process, PollFlags::IN)];
            if !rustix::io::retry_on_intr(|| poll(&mut ended, Some(&patience))).is_ok_and(|ready| ready > 0) {
                let _ = pidfd_send_signal(&process, Signal::KILL);
            }
        }
        // Without the folder above there is nothing to forget.
        if let Ok(above) = File::open(self.folder.parent().unwrap_or(&self.folder)) {
            self.forget(&above, key);
        }
    }

    /// The word of the daemon's command line that no other process has.
    fn identity(&self, key: &Key) -> OsString {
        let mut word = OsString::from("--pid-file=");
        word.push(self.pid_file(key));
        word
    }

    /// The process of `key`, which a start under way has soon.
    fn awaited(&self, key: &Key) -> Option<OwnedFd> {
        for _ in 0..START_MAX.as_millis() / LOOK.as_millis() {
            // Asked first: a start may end meanwhile, and then there is a process.
            let is_starting = self.is_starting(key);
            let process = self.process(key);
            if process.is_some() || !is_starting {
                return process;
            }
            thread::sleep(LOOK);
        }
        None
    }

    /// The process that the PID file names, or the daemon of a start under way.
    fn process(&self, key: &Key) -> Option<OwnedFd> {
        let named = fs::read_to_string(self.pid_file(key)).ok().and_then(|text| text.trim().parse().ok());
        named
            .filter(|&number| number > 0)
            .and_then(|number| self.identified(number, key))
            .or_else(|| self.unnamed(key))
    }

    /// The process of this number, if it has the identity.
    fn identified(&self, number: i32, key: &Key) -> Option<OwnedFd> {
        // Opened first: the descriptor stays with the process that is looked at below.
        let process = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
        let line = fs::read(format!("/proc/{number}/cmdline")).ok()?;
        let identity = self.identity(key).into_encoded_bytes();
        line.split(|&byte| byte == 0).any(|word| word == identity).then_some(process)
    }

    /// The process that has the identity, leads a session and is this user's: its forks are in its session.
    fn unnamed(&self, key: &Key) -> Option<OwnedFd> {
        let entries = fs::read_dir("/proc").ok()?.flatten();
        let mut numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.find_map(|number| {
            let process = self.identified(number, key)?;
            let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
            (leads_a_session(&status, number) && is_own(&status)).then_some(process)
        })
    }
}

/// Whether a process with this `/proc/PID/status` leads its session. Not by `getsid`: its answer is 0 for a
/// leader outside of this PID namespace, and rustix takes it for a number that is never 0.
fn leads_a_session(status: &str, number: i32) -> bool {
    number_in(status, "NSsid:", 0) == Some(number)
}

/// Whether a process with this `/proc/PID/status` is this user's. The owner of its folder in /proc would be
/// root's for brodo, of which no memory may be read.
fn is_own(status: &str) -> bool {
    number_in(status, "Uid:", 1) == Some(geteuid().as_raw())
}

/// The number at a place of a line of `/proc/PID/status`.
fn number_in<T: FromStr>(status: &str, line: &str, place: usize) -> Option<T> {
    let numbers = status.lines().find_map(|other| other.strip_prefix(line))?;
    numbers.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn key(container: &str, interface: &str) -> Key {
        Key { container: container.to_owned(), interface: interface.to_owned() }
    }

    #[test]
    fn names_of_files_lead_back_to_their_keys() {
        for (container, interface) in [("a", "eth0"), ("0.b-c_d", "net.1")] {
            let key = key(container, interface);
            assert!(key.is_valid());
            assert_eq!(Key::of_file(&key.file_name()), Some(key));
        }
        for (container, interface) in [("", "eth0"), ("../a", "eth0"), (".a", "e"), ("a", ""), ("a", "b/c")] {
            assert!(!key(container, interface).is_valid(), "{container} {interface}");
        }
    }

    #[test]
    fn a_process_whose_command_line_is_another_is_not_ended() {
        let folder = std::env::temp_dir().join(format!("brodo-attachment-{}", std::process::id()));
        let attachments = Attachments::in_folder(&folder);
        let key = key("a", "eth0");
        fs::create_dir_all(&folder).expect("made");
        let mut other = Command::new("sleep").arg("1000").spawn().expect("runs");
        fs::write(attachments.pid_file(&key), format!("{}\n", other.id())).expect("written");
        assert_eq!((attachments.all(), attachments.is_running(&key)), (vec![key.clone()], false));
        attachments.end(&key);
        assert_eq!(other.try_wait().expect("asked"), None);
        assert!(!folder.exists(), "nothing is left");
        other.kill().and_then(|()| other.wait()).expect("ended");
    }

    #[test]
    fn a_start_under_way_is_alone_and_can_be_ended() {
        let folder = std::env::temp_dir().join(format!("brodo-start-{}", std::process::id()));
        let attachments = Attachments::in_folder(&folder.join("network"));
        let key = key("a", "eth0");
        fs::create_dir_all(&attachments.folder).expect("made");
        let other = attachments.lock(&key).expect("opened").expect("alone");
        assert!(attachments.start(&key, &[]).expect_err("locked").contains("attached already"));
        drop(other);
        assert!(attachments.pid_file(&key).exists(), "the file is the other start's");
        // It waits for its input, with a command line as the daemon's.
        let mut line = Command::new("setsid");
        line.args(["sh", "-c", "echo; read line", "sh"]).arg(attachments.identity(&key));
        let mut daemon = line.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs");
        daemon.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("a line");
        assert!(attachments.start(&key, &[]).expect_err("runs").contains("attached already"));
        attachments.end(&key);
        assert!(daemon.wait().expect("ended").code().is_none(), "by a signal");
        assert!(!attachments.folder.exists(), "nothing is left");
        fs::remove_dir(&folder).expect("removed");
    }

    #[test]
    fn a_process_in_the_session_of_another_is_no_daemon() {
        let folder = std::env::temp_dir().join(format!("brodo-session-{}", std::process::id()));
        let (attachments, key) = (Attachments::in_folder(&folder), key("a", "eth0"));
        let mut fork = Command::new("sh");
        fork.args(["-c", "echo; read line", "sh"]).arg(attachments.identity(&key));
        let mut fork = fork.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs");
        fork.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("a line");
        assert!(!attachments.is_running(&key));
        fork.kill().and_then(|()| fork.wait()).expect("ended");
    }

    #[test]
    fn a_session_may_be_led_from_outside_of_the_namespace() {
        assert!(leads_a_session("Name:\tbrodo\nNSsid:\t7\t1\n", 7), "in a namespace within");
        assert!(!leads_a_session("Name:\tbrodo\nNSsid:\t0\n", 7));
        assert!(!leads_a_session("Name:\tbrodo\n", 7));
    }
}
