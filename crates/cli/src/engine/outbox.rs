//! Outbox of an engine: records for the warden, from all of its threads.
//!
//! Workers leave the flows of a turn here and go on ([`Outbox::put`]); the answering thread makes messages of
//! them and sends them. The number of waiting items is bounded: an item without room is dropped and counted,
//! and the warden gets the count.
//!
//! Batches: records that are there at the same time leave together. Each call wakes the warden, and with a
//! record in each a flood of decisions took processor time from the workers that it measures.

use crate::conversation::lines;
use crate::conversation::message::Record;
use crate::flow_messages;
use crate::mailbox::{Mailbox, Taken};
use brodo_control::event::Event;
use brodo_net::FlowRecords;
use brodo_net::clock::Clock;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::io;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

/// Longest wait for a warden that does not read: its machine is suspended, or it is stopped.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Length of a batch, in bytes, from which on it is sent.
const BATCH_LEN: usize = 32 << 10;

/// Item on its way to the warden.
#[derive(Debug)]
pub(crate) enum Item {
    /// Flows that began and ended in a turn.
    Flows(FlowRecords),
    /// A message for the user.
    Notice(Box<Event>),
    /// resolv.conf is due to be checked.
    CheckNames,
}

impl Item {
    /// Its share of the bound.
    fn weight(&self) -> usize {
        match self {
            Self::Flows(records) => records.openings.len() + records.ends.len() + 1,
            Self::Notice(_) | Self::CheckNames => 1,
        }
    }
}

/// The outbox.
#[derive(Debug)]
pub(crate) struct Outbox {
    items: Mailbox<Item>,
    records: Mutex<OwnedFd>,
}

impl Outbox {
    /// An outbox to the warden's end of `records`.
    ///
    /// # Errors
    /// eventfd failed: no descriptors.
    pub(crate) fn new(records: OwnedFd) -> io::Result<Self> {
        Ok(Self { items: Mailbox::with_waker()?, records: Mutex::new(records) })
    }

    /// Adds an item, or counts it as lost.
    pub(crate) fn put(&self, item: Item) {
        let weight = item.weight();
        self.items.put(item, weight);
    }

    /// Adds the last items and ends the queue.
    pub(crate) fn close(&self, last: Vec<Item>) {
        self.items.close(last);
    }

    /// Readable when there is something to take.
    pub(super) fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.items.waker()
    }

    /// Sends all waiting items; false once the queue has been closed and all are sent.
    ///
    /// # Errors
    /// The warden has ended.
    pub(super) fn send_waiting(&self, clock: Clock) -> io::Result<bool> {
        let Taken { items, lost, closed } = self.items.take();
        self.send_items(items, lost, clock)?;
        Ok(!closed)
    }

    fn send_items(&self, items: VecDeque<Item>, mut lost: u64, clock: Clock) -> io::Result<()> {
        let mut batch = Batch::new(self);
        for item in items {
            match item {
                Item::CheckNames => batch.push(&Record::CheckNames)?,
                Item::Notice(event) => batch.push(&Record::Event(event))?,
                Item::Flows(records) => {
                    lost += records.lost;
                    let worker = records.worker;
                    for info in &records.openings {
                        let flow = flow_messages::brief(worker, info);
                        batch.push_event(Event::FlowOpened { flow })?;
                    }
                    for end in &records.ends {
                        let flow = flow_messages::end(worker, end, clock);
                        batch.push_event(Event::FlowEnded { flow })?;
                    }
                }
            }
        }
        if lost > 0 {
            batch.push_event(Event::Lost { count: lost })?;
        }
        batch.send()
    }

    /// Sends all of these events.
    ///
    /// # Errors
    /// The warden has ended.
    pub(super) fn send_events(&self, events: impl IntoIterator<Item = Event>) -> io::Result<()> {
        let mut batch = Batch::new(self);
        events.into_iter().try_for_each(|event| batch.push_event(event))?;
        batch.send()
    }

    /// Sends one record at once.
    ///
    /// # Errors
    /// The warden has ended.
    pub(super) fn send(&self, record: &Record) -> io::Result<()> {
        let mut batch = Batch::new(self);
        batch.push(record)?;
        batch.send()
    }
}

/// Records that leave together, as lines.
struct Batch<'a> {
    outbox: &'a Outbox,
    lines: Vec<u8>,
}

impl<'a> Batch<'a> {
    fn new(outbox: &'a Outbox) -> Self {
        Self { outbox, lines: Vec::new() }
    }

    fn push(&mut self, record: &Record) -> io::Result<()> {
        // Infallible: string keys only, and a vector takes all.
        let _ = serde_json::to_writer(&mut self.lines, record);
        self.lines.push(b'\n');
        if self.lines.len() >= BATCH_LEN { self.send() } else { Ok(()) }
    }

    fn push_event(&mut self, event: Event) -> io::Result<()> {
        self.push(&Record::Event(Box::new(event)))
    }

    /// Sends what is there.
    fn send(&mut self) -> io::Result<()> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let socket = self.outbox.records.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = lines::send(socket.as_fd(), &self.lines, None, PATIENCE);
        self.lines.clear();
        sent
    }
}
