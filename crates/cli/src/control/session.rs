//! One client: bytes in, lines out, all of it bounded.
//!
//! A request is read only after the reply to the one before has left, so at most one reply waits for a
//! client, and events as far as [`EVENTS_MAX`]; events beyond are dropped and counted for it. A client that
//! stops in the middle of a line, or does not read its output, is closed after [`PATIENCE`].
//!
//! The stream is non-blocking, and no call here blocks.

use crate::upgrades::Upgraded;
use brodo_control::event::{Event, Topic};
use brodo_control::method;
use brodo_control::rpc::{self, Error, Id, REQUEST_MAX, code};
use rustix::event::PollFlags;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Time-out of an incomplete line, and of unread output.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of events queued for a client.
const EVENTS_MAX: usize = 256 << 10;
/// Bytes read at a time.
const READ_SIZE: usize = 16 << 10;

/// The connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Disconnected;

/// A connection.
#[derive(Debug)]
pub(super) struct Session {
    stream: UnixStream,
    input: Vec<u8>,
    /// Bytes of the input known to hold no line end.
    searched: usize,
    output: Vec<u8>,
    sent: usize,
    /// The client has shut down its direction.
    ended: bool,
    /// No more is read; the connection ends when the output has left.
    closing: bool,
    /// Time of the last progress.
    moved_at: Instant,
    /// Its subscription.
    pub(super) topics: Vec<Topic>,
    /// Events without room.
    lost: u64,
    /// The request for an upgrade that it waits for.
    upgrade: Option<Id>,
}

impl Session {
    pub(super) fn new(stream: UnixStream, now: Instant) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (input, searched, output, topics) = Default::default();
        let (ended, closing) = (false, false);
        Ok(Self {
            stream,
            input,
            searched,
            output,
            sent: 0,
            ended,
            closing,
            moved_at: now,
            topics,
            lost: 0,
            upgrade: None,
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Events to poll for. Errors and the end of both directions are always reported.
    pub(super) fn interest(&self) -> PollFlags {
        if self.waits_to_send() {
            PollFlags::OUT
        } else if self.ended || self.closing || self.upgrade.is_some() {
            PollFlags::empty()
        } else {
            PollFlags::IN
        }
    }

    /// Time at which it is closed without progress.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (self.waits_to_send() || !self.input.is_empty()).then(|| self.moved_at + PATIENCE)
    }

    /// Start of its silence, if nothing is due from either side and it has no subscription.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        (self.deadline().is_none() && self.topics.is_empty() && self.upgrade.is_none())
            .then_some(self.moved_at)
    }

    fn waits_to_send(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Reads available input, a bounded part of it at a time.
    pub(super) fn read(&mut self, now: Instant) -> Result<(), Disconnected> {
        if self.ended || self.closing || self.waits_to_send() || self.line_end().is_some() {
            return Ok(());
        }
        let at = self.input.len();
        self.searched = at;
        self.input.resize(at + READ_SIZE, 0);
        let read = self.stream.read(&mut self.input[at..]);
        self.input.truncate(at + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => self.ended = true,
            Ok(_) if at == 0 => self.moved_at = now,
            // Half a line has to become a whole one in its time, however slowly it drips.
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return Err(Disconnected),
        }
        Ok(())
    }

    /// Whether a complete request waits for execution.
    pub(super) fn has_line(&self) -> bool {
        let last = self.ended && (!self.input.is_empty() || self.topics.is_empty());
        !self.closing
            && !self.waits_to_send()
            && self.upgrade.is_none()
            && (self.line_end().is_some() || last)
    }

    fn line_end(&self) -> Option<usize> {
        let at = self.input[self.searched..].iter().position(|&byte| byte == b'\n');
        at.map(|at| self.searched + at)
    }

    /// The next line, if there is one and the reply to the one before has left. Lines that break the rules
    /// get their reply here.
    pub(super) fn next_line(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.closing || self.waits_to_send() || self.upgrade.is_some() {
            return None;
        }
        match self.line_end() {
            Some(end) if end <= REQUEST_MAX => {
                self.moved_at = now;
                self.searched = 0;
                let rest = self.input.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.input, rest);
                line.truncate(end);
                return Some(line);
            }
            None if self.input.len() <= REQUEST_MAX => {
                if self.ended && !self.input.is_empty() {
                    self.refuse(&Error::new(code::PARSE, "the last line has no end"));
                } else if self.ended && self.topics.is_empty() {
                    self.closing = true;
                }
            }
            _ => self.refuse(&Error::new(code::PARSE, format!("a request has at most {REQUEST_MAX} bytes"))),
        }
        None
    }

    /// Waits for an upgrade before anything else.
    pub(super) fn begin_upgrade(&mut self, request: Id) {
        self.upgrade = Some(request);
    }

    /// Replies to a request for an upgrade, if it has made one.
    pub(super) fn end_upgrade(&mut self, outcome: &Result<Upgraded, String>) {
        let Some(id) = self.upgrade.take() else { return };
        self.reply(&match outcome {
            Ok(Upgraded { version, pause_us, flows_lost, .. }) => {
                let (version, pause_us, flows_lost) = (version.clone(), *pause_us, *flows_lost);
                rpc::result(&id, &method::Upgraded { version, pause_us, flows_lost })
            }
            Err(why) => rpc::error(Some(&id), &Error::new(code::FAILED, why.clone())),
        });
    }

    /// Sends a message.
    pub(super) fn reply(&mut self, line: &[u8]) {
        self.begin_output();
        self.output.extend_from_slice(line);
    }

    /// Sends an error that ends the connection.
    pub(super) fn refuse(&mut self, error: &Error) {
        self.reply(&rpc::error(None, error));
        (self.input, self.searched) = (Vec::new(), 0);
        self.closing = true;
    }

    /// Sends an event, or counts it.
    pub(super) fn event(&mut self, line: &[u8]) {
        if self.output.len() - self.sent + line.len() > EVENTS_MAX {
            self.lost += 1;
        } else {
            self.begin_output();
            self.output.extend_from_slice(line);
        }
    }

    /// The client's time for reading output begins with the output.
    fn begin_output(&mut self) {
        if !self.waits_to_send() {
            self.moved_at = Instant::now();
        }
    }

    /// Counts events dropped before this session, by a full event queue.
    pub(super) fn lose(&mut self, events: u64) {
        self.lost += events;
    }

    /// Writes as much as the client takes.
    pub(super) fn write(&mut self, now: Instant) -> Result<(), Disconnected> {
        loop {
            if !self.waits_to_send() {
                self.output.clear();
                self.sent = 0;
                if self.lost > 0 {
                    let count = std::mem::take(&mut self.lost);
                    self.output = rpc::event(&Event::Lost { count });
                    continue;
                }
                // Memory of a long list is not kept.
                self.output.shrink_to(EVENTS_MAX);
                return if self.closing { Err(Disconnected) } else { Ok(()) };
            }
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => return Err(Disconnected),
                Ok(taken) => {
                    self.moved_at = now;
                    self.sent += taken;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Sent output of a client that always lags a little is discarded now and then.
                    if self.sent > EVENTS_MAX {
                        self.output.drain(..std::mem::take(&mut self.sent));
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Disconnected),
            }
        }
    }
}
