//! Listening Unix socket for one user: the control socket, and metrics at a path.
//!
//! A socket is bound under a temporary name and renamed once it listens and has mode 0600, so that it can be
//! used as soon as it can be found and by its owner alone. Renaming also replaces a socket left behind by a
//! killed instance. A socket in use stays, and so does a file of another type.
//!
//! At the end the path is removed if it still leads to the same file (device and inode), not if another
//! process has replaced it.

use crate::resume::descriptor::Keep;
use crate::resume::state::{SavedFile, SavedListener};
use brodo_control::instance::{dial, is_dead};
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A listening socket that has a path; non-blocking. Dropped, it removes the path.
#[derive(Debug)]
pub(crate) struct PrivateListener {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket's file.
    file: (u64, u64),
}

impl PrivateListener {
    /// Listens at a path.
    ///
    /// # Errors
    /// `AddrInUse` if another process listens there, `AlreadyExists` for a file that is not a socket; errors
    /// of bind, chmod and rename.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        remove_dead(path)?;
        // In the same folder, which is where the user may make files. The process id makes the name unique.
        let temporary = path.with_file_name(format!(".brodo-{}", std::process::id()));
        remove_dead(&temporary)?;
        let listener = UnixListener::bind(&temporary)?;
        let made = (|| {
            listener.set_nonblocking(true)?;
            fs::set_permissions(&temporary, Permissions::from_mode(0o600))?;
            let found = temporary.symlink_metadata()?;
            fs::rename(&temporary, path)?;
            // An absolute path is valid in every working directory.
            Ok((found.dev(), found.ino(), std::path::absolute(path)?))
        })();
        match made {
            Ok((device, inode, path)) => Ok(Self { listener, path, file: (device, inode) }),
            Err(error) => {
                let _ = fs::remove_file(&temporary);
                Err(error)
            }
        }
    }

    /// A socket that another program of this process listens with.
    ///
    /// # Errors
    /// The descriptor is missing, or has no file.
    pub(crate) fn resume(saved: &SavedListener) -> io::Result<Self> {
        let SavedFile { path, device, inode } = saved.file.clone().ok_or(ErrorKind::InvalidData)?;
        Ok(Self { listener: saved.socket.take()?.into(), path, file: (device, inode) })
    }

    /// The socket in a state for another program.
    pub(crate) fn save<'a>(&'a self, kept: &mut Keep<'a>) -> SavedListener {
        let (device, inode) = self.file;
        let file = Some(SavedFile { path: self.path.clone(), device, inode });
        SavedListener { socket: kept.note(self.as_fd()), file }
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// As accept; `WouldBlock` if there is none.
    pub(crate) fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().map(|(stream, _)| stream)
    }

    /// Removes the path, if the file there is still this socket's.
    pub(crate) fn remove(&self) {
        let found = self.path.symlink_metadata().map(|found| (found.dev(), found.ino()));
        if found.is_ok_and(|found| found == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Its path.
    #[cfg(test)]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes a socket without a listener. Fails for any other file.
fn remove_dead(path: &Path) -> io::Result<()> {
    let Ok(found) = path.symlink_metadata() else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "a file other than a socket is there"));
    }
    match dial(path) {
        Err(error) if is_dead(&error) => fs::remove_file(path),
        Ok(_) => Err(io::Error::new(ErrorKind::AddrInUse, "another process listens there already")),
        Err(error) => Err(error),
    }
}

impl AsFd for PrivateListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for PrivateListener {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests;
