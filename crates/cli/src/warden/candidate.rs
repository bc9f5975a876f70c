//! A program that is to take the place of this one, and its first engine, until that has taken over.
//!
//! The steps are those at the head of [`super::upgrade`]. Dropped, a candidate ends with its processes: a
//! program that has made no keeper together with its process group, because all that it has started hold
//! brodo's descriptors.

use super::{Conversation, Opened};
use crate::conversation::host::{Hosted, MESSAGE_MAX};
use crate::conversation::lines;
use crate::conversation::message::{Ended, Record};
use crate::failure::plain;
use crate::resume::{self, descriptor::Keep, state::State};
use brodo_sandbox::Confined;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time for each of the steps before the exchange.
const PATIENCE: Duration = Duration::from_secs(3);

/// A program with an engine of its own, which is to go on with the work.
pub(crate) struct Candidate {
    pub(super) program: File,
    pub(super) version: String,
    /// The process of the program, until it has made the keeper.
    host: Option<Child>,
    pub(super) keeper: OwnedFd,
    pub(super) confined: Option<Confined>,
    pub(super) starting: Option<Starting>,
    /// Children of this process that belong to others.
    others: Vec<i32>,
    pub(super) until: Instant,
}

/// An engine on its way.
pub(super) struct Starting {
    pub(super) opened: Opened,
    /// The end from which the old engine sends its state.
    pub(super) source: OwnedFd,
}

impl Candidate {
    /// Starts `program` beside this one, with `state`.
    ///
    /// # Errors
    /// It cannot be started: a sentence.
    pub(crate) fn start(
        program: File,
        state: &State,
        kept: &Keep<'_>,
        others: Vec<i32>,
    ) -> Result<Self, String> {
        let failed = |error: &io::Error| format!("cannot start the other program: {}", plain(error));
        let (keeper, theirs) =
            lines::pair_with_engine(SocketType::SEQPACKET).map_err(|error| failed(&error))?;
        let memory = resume::written(state).map_err(|error| failed(&error))?;
        let also = [memory.as_fd(), program.as_fd()];
        let mut command = Command::new(resume::path_of(&program));
        command.arg0("brodo").arg(resume::HOST).env_clear().envs(resume::environment(&memory, &program));
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let host = kept.across_execve(&also, || command.spawn());
        let host = host.and_then(|host| host).map_err(|error| failed(&error))?;
        Ok(Self {
            program,
            version: String::new(),
            host: Some(host),
            keeper,
            confined: None,
            starting: None,
            others,
            until: Instant::now() + PATIENCE,
        })
    }

    /// Reads the message of the program, whose process is over then.
    pub(super) fn prove(&mut self) -> Result<(), String> {
        let mut bytes = [0; MESSAGE_MAX];
        let received = rustix::net::recv(&self.keeper, &mut bytes[..], RecvFlags::DONTWAIT);
        let length = match received {
            Ok((length, _)) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(Errno::CONNRESET) => 0,
            Err(errno) => return Err(format!("the other program: recv: {}", plain(&errno.into()))),
        };
        if length == 0 {
            let ended = self.end_group();
            return Err(format!("the other program is no brodo that can go on: it ended ({ended})"));
        }
        let strange = || "the other program is no brodo that can go on: it says something else".to_owned();
        let hosted: Hosted =
            bytes.get(..length).and_then(|text| serde_json::from_slice(text).ok()).ok_or_else(strange)?;
        if let Some(failure) = hosted.failure {
            return Err(format!("brodo {} cannot go on: {failure}", hosted.version));
        }
        let is_host = |pid: i32| self.host.as_ref().is_some_and(|host| host.id().cast_signed() == pid);
        let is_new = |pid: &i32| !self.others.contains(pid) && !is_host(*pid);
        let pid = hosted.keeper.filter(is_new).ok_or_else(strange)?;
        self.confined = Some(Confined::adopt(pid).map_err(|_| strange())?);
        self.version = hosted.version;
        // Alone: the keeper is in its group.
        self.end_host();
        Ok(())
    }

    /// Whether its program has still to make the keeper.
    pub(super) fn is_proving(&self) -> bool {
        self.host.is_some()
    }

    /// Gives it time for the next step.
    pub(super) fn starts(&mut self, starting: Starting) {
        (self.starting, self.until) = (Some(starting), Instant::now() + PATIENCE);
    }

    /// Ends the process of the program with all others of its group, and says how it ended.
    fn end_group(&mut self) -> String {
        if let Some(host) = &self.host
            && let Some(group) = Pid::from_raw(host.id().cast_signed())
        {
            // Before it is waited for, which frees its number.
            let _ = kill_process_group(group, Signal::KILL);
        }
        self.end_host()
    }

    /// Ends the process of the program, and says how it ended.
    fn end_host(&mut self) -> String {
        let Some(mut host) = self.host.take() else { return String::new() };
        // Without effect on one that is on its way out.
        let _ = host.kill();
        host.wait().map_or_else(|error| plain(&error), |status| status.to_string())
    }
}

impl Drop for Candidate {
    /// Ends its processes.
    fn drop(&mut self) {
        self.end_group();
        if let Some(confined) = self.confined.take() {
            let _ = confined.end(PATIENCE);
        }
    }
}

impl Conversation {
    /// The next word of a new engine, if it has come and is not its last.
    ///
    /// # Errors
    /// It has ended: a sentence.
    pub(super) fn first_words(&mut self) -> Result<Option<Record>, String> {
        let records = &mut self.records;
        loop {
            if let Some(line) = records.next() {
                return match serde_json::from_slice(line) {
                    Ok(Record::Ended(Ended { failure, .. })) => {
                        Err(failure.unwrap_or_else(|| "the new engine has ended".to_owned()))
                    }
                    Ok(Record::Fault(fault)) => Err(format!("the new engine has a fault: {fault}")),
                    Ok(record) => Ok(Some(record)),
                    Err(_) => Err("the new engine does not keep to the conversation".to_owned()),
                };
            }
            match records.receive() {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Err("the new engine has ended".to_owned());
                }
                Err(error) => return Err(format!("the new engine: recv: {}", plain(&error))),
            }
        }
    }
}
