//! Stage `limits`: bounds of the kernel's on processes, descriptors and memory.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Bounds that depend on the work of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Open descriptors, RLIMIT_NOFILE.
    pub open_files: u64,
    /// Bytes of private memory, RLIMIT_DATA.
    pub data_bytes: u64,
}

impl Limits {
    /// Sets them, hard, and to none: processes (threads included), core dumps, locked memory, message queues.
    pub(crate) fn set(&self) -> io::Result<()> {
        let bounds = [
            (Resource::Nofile, self.open_files),
            (Resource::Data, self.data_bytes),
            (Resource::Core, 0),
            (Resource::Memlock, 0),
            (Resource::Nproc, 0),
            (Resource::Msgqueue, 0),
        ];
        for (resource, most) in bounds {
            let most = getrlimit(resource).maximum.map_or(most, |hard| hard.min(most));
            setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
        }
        Ok(())
    }
}
