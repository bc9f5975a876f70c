//! The thread that serves all clients: one loop over their descriptors, one request of each per turn.
//!
//! It sleeps without a time-out unless a client is in the middle of a line or of output. With all places
//! taken, a new client replaces the longest silent one, if that is silent for long enough and has no
//! subscription; otherwise it gets an error.

use super::session::{Disconnected, Session};
use super::{Controlled, policy};
use crate::conversation::message::Recorded;
use crate::mailbox::Taken;
use crate::policy_change::Author;
use crate::unix_listener::PrivateListener;
use crate::upgrades::Wish;
use brodo_control::event::{Event, Level, Topic};
use brodo_control::method::Upgrade;
use brodo_control::rpc::{self, Error, Request, code};
use brodo_net::control_auth::{self, ControlPeer, Unauthorized};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Clients at a time.
pub(super) const CLIENTS_MAX: usize = 16;
/// Time of silence after which a client may lose its place.
const IDLE_MIN: Duration = Duration::from_secs(10);
/// Pause of accept after descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The server.
pub(super) struct Server {
    listener: Arc<PrivateListener>,
    pub(super) controlled: Controlled,
    clients: Vec<Session>,
    /// Time until which accept pauses.
    accept_at: Option<Instant>,
    /// Whether a notice about an unauthorized client was published.
    unauthorized_noticed: bool,
}

impl Server {
    pub(super) fn new(listener: Arc<PrivateListener>, controlled: Controlled) -> Self {
        let clients = Vec::with_capacity(CLIENTS_MAX);
        Self { listener, controlled, clients, accept_at: None, unauthorized_noticed: false }
    }

    /// Serves until `stopping` is set and the mailbox woken.
    pub(super) fn run(mut self, stopping: &AtomicBool) {
        while !stopping.load(Ordering::Acquire) {
            let ready = self.wait();
            let now = Instant::now();
            self.send_events();
            policy::expire(&self.controlled);
            let mut gone = Vec::new();
            for index in 0..self.clients.len() {
                if self.serve(index, ready.clients[index], now).is_err() {
                    gone.push(index);
                }
            }
            self.remove(&gone);
            self.tell_outcome();
            if ready.listener {
                self.accept(now);
            }
        }
    }

