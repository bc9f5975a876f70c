//! The thread that serves all clients: one loop over their descriptors, one request of each per turn.
//!
//! It sleeps without a time-out unless some client is in the middle of something. When all places are taken, a new client gets
//! that of the one that has been silent for longest, if that is long enough and it waits for no events; otherwise it is told
//! to come again.

use super::Controlled;
use super::capture::Captures;
use super::session::{Over, Session};
use super::visits::ask_all;
use crate::journal::Item;
use crate::timestamp::Timestamp;
use crate::unix_listener::PrivateListener;
use crate::wording;
use brodo_control::event::{Event, Level, Topic};
use brodo_control::rpc::{self, Error, Request, code};
use brodo_net::control_auth;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Clients at a time.
pub(super) const CLIENTS_MAX: usize = 16;
/// A client that has been silent for so long may lose its place.
const IDLE_MIN: Duration = Duration::from_secs(10);
/// How long nobody new is taken in after descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The server.
pub(super) struct Server {
    listener: PrivateListener,
    pub(super) controlled: Controlled,
    pub(super) captures: Captures,
    clients: Vec<Session>,
    /// Nobody new until then.
    accept_at: Option<Instant>,
    /// That a stranger was turned away was told.
    told_of_stranger: bool,
}

impl Server {
    pub(super) fn new(listener: PrivateListener, mut controlled: Controlled) -> Self {
        let captures = Captures::new(controlled.capture.take());
        let clients = Vec::with_capacity(CLIENTS_MAX);
        Self { listener, controlled, captures, clients, accept_at: None, told_of_stranger: false }
    }

    /// Serves until `stopping` is set and the bell of the mailbox rung.
    pub(super) fn run(mut self, stopping: &AtomicBool) {
        while !stopping.load(Ordering::Acquire) {
            let ready = self.wait();
            let now = Instant::now();
            self.pass_on_events();
            let mut gone = Vec::new();
            for index in 0..self.clients.len() {
                if self.serve(index, ready.clients[index], now).is_err() {
                    gone.push(index);
                }
            }
            self.remove(&gone);
            if ready.listener {
                self.accept(now);
            }
        }
    }

    /// Waits until there is something to do.
    fn wait(&mut self) -> Ready {
        let now = Instant::now();
        self.accept_at = self.accept_at.filter(|&at| at > now);
        // What has been read already will not be reported again.
        let busy = self.clients.iter().any(Session::has_line);
        let deadlines = self.clients.iter().filter_map(Session::deadline).chain(self.accept_at);
        let until = if busy { Some(now) } else { deadlines.min() };
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
        if let Some(bell) = self.controlled.mailbox.bell() {
            fds.push(PollFd::from_borrowed_fd(bell, PollFlags::IN));
        }
        // Interrupted, it looks at everything once more.
        let _ = poll(&mut fds, timeout.as_ref());
        let clients = fds[1..=self.clients.len()].iter().map(PollFd::revents).collect();
        Ready { listener: fds[0].revents().contains(PollFlags::IN), clients }
    }

    /// Takes in those who have connected.
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
        if let Err(stranger) = control_auth::check(&stream) {
            if !std::mem::replace(&mut self.told_of_stranger, true) {
                self.controlled.journal.tell(Level::Warn, &format!("the control socket: {stranger}"));
            }
            return reject(&stream, &Error::new(code::DENIED, stranger.to_string()));
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

    /// One turn of a client: what has come, at most one request, what can leave.
    fn serve(&mut self, index: usize, state: PollFlags, now: Instant) -> Result<(), Over> {
        let client = &mut self.clients[index];
        if client.deadline().is_some_and(|at| at <= now) {
            return Err(Over);
        }
        client.write(now)?;
        if state.contains(PollFlags::IN) {
            client.read(now)?;
        } else if state.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Err(Over);
        }
        if let Some(line) = client.next_line(now) {
            match Request::parse(&line) {
                Ok(request) => {
                    let reply = self.answer(index, request);
                    self.clients[index].reply(&reply.unwrap_or_default());
                }
                Err(error) => client.refuse(&error),
            }
        }
        self.clients[index].write(Instant::now())
    }

    /// Removes clients, whose indices are in order.
    fn remove(&mut self, gone: &[usize]) {
        let mut listened = false;
        for &index in gone.iter().rev() {
            listened |= !self.clients.swap_remove(index).topics.is_empty();
        }
        if listened {
            // If the workers are gone, so is what they would record.
            let _ = self.record();
        }
    }

    /// Notes what a client wants to be told of.
    pub(super) fn subscribe(&mut self, client: usize, mut topics: Vec<Topic>) -> Result<Vec<Topic>, Error> {
        topics.sort_unstable();
        topics.dedup();
        self.clients[client].topics.clone_from(&topics);
        self.record()?;
        Ok(topics)
    }

    /// Has the workers record what somebody wants to know, and nothing else.
    fn record(&self) -> Result<(), Error> {
        let wants = |topic| self.clients.iter().any(|client| client.topics.contains(&topic));
        let openings = wants(Topic::FlowOpened);
        let ends = wants(Topic::FlowEnded);
        let journal = &self.controlled.journal;
        journal.set_heard(openings || ends || wants(Topic::Notice));
        let ends = ends || journal.keeps_log();
        ask_all(&self.controlled.workers, move |inside| {
            inside.stack.record_openings(openings);
            inside.stack.record_ends(ends);
        })
        .map(drop)
    }

    /// Passes on what has happened to those who want to know.
    fn pass_on_events(&mut self) {
        let (items, mut lost) = self.controlled.mailbox.take();
        let clock = self.controlled.journal.clock();
        for item in items {
            match item {
                Item::Batch(batch) => {
                    lost += batch.lost;
                    for info in &batch.openings {
                        let flow = wording::brief(batch.worker, info);
                        self.tell(Topic::FlowOpened, || Event::FlowOpened { flow });
                    }
                    for end in &batch.ends {
                        self.tell(Topic::FlowEnded, || Event::FlowEnded {
                            flow: wording::end(batch.worker, end, clock),
                        });
                    }
                }
                Item::Notice(notice) => {
                    let time = Timestamp(notice.unix_ns).to_string();
                    let (level, text) = (notice.level, notice.text);
                    self.tell(Topic::Notice, || Event::Notice { time, level, text });
                }
            }
        }
        if lost > 0 {
            self.clients.iter_mut().filter(|client| !client.topics.is_empty()).for_each(|c| c.lose(lost));
        }
    }

    fn tell(&mut self, topic: Topic, event: impl FnOnce() -> Event) {
        let mut listeners =
            self.clients.iter_mut().filter(|client| client.topics.contains(&topic)).peekable();
        if listeners.peek().is_none() {
            return;
        }
        let line = rpc::event(&event());
        listeners.for_each(|client| client.tell(&line));
    }
}

/// What is ready.
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
