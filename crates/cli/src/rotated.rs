//! A file of lines with a bound: the flow log, the audit log, the log of `--log-file`.
//!
//! It is appended to. When a line would make it longer than the bound, it is renamed to FILE.1, FILE.1 to
//! FILE.2, and so on; the oldest is removed. One that another program has moved or removed meanwhile is begun
//! anew instead. Devices, pipes and links (/dev/stdout) have no bound, nor has a file that brodo may write
//! and not rename, after `--run-as` or `--sandbox`: lines count for more than the bound.
//!
//! Lines are written many at a time. If that fails, on a full disk, those that are whole in the file stay,
//! and what it has of the next one is taken back: no line is half there when another follows. Half a line of
//! a process before, which was killed, gets an end of line.

use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::mem::take;
use std::ops::AddAssign;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes that are written at a time.
const BUFFER_LEN: usize = 32 << 10;

/// Content of lines, for the count of those that could not be written.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Records {
    /// Records, of which a line may have several.
    pub(crate) whole: u64,
    /// Records about which a line says that they are missing.
    pub(crate) lost: u64,
}

impl AddAssign for Records {
    fn add_assign(&mut self, other: Self) {
        self.whole += other.whole;
        self.lost += other.lost;
    }
}

/// A file and its predecessors.
#[derive(Debug)]
pub(crate) struct Rotated {
    path: PathBuf,
    file: File,
    /// Lines that the file does not have yet, and length in bytes and content of each.
    out: Vec<u8>,
    waiting: Vec<(usize, Records)>,
    /// Content of lines that could not be written.
    given_up: Records,
    /// Length of the file in bytes, whole lines.
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
        Self::of(path, append(path)?, (len_max, keep))
    }

    /// The same of a program before, which has replaced itself; `pipe` is what that one had open
    /// ([`Rotated::pipe`]).
    ///
    /// # Errors
    /// It cannot be opened, or is a named pipe that nothing reads: the wait for a reader would hold up all
    /// that this thread is to do.
    pub(crate) fn reopen(path: &Path, len_max: u64, keep: u32, pipe: Option<OwnedFd>) -> io::Result<Self> {
        if let Some(pipe) = pipe {
            return Ok(Self::new(path, pipe.into(), 0, (len_max, keep)));
        }
        let is_pipe = fs::metadata(path).is_ok_and(|it| it.file_type().is_fifo());
        let file = if is_pipe { append_to_pipe(path) } else { append(path) };
        Self::of(path, file?, (len_max, keep))
    }

    /// A copy of its descriptor if it is a pipe, for the next program: a moment without a writer is the end
    /// for its reader, and without a reader it cannot be opened again.
    pub(crate) fn pipe(&self) -> Option<OwnedFd> {
        let is_pipe = self.file.metadata().is_ok_and(|it| it.file_type().is_fifo());
        is_pipe.then(|| self.file.try_clone().ok().map(OwnedFd::from)).flatten()
    }

    fn of(path: &Path, mut file: File, bounds: (u64, u32)) -> io::Result<Self> {
        let mut len = file.metadata()?.len();
        // The half line stays one that is no record, and the first record has a line of its own; on a full
        // disk it has not.
        if is_cut(path).unwrap_or(false) && file.write_all(b"\n").is_ok() {
            len += 1;
        }
        Ok(Self::new(path, file, len, bounds))
    }

    /// The same, emptied; a device has no content.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open_new(path: &Path, len_max: u64, keep: u32) -> io::Result<Self> {
        let file = append(path)?;
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        Ok(Self::new(path, file, 0, (len_max, keep)))
    }

    fn new(path: &Path, file: File, len: u64, bounds: (u64, u32)) -> Self {
        let (out, waiting, given_up) = Default::default();
        let (len_max, keep) = bounds;
        Self { path: path.to_owned(), file, out, waiting, given_up, len, len_max, keep }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line, with its end.
    ///
    /// # Errors
    /// The disk is full, or the file cannot be renamed. The line is given up, as others that waited may be.
    pub(crate) fn write(&mut self, line: &[u8], records: Records) -> io::Result<()> {
        let len = self.len + self.out.len() as u64;
        let full = len > 0 && len + line.len() as u64 > self.len_max;
        let room = if full {
            self.rotate()
        } else if self.out.len() + line.len() > BUFFER_LEN {
            self.flush()
        } else {
            Ok(())
        };
        if room.is_err() {
            self.given_up += records;
            return room;
        }
        self.waiting.push((line.len(), records));
        self.out.extend(line);
        Ok(())
    }

    /// Passes buffered lines to the kernel.
    ///
    /// # Errors
    /// The disk is full. Lines that are not in the file are given up.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let lines = take(&mut self.out);
        let waiting = take(&mut self.waiting);
        let mut rest = &lines[..];
        while !rest.is_empty() {
            match self.file.write(rest) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(written) if written > 0 => rest = &rest[written..],
                failed => {
                    self.give_up(lines.len() - rest.len(), &waiting);
                    return failed.and(Err(ErrorKind::WriteZero.into()));
                }
            }
        }
        self.len += lines.len() as u64;
        Ok(())
    }

    /// Gives up those of the lines that are not whole in the file, which has so many bytes of them.
    pub(crate) fn give_up(&mut self, written: usize, lines: &[(usize, Records)]) {
        let (mut whole, mut behind) = (0, 0);
        for &(len, records) in lines {
            behind += len;
            if behind <= written {
                whole = behind;
            } else {
                self.given_up += records;
            }
        }
        let end = self.len + written as u64;
        self.len += whole as u64;
        // Another program's lines behind them stay, and a device has no end.
        let ends_here = |meta: fs::Metadata| meta.is_file() && meta.len() == end;
        if whole < written && self.file.metadata().is_ok_and(ends_here) {
            // If that fails, the file has a line that is not whole.
            let _ = self.file.set_len(self.len);
        }
    }

    /// Content of lines that could not be written since the last call.
    pub(crate) fn given_up(&mut self) -> Records {
        take(&mut self.given_up)
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.flush()?;
        match self.replace() {
            Err(error) if is_out_of_reach(&error) => {
                // The file that is open goes on.
                self.len = 0;
                Ok(())
            }
            other => other,
        }
    }

    fn replace(&mut self) -> io::Result<()> {
        match self.place()? {
            LogPath::Own => {}
            LogPath::Others => return self.begin(),
            LogPath::Device => {
                self.len = 0;
                return Ok(());
            }
        }
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
        self.begin()
    }

    /// Opens the file anew.
    fn begin(&mut self) -> io::Result<()> {
        self.file = append(&self.path)?;
        self.len = self.file.metadata()?.len();
        Ok(())
    }

    /// Relation of the open file to the path.
    fn place(&self) -> io::Result<LogPath> {
        let own = self.file.metadata()?;
        if !own.is_file() {
            return Ok(LogPath::Device);
        }
        match fs::symlink_metadata(&self.path) {
            Ok(found) if found.is_symlink() => Ok(LogPath::Device),
            Ok(found) if (found.dev(), found.ino()) == (own.dev(), own.ino()) => Ok(LogPath::Own),
            Ok(_) => Ok(LogPath::Others),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(LogPath::Others),
            Err(error) => Err(error),
        }
    }
}

