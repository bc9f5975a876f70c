//! Target: an existing network namespace, found by process or by path, entered, and watched for its end.
//!
//! Creation of an interface needs CAP_NET_ADMIN in the user namespace that *owns* the network namespace. The
//! kernel names it (`NS_GET_USERNS`), and it is joined first unless it is the caller's own. The owner may
//! differ from the target process's user namespace, as with `ip netns exec`.
//!
//! A process's namespace counts as gone when the process is; a path's when it no longer leads to the same
//! namespace. That is checked when an entry of its directory is deleted or moved, and once a second: a mount
//! can go and leave the file, and there are no notices of /proc. The open TAP keeps the network namespace
//! itself alive, so its end cannot be observed.
//!
//! System calls: `pidfd_open`, open, fstat, ioctl `NS_GET_USERNS`, setns; `timerfd_create`, `inotify_init1`,
//! `inotify_add_watch`, stat.

use crate::process::{Signals, raw};
use crate::setup::{SetupError, Step, path_error};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, inotify};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Interval of checks of a path, in seconds.
const CHECK_INTERVAL_S: i64 = 1;

/// An open network namespace that is not brodo's own.
#[derive(Debug)]
pub struct Target {
    net: OwnedFd,
    /// The user namespace to join first, if it is not the caller's.
    user: Option<OwnedFd>,
    /// Name given by the user.
    name: String,
    end: TargetEnd,
}

/// Observation of a target's end.
#[derive(Debug)]
pub enum TargetEnd {
    /// The descriptor of a process.
    Process(OwnedFd),
    /// A path.
    Path {
        /// The path.
        path: PathBuf,
        /// The file it led to.
        identity: FileIdentity,
        /// Timer of the checks.
        timer: OwnedFd,
        /// Notices of entries deleted from its directory, where there are any.
        deletions: Option<OwnedFd>,
    },
    /// No target whose end could be observed.
    Unknown,
}

/// Device and inode, which together name a namespace as long as it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    /// The device.
    pub device: u64,
    /// The inode.
    pub inode: u64,
}

impl FileIdentity {
    fn of(file: impl AsFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }

    fn of_path(path: &Path) -> Result<Self, Errno> {
        let stat = rustix::fs::stat(path)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }

    fn of_entry(directory: &OwnedFd, name: &OsStr) -> Result<Self, Errno> {
        let stat = rustix::fs::statat(directory, name, AtFlags::empty())?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

impl Target {
    /// The network namespace of a process.
    pub fn process(number: i32) -> Result<Self, SetupError> {
        let fail = |errno| SetupError::new(Step::FindProcess, errno, number.to_string());
        let positive = Some(number).filter(|&number| number > 0);
        let pid = positive.and_then(Pid::from_raw).ok_or_else(|| fail(Errno::SRCH))?;
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(fail)?;
        let net = open(&PathBuf::from(format!("/proc/{number}/ns/net")))?;
        // Race: the number may have been reused before its files were opened.
        if is_ready(&process).map_err(fail)? {
            return Err(fail(Errno::SRCH));
        }
        Self::new(net, None, format!("process {number}"), TargetEnd::Process(process))
    }

    /// The network namespace at a path; `user` is the user namespace to join first, instead of its owner.
    pub fn path(path: &Path, user: Option<&Path>) -> Result<Self, SetupError> {
        let net = open(path)?;
        let fail = path_error(Step::OpenNamespace, path);
        let identity = FileIdentity::of(&net).map_err(fail)?;
        let user = user.map(open).transpose()?;
        let timer = interval_timer().map_err(|errno| SetupError::new(Step::Timer, errno, ""))?;
        let deletions = deletions(path).ok();
        // The working directory of a brodo in the background becomes another.
        let kept = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let end = TargetEnd::Path { path: kept, identity, timer, deletions };
        Self::new(net, user, path.display().to_string(), end)
    }

    fn new(net: OwnedFd, user: Option<OwnedFd>, name: String, end: TargetEnd) -> Result<Self, SetupError> {
        let fail = |step, errno| SetupError::new(step, errno, name.clone());
        let owner = match raw::owner_of(net.as_fd()) {
            Ok(owner) => Some(owner),
            // The owner is not one of the caller's namespaces: it cannot be joined, and the caller's rights
            // decide.
            Err(Errno::PERM) => None,
            Err(errno) => return Err(fail(Step::NotANamespace, errno)),
        };
        let ours = FileIdentity::of(open(Path::new("/proc/self/ns/net"))?);
        if ours == FileIdentity::of(&net) {
            return Err(fail(Step::OwnNamespace, Errno::EXIST));
        }
        let user = match user.or(owner) {
            Some(user)
                if FileIdentity::of(&user) != FileIdentity::of(open(Path::new("/proc/self/ns/user"))?) =>
            {
                Some(user)
            }
            _ => None,
        };
        Ok(Self { net, user, name, end })
    }

    /// The network namespace.
    pub(crate) fn network(&self) -> BorrowedFd<'_> {
        self.net.as_fd()
    }

    /// Moves the calling process, which has one thread, into the target.
    ///
    /// # Errors
    /// The namespace that could not be joined.
    pub fn enter(&self) -> Result<(), SetupError> {
        let join = |namespace: &OwnedFd, kind, step| {
            move_into_link_name_space(namespace.as_fd(), Some(kind))
                .map_err(|errno| SetupError::new(step, errno, self.name.clone()))
        };
        if let Some(user) = &self.user {
            // Before it can be seen there: the namespace's root might trace a process that has brodo's
            // descriptors and files.
            rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
                .map_err(|errno| SetupError::new(Step::JoinUser, errno, self.name.clone()))?;
            join(user, LinkNameSpaceType::User, Step::JoinUser)?;
        }
        join(&self.net, LinkNameSpaceType::Network, Step::JoinNet)
    }

    /// Watches for the target's end, or for a signal that asks brodo to end. Closes the target's namespaces.
    pub fn watch(self, signals: Signals) -> Watch {
        Watch::resume(self.end, signals)
    }
}

/// Opens a namespace file.
fn open(path: &Path) -> Result<OwnedFd, SetupError> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(path_error(Step::OpenNamespace, path))
}

