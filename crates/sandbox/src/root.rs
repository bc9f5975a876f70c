//! Stage `root`: an empty, read-only root directory.
//!
//! A tmpfs with room for two inodes and no block becomes the root, and the old one is detached: no path leads
//! to a file, a device or a socket. Needs the mount namespace of stage `namespaces`.

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::{chdir, pivot_root};
use std::io;

/// Any directory that is there on every system; its content is hidden for a moment, in this namespace.
const PLACE: &str = "/proc";

/// Replaces the root.
pub(crate) fn empty() -> io::Result<()> {
    mount_change("/", MountPropagationFlags::UNBINDABLE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOSUID | MountFlags::RDONLY;
    mount("none", PLACE, "tmpfs", flags, c"nr_inodes=2,nr_blocks=0")?;
    become_root(PLACE)
}

/// Makes the file system mounted at `place` the root, and detaches the old one.
pub(crate) fn become_root(place: &str) -> io::Result<()> {
    chdir(place)?;
    // Old and new root at one place (pivot_root(2), "pivot_root(".", ".")"): the old one then lies above the
    // new one and is what is detached.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(chdir("/")?)
}
