//! The warden: the process that the user knows, and that outlives every engine.
//!
//! It holds what an engine may not have: the command and its signals, the control socket, logs and files, the
//! right to bind. It starts engines, by way of the keeper ([`crate::engine`]), and starts another one when
//! one crashes ([`restarts`]). Its main thread waits for four kinds of descriptors:
//!
//! | descriptor | meaning |
//! |---|---|
//! | records | events of the engine, for the flow log and clients; its end |
//! | listen | a listening socket is wanted, and opened if a forward in force can lead there ([`listening`]) |
//! | keeper | exit status of an engine |
//! | of the command | signals, or the end of the target |
//!
//! *Trust.* The engine parses hostile bytes, and what comes from it is taken for hostile: lengths are
//! bounded, records are read into their types, texts are escaped where they are written. A record that is not
//! one ends the engine.
//!
//! *State.* Forwards, capture and subscriptions in force are kept here too ([`desired`]), so that the next
//! engine starts with them. Flows are not: their records and sockets are the keeper's to pass on, as long as
//! engines do not crash too often.

pub(crate) mod candidate;
pub(crate) mod client;
pub(crate) mod desired;
pub(crate) mod enforcement;
pub(crate) mod forwarding;
mod listening;
mod record_reader;
mod restarts;
pub(crate) mod resume;
pub(crate) mod upgrade;

use crate::conversation::lines::{self, Lines};
use crate::conversation::message::{Ended, Names, Ready, Record, Stop};
use crate::engine::launch::{self, Before, Exit, Launch, Passed, Start};
use crate::event_bus::EventBus;
use crate::failure::Failure;
use crate::report::Report;
use crate::systemd;
use crate::upgrades::{Upgrades, Wish};
use brodo_control::event::Level;
use brodo_control::rpc::MESSAGE_MAX;
use brodo_net::promotion::client::PromotionAgent;
use brodo_net::resolv::{ResolvConf, Watch};
use brodo_net::socket_broker::SocketBroker;
use brodo_sandbox::{Bond, Confined, Parent, spawn};
use candidate::Candidate;
use client::EngineClient;
use desired::{Asked, Desired};
use restarts::{Next, Restarts};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketType};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use upgrade::Exchanged;

/// Longest wait for an engine that starts or ends.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for the last records of an engine that was asked to end.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Interval of looks whether a request is done.
const GATE_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Least interval between two checks of resolv.conf, less than that of an engine's requests.
const NAMES_INTERVAL: Duration = Duration::from_millis(200);

/// Subject of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topic {
    Records,
    Listen,
    Keeper,
    Watched,
    Wish,
    Candidate,
}

impl Topic {
    const ALL: [Self; 6] =
        [Self::Records, Self::Listen, Self::Keeper, Self::Watched, Self::Wish, Self::Candidate];

    fn data(self) -> EventData {
        EventData::new_u64(self as u64)
    }

    fn of(data: EventData) -> Option<Self> {
        Self::ALL.get(data.u64() as usize).copied()
    }
}

/// Result of a turn.
enum Turn {
    /// Nothing for the caller.
    Nothing,
    /// A descriptor of [`Warden::watch`] is readable.
    Watched,
    /// The engine serves.
    Ready(Ready),
    /// The engine has ended in order.
    Ended(Ended),
    /// An upgrade is asked for.
    Wish(Wish),
    /// One has come to its end.
    Tried(Result<Exchanged, String>),
    /// A request was executed.
    Changed,
}

/// Result of [`Warden::run`].
pub(crate) enum Served<T> {
    /// A value of the caller's; none if the guest's interface is gone.
    Ended(Option<T>),
    /// An upgrade is asked for ([`Warden::consider`]).
    Wish(Wish),
    /// One has come to its end: another engine serves, or the reason that none does.
    Tried(Result<Exchanged, String>),
    /// The state that [`Warden::save`] gives may be another now.
    Changed,
}