/// Whether the folder is not this process's to change, or not there for it.
fn is_out_of_reach(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotFound)
}

/// Relation of a log to its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogPath {
    /// The path leads to it.
    Own,
    /// Another program has moved or removed it, as logrotate does.
    Others,
    /// It is a pipe, a terminal or another device, and has no length; or the path is a link, as /dev/stdout,
    /// whose name is not the log's.
    Device,
}

/// Opens a named pipe that has a reader.
fn append_to_pipe(path: &Path) -> io::Result<File> {
    let pipe = File::options().append(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let flags = rustix::fs::fcntl_getfl(&pipe)?;
    rustix::fs::fcntl_setfl(&pipe, flags - OFlags::NONBLOCK)?;
    Ok(pipe)
}

/// Opens a log to append to. A new one has mode 0600: conversations are private to the user.
fn append(path: &Path) -> io::Result<File> {
    let open = || File::options().append(true).create(true).mode(0o600).open(path);
    open().map_err(|error| match path.parent() {
        Some(folder) if error.kind() == ErrorKind::NotFound && !folder.exists() => {
            io::Error::new(error.kind(), format!("there is no folder {}: make it first", folder.display()))
        }
        _ => error,
    })
}

/// Whether a file ends in half a line: of a process that was killed, or a machine that has lost its power.
fn is_cut(path: &Path) -> io::Result<bool> {
    if !fs::metadata(path)?.is_file() {
        return Ok(false);
    }
    // A file to which one may append alone is left as it is.
    let Ok(file) = File::open(path) else { return Ok(false) };
    let Some(last) = file.metadata()?.len().checked_sub(1) else { return Ok(false) };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte != *b"\n")
}

impl Drop for Rotated {
    fn drop(&mut self) {
        // There is nothing that could be done about an error.
        let _ = self.flush();
    }
}
