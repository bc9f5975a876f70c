//! Running instances: paths of their sockets, and the search for them.
//!
//! An instance listens on `PID.sock` in a folder that only its user can enter: `$XDG_RUNTIME_DIR/brodo`, else
//! `/run/user/UID/brodo`, else `/tmp/brodo-UID`. The last may have been made by another user first, so a
//! folder counts only if it is a folder (no link), belongs to this user and admits no other ([`check`]). A
//! search covers all three folders, because the environment of an instance may differ from the client's.
//!
//! A socket of an instance that was killed stays behind. Its connect fails at once, and the search removes it
//! ([`running`]). A socket gets its name only when it listens, so one that is being made is never taken for
//! dead.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{env, fmt};

/// A running instance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instance {
    /// Its process, as its socket's name says.
    pub pid: u32,
    /// Its socket.
    pub path: PathBuf,
}

/// The selection of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The instance with this process id.
    Pid(u32),
    /// The instance with this socket.
    Path(PathBuf),
}

impl FromStr for Which {
    type Err = String;

    /// A number, or a path.
    fn from_str(word: &str) -> Result<Self, String> {
        match word.parse() {
            _ if word.is_empty() => Err("expected a process id or the path of a socket".to_owned()),
            Ok(pid) => Ok(Self::Pid(pid)),
            Err(_) => Ok(Self::Path(word.into())),
        }
    }
}

/// The reason for which no single instance is selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FindError {
    /// None is running.
    None,
    /// No instance has this process id; the running instances.
    NoSuchPid(u32, Vec<Instance>),
    /// Several are running.
    Several(Vec<Instance>),
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str(
                "no brodo of this user is running: name one of another user, of a unit or with --control by \
                 --instance PATH, the path of its control socket",
            ),
            Self::NoSuchPid(pid, _) => write!(f, "no brodo of this user with process id {pid} is running"),
            Self::Several(instances) => {
                f.write_str("several brodos are running: choose one with --instance:")?;
                instances.iter().try_for_each(|instance| write!(f, " {}", instance.pid))
            }
        }
    }
}

impl std::error::Error for FindError {}

/// The folders in which sockets of this user may be, the best first.
pub fn folders() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let system = PathBuf::from(format!("/run/user/{uid}"));
    let mut folders: Vec<PathBuf> =
        runtime.into_iter().chain([system]).map(|folder| folder.join("brodo")).collect();
    folders.push(format!("/tmp/brodo-{uid}").into());
    folders.dedup();
    folders
}

/// Checks that a folder is a directory, belongs to this user and admits no other.
///
/// # Errors
/// The condition that does not hold, or the error of lstat(2).
pub fn check(folder: &Path) -> io::Result<()> {
    let found = folder.symlink_metadata()?;
    let why = if !found.is_dir() {
        "is not a directory"
    } else if found.uid() != rustix::process::geteuid().as_raw() {
        "belongs to another user"
    } else if found.mode() & 0o077 != 0 {
        "is open to other users"
    } else {
        return Ok(());
    };
    Err(io::Error::new(ErrorKind::PermissionDenied, format!("{} {why}", folder.display())))
}

/// The folder for a new socket, which is made if need be.
///
/// # Errors
/// None of [`folders`] can be used; the error of the last.
pub fn folder() -> io::Result<PathBuf> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for folder in folders() {
        // Runtime folders that are missing, or another user's (after su), are skipped.
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => {
                last = error;
                continue;
            }
        }
        match check(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The name of an instance's socket in its folder.
pub fn file_name(pid: u32) -> String {
    format!("{pid}.sock")
}

/// All instances of this user, by process id. Dead sockets are removed.
pub fn running() -> Vec<Instance> {
    let mut found: Vec<Instance> = folders()
        .iter()
        .filter(|folder| check(folder).is_ok())
        .flat_map(|folder| running_in(folder))
        .collect();
    found.sort();
    found
}

/// The instances whose sockets are in `folder`.
pub fn running_in(folder: &Path) -> Vec<Instance> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let instances = entries.filter_map(|entry| {
        let name = entry.file_name();
        let pid = name.to_str()?.strip_suffix(".sock")?.parse().ok()?;
        Some(Instance { pid, path: entry.path() })
    });
    instances
        .filter(|instance| {
            let before = file(&instance.path);
            match dial(&instance.path) {
                Err(error) if is_dead(&error) => {
                    // Another process may have removed it first, and a new instance with a number that was
                    // used before may have put its socket there.
                    if file(&instance.path) == before {
                        let _ = fs::remove_file(&instance.path);
                    }
                    false
                }
                Err(error) => error.kind() == ErrorKind::WouldBlock,
                Ok(_) => true,
            }
        })
        .collect()
}

/// Device and inode of the file at a path.
fn file(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().map(|found| (found.dev(), found.ino())).ok()
}

/// Whether an error of [`dial`] means a socket without a listener.
pub fn is_dead(error: &io::Error) -> bool {
    error.kind() == ErrorKind::ConnectionRefused
}

/// Connects to a socket without blocking.
///
/// # Errors
/// As connect(2); `WouldBlock` if the backlog is full.
pub fn dial(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path).map_err(|errno| match errno {
        Errno::NAMETOOLONG => io::Error::new(ErrorKind::InvalidInput, "the path is too long for a socket"),
        other => other.into(),
    })?;
    connect(&socket, &address)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The instance selected by `--instance`, or the only one.
///
/// # Errors
/// No instance matches, or several do.
pub fn find(which: Option<&Which>) -> Result<Instance, FindError> {
    match which {
        // The process id comes from the instance itself.
        Some(Which::Path(path)) => Ok(Instance { pid: 0, path: path.clone() }),
        Some(&Which::Pid(pid)) => {
            let running = running();
            let found = running.iter().find(|instance| instance.pid == pid).cloned();
            found.ok_or(FindError::NoSuchPid(pid, running))
        }
        None => {
            let mut running = running();
            match running.len() {
                0 => Err(FindError::None),
                1 => Ok(running.remove(0)),
                _ => Err(FindError::Several(running)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
