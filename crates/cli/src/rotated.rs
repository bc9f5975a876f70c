//! A file of lines with a bound: the flow log, the audit log, the log of `--log-file`.
//!
//! It is appended to. When a line would make it longer than the bound, it is renamed to FILE.1, FILE.1 to
//! FILE.2, and so on; the oldest is removed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file and its predecessors.
#[derive(Debug)]
pub(crate) struct Rotated {
    path: PathBuf,
    out: BufWriter<File>,
    len: u64,
    len_max: u64,
    keep: u32,
}

impl Rotated {
    /// Opens the file, to be replaced before it is longer than `len_max` bytes, of which `keep` old ones
    /// stay.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open(path: &Path, len_max: u64, keep: u32) -> io::Result<Self> {
        let file = append(path)?;
        let len = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), out: BufWriter::new(file), len, len_max, keep })
    }

    /// The same, emptied.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open_new(path: &Path, len_max: u64, keep: u32) -> io::Result<Self> {
        let file = append(path)?;
        file.set_len(0)?;
        Ok(Self { path: path.to_owned(), out: BufWriter::new(file), len: 0, len_max, keep })
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line, with its end.
    ///
    /// # Errors
    /// The disk is full, or the file cannot be renamed.
    pub(crate) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.len > 0 && self.len + line.len() as u64 > self.len_max {
            self.rotate()?;
        }
        self.len += line.len() as u64;
        self.out.write_all(line)
    }

    /// Passes buffered lines to the kernel.
    ///
    /// # Errors
    /// The disk is full.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.out.flush()?;
        let old = |number: u32| {
            let mut name = OsString::from(&self.path);
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        for number in (1..self.keep).rev() {
            match fs::rename(old(number), old(number + 1)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        match self.keep {
            0 => fs::remove_file(&self.path)?,
            _ => fs::rename(&self.path, old(1))?,
        }
        self.out = BufWriter::new(append(&self.path)?);
        self.len = 0;
        Ok(())
    }
}

/// Opens a log to append to. A new one has mode 0600: conversations are private to the user.
fn append(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).mode(0o600).open(path)
}
