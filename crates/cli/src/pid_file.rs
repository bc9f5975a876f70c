//! The PID file: brodo's process id as a line of text, for the program that has started it.
//!
//! The file is opened before anything is made, so that a path that cannot be written is an error without
//! traces, and written when the network is up. A failure in between leaves no file, nor does a command that
//! cannot be run. At the end it stays, as those of other daemons do: its reader may come later.

use crate::failure::Failure;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// An open PID file; dropped before it is written, it is removed, unless it was there before: another
/// brodo may have written it, which a start that fails must not hide.
#[derive(Debug)]
pub(crate) struct PidFile {
    file: File,
    path: PathBuf,
    stays: bool,
}

impl PidFile {
    /// Opens the file; a new one has mode 0600.
    ///
    /// # Errors
    /// It cannot be opened for writing.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let made = File::options().write(true).create_new(true).mode(0o600).open(path);
        let stays = made.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists);
        let opened = if stays { File::options().write(true).open(path) } else { made };
        let file = opened.map_err(Failure::io(format!("write the PID file {}: open", path.display())))?;
        Ok(Self { file, path: path.to_owned(), stays })
    }

    /// Writes a process id.
    ///
    /// # Errors
    /// The file system is full.
    pub(crate) fn write(mut self, pid: i32) -> Result<(), Failure> {
        let failed = Failure::io(format!("write the PID file {}: write", self.path.display()));
        // A pipe or terminal has no length.
        let is_file = self.file.metadata().is_ok_and(|metadata| metadata.is_file());
        let emptied = if is_file { self.file.set_len(0) } else { Ok(()) };
        emptied.and_then(|()| self.file.write_all(format!("{pid}\n").as_bytes())).map_err(failed)?;
        self.stays = true;
        Ok(())
    }

    /// Closes the file as it is, in a process that is not to write it.
    pub(crate) fn leave(mut self) {
        self.stays = true;
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if !self.stays {
            remove(&self.path);
        }
    }
}

/// Removes the file of a brodo that fails after it has written it.
pub(crate) fn remove(path: &Path) {
    // Not a pipe, nor a link such as /dev/stdout.
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_has_the_id_and_a_failure_leaves_none() {
        let path = std::env::temp_dir().join(format!("brodo-pid-file-{}", std::process::id()));
        drop(PidFile::open(&path).expect("opened"));
        assert!(!path.exists(), "nothing was written");
        PidFile::open(&path).expect("opened").write(4711).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("text"), "4711\n");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        drop(PidFile::open(&path).expect("opened again"));
        assert_eq!(fs::read_to_string(&path).expect("text"), "4711\n", "another brodo's");
        PidFile::open(&path).expect("opened again").write(5).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("text"), "5\n");
        fs::remove_file(&path).expect("removed");
        assert!(PidFile::open(Path::new("/nonexistent/pid")).is_err());
    }
}
