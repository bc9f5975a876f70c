//! The end of a helper process: the socket broker and the promotion agent end when their first client closes
//! its channel, and are killed if they do not within [`PATIENCE`].
//!
//! A helper reads requests of the engine, which is taken for hostile, and is in the kernel while it serves
//! one: the parent must not depend on its end.
//!
//! System calls: `pidfd_open`, poll, kill, waitpid.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};
use rustix::process::{kill_process, pidfd_open, waitpid};
use std::time::{Duration, Instant};

/// Longest wait for the end of a helper: the agent removes its table of nf_tables, for which the kernel waits
/// until no packet uses it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for the end of one that was killed.
const KILLED_PATIENCE: Duration = Duration::from_secs(1);

/// Waits for the end of the child `pid`, which was asked to end, and kills it when that takes too long. Its
/// end, or `None` if it may not be killed and goes on.
///
/// One that is no child, because an earlier brodo has made it, is left alone: its number may be that of
/// another process by now.
pub(crate) fn await_end(pid: Pid) -> Option<WaitStatus> {
    await_end_within(pid, PATIENCE)
}

fn await_end_within(pid: Pid, patience: Duration) -> Option<WaitStatus> {
    match retry_on_intr(|| waitpid(Some(pid), WaitOptions::NOHANG)) {
        Ok(None) => {}
        Ok(Some((_, status))) => return Some(status),
        Err(_) => return None,
    }
    // Without a descriptor the wait would have no bound.
    let handle = pidfd_open(pid, PidfdFlags::empty());
    let has_ended = |patience| handle.as_ref().is_ok_and(|handle| becomes_readable(handle.as_fd(), patience));
    if !has_ended(patience) {
        // Root without CAP_KILL may not end a process of another user.
        let killed = kill_process(pid, Signal::KILL);
        if killed == Err(Errno::PERM) || (handle.is_ok() && !has_ended(KILLED_PATIENCE)) {
            return None;
        }
    }
    let ended = retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
    ended.ok().flatten().map(|(_, status)| status)
}

fn becomes_readable(handle: BorrowedFd<'_>, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return ready == Ok(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[expect(clippy::zombie_processes, reason = "the tests wait for it by its number")]
    fn child(program: &str, argument: &str) -> Pid {
        let child = Command::new(program).arg(argument).spawn().expect("a child");
        Pid::from_raw(child.id().cast_signed()).expect("a process number")
    }

    #[test]
    fn a_helper_that_does_not_end_is_killed() {
        let end = await_end_within(child("sleep", "1000"), Duration::from_millis(10))
            .expect("a child that has ended");
        assert_eq!(end.terminating_signal(), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn a_process_that_is_no_child_is_left_alone() {
        let script = ["-c", "sleep 1000 > /dev/null 2>&1 & echo $!"];
        let output = Command::new("sh").args(script).output().expect("a shell");
        let text = String::from_utf8(output.stdout).expect("a number");
        let other = Pid::from_raw(text.trim().parse().expect("a number")).expect("a process number");
        let end = await_end_within(other, Duration::from_millis(10));
        let handle = pidfd_open(other, PidfdFlags::empty());
        let goes_on = handle.is_ok_and(|handle| !becomes_readable(handle.as_fd(), Duration::from_millis(10)));
        let _ = kill_process(other, Signal::KILL);
        assert!(end.is_none() && goes_on, "{end:?}");
    }

    #[test]
    fn a_helper_that_ends_is_waited_for() {
        let end = await_end(child("sleep", "0.1")).expect("a child that has ended");
        assert_eq!(end.exit_status(), Some(0));
    }
}
