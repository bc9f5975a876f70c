//! A blocking client: one connection, one request at a time, events in between.
//!
//! Events that come while a reply is awaited are kept, up to a bound, and given by [`Client::next_event`]
//! later. A program with a loop of its own waits for [`Client::as_fd`] and then calls [`Client::next_event`]
//! with a time-out of zero until it gives none.

use crate::event::{Event, Topic};
use crate::flow::{Flow, FlowRef};
use crate::instance;
use crate::method::{GetFlows, GetHello, Hello, Method, Subscribe};
use crate::rpc::{self, Id, MESSAGE_MAX, Message, PROTOCOL};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time-out of a reply. An instance answers within milliseconds unless its machine is very busy.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Events kept while a reply is awaited; later ones are dropped and counted.
const EVENTS_MAX: usize = 4096;
/// Flows of one page: as many as a worker lists between two of its turns. A page, some 160 KiB, fits into the
/// socket's buffer and the nearer caches of both sides.
const PAGE_FLOWS: u32 = 256;
/// Size of one read, in bytes.
const READ_SIZE: usize = 64 << 10;

/// The reason for which a call has no result.
#[derive(Debug)]
pub enum ClientError {
    /// The connection failed, or could not be made.
    Io(io::Error),
    /// The instance has closed the connection.
    Closed,
    /// No reply in time.
    TimedOut,
    /// The reply is not of this protocol.
    Protocol(String),
    /// The instance speaks another version of the protocol.
    OtherProtocol(u32),
    /// The instance refuses the request.
    Refused(rpc::Error),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => {
                let words = error.to_string();
                f.write_str(words.split(" (os error").next().unwrap_or_default())
            }
            Self::Closed => f.write_str("brodo has closed the connection"),
            Self::TimedOut => f.write_str("brodo does not answer"),
            Self::Protocol(what) => write!(f, "the server is not brodo: {what}"),
            Self::OtherProtocol(theirs) => {
                write!(
                    f,
                    "the instance speaks protocol {theirs}, this program {PROTOCOL}: use the same version"
                )
            }
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Self::Closed,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::Io(error),
        }
    }
}

impl From<serde_json::Error> for ClientError {
    fn from(error: serde_json::Error) -> Self {
        Self::Protocol(error.to_string())
    }
}

/// A connection to an instance.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    /// Received and unused bytes, and the length of their part known to have no line end.
    received: Vec<u8>,
    searched: usize,
    last_id: i64,
    events: VecDeque<Event>,
    /// Events that found no room in `events`.
    lost: u64,
    hello: Option<Hello>,
    /// Longest wait for a reply.
    patience: Duration,
}

