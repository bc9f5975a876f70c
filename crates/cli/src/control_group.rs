//! Control group: the processes of brodo follow the warden into another one (cgroup v2).
//!
//! podman (rootless bridge networks) and libvirt move the process that the PID file names, so that the end of
//! the unit or machine that has started it does not kill it. brodo is more than that process: keeper, engine,
//! broker and agent would stay behind, and be killed. So a thread compares the warden's group with the
//! keeper's once a second, and moves all descendants of the warden where they differ. The kernel has no
//! notice of a process that is moved.
//!
//! It is tried once for each group: processes that an administrator moves away later stay there, and a
//! refusal (the group is another user's) is logged once. Process numbers are those of the warden's
//! descendants, as the kernel lists them; none comes from the engine. A process that the warden starts later
//! is in its group from the start.

use crate::log;
use crate::warden::client::EngineClient;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io, thread};

/// Interval of the comparisons.
const INTERVAL: Duration = Duration::from_secs(1);
/// Usual places of the hierarchy: alone, and beside those of cgroup v1.
const MOUNT_POINTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Generations of descendants: keeper and engine, and a process between for the namespaces of a helper.
const GENERATIONS: usize = 4;

/// Begins to follow, from a thread that ends with the process.
///
/// # Errors
/// No thread can be made.
pub(crate) fn start(engine: Arc<EngineClient>) -> io::Result<()> {
    let body = move || {
        let mut follower = Follower::default();
        loop {
            thread::sleep(INTERVAL);
            follower.look(engine.keeper());
        }
    };
    thread::Builder::new().name("control-group".into()).spawn(body).map(drop)
}

/// The comparison of two groups.
#[derive(Debug, Default)]
struct Follower {
    /// Group that the others were last moved to, or could not be.
    tried: Option<String>,
}

impl Follower {
    fn look(&mut self, keeper: i32) {
        let own = group_of("self");
        let Some(group) = self.destination(own, group_of(&keeper.to_string())) else { return };
        let field = ("group", group.clone().into());
        match move_descendants(&group) {
            Ok(()) => log::info("all processes followed into another control group", &[field]),
            Err(error) => {
                let error = ("error", error.to_string().into());
                log::info("processes cannot follow into another control group", &[field, error]);
            }
        }
    }

    /// The group to move to, if there is a new one.
    fn destination(&mut self, own: Option<String>, keepers: Option<String>) -> Option<String> {
        let (own, keepers) = (own?, keepers?);
        if own == keepers || self.tried.as_ref() == Some(&own) {
            return None;
        }
        self.tried = Some(own.clone());
        Some(own)
    }
}

/// The group of a process, as a path in the hierarchy of cgroup v2.
fn group_of(process: &str) -> Option<String> {
    group_in(&fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?)
}

/// The same from the content of the file (cgroups(7)).
fn group_in(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// Moves the descendants of this process to its own group.
fn move_descendants(group: &str) -> io::Result<()> {
    let own = std::process::id();
    let is_here = |file: &PathBuf| {
        let listed = fs::read_to_string(file).unwrap_or_default();
        listed.lines().any(|line| line.parse() == Ok(own))
    };
    // The file system may be that of another cgroup namespace: the file has to list this process.
    let files = MOUNT_POINTS.iter().map(|mount| PathBuf::from(format!("{mount}{group}/cgroup.procs")));
    let file = files.into_iter().find(is_here).ok_or(io::ErrorKind::NotFound)?;
    let mut generation = children(own);
    for _ in 0..GENERATIONS {
        for &process in &generation {
            match fs::write(&file, process.to_string()) {
                // It has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                written => written?,
            }
        }
        // Listed after the move: a child that was made meanwhile is listed, or in the new group already.
        generation = generation.into_iter().flat_map(children).collect();
    }
    Ok(())
}

/// Children of a process.
fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_that_of_the_second_version() {
        assert_eq!(group_in("0::/user.slice/a.scope\n").as_deref(), Some("/user.slice/a.scope"));
        assert_eq!(group_in("4:memory:/a\n1:name=systemd:/b\n0::/c:d\n").as_deref(), Some("/c:d"));
        assert_eq!(group_in("1:name=systemd:/b\n"), None);
        assert_eq!(group_in(""), None);
    }

    #[test]
    fn each_group_is_tried_once() {
        let mut follower = Follower::default();
        let mut destination = |own: &str, keepers: &str| {
            follower.destination(Some(own.to_owned()), Some(keepers.to_owned())).unwrap_or_default()
        };
        assert_eq!(destination("/a", "/a"), "");
        assert_eq!(destination("/b", "/a"), "/b");
        assert_eq!(destination("/b", "/a"), "", "it was refused");
        assert_eq!(destination("/b", "/b"), "");
        assert_eq!(destination("/b", "/c"), "", "the keeper alone was moved");
        assert_eq!(destination("/a", "/b"), "/a");
        assert_eq!(destination("/b", "/a"), "/b");
        assert_eq!(follower.destination(Some("/d".to_owned()), None), None);
    }

    #[test]
    fn children_are_those_of_all_threads() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        assert!(children(std::process::id()).contains(&child.id()));
        child.kill().and_then(|()| child.wait()).expect("ends");
    }
}
