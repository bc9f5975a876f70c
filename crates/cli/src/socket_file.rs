//! Unix socket with a path, for one user.
//!
//! A socket is bound under a temporary name and renamed once it has mode 0600 and, if it is one for
//! connections, listens, so that it can be used as soon as it can be found and by its owner alone. A socket
//! left behind by a killed instance is removed before. A socket in use stays, also one that has come
//! meanwhile, and so does a file of another type.
//!
//! At the end the path is removed if it still leads to the same file (device and inode), not if another
//! process has replaced it.

use crate::resume::state::SavedFile;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, RenameFlags, fchmod, renameat_with};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Longest path of a Unix socket, in bytes (`sun_path` of unix(7), without its end). Renaming would allow
/// more, and no client could connect there.
const PATH_MAX: usize = 107;

/// The path of a socket. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// A non-blocking socket of this type, bound to the path, and listening if it is of connections.
    ///
    /// # Errors
    /// `InvalidInput` for a path that is too long; `AddrInUse` if another process has a socket there,
    /// `AlreadyExists` for a file that is not a socket; errors of bind, chmod and rename.
    pub(crate) fn bind(path: &Path, kind: SocketType) -> io::Result<(OwnedFd, Self)> {
        if path.as_os_str().len() > PATH_MAX {
            let why = format!("the path of a socket has at most {PATH_MAX} bytes");
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        remove_dead(path, kind)?;
        // In the same folder, which is where the user may make files. The process id makes the name unique.
        let temporary = path.with_file_name(format!(".brodo-{}", std::process::id()));
        remove_dead(&temporary, kind)?;
        let socket = new_socket(kind)?;
        // Before there is a file: its mode is that of the socket, less the umask.
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind(&socket, &address(&temporary)?)?;
        let made = (|| {
            if kind != SocketType::DGRAM {
                listen(&socket, BACKLOG)?;
            }
            let found = temporary.symlink_metadata()?;
            rename_new(&temporary, path)?;
            // An absolute path is valid in every working directory.
            Ok(Self { path: std::path::absolute(path)?, device: found.dev(), inode: found.ino() })
        })();
        match made {
            Ok(file) => Ok((socket, file)),
            Err(error) => {
                let _ = fs::remove_file(&temporary);
                Err(error)
            }
        }
    }

    /// The file in a state for another program.
    pub(crate) fn save(&self) -> SavedFile {
        SavedFile { path: self.path.clone(), device: self.device, inode: self.inode }
    }

    /// Removes the path, if the file there is still this socket's.
    pub(crate) fn remove(&self) {
        let found = self.path.symlink_metadata().map(|found| (found.dev(), found.ino()));
        if found.is_ok_and(|found| found == (self.device, self.inode)) {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// The path itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl From<SavedFile> for SocketFile {
    fn from(SavedFile { path, device, inode }: SavedFile) -> Self {
        Self { path, device, inode }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A socket connected to the one at a path.
///
/// # Errors
/// As connect(2): `ConnectionRefused` if the socket there belongs to no process, `WouldBlock` if the backlog
/// is full.
pub(crate) fn connected(path: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    let socket = new_socket(kind)?;
    connect(&socket, &address(path)?)?;
    Ok(socket)
}

fn new_socket(kind: SocketType) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|errno| match errno {
        Errno::NAMETOOLONG => io::Error::new(ErrorKind::InvalidInput, "the path is too long for a socket"),
        other => other.into(),
    })
}

/// Renames to a path at which there is nothing.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => Err(ErrorKind::AddrInUse.into()),
        // A file system without this.
        Err(Errno::INVAL) => fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}

/// Removes a socket without a process. Fails for any other file.
fn remove_dead(path: &Path, kind: SocketType) -> io::Result<()> {
    let Ok(found) = path.symlink_metadata() else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "a file other than a socket is there"));
    }
    match connected(path, kind) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        // A socket of another type belongs to a process too (EPROTOTYPE).
        Ok(_) => Err(io::Error::new(ErrorKind::AddrInUse, "another process listens there already")),
        Err(error) if error.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error()) => {
            Err(io::Error::new(ErrorKind::AddrInUse, "another process has a socket there already"))
        }
        Err(error) => Err(error),
    }
}
