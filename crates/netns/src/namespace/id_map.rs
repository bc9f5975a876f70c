//! User and group ids of a fresh user namespace.
//!
//! An ordinary user may map one id, its own (`user_namespaces(7)`): to root, so that the command has all
//! rights over the namespace, or to itself. A privileged user maps every id to itself, so that no file
//! changes its owner and no id is lost. The maps are written from outside, which is the only way that allows
//! both.
//!
//! System calls: open, read, write under /proc/PID.

use crate::setup::{SetupError, Step};
use rustix::io::Errno;
use rustix::process::Pid;
use std::fs;
use std::path::Path;

/// User and group ids of the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The caller's own id appears as root.
    Root,
    /// The caller's own id is unchanged.
    Keep,
}

/// The largest group id that `ping_group_range` takes: the kernel's `GID_T_MAX`.
const PING_GID_MAX: u32 = i32::MAX as u32;

/// The group ids that exist in the namespace, as bounds of `ping_group_range`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupRange {
    pub(crate) min: u32,
    pub(crate) max: u32,
}

/// Writes the maps of `child`, which is in a fresh user namespace.
pub(crate) fn write(child: Pid, identity: Identity) -> Result<(), SetupError> {
    let directory = format!("/proc/{}", child.as_raw_nonzero());
    let put = |file: &str, text: &str| {
        let path = format!("{directory}/{file}");
        fs::write(&path, text).map_err(|error| SetupError::from_io(Step::IdMap, &error, path))
    };
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    if uid == 0 {
        let whole = |file: &str| fs::read_to_string(Path::new("/proc/self").join(file)).unwrap_or_default();
        let uid_map = identity_of(&whole("uid_map"));
        let gid_map = identity_of(&whole("gid_map"));
        match put("uid_map", &uid_map).and_then(|()| put("gid_map", &gid_map)) {
            // Root without CAP_SETUID, as in a restricted container, has an ordinary user's rights here.
            Err(error) if error.errno == Errno::PERM => {}
            other => return other,
        }
    }
    let (inner_uid, inner_gid) = if identity == Identity::Keep { (uid, gid) } else { (0, 0) };
    put("uid_map", &format!("{inner_uid} {uid} 1"))?;
    // Otherwise an ordinary user could shed groups, and with them restrictions (CVE-2014-8989).
    put("setgroups", "deny")?;
    put("gid_map", &format!("{inner_gid} {gid} 1"))
}

/// The identity map of all ids mapped here.
fn identity_of(map: &str) -> String {
    let extents = map.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (inside, count) = (fields.next()?, fields.nth(1)?);
        Some(format!("{inside} {inside} {count}\n"))
    });
    extents.collect()
}

/// The groups of the calling process's user namespace.
pub(crate) fn own_groups() -> GroupRange {
    groups_of(&fs::read_to_string("/proc/self/gid_map").unwrap_or_default())
}

/// From the lowest group to the highest; both must be mapped, ids between them need not be.
fn groups_of(map: &str) -> GroupRange {
    let mut range = GroupRange { min: u32::MAX, max: 0 };
    for line in map.lines() {
        let mut fields = line.split_whitespace().map(str::parse::<u32>);
        if let (Some(Ok(inside)), Some(Ok(count))) = (fields.next(), fields.nth(1)) {
            range.min = range.min.min(inside);
            range.max = range.max.max(inside.saturating_add(count.saturating_sub(1)).min(PING_GID_MAX));
        }
    }
    GroupRange { min: range.min.min(range.max), max: range.max }
}

#[cfg(test)]
mod tests;
