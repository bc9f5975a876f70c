//! The socket's file: where it is, who may open it, and that it goes when nobody listens any more.
//!
//! A socket is made under another name and renamed when somebody listens on it and its mode is 0600, so whoever finds it can
//! use it. Renaming also replaces what a killed instance has left behind; one that somebody still listens on is left alone,
//! and so is a file that is no socket.

use brodo_control::instance::{self, dial, is_dead};
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Where the socket is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Under this process's number in the user's own folder.
    Default,
    /// Here.
    At(PathBuf),
    /// Nowhere.
    None,
}

impl Place {
    /// What `--control` says.
    pub(crate) fn of(option: Option<&Path>) -> Self {
        match option {
            None => Self::Default,
            Some(path) if path.as_os_str() == "none" => Self::None,
            Some(path) => Self::At(path.to_owned()),
        }
    }
}

/// A socket that is listened on.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Device and inode of what is ours to remove.
    file: (u64, u64),
}

impl Listening {
    /// Listens, unless nowhere.
    ///
    /// # Errors
    /// It cannot be listened there.
    pub(crate) fn new(place: &Place) -> io::Result<Option<Self>> {
        match place {
            Place::None => Ok(None),
            Place::At(path) => Self::at(path).map(Some),
            Place::Default => {
                Self::at(&instance::folder()?.join(instance::file_name(std::process::id()))).map(Some)
            }
        }
    }

    /// Listens on a socket of this path.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        if let Ok(found) = path.symlink_metadata() {
            if !found.file_type().is_socket() {
                return Err(io::Error::new(ErrorKind::AlreadyExists, "there is a file that is no socket"));
            }
            match dial(path) {
                Err(error) if is_dead(&error) => {}
                Ok(_) => return Err(io::Error::new(ErrorKind::AddrInUse, "somebody listens there already")),
                Err(error) => return Err(error),
            }
        }
        let mut new = path.as_os_str().to_owned();
        new.push("~");
        let new = PathBuf::from(new);
        // Left behind between these lines by a process of this number, or never.
        let _ = fs::remove_file(&new);
        let listener = UnixListener::bind(&new)?;
        let made = (|| {
            listener.set_nonblocking(true)?;
            fs::set_permissions(&new, Permissions::from_mode(0o600))?;
            let found = new.symlink_metadata()?;
            fs::rename(&new, path)?;
            // An absolute path holds wherever the process goes.
            Ok((found.dev(), found.ino(), std::path::absolute(path)?))
        })();
        match made {
            Ok((device, inode, path)) => Ok(Self { listener, path, file: (device, inode) }),
            Err(error) => {
                let _ = fs::remove_file(&new);
                Err(error)
            }
        }
    }

    /// Its path.
    #[cfg(test)]
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let found = self.path.symlink_metadata().map(|found| (found.dev(), found.ino()));
        if found.is_ok_and(|found| found == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