/// Conversation with one engine, besides requests.
#[derive(Debug)]
struct Conversation {
    records: Lines,
    listen: OwnedFd,
    /// A brodo that was killed may have received the beginning of the first line.
    is_cut: bool,
}

/// Conversation with an engine that was asked for.
#[derive(Debug)]
struct Opened {
    requests: OwnedFd,
    conversation: Conversation,
    /// The state that it starts with.
    asked: Asked,
}

/// A guest in service.
pub(crate) struct Warden {
    poller: OwnedFd,
    confined: Option<Confined>,
    /// Handle of the keeper's process, for a brodo that is not its parent.
    process: Option<OwnedFd>,
    keeper: OwnedFd,
    conversation: Option<Conversation>,
    engine: Arc<EngineClient>,
    desired: Arc<Mutex<Desired>>,
    broker: Option<SocketBroker>,
    agent: Option<PromotionAgent>,
    /// Workers of each engine.
    workers: usize,
    bus: Arc<EventBus>,
    names: Watch,
    /// Time of the last check.
    names_at: Option<Instant>,
    conf: ResolvConf,
    restarts: Restarts,
    /// Time until which a port in use may become free.
    grace_until: Instant,
    upgrades: Arc<Upgrades>,
    candidate: Option<Candidate>,
    /// A fault that the engine has reported before its end.
    fault: Option<String>,
    /// The engine was asked to end: no other one is started.
    stopping: bool,
    ended: bool,
    report: Option<Report>,
}

impl Warden {
    /// Makes the keeper. Only while there is one thread.
    ///
    /// # Errors
    /// A process could not be made.
    pub(crate) fn new(
        launch: &Launch,
        desired: Desired,
        broker: Option<SocketBroker>,
        bus: Arc<EventBus>,
        upgrades: Arc<Upgrades>,
        resolv_conf: &Path,
        conf: ResolvConf,
    ) -> Result<Self, Failure> {
        let failed = |call| Failure::io(format!("start the engine: {call}"));
        let poller = epoll::create(CreateFlags::CLOEXEC).map_err(|e| failed("epoll_create1")(e.into()))?;
        let (keeper, theirs) =
            lines::pair_with_engine(SocketType::SEQPACKET).map_err(failed("socketpair"))?;
        let keep = |report| launch::keep_engines(launch, &theirs, report);
        let confined = spawn(launch.confinement.stages, Parent::Caller, systemd::bond(), keep);
        let confined = confined.map_err(failed("clone"))?;
        drop(theirs);
        wait_for_all(&poller, &keeper, &upgrades).map_err(failed("epoll_ctl"))?;
        let engine = Arc::new(EngineClient::new(confined.pid().as_raw_pid()));
        Ok(Self {
            poller,
            process: handle_of(&confined),
            confined: Some(confined),
            keeper,
            conversation: None,
            engine,
            desired: Arc::new(Mutex::new(desired)),
            broker,
            agent: None,
            workers: launch.attached.side.workers(),
            bus,
            names: Watch::new(resolv_conf.to_owned()),
            names_at: None,
            conf,
            restarts: Restarts::default(),
            grace_until: Instant::now() + listening::GRACE,
            upgrades,
            candidate: None,
            fault: None,
            stopping: false,
            ended: false,
            report: None,
        })
    }

    /// Starts the first engine.
    ///
    /// # Errors
    /// It failed to start: a port cannot be forwarded, for example.
    pub(crate) fn start(&mut self, agent: Option<PromotionAgent>) -> Result<Ready, Failure> {
        self.agent = agent;
        self.start_engine(Before::Orderly).map_err(Failure::io("start the engine: sendmsg"))?;
        self.wait_ready()
    }

    /// The way to the engine, for any thread.
    pub(crate) fn engine(&self) -> &Arc<EngineClient> {
        &self.engine
    }

    /// Whether the processes of the engine can be ended.
    pub(crate) fn may_end_engine(&self) -> bool {
        self.confined.as_ref().is_none_or(Confined::may_kill)
    }