impl Client {
    /// Connects to a socket and has the server identify itself.
    ///
    /// # Errors
    /// No server, one that does not admit this user, or one of another protocol.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::connect_within(path, REPLY_TIMEOUT)
    }

    /// As [`Client::connect`], with another time-out of each reply than the usual ten seconds.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_within(path: &Path, patience: Duration) -> Result<Self, ClientError> {
        let mut client = Self::new(instance::dial(path)?)?;
        client.patience = patience;
        let hello = client.call(&GetHello { protocol: None })?;
        if hello.protocol != PROTOCOL {
            return Err(ClientError::OtherProtocol(hello.protocol));
        }
        client.hello = Some(hello);
        Ok(client)
    }

    /// A client on a connected socket that no message has crossed yet.
    ///
    /// # Errors
    /// Its time-outs cannot be set.
    pub fn new(stream: UnixStream) -> Result<Self, ClientError> {
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        let (received, events) = (Vec::new(), VecDeque::new());
        Ok(Self {
            stream,
            received,
            searched: 0,
            last_id: 0,
            events,
            lost: 0,
            hello: None,
            patience: REPLY_TIMEOUT,
        })
    }

    /// Identification of the server, if it was made by [`Client::connect`].
    pub fn hello(&self) -> Option<&Hello> {
        self.hello.as_ref()
    }

    /// Calls a method and waits for its result.
    ///
    /// # Errors
    /// See [`ClientError`]. After any but [`ClientError::Refused`] the client is of no more use.
    pub fn call<M: Method>(&mut self, params: &M) -> Result<M::Result, ClientError> {
        let id = self.send(params)?;
        self.reply(id)
    }

    /// Sends a request; the id of its reply.
    fn send<M: Method>(&mut self, params: &M) -> Result<i64, ClientError> {
        self.last_id += 1;
        match self.stream.write_all(&rpc::request(self.last_id, M::NAME, params)).map_err(ClientError::from) {
            // A server that refuses the client says so and closes, even before the first request: its reason
            // is there to be read.
            Ok(()) | Err(ClientError::Closed) => Ok(self.last_id),
            Err(error) => Err(error),
        }
    }

    /// Waits for the reply to a request.
    fn reply<R: DeserializeOwned>(&mut self, id: i64) -> Result<R, ClientError> {
        let deadline = Instant::now() + self.patience;
        loop {
            let Some(message) = self.message::<R>(Some(deadline))? else { return Err(ClientError::TimedOut) };
            if message.method.is_some() {
                self.keep(message.params);
                continue;
            }
            if let Some(error) = message.error {
                return Err(ClientError::Refused(error));
            }
            if message.id != Some(Id::Number(id)) {
                return Err(ClientError::Protocol("the reply is to another request".into()));
            }
            return message.result.ok_or_else(|| ClientError::Protocol("the reply is empty".into()));
        }
    }

    /// All flows that pass `filter`, page by page. The next page is requested before this one is decoded, so
    /// that client and server work in parallel.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn flows(&mut self, filter: &GetFlows) -> Result<Vec<Flow>, ClientError> {
        /// A [`FlowPage`](crate::method::FlowPage), its flows not read yet.
        #[derive(Deserialize)]
        struct Page {
            flows: Box<RawValue>,
            next: Option<FlowRef>,
        }

        let mut request = GetFlows { limit: filter.limit.or(Some(PAGE_FLOWS)), ..filter.clone() };
        let mut flows = Vec::new();
        let mut asked = Some(self.send(&request)?);
        while let Some(id) = asked {
            let page: Page = self.reply(id)?;
            request.after = page.next;
            asked = page.next.map(|_| self.send(&request)).transpose()?;
            let read: Vec<Flow> = serde_json::from_str(page.flows.get())?;
            flows.extend(read);
        }
        Ok(flows)
    }

    /// Subscribes to these topics from now on, and to no others.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn subscribe(&mut self, topics: &[Topic]) -> Result<(), ClientError> {
        self.call(&Subscribe { events: topics.to_vec() }).map(drop)
    }

    /// The next event; `None` after `timeout` without one. Without a time-out the wait is unbounded.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn next_event(&mut self, timeout: Option<Duration>) -> Result<Option<Event>, ClientError> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        if self.lost > 0 {
            return Ok(Some(Event::Lost { count: std::mem::take(&mut self.lost) }));
        }
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let Some(message) = self.message::<IgnoredAny>(deadline)? else { return Ok(None) };
            self.keep(message.params);
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
        }
    }

    /// Keeps an event; kinds unknown to this version are ignored.
    fn keep(&mut self, event: Option<Box<RawValue>>) {
        let event = event.and_then(|params| serde_json::from_str(params.get()).ok());
        match event {
            Some(_) if self.events.len() >= EVENTS_MAX => self.lost += 1,
            Some(event) => self.events.push_back(event),
            None => {}
        }
    }

    /// The next message; `None` if the deadline came first.
    fn message<R: DeserializeOwned>(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<Option<Message<R>>, ClientError> {
        let Some(line) = self.line(deadline)? else { return Ok(None) };
        Ok(Some(serde_json::from_slice(&line)?))
    }

    fn line(&mut self, deadline: Option<Instant>) -> Result<Option<Vec<u8>>, ClientError> {
        loop {
            let fresh = &self.received[self.searched..];
            if let Some(end) = fresh.iter().position(|&byte| byte == b'\n') {
                let rest = self.received.split_off(self.searched + end + 1);
                let line = std::mem::replace(&mut self.received, rest);
                self.searched = 0;
                return Ok(Some(line));
            }
            self.searched = self.received.len();
            if self.searched > MESSAGE_MAX {
                return Err(ClientError::Protocol("a line without end".into()));
            }
            if !self.wait(deadline)? {
                return Ok(None);
            }
            let at = self.received.len();
            self.received.resize(at + READ_SIZE, 0);
            let read = self.stream.read(&mut self.received[at..]);
            self.received.truncate(at + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(ClientError::Closed),
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error.into()),
                _ => {}
            }
        }
    }

    /// Waits until there is something to read; false if there is nothing at the deadline.
    fn wait(&self, deadline: Option<Instant>) -> Result<bool, ClientError> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let left = left.map(|left| Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            });
            match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], left.as_ref()) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests;
