//! Stage `descriptors`: a process without descriptors beyond those it was given by name.
//!
//! The standard three lead to /dev/null: a terminal is a way to type into a shell (TIOCSTI), and text from a
//! process that was taken over is escape sequences. Its messages go through the parent, which escapes them.

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::io;

/// Closes every descriptor but `kept`.
pub(crate) fn close_all_but(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    drop(null);
    close_others(kept)
}

/// The same without a change of the standard three.
pub(crate) fn close_others(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut numbers: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).collect();
    numbers.extend([0, 1, 2]);
    numbers.sort_unstable();
    numbers.dedup();
    let starts = numbers.iter().map(|number| number + 1);
    let ends = numbers.iter().skip(1).map(|number| number - 1).chain([u32::MAX]);
    for (first, last) in starts.zip(ends).filter(|(first, last)| first <= last) {
        crate::raw::close_range(first, last)?;
    }
    Ok(())
}