    /// The state that the next engine starts with.
    pub(crate) fn desired(&self) -> &Arc<Mutex<Desired>> {
        &self.desired
    }

    /// Makes [`Warden::run`] call back while `descriptor` is readable. The caller keeps it open.
    ///
    /// # Errors
    /// It cannot be registered with epoll.
    pub(crate) fn watch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.poller, descriptor, Topic::Watched.data(), EventFlags::IN)?)
    }

    /// Serves until `check` returns a value, which is called when a watched descriptor is readable; until the
    /// guest's interface is gone, or an upgrade needs the caller.
    ///
    /// # Errors
    /// That of `check`; the engine has failed, or crashed too often.
    pub(crate) fn run<T>(
        &mut self,
        mut check: impl FnMut() -> Result<Option<T>, Failure>,
    ) -> Result<Served<T>, Failure> {
        // Records that have come already are reported by no descriptor.
        let mut turn = self.read_records();
        loop {
            match turn {
                Turn::Nothing => {}
                Turn::Ready(_) | Turn::Changed => return Ok(Served::Changed),
                Turn::Watched => {
                    if let Some(value) = check()? {
                        return Ok(Served::Ended(Some(value)));
                    }
                }
                Turn::Ended(Ended { failure: Some(failure), .. }) => return Err(Failure::Engine(failure)),
                Turn::Ended(_) => return Ok(Served::Ended(None)),
                Turn::Wish(wish) => return Ok(Served::Wish(wish)),
                Turn::Tried(outcome) => return Ok(Served::Tried(outcome)),
            }
            turn = self.turn(None)?;
        }
    }

    /// Ends the engine, and an upgrade that is under way; returns the engine's report.
    pub(crate) fn stop(&mut self) -> Option<Report> {
        self.candidate = None;
        self.stopping = true;
        if !self.ended && self.engine.notify(&Stop {}).is_ok() {
            let until = Instant::now() + LAST_WORDS;
            while !self.ended && Instant::now() < until {
                if self.turn(Some(until)).is_err() {
                    break;
                }
            }
        }
        // The broker ends beside the engine.
        if let Some(broker) = &self.broker {
            broker.shut_down();
        }
        // The keeper ends by itself too, if it is waiting for a start.
        let _ = rustix::net::shutdown(&self.keeper, Shutdown::Write);
        if self.ended {
            self.check_exit();
        }
        let _ = rustix::net::shutdown(&self.keeper, Shutdown::Both);
        if let Some(confined) = self.confined.take() {
            let _ = confined.end(LAST_WORDS);
        }
        self.end_helpers();
        self.report.take()
    }

    /// Ends the processes in the guest's namespaces, and reports one that has not survived until now.
    fn end_helpers(&mut self) {
        let broker = self.broker.take().and_then(|mut broker| broker.end());
        let agent = self.agent.take().and_then(|mut agent| agent.end());
        for (name, end) in [("socket broker", broker), ("promotion agent", agent)] {
            if let Some(cause) = restarts::killed(end) {
                self.bus.notify(Level::Warn, &format!("the {name} crashed ({cause})"));
            }
        }
    }

    /// Waits for the exit status of an engine whose end is near, or for the end of a keeper that has reported
    /// it.
    fn check_exit(&self) {
        let patience = Timespec { tv_sec: LAST_WORDS.as_secs() as i64, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&self.keeper, PollFlags::IN)], Some(&patience));
        if ready != Ok(1) {
            return;
        }
        if let Some(exit @ Exit::Signal(_)) = Exit::receive(&self.keeper) {
            self.report_last_crash(&restarts::cause(exit));
        }
    }

    /// Reports an engine that does not survive its orderly end.
    fn report_last_crash(&self, cause: &str) {
        self.bus.notify(Level::Warn, &format!("the engine crashed at its end ({cause})"));
    }

    /// Waits for the first record of the first engine.
    fn wait_ready(&mut self) -> Result<Ready, Failure> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.turn(Some(until))? {
                Turn::Ready(ready) => return Ok(ready),
                Turn::Ended(Ended { failure, .. }) => {
                    return Err(Failure::Engine(
                        failure.unwrap_or_else(|| "the engine has ended".to_owned()),
                    ));
                }
                _ if Instant::now() < until => {}
                _ => {
                    return Err(Failure::Engine("the engine does not start".to_owned()));
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Desired> {
        self.desired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the keeper for an engine, with the state desired now, and turns to it.
    fn start_engine(&mut self, before: Before) -> io::Result<()> {
        self.end_conversation();
        // A change that comes meanwhile waits for the engine that starts: it would reach neither the state
        // that this one starts with nor its socket.
        let client = self.engine.clone();
        let mut engine = client.hold();
        let Opened { requests, conversation, asked: _ } = self.open_engine(&self.keeper, None, before)?;
        self.attend(&conversation)?;
        engine.turn_to(requests, client.keeper());
        self.conversation = Some(conversation);
        Ok(())
    }

    /// Waits for an engine's records and wishes too.
    fn attend(&self, conversation: &Conversation) -> io::Result<()> {
        epoll::add(&self.poller, &conversation.records, Topic::Records.data(), EventFlags::IN)?;
        Ok(epoll::add(&self.poller, &conversation.listen, Topic::Listen.data(), EventFlags::IN)?)
    }

    /// Ends the conversation with an engine.
    fn end_conversation(&mut self) {
        let Some(conversation) = self.conversation.take() else { return };
        // Explicitly: a copy, in systemd's store of descriptors, would keep it registered.
        for waited in [conversation.records.as_fd(), conversation.listen.as_fd()] {
            let _ = epoll::delete(&self.poller, waited);
        }
    }

    /// Asks a keeper for an engine, with the state desired now; flows come by `handover` if there is one.
    fn open_engine(
        &self,
        keeper: &OwnedFd,
        handover: Option<BorrowedFd<'_>>,
        before: Before,
    ) -> io::Result<Opened> {
        let (requests, their_requests) = lines::pair_with_engine(SocketType::STREAM)?;
        let (records, their_records) = lines::pair_with_engine(SocketType::STREAM)?;
        let (listen, their_listen) = lines::pair_with_engine(SocketType::SEQPACKET)?;
        // Without a broker nothing is forwarded inside the guest; everything else works.
        let broker = self.broker.as_ref().and_then(|broker| broker.another().ok());
        // Without an agent, or one that has ended, no flow is promoted.
        let agents = self.agent.iter().flat_map(|agent| (0..self.workers).map(|_| agent.another()));
        let agents: Vec<_> = agents.collect::<Result<_, _>>().unwrap_or_default();
        let desired = self.lock();
        let asked = desired.asked();
        let capture = desired.capture_file()?;
        let policy = desired.policy_file()?;
        let passed = Passed {
            requests: their_requests.as_fd(),
            records: their_records.as_fd(),
            listen: their_listen.as_fd(),
            broker: broker.as_ref().map(AsFd::as_fd),
            capture: capture.as_ref().map(AsFd::as_fd),
            handover,
            policy: policy.as_ref().map(AsFd::as_fd),
            agents: &agents,
        };
        let start = Start {
            forwards: desired.forwards.clone(),
            names: self.conf.clone().into(),
            record: desired.record,
            capture: desired.capturing(),
            bulk: desired.bulk,
            recover: before == Before::Crashed { flows_go_on: true },
            after_crash: before != Before::Orderly,
            review: desired.unreviewed,
        };
        drop(desired);
        launch::send_start(keeper, start, &passed)?;
        let conversation = Conversation { records: Lines::new(records, MESSAGE_MAX), listen, is_cut: false };
        Ok(Opened { requests, conversation, asked })
    }

    /// Waits for one event, until a time if there is one, and handles it.
    fn turn(&mut self, until: Option<Instant>) -> Result<Turn, Failure> {
        let timeout = until.into_iter().chain(self.candidate_until()).min().map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        // One at a time, in the kernel's order of readiness: no descriptor goes short.
        let mut events = Vec::with_capacity(1);
        match epoll::wait(&self.poller, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(Failure::Io("wait for the engine: epoll_wait".to_owned(), errno.into()));
            }
        }
        match events.first().and_then(|event: &epoll::Event| Topic::of(event.data)) {
            None => {
                let late = self.give_up_late_candidate();
                Ok(late.map_or(Turn::Nothing, |why| Turn::Tried(Err(why))))
            }
            Some(Topic::Wish) => Ok(self.upgrades.take().map_or(Turn::Changed, Turn::Wish)),
            Some(Topic::Candidate) => Ok(self.go_on_with_candidate().map_or(Turn::Nothing, Turn::Tried)),
            Some(Topic::Watched) => Ok(Turn::Watched),
            Some(Topic::Records) => Ok(self.read_records()),
            Some(Topic::Listen) => {
                self.open_listener();
                Ok(Turn::Nothing)
            }
            Some(Topic::Keeper) => self.engine_exited(),
        }
    }

    /// Handles the records that have come, up to the first that concerns the caller.
    fn read_records(&mut self) -> Turn {
        let Some(conversation) = &mut self.conversation else { return Turn::Nothing };
        let received = conversation.records.receive();
        loop {
            let Some(conversation) = &mut self.conversation else { return Turn::Nothing };
            let Some(line) = conversation.records.next() else { break };
            let record = Record::parse(line);
            let is_cut = std::mem::take(&mut conversation.is_cut);
            let Some(record) = record else {
                if is_cut {
                    continue;
                }
                self.abandon("it does not keep to the conversation");
                return Turn::Nothing;
            };
            if let Some(turn) = self.take_record(record) {
                return turn;
            }
        }
        match received {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                // The keeper reports the cause.
                self.end_conversation();
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => self.abandon("its record is too long"),
            _ => {}
        }
        Turn::Nothing
    }

    /// Whether more records wait, or the end of their conversation.
    fn has_records(&self) -> bool {
        self.conversation.as_ref().is_some_and(|conversation| {
            let mut ready = [PollFd::new(&conversation.records, PollFlags::IN)];
            poll(&mut ready, Some(&Timespec::default())) == Ok(1)
        })
    }

    /// Handles a record of the engine that serves; `Some` if it concerns the caller.
    fn take_record(&mut self, record: Record) -> Option<Turn> {
        match record {
            Record::Event(event) => self.bus.publish(*event),
            Record::Lost { openings, ends } => self.bus.publish_lost(openings, ends),
            Record::CheckNames => self.check_names(),
            Record::CaptureEnded => self.lock().capture = None,
            Record::Fault(fault) => self.fault = Some(fault),
            Record::Reviewed { generation } => self.lock().reviewed(generation),
            Record::Ready(ready) => {
                if let Some(crash) = self.restarts.recovered(ready.flows, ready.flows_lost) {
                    self.bus.notify(Level::Warn, &crash);
                }
                return Some(Turn::Ready(ready));
            }
            // Of no engine that is not waited for.
            Record::Awaiting => {}
            Record::Ended(ended) => {
                (self.ended, self.report) = (true, ended.report.clone());
                return Some(Turn::Ended(ended));
            }
        }
        None
    }

    /// Ends the conversation with an engine that breaks its rules; its process notices the end.
    fn abandon(&mut self, why: &str) {
        self.fault = Some(why.to_owned());
        self.end_conversation();
        self.engine.disconnect();
    }

    /// Reads resolv.conf if it has changed, and passes its content on. Too frequent requests are ignored.
    fn check_names(&mut self) {
        let now = Instant::now();
        if self.names_at.is_some_and(|at| now.saturating_duration_since(at) < NAMES_INTERVAL) {
            return;
        }
        self.names_at = Some(now);
        if let Some(conf) = self.names.poll().filter(|conf| *conf != self.conf) {
            self.conf = conf.clone();
            // An engine that does not read is asked for a new check later.
            let _ = self.engine.notify(&Names::from(conf));
        }
    }

    /// Holds off requests, after the one under way: that may wait for listening sockets, which this thread
    /// opens meanwhile.
    pub(crate) fn hold_requests<'a>(&mut self, upgrades: &'a Upgrades) -> MutexGuard<'a, ()> {
        loop {
            if let Some(gate) = upgrades.try_hold_requests() {
                return gate;
            }
            let listen = self.conversation.as_ref().map(|conversation| &conversation.listen);
            let mut ready: Vec<_> =
                listen.map(|listen| PollFd::new(listen, PollFlags::IN)).into_iter().collect();
            let _ = poll(&mut ready, Some(&GATE_INTERVAL));
            self.open_listener();
        }
    }

    fn open_listener(&mut self) {
        let Some(conversation) = &self.conversation else { return };
        let desired = self.desired.lock().unwrap_or_else(PoisonError::into_inner);
        let served = listening::serve(&conversation.listen, &desired, self.broker.as_mut(), self.grace_until);
        drop(desired);
        if listening::is_over(&served) {
            // At its end level-triggered readiness would report it for ever.
            let _ = epoll::delete(&self.poller, &conversation.listen);
        }
    }

    /// An engine has ended: another one is started, unless that one had ended in order or too many have
    /// crashed.
    fn engine_exited(&mut self) -> Result<Turn, Failure> {
        // Its last records come first, more perhaps than one receipt takes. One that was taken over can
        // report an end that is none, and go on sending.
        let until = Instant::now() + LAST_WORDS;
        loop {
            if let Turn::Ended(ended) = self.read_records() {
                return Ok(Turn::Ended(ended));
            }
            if !self.has_records() || Instant::now() >= until {
                break;
            }
        }
        let Some(exit) = Exit::receive(&self.keeper) else {
            self.ended = true;
            let end = self.confined.take().and_then(|keeper| keeper.end(LAST_WORDS));
            let cause = restarts::killed(end).unwrap_or_else(|| "for an unknown reason".to_owned());
            return Err(Failure::Engine(format!("the engine's keeper has ended ({cause})")));
        };
        self.engine.disconnect();
        if self.ended {
            return Ok(Turn::Nothing);
        }
        if self.stopping {
            self.ended = true;
            // Without its last records, which may be of refusals.
            self.engine.count_crash();
            let cause = self.fault.take().unwrap_or_else(|| restarts::cause(exit));
            self.report_last_crash(&cause);
            return Ok(Turn::Nothing);
        }
        let flows_go_on = match self.restarts.crashed(Instant::now(), exit, self.fault.take()) {
            Next::Recover => true,
            Next::Cold => false,
            Next::End(why) => {
                self.ended = true;
                return Err(Failure::Engine(why));
            }
        };
        self.engine.count_crash();
        self.start_engine(Before::Crashed { flows_go_on })
            .map_err(Failure::io("start the engine: sendmsg"))?;
        Ok(Turn::Nothing)
    }
}

/// Handle of a keeper that may outlive this process.
fn handle_of(keeper: &Confined) -> Option<OwnedFd> {
    (systemd::bond() == Bond::Conversation).then(|| keeper.handle().ok()).flatten()
}

/// Waits for a keeper and for wishes.
fn wait_for_all(poller: &OwnedFd, keeper: &OwnedFd, upgrades: &Upgrades) -> io::Result<()> {
    epoll::add(poller, keeper, Topic::Keeper.data(), EventFlags::IN)?;
    Ok(epoll::add(poller, upgrades.waker(), Topic::Wish.data(), EventFlags::IN)?)
}

impl Drop for Warden {
    fn drop(&mut self) {
        self.stop();
    }
}
