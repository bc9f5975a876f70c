//! Confinement of a process that serves its user: few folders, and two capabilities.
//!
//! For the process that makes the confined ones, once they run and its own files are open. It keeps its user,
//! its network and its system calls: it parses nothing of the guest's.
//!
//! An ordinary user needs a user namespace for the mounts, in which it is the same user and no other user is
//! known. It is a child of the caller's, not the guest's: the guest's root could act on a process there.

use crate::root::become_root;
use crate::user::become_user;
use crate::{capabilities, raw};
use rustix::fd::OwnedFd;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, mount_remount,
    move_mount, open_tree,
};
use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySet, capabilities as held};
use std::fs::{create_dir_all, write};
use std::io;
use std::path::Path;

/// Any directory that is there on every system; its content is hidden for a moment, in this namespace.
const PLACE: &str = "/etc";

/// Leaves the process, of one thread, with those of the folders `kept` that are there, at their paths, and
/// with two capabilities as far as it has them: to bind privileged ports, and to signal other users'
/// processes. Without the second its children of another user would outlive it: the kernel sends the signal
/// of a parent's death in the parent's name. Of another user, with its group, if one is given.
///
/// # Errors
/// The system allows no namespaces, or is older than Linux 5.2; the process may not become that user. It may
/// have changed in part.
pub fn narrow(kept: &[&Path], user: Option<(u32, u32)>) -> io::Result<()> {
    if held(None)?.effective.contains(CapabilitySet::SYS_ADMIN) {
        raw::unshare(libc::CLONE_NEWNS)?;
    } else {
        unshare_as_same_user()?;
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let mut trees = Vec::new();
    for folder in kept {
        match tree(folder) {
            Ok(tree) => trees.push((*folder, tree)),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let flags = MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOSUID;
    mount("none", PLACE, "tmpfs", flags, c"mode=755,size=64k")?;
    for (folder, tree) in trees {
        let place = Path::new(PLACE).join(folder.strip_prefix("/").map_err(|_| Errno::INVAL)?);
        // One that lies in another that is kept is there already.
        if !place.exists() {
            create_dir_all(&place)?;
            move_mount(&tree, "", CWD, &place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        }
    }
    mount_remount(PLACE, flags | MountFlags::RDONLY, c"")?;
    become_root(PLACE)?;
    match user {
        Some((user, group)) => become_user(user, group),
        None => capabilities::keep(CapabilitySet::NET_BIND_SERVICE | CapabilitySet::KILL),
    }
}

/// A copy of what is mounted at a folder and below, mounted nowhere.
fn tree(folder: &Path) -> Result<OwnedFd, Errno> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, folder, flags)
}

/// User and mount namespaces, with the same user and group.
fn unshare_as_same_user() -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    raw::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
    // An ordinary user may map its group only once it can no longer change its others.
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    write("/proc/self/uid_map", format!("{user} {user} 1"))
}