/// Notices of entries deleted from the directory of `path`, or moved away.
fn deletions(path: &Path) -> Result<OwnedFd, Errno> {
    let directory = directory_of(path);
    let notices = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let gone = inotify::WatchFlags::DELETE | inotify::WatchFlags::MOVED_FROM;
    inotify::add_watch(&notices, directory, gone)?;
    Ok(notices)
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn interval_timer() -> Result<OwnedFd, Errno> {
    let timer = rustix::time::timerfd_create(
        TimerfdClockId::Monotonic,
        TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
    )?;
    let interval = Timespec { tv_sec: CHECK_INTERVAL_S, tv_nsec: 0 };
    let every = Itimerspec { it_interval: interval, it_value: interval };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &every)?;
    Ok(timer)
}

/// Watch for the end of a target or of brodo.
#[derive(Debug)]
pub struct Watch {
    end: TargetEnd,
    signals: Signals,
    /// The end of the target is no end of brodo.
    outlives: bool,
    /// A descriptor whose readiness, or whose other side's end, asks brodo to end.
    exit: Option<OwnedFd>,
    /// Directory of the target's path, once this process may no longer reach it by its path.
    directory: Option<OwnedFd>,
}

impl Watch {
    /// A watch that an earlier program of this process has begun.
    pub fn resume(end: TargetEnd, signals: Signals) -> Self {
        Self { end, signals, outlives: false, exit: None, directory: None }
    }

    /// The same, or one that outlives the target and ends by a signal alone.
    #[must_use]
    pub fn outliving(self, outlives: bool) -> Self {
        Self { outlives, ..self }
    }

    /// The same, which also ends when `exit` is readable, or closed at its other side.
    #[must_use]
    pub fn ending_with(self, exit: Option<OwnedFd>) -> Self {
        Self { exit, ..self }
    }

    /// The same, for a process that is about to lose its root directory: a path is checked from where it
    /// leads now.
    ///
    /// # Errors
    /// Its directory cannot be opened.
    pub fn holding_directory(self) -> Result<Self, SetupError> {
        let TargetEnd::Path { path, .. } = &self.end else { return Ok(self) };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory_of(path), flags, Mode::empty());
        let directory = Some(opened.map_err(path_error(Step::OpenNamespace, path))?);
        Ok(Self { directory, ..self })
    }

    /// The descriptor of [`Watch::ending_with`].
    pub fn exit(&self) -> Option<BorrowedFd<'_>> {
        self.exit.as_ref().map(AsFd::as_fd)
    }

    /// The observation.
    pub fn target(&self) -> &TargetEnd {
        &self.end
    }

    /// The signals.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Readable when [`Watch::ended`] may have changed.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (end, deletions) = match &self.end {
            TargetEnd::Process(process) => (Some(process), None),
            TargetEnd::Path { timer, deletions, .. } => (Some(timer), deletions.as_ref()),
            TargetEnd::Unknown => (None, None),
        };
        let of_target = end.into_iter().chain(deletions).map(AsFd::as_fd).filter(|_| !self.outlives);
        std::iter::once(self.signals.as_fd()).chain(self.exit()).chain(of_target)
    }

    /// Whether the target is gone or brodo got a signal to end; only the latter if brodo outlives it.
    pub fn ended(&self) -> Result<bool, SetupError> {
        let fail = |errno| SetupError::new(Step::FindProcess, errno, "");
        if self.signals.asked_to_end()? {
            return Ok(true);
        }
        if let Some(exit) = &self.exit
            && is_ready(exit).map_err(fail)?
        {
            return Ok(true);
        }
        if self.outlives {
            return Ok(false);
        }
        match &self.end {
            TargetEnd::Process(process) => is_ready(process).map_err(fail),
            TargetEnd::Unknown => Ok(false),
            TargetEnd::Path { path, identity, timer, deletions } => {
                // Emptied; their content does not matter.
                let _ = rustix::io::read(timer, &mut [0; 8]);
                if let Some(deletions) = deletions {
                    let mut notices = [0; 4096];
                    while rustix::io::read(deletions, &mut notices).is_ok_and(|length| length > 0) {}
                }
                let found = match (&self.directory, path.file_name()) {
                    (Some(directory), Some(name)) => FileIdentity::of_entry(directory, name),
                    _ => FileIdentity::of_path(path),
                };
                Ok(match found {
                    Ok(found) => found != *identity,
                    // A process that is there, and no affair of this one's any more.
                    Err(Errno::ACCESS) => false,
                    Err(_) => true,
                })
            }
        }
    }
}

/// Whether a descriptor is readable now, or closed at its other side.
fn is_ready(descriptor: &OwnedFd) -> Result<bool, Errno> {
    let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
    Ok(poll(&mut polled, Some(&Timespec::default()))? > 0)
}

#[cfg(test)]
mod tests;