    /// Waits for descriptors and deadlines.
    fn wait(&mut self) -> Ready {
        let now = Instant::now();
        self.accept_at = self.accept_at.filter(|&at| at > now);
        // A line already read is not reported by poll again.
        let busy = self.clients.iter().any(Session::has_line);
        let deadlines = self.clients.iter().filter_map(Session::deadline).chain(self.accept_at);
        let expiry =
            policy::next_expiry(&self.controlled).map(|at| now + at.since(self.controlled.bus.clock().now()));
        let until = if busy { Some(now) } else { deadlines.chain(expiry).min() };
        let timeout = until.map(|until| {
            // Rounded up, so that a deadline has passed when it wakes.
            let left = until.saturating_duration_since(now) + Duration::from_millis(u64::from(!busy));
            let tv_sec = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
            Timespec { tv_sec, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let listen = if self.accept_at.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(2 + self.clients.len());
        fds.push(PollFd::from_borrowed_fd(self.listener.as_fd(), listen));
        for client in &self.clients {
            fds.push(PollFd::from_borrowed_fd(client.descriptor(), client.interest()));
        }
        if let Some(waker) = self.controlled.mailbox.waker() {
            fds.push(PollFd::from_borrowed_fd(waker, PollFlags::IN));
        }
        // Interrupted: everything is checked once more.
        let _ = poll(&mut fds, timeout.as_ref());
        let clients = fds[1..=self.clients.len()].iter().map(PollFd::revents).collect();
        Ready { listener: fds[0].revents().contains(PollFlags::IN), clients }
    }

    /// Accepts connections.
    fn accept(&mut self, now: Instant) {
        for _ in 0..CLIENTS_MAX {
            match self.listener.accept() {
                Ok(stream) => self.take_in(stream, now),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(_) => {
                    self.accept_at = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn take_in(&mut self, stream: UnixStream, now: Instant) {
        if let Err(unauthorized) = control_auth::check(&stream) {
            let is_worth_a_notice = !matches!(unauthorized, Unauthorized::Ended);
            if is_worth_a_notice && !std::mem::replace(&mut self.unauthorized_noticed, true) {
                self.controlled.bus.notify(Level::Warn, &format!("the control socket: {unauthorized}"));
            }
            return reject(&stream, &Error::new(code::DENIED, unauthorized.to_string()));
        }
        if self.clients.len() == CLIENTS_MAX {
            let idlest = |(index, client): (usize, &Session)| Some((client.idle_since()?, index));
            let idlest = self.clients.iter().enumerate().filter_map(idlest).min();
            match idlest.filter(|(since, _)| now.saturating_duration_since(*since) >= IDLE_MIN) {
                Some((_, index)) => self.remove(&[index]),
                None => {
                    return reject(&stream, &Error::new(code::BUSY, "too many clients: try again later"));
                }
            }
        }
        if let Ok(session) = Session::new(stream, now) {
            self.clients.push(session);
        }
    }

    /// One turn of a client: its input, at most one request, its output.
    fn serve(&mut self, index: usize, state: PollFlags, now: Instant) -> Result<(), Disconnected> {
        let client = &mut self.clients[index];
        if client.deadline().is_some_and(|at| at <= now) {
            return Err(Disconnected);
        }
        client.write(now)?;
        if state.contains(PollFlags::IN) {
            client.read(now)?;
        } else if state.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Err(Disconnected);
        }
        if let Some(line) = client.next_line(now) {
            match Request::parse(&line) {
                Ok(request) => {
                    let upgrades = self.controlled.upgrades.clone();
                    let _gate = upgrades.gate();
                    let reply = self.answer(index, request);
                    self.clients[index].reply(&reply.unwrap_or_default());
                }
                Err(error) => client.refuse(&error),
            }
        }
        self.clients[index].write(Instant::now())
    }

    /// Replies to those who have asked for an upgrade, once it has come to its end.
    fn tell_outcome(&mut self) {
        let Some(outcome) = self.controlled.upgrades.outcome() else { return };
        let now = Instant::now();
        let mut gone = Vec::new();
        for (index, client) in self.clients.iter_mut().enumerate() {
            client.end_upgrade(&outcome);
            // Events too: a program that takes the place of this one has no clients.
            if client.write(now).is_err() {
                gone.push(index);
            }
        }
        self.controlled.upgrades.notified();
        self.remove(&gone);
    }

    /// Removes clients, whose indices are in order.
    fn remove(&mut self, gone: &[usize]) {
        let mut listened = false;
        for &index in gone.iter().rev() {
            listened |= !self.clients.swap_remove(index).topics.is_empty();
        }
        if listened {
            // An engine that is gone records nothing.
            let _ = self.record();
        }
    }

    /// Asks for an upgrade in the name of a client; its reply comes later.
    pub(super) fn upgrade(&mut self, client: usize, request: Request) -> Option<Vec<u8>> {
        let id = request.id.clone();
        let refused = |error: &Error| id.as_ref().map(|id| rpc::error(Some(id), error));
        let wish = match request.params::<Upgrade>() {
            Ok(Upgrade { program }) => Wish { program },
            Err(error) => return refused(&error),
        };
        if wish.program.as_ref().is_some_and(|program| !program.is_absolute()) {
            return refused(&Error::new(code::INVALID_PARAMS, "the program has no absolute path"));
        }
        if let Err(why) = self.controlled.upgrades.ask(wish) {
            return refused(&Error::new(code::BUSY, why));
        }
        self.clients[client].begin_upgrade(id?);
        None
    }

    /// A client, as the author of a change.
    pub(super) fn author(&self, client: usize) -> Option<Author> {
        let peer = ControlPeer::of(self.clients[client].descriptor()).ok()?;
        Some(Author { pid: peer.process.map(Pid::as_raw_pid), uid: peer.uid })
    }

    /// Subscribes a client.
    pub(super) fn subscribe(&mut self, client: usize, mut topics: Vec<Topic>) -> Result<Vec<Topic>, Error> {
        topics.sort_unstable();
        topics.dedup();
        self.clients[client].topics.clone_from(&topics);
        self.record()?;
        Ok(topics)
    }

    /// Makes the engine record the subscribed kinds of events, and no others.
    fn record(&self) -> Result<(), Error> {
        let wants = |topic| self.clients.iter().any(|client| client.topics.contains(&topic));
        let openings = wants(Topic::FlowOpened);
        let ends = wants(Topic::FlowEnded);
        let bus = &self.controlled.bus;
        bus.set_subscribed(self.clients.iter().any(|client| !client.topics.is_empty()));
        let ends = ends || bus.needs_ends();
        let record = Recorded { openings, ends };
        let mut engine = self.controlled.engine.hold();
        self.controlled.desired().record = record;
        engine.call_in_time(&record, None).map(drop)
    }

    /// Sends events to their subscribers.
    fn send_events(&mut self) {
        let Taken { items: events, mut lost, .. } = self.controlled.mailbox.take();
        for event in events {
            match &*event {
                Event::Lost { count } | Event::DecisionsLost { count } => lost = lost.saturating_add(*count),
                Event::FlowOpened { .. } => self.send(Topic::FlowOpened, &event),
                Event::FlowEnded { .. } => self.send(Topic::FlowEnded, &event),
                Event::Decision { .. } => self.send(Topic::Decision, &event),
                Event::PolicyChanged { .. } => self.send(Topic::PolicyChanged, &event),
                Event::Notice { .. } => self.send(Topic::Notice, &event),
            }
        }
        if lost > 0 {
            self.clients.iter_mut().filter(|client| !client.topics.is_empty()).for_each(|c| c.lose(lost));
        }
    }

    fn send(&mut self, topic: Topic, event: &Event) {
        let mut listeners =
            self.clients.iter_mut().filter(|client| client.topics.contains(&topic)).peekable();
        if listeners.peek().is_none() {
            return;
        }
        let line = rpc::event(event);
        listeners.for_each(|client| client.event(&line));
    }
}

/// Descriptors that are ready.
struct Ready {
    listener: bool,
    clients: Vec<PollFlags>,
}

/// Closes a connection with an error, which may be lost.
fn reject(mut stream: &UnixStream, error: &Error) {
    if stream.set_nonblocking(true).is_ok() {
        let _ = stream.write(&rpc::error(None, error));
    }
}
