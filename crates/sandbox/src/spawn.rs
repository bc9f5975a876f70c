//! Stage `namespaces`: a child process in namespaces of its own.

use crate::raw::{self, NAMESPACES};
use crate::{Report, Stage, Stages};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, set_parent_process_death_signal, waitpid};
use std::io;

/// A confined child.
#[derive(Debug)]
pub struct Confined {
    pid: Pid,
}

impl Confined {
    /// Its process number, as the caller sees it.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// It was waited for already.
    pub fn wait(self) -> io::Result<WaitStatus> {
        let ended = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()))?;
        ended.map(|(_, status)| status).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Runs `body` in a child process, in new namespaces if `stages` has them; its result is the exit status.
///
/// The child dies with the caller's thread (SIGKILL). In a PID namespace it is number 1: its end ends all
/// processes that it has made. Namespaces that the system refuses stand in the report with the error.
///
/// # Errors
/// The process has several threads (`EBUSY`), or cannot fork.
pub fn spawn(stages: Stages, body: impl FnOnce(Report) -> i32) -> io::Result<Confined> {
    let mut body = Some(body);
    let mut run = |report: Report| {
        // The caller's end in between is noticed by the caller's own parent, not by this process: a death
        // signal is sent from here on.
        let guarded = set_parent_process_death_signal(Some(Signal::KILL));
        match (guarded, body.take()) {
            (Ok(()), Some(body)) => body(report),
            _ => 1,
        }
    };
    let mut report = Report::default();
    if stages.contains(Stage::Namespaces) {
        match raw::fork_into(NAMESPACES, || run(Report::default())) {
            Ok(pid) => return Ok(Confined { pid }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(error),
            Err(error) => report.add(Stage::Namespaces, &error.to_string()),
        }
    } else {
        report.add(Stage::Namespaces, "off");
    }
    raw::fork_into(0, || run(report)).map(|pid| Confined { pid })
}
