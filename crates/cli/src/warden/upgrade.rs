//! Upgrade in place: the warden's part.
//!
//! ```text
//! wish ---> Proving: the new program runs beside this one and makes a keeper (`host.rs`)
//!      ---> Starting: that keeper's engine has started, and waits for the state of the old one
//!      ---> exchange: sockets in advance, freeze, hand over, Ready, retire, go (`engine/handover.rs`); the
//!           old keeper is killed
//!      ---> the caller executes the new program in the place of this one (`resume.rs`)
//! ```
//!
//! *Failures.* Up to the retirement each one, and each step that takes too long, ends the candidate, and the
//! old engine goes on; before the freeze it has not noticed anything. The last step, an execve of a program
//! that has run already, can only fail by the system's refusal; then this program goes on with the new
//! engine.
//!
//! *Order.* The new program makes its keeper before this one is replaced, and not after, so that a program
//! that cannot make one is found out beside a complete brodo of one version.
//!
//! *Time.* The first two steps may take some seconds each (`candidate.rs`), while everything goes on. The
//! exchange is made at one go, because the guest waits, and is given up after [`PAUSE_MAX`].
//!
//! *Trust.* The program is the user's choice and runs with the user's rights; but a wrong one, a script for
//! example, must do no harm. Its message is bounded, and the process that it names must be a child of this
//! one that it has made.

