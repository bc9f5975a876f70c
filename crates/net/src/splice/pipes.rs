//! Pipes between the sockets of splices: made when they are needed, bounded in number, some kept at rest.
//!
//! System calls: pipe2, fcntl `F_SETPIPE_SZ`.

use super::Place;
use brodo_core::journal::carried::DriverJournal;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// Size of a pipe, F_SETPIPE_SZ, in bytes. The kernel counts buffers, one for each 4 KiB of this, and a
/// buffer takes what a socket has in one piece, up to 32 KiB. The more it holds, the rarer its two neighbours
/// are woken: 38 Gbit/s with 1 MiB, 33 with 256 KiB.
pub(super) const PIPE_BYTES: usize = 1 << 20;
/// Size of pipes beyond [`PIPES_LARGE`]: a user without privileges may have 64 MiB of pipes
/// (/proc/sys/fs/pipe-user-pages-soft), and gets those of two buffers after that.
const PIPE_BYTES_MANY: usize = 256 << 10;
/// Pipes that are large, of all that share them.
pub(super) const PIPES_LARGE: usize = 16;
/// Empty pipes kept for later splices.
const PIPES_IDLE_MAX: usize = 32;
/// Most pipes at a time.
const PIPES_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) from: OwnedFd,
    pub(super) to: OwnedFd,
}

impl Pipe {
    /// Numbers of both ends, as the journal has them.
    pub(super) fn numbers(&self) -> (u32, u32) {
        (number(&self.from), number(&self.to))
    }
}

/// Number of a descriptor, as the journal has it.
pub(super) fn number(descriptor: &OwnedFd) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

/// Pipes in use and at rest.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) idle: Vec<Pipe>,
    /// Most that are large.
    large_max: usize,
    /// Number of pipes, free and in use.
    pub(super) made: usize,
    /// The kernel gave none when it was last asked, and none has come back since.
    pub(super) refused: bool,
    pub(super) journal: DriverJournal,
}

impl Pipes {
    pub(super) fn new(large_max: usize) -> Self {
        Self { idle: Vec::new(), large_max, made: 0, refused: false, journal: DriverJournal::default() }
    }

    /// An empty pipe for a direction; `None` beyond the bound or if the kernel gives none.
    pub(super) fn lend(&mut self, to: Place) -> Option<Pipe> {
        let pipe = self.take()?;
        self.journal.pipe(to.flow, to.way, Some(pipe.numbers()));
        Some(pipe)
    }

    /// Takes back a direction's pipe, which is empty.
    pub(super) fn give_back(&mut self, pipe: Pipe, of: Place) {
        self.journal.pipe(of.flow, of.way, None);
        self.put(pipe);
    }

    /// An empty pipe; `None` beyond the bound or if the kernel gives none.
    pub(super) fn take(&mut self) -> Option<Pipe> {
        if let Some(pipe) = self.idle.pop() {
            return Some(pipe);
        }
        if self.made >= PIPES_MAX {
            return None;
        }
        let Ok((from, to)) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) else {
            self.refused = true;
            return None;
        };
        let size = if self.made < self.large_max { PIPE_BYTES } else { PIPE_BYTES_MANY };
        // Refused beyond the user's limit of pipe pages (pipe-user-pages-soft); the smaller size works too.
        let _ = fcntl_setpipe_size(&to, size);
        self.made += 1;
        self.refused = false;
        Some(Pipe { from, to })
    }

    /// Takes back one that is empty, and that no direction has.
    pub(super) fn put(&mut self, pipe: Pipe) {
        self.refused = false;
        if self.idle.len() < PIPES_IDLE_MAX {
            self.idle.push(pipe);
        } else {
            self.made -= 1;
        }
    }

    /// Whether there is one for a direction, as far as is known.
    pub(super) fn has_more(&self) -> bool {
        !self.idle.is_empty() || (self.made < PIPES_MAX && !self.refused)
    }

    /// Closes those at rest.
    pub(super) fn give_up_idle(&mut self) {
        self.made -= self.idle.len();
        self.idle = Vec::new();
    }

    /// Notes the end of one that is not.
    pub(super) fn lost(&mut self) {
        self.refused = false;
        self.made -= 1;
    }
}

#[cfg(test)]
mod tests;
