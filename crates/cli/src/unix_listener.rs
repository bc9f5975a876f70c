//! Listening Unix socket for one user: the control socket, and metrics at a path.
//!
//! Its path is a [`SocketFile`].

use crate::resume::descriptor::Keep;
use crate::resume::state::SavedListener;
use crate::socket_file::SocketFile;
use rustix::net::SocketType;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// A listening socket that has a path; non-blocking. Dropped, it removes the path.
#[derive(Debug)]
pub(crate) struct PrivateListener {
    listener: UnixListener,
    file: SocketFile,
}

impl PrivateListener {
    /// Listens at a path.
    ///
    /// # Errors
    /// Those of [`SocketFile::bind`].
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let (socket, file) = SocketFile::bind(path, SocketType::STREAM)?;
        Ok(Self { listener: socket.into(), file })
    }

    /// A socket that another program of this process listens with.
    ///
    /// # Errors
    /// The descriptor is missing, or has no file.
    pub(crate) fn resume(saved: &SavedListener) -> io::Result<Self> {
        let file = saved.file.clone().ok_or(ErrorKind::InvalidData)?.into();
        Ok(Self { listener: saved.socket.take()?.into(), file })
    }

    /// The socket in a state for another program.
    pub(crate) fn save<'a>(&'a self, kept: &mut Keep<'a>) -> SavedListener {
        SavedListener { socket: kept.note(self.as_fd()), file: Some(self.file.save()) }
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
        self.file.remove();
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

impl AsFd for PrivateListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

#[cfg(test)]
mod tests;