use super::candidate::{Candidate, Starting};
use super::listening::ListenService;
use super::record_reader::{KeeperWatch, read_during};
use super::{Conversation, Topic, Warden};
use crate::conversation::lines;
use crate::conversation::message::{Freeze, Go, Names, PAUSE_MAX, PassStreams, Ready, Record, Retire, Thaw};
use crate::engine::launch::{Before, Exit};
use crate::event_bus::EventBus;
use crate::failure::plain;
use crate::upgrades::Upgraded;
use brodo_control::rpc::Error;
use brodo_sandbox::Confined;
use rustix::event::epoll::{self, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::SocketType;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest time for the passage of sockets before that, while the guest is served.
const PASSAGE_MAX: Duration = Duration::from_secs(6);
/// Longest wait for the reply of an engine that has taken over.
const GO_PATIENCE: Duration = Duration::from_secs(1);

/// Behind the path of a program whose file has been replaced or removed (proc_pid_exe(5)).
const DELETED: &[u8] = b" (deleted)";

/// An engine that has begun in the place of another.
struct Begun {
    confined: Confined,
    conversation: Conversation,
    ready: Ready,
    pause: Duration,
}

/// A new engine has taken over.
pub(crate) struct Exchanged {
    pub(crate) program: File,
    pub(crate) ready: Ready,
    pub(crate) version: String,
    pub(crate) pause: Duration,
}

impl Exchanged {
    /// The upgrade as the status has it.
    pub(crate) fn upgraded(&self, time: String) -> Upgraded {
        Upgraded {
            time,
            version: self.version.clone(),
            pause_us: u64::try_from(self.pause.as_micros()).unwrap_or(u64::MAX),
            flows_lost: self.ready.flows_lost,
        }
    }
}

/// The path of this program, where another version may lie by now.
pub(crate) fn own_path() -> io::Result<PathBuf> {
    let path = std::fs::read_link("/proc/self/exe")?;
    match path.as_os_str().as_bytes().strip_suffix(DELETED) {
        Some(before) if !path.exists() => Ok(std::ffi::OsString::from_vec(before.to_vec()).into()),
        _ => Ok(path),
    }
}

/// Opens a program.
///
/// # Errors
/// It is not there, or no file that can be executed: a sentence.
pub(crate) fn open(path: &Path) -> Result<File, String> {
    let cannot = |why: &str| format!("cannot execute {}: {why}", path.display());
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let file = File::from(file.map_err(|errno| cannot(&plain(&errno.into())))?);
    let found = file.metadata().map_err(|error| cannot(&plain(&error)))?;
    let executable = found.permissions().mode() & 0o111 != 0;
    if found.is_file() && executable { Ok(file) } else { Err(cannot("it is no executable file")) }
}

impl Warden {
    /// Goes on with an upgrade that has begun.
    pub(crate) fn consider(&mut self, candidate: Candidate) -> Result<(), String> {
        let added = epoll::add(&self.poller, &candidate.keeper, Topic::Candidate.data(), EventFlags::IN);
        added.map_err(|errno| format!("epoll_ctl: {}", plain(&errno.into())))?;
        self.candidate = Some(candidate);
        Ok(())
    }

    /// The time at which the candidate is given up.
    pub(super) fn candidate_until(&self) -> Option<Instant> {
        self.candidate.as_ref().map(|candidate| candidate.until)
    }

    /// The end of an attempt that takes too long, if it does.
    pub(super) fn give_up_late_candidate(&mut self) -> Option<String> {
        let late = self.candidate.take_if(|candidate| candidate.until <= Instant::now())?;
        let what = if late.is_proving() { "the other program" } else { "the new engine" };
        Some(format!("{what} did not answer in time"))
    }

    /// Makes the next step; the outcome of the attempt, if there is one.
    pub(super) fn go_on_with_candidate(&mut self) -> Option<Result<Exchanged, String>> {
        let candidate = self.candidate.as_mut()?;
        let step =
            if candidate.is_proving() { candidate.prove().map(|()| None) } else { Self::look(candidate) };
        match step {
            Ok(Some(Record::Awaiting)) => {
                let candidate = self.candidate.take()?;
                Some(self.exchange(candidate))
            }
            Ok(Some(_)) => Some(self.fail("the new engine does not keep to the conversation")),
            Ok(None)
                if self.candidate.as_ref().is_some_and(|it| !it.is_proving() && it.starting.is_none()) =>
            {
                self.start_candidate().err().map(|error| self.fail(&plain(&error)))
            }
            Ok(None) => None,
            Err(why) => Some(self.fail(&why)),
        }
    }

    fn fail(&mut self, why: &str) -> Result<Exchanged, String> {
        self.candidate = None;
        Err(why.to_owned())
    }

    /// The next record of a candidate's engine, or its end.
    fn look(candidate: &mut Candidate) -> Result<Option<Record>, String> {
        if let Some(record) = candidate
            .starting
            .as_mut()
            .map_or(Ok(None), |starting| starting.opened.conversation.first_words())?
        {
            return Ok(Some(record));
        }
        let mut polled = [PollFd::new(&candidate.keeper, PollFlags::IN)];
        if candidate.starting.is_none() || poll(&mut polled, Some(&Timespec::default())) != Ok(1) {
            return Ok(None);
        }
        let ended = Exit::receive(&candidate.keeper).map(super::restarts::cause);
        Err(format!("the new engine crashed ({})", ended.as_deref().unwrap_or("with its keeper")))
    }

    /// Starts the engine of a keeper that is there.
    fn start_candidate(&mut self) -> io::Result<()> {
        let Some(candidate) = &self.candidate else { return Ok(()) };
        let (source, sink) = lines::pair(SocketType::STREAM)?;
        let opened = self.open_engine(&candidate.keeper, Some(sink.as_fd()), Before::Orderly)?;
        let records = &opened.conversation.records;
        epoll::add(&self.poller, records, Topic::Candidate.data(), EventFlags::IN)?;
        let starting = Starting { opened, source };
        if let Some(candidate) = &mut self.candidate {
            candidate.starts(starting);
        }
        Ok(())
    }

    /// Exchanges the engine that serves for that of the candidate.
    fn exchange(&mut self, mut candidate: Candidate) -> Result<Exchanged, String> {
        let Some(starting) = candidate.starting.take() else { return Err("there is no engine".into()) };
        let upgrades = self.upgrades.clone();
        let _gate = self.hold_requests(&upgrades);
        // All that may fail for want of descriptors precedes the freeze.
        let copied = |error: io::Error| format!("dup: {}", plain(&error));
        let keeper = candidate.keeper.try_clone().map_err(copied)?;
        let program = candidate.program.try_clone().map_err(copied)?;
        for waited in [candidate.keeper.as_fd(), starting.opened.conversation.records.as_fd()] {
            let _ = epoll::delete(&self.poller, waited);
        }
        let version = candidate.version.clone();
        let (mut old, bus) = (self.conversation.take(), self.bus.clone());
        let service = ListenService::new(self.desired.clone(), self.broker.take(), self.grace_until);
        let engine = self.engine.clone();
        let of_old = KeeperWatch { socket: self.keeper.as_fd(), engine: &engine };
        let exchange = || self.exchange_engines(candidate, starting, &service, &of_old);
        let exchanged = read_during(old.as_mut(), &of_old, &bus, &service, exchange);
        let ended = || "the engine has ended meanwhile".to_owned();
        let exchanged = exchanged.map_err(|why| if of_old.has_reported() { ended() } else { why });
        self.broker = service.into_broker();
        self.conversation = old;
        let Begun { confined, conversation, ready, pause } = exchanged?;
        self.take_over(keeper, confined, conversation);
        // It was started with the names of that time; the same ones again are no change.
        let _ = self.engine.notify(&Names::from(self.conf.clone()));
        Ok(Exchanged { program, ready, version, pause })
    }

    /// The part of an exchange in which the guest waits. In case of an error the old engine goes on.
    fn exchange_engines(
        &self,
        mut candidate: Candidate,
        mut starting: Starting,
        service: &ListenService,
        old: &KeeperWatch<'_>,
    ) -> Result<Begun, String> {
        let refused = |error: Error| format!("the engine cannot be frozen: {}", error.message);
        let client = self.engine.clone();
        let mut engine = client.hold();
        // No more changes from here on: neither requests nor rules that expire.
        if self.lock().asked() != starting.opened.asked {
            return Err("ports, the policy or the capture were changed meanwhile: try again".to_owned());
        }
        engine
            .call(&PassStreams {}, Some(starting.source.as_fd()), Instant::now() + PASSAGE_MAX)
            .map_err(|error| format!("the engine cannot hand over: {}", error.message))?;
        let begun = Instant::now();
        let until = begun + PAUSE_MAX;
        let asked = engine.call(&Freeze {}, Some(starting.source.as_fd()), until).map_err(refused);
        // Its copy alone stays, so that its end is seen.
        drop(starting.source);
        let new = &mut starting.opened.conversation;
        let ready = asked.and_then(|_| Self::await_ready(new, service, old, until));
        let retired = ready.and_then(|ready| {
            // Longer than the engine stays frozen by itself: it either retires or refuses to, and the warden
            // has to know.
            let until = Instant::now() + PAUSE_MAX + GO_PATIENCE;
            engine.call(&Retire {}, None, until).map(|_| ready).map_err(refused)
        });
        let ready = match retired {
            Ok(ready) => ready,
            Err(why) => {
                // First the one that has not begun, so that there are never two.
                drop(candidate);
                let _ = engine.call(&Thaw {}, None, Instant::now() + GO_PATIENCE);
                return Err(why);
            }
        };
        let Some(confined) = candidate.confined.take() else { return Err("there is no keeper".into()) };
        engine.turn_to(starting.opened.requests, confined.pid().as_raw_pid());
        // Without a reply it has crashed: its keeper says so, and another one is started.
        let _ = engine.call(&Go {}, None, Instant::now() + GO_PATIENCE);
        let conversation = starting.opened.conversation;
        Ok(Begun { confined, conversation, ready, pause: begun.elapsed() })
    }

    /// Waits for a new engine that has its state, and opens what it needs to listen.
    fn await_ready(
        new: &mut Conversation,
        service: &ListenService,
        old: &KeeperWatch<'_>,
        until: Instant,
    ) -> Result<Ready, String> {
        loop {
            match new.first_words()? {
                Some(Record::Ready(ready)) => return Ok(ready),
                Some(_) => return Err("the new engine does not keep to the conversation".to_owned()),
                None => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("the new engine did not take the state in time".to_owned());
            }
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut ready = [
                PollFd::new(&new.records, PollFlags::IN),
                PollFd::new(&new.listen, PollFlags::IN),
                PollFd::from_borrowed_fd(old.socket, PollFlags::IN),
            ];
            // Interrupted: all are checked.
            let _ = poll(&mut ready, Some(&left));
            if !ready[2].revents().is_empty() {
                return Err("the engine has ended".to_owned());
            }
            if !ready[1].revents().is_empty() {
                service.serve(&new.listen).map_err(|error| format!("the new engine: {}", plain(&error)))?;
            }
        }
    }

    /// Turns to a new engine, after the last events of the old one, which ends.
    fn take_over(&mut self, keeper: OwnedFd, confined: Confined, new: Conversation) {
        let old = self.conversation.take();
        if let Some(old) = &old {
            // Explicitly: a copy in a process without confinement would keep it registered.
            for waited in [old.records.as_fd(), old.listen.as_fd(), self.keeper.as_fd()] {
                let _ = epoll::delete(&self.poller, waited);
            }
        }
        self.process = super::handle_of(&confined);
        // First its end: one that was taken over could go on sending.
        if let Some(old) = self.confined.replace(confined) {
            self.engine.end_keeper(|| old.end(GO_PATIENCE));
        }
        if let Some(mut old) = old {
            publish_rest(&self.bus, &mut old, Instant::now() + GO_PATIENCE);
        }
        self.keeper = keeper;
        // There is room: as many were taken out. Of an engine whose records are not received, the keeper
        // still reports the end.
        let _ = epoll::add(&self.poller, &self.keeper, Topic::Keeper.data(), EventFlags::IN);
        let _ = self.attend(&new);
        self.conversation = Some(new);
    }
}

/// Publishes what an engine has sent before it retired, until a time if there is no end.
fn publish_rest(bus: &EventBus, old: &mut Conversation, until: Instant) {
    loop {
        while let Some(line) = old.records.next() {
            match Record::parse(line) {
                Some(Record::Event(event)) => bus.publish(*event),
                Some(Record::Lost { openings, ends }) => bus.publish_lost(openings, ends),
                _ => {}
            }
        }
        if Instant::now() >= until || old.records.receive().is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::lines::Lines;
    use brodo_net::clock::Clock;

    #[test]
    fn an_engine_that_goes_on_sending_holds_no_upgrade_up() {
        let (records, theirs) = lines::pair(SocketType::STREAM).expect("a pair");
        let (listen, _theirs) = lines::pair(SocketType::SEQPACKET).expect("a pair");
        let mut old = Conversation { records: Lines::new(records, 1 << 20), listen, is_cut: false };
        let mut line = serde_json::to_vec(&Record::CheckNames).expect("JSON");
        line.push(b'\n');
        lines::send(theirs.as_fd(), &line, None, GO_PATIENCE).expect("room");
        let bus = EventBus::new(Clock::start());
        publish_rest(&bus, &mut old, Instant::now());
        assert!(old.records.receive().is_ok(), "it is left");
    }
}
