//! Streams that come in advance of a hand-over, while the old network serves.
//!
//! Each is asked for its type when it comes, and registered for the events of its flow; in the pause it need
//! be neither. An event that comes meanwhile is reported by the first wait. Streams that no flow claims were
//! closed by the old network, and are closed here as they are: its copy, with the option of a reset if it
//! was one, was the socket itself.

use super::Expected;
use crate::stream_events::STREAM_EVENTS;
use brodo_core::memory::budget::WORKERS_MAX;
use brodo_core::stack::Room;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::os::fd::{AsFd, OwnedFd};

/// A stream, while no flow has claimed it.
#[derive(Debug)]
struct Early {
    stream: OwnedFd,
    /// Worker and flow for whose events it is registered.
    registered: Option<(u16, u64)>,
}

/// Streams in the order in which they came.
#[derive(Debug, Default)]
pub struct EarlyStreams {
    streams: Vec<Option<Early>>,
    workers: Vec<OfWorker>,
}

/// Epoll instance and memory for the streams of one worker.
#[derive(Debug, Default)]
struct OfWorker {
    /// Where they are registered.
    poller: Option<OwnedFd>,
    count: usize,
    /// Memory for their flows.
    room: Option<Room>,
}

/// Header of a message of streams: the ids of their flows follow, each in 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyHeader {
    /// Streams, of which none is the end.
    pub count: u16,
    /// Number of their worker.
    pub worker: u16,
}

impl EarlyHeader {
    /// Its length, in bytes.
    pub const LEN: usize = 4;

    /// Header of these bytes.
    pub fn parse([c0, c1, w0, w1]: [u8; Self::LEN]) -> Self {
        Self { count: u16::from_le_bytes([c0, c1]), worker: u16::from_le_bytes([w0, w1]) }
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let ([c0, c1], [w0, w1]) = (self.count.to_le_bytes(), self.worker.to_le_bytes());
        [c0, c1, w0, w1]
    }
}

/// Part of the streams to be passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassedFrom {
    /// Number of the worker.
    pub worker: u16,
    /// Place of the first socket to examine, from 0.
    pub from: usize,
    /// Streams passed so far, by all workers.
    pub first: u32,
}

/// Outcome of [`Command::PassStreams`](crate::command::Command::PassStreams).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// Streams in the message; without any there was none.
    pub count: u32,
    /// Place of the next socket to examine, if there are more.
    pub next: Option<usize>,
}

impl EarlyStreams {
    /// Takes what should be a stream of a flow (its id as bits) of a worker; anything else is closed, and its
    /// number leads nowhere.
    pub fn add(&mut self, worker: u16, flow: u64, stream: OwnedFd) {
        if !Expected::Stream.fits(stream.as_fd(), true) {
            return self.streams.push(None);
        }
        let registered = self.register(worker, flow, &stream).map(|()| (worker, flow));
        self.streams.push(Some(Early { stream, registered }));
    }

    fn register(&mut self, worker: u16, flow: u64, stream: &OwnedFd) -> Option<()> {
        let at = usize::from(worker);
        if at >= WORKERS_MAX as usize {
            return None;
        }
        if self.workers.len() <= at {
            self.workers.resize_with(at + 1, OfWorker::default);
        }
        let OfWorker { poller, count, .. } = &mut self.workers[at];
        if poller.is_none() {
            *poller = epoll::create(CreateFlags::CLOEXEC).ok();
        }
        *count += 1;
        epoll::add(poller.as_ref()?, stream, EventData::new_u64(flow), STREAM_EVENTS | EventFlags::ET).ok()
    }

    /// The epoll instance where streams of a worker are registered.
    pub(crate) fn take_poller(&mut self, worker: u32) -> Option<OwnedFd> {
        self.workers.get_mut(worker as usize)?.poller.take()
    }

    /// Makes memory ready for the flows of all streams, while the old network serves.
    pub fn make_room(&mut self) {
        for of_worker in &mut self.workers {
            of_worker.room = Some(Room::of(of_worker.count));
        }
    }

    /// The memory for the flows of a worker.
    pub(super) fn take_room(&mut self, worker: u32) -> Option<Room> {
        self.workers.get_mut(worker as usize)?.room.take()
    }

    /// Number of streams that came.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether none came.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Whether the stream with this index is registered for the events of a flow.
    pub(super) fn is_registered(&self, index: usize, worker: u32, flow: u64) -> bool {
        let early = self.streams.get(index).and_then(Option::as_ref);
        early.and_then(|early| early.registered).is_some_and(|it| (u32::from(it.0), it.1) == (worker, flow))
    }

    /// Takes the stream with this index.
    pub(super) fn take(&mut self, index: usize) -> Option<OwnedFd> {
        Some(self.streams.get_mut(index)?.take()?.stream)
    }
}
