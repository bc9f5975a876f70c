//! Outbox of an engine: records for the warden, from all of its threads.
//!
//! Workers leave the flows of a turn here and go on ([`Outbox::put`]); the answering thread makes messages of
//! them and sends them. The number of waiting items is bounded: an item without room is dropped, and the
//! warden gets the number of flows that were in those.
//!
//! Batches: records that are there at the same time leave together. Each call wakes the warden, and with a
//! record in each a flood of decisions took processor time from the workers that it measures.

use crate::conversation::lines;
use crate::conversation::message::Record;
use crate::flow_messages;
use crate::mailbox::{Mailbox, Taken};
use brodo_control::event::Event;
use brodo_core::flow::end::LostRecords;
use brodo_net::FlowRecords;
use brodo_net::clock::Clock;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
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
    /// An error has ended the capture.
    CaptureEnded,
}

impl Item {
    /// Its share of the bound.
    fn weight(&self) -> usize {
        match self {
            Self::Flows(records) => records.openings.len() + records.ends.len() + 1,
            Self::Notice(_) | Self::CheckNames | Self::CaptureEnded => 1,
        }
    }

    /// Records of flows that are lost with it.
    fn records(&self) -> LostRecords {
        let Self::Flows(FlowRecords { openings, ends, lost, .. }) = self else {
            return LostRecords::default();
        };
        let (openings, ends) = (openings.len() as u64 + lost.openings, ends.len() as u64 + lost.ends);
        LostRecords { openings, ends }
    }
}

/// The outbox.
#[derive(Debug)]
pub(crate) struct Outbox {
    items: Mailbox<Item>,
    /// In items for which there was no room.
    lost: Mutex<LostRecords>,
    records: Mutex<OwnedFd>,
}

impl Outbox {
    /// An outbox to the warden's end of `records`.
    ///
    /// # Errors
    /// eventfd failed: no descriptors.
    pub(crate) fn new(records: OwnedFd) -> io::Result<Self> {
        Ok(Self { items: Mailbox::with_waker()?, lost: Mutex::default(), records: Mutex::new(records) })
    }

    /// Adds an item, or counts its flows as lost.
    pub(crate) fn put(&self, item: Item) {
        let (weight, records) = (item.weight(), item.records());
        if !self.items.put_records(item, weight, 0) {
            self.lost().add(records);
            self.items.wake();
        }
    }

    fn lost(&self) -> MutexGuard<'_, LostRecords> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
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
        let Taken { items, closed, .. } = self.items.take();
        let lost = std::mem::take(&mut *self.lost());
        self.send_items(items, lost, clock)?;
        Ok(!closed)
    }

    fn send_items(&self, items: VecDeque<Item>, mut lost: LostRecords, clock: Clock) -> io::Result<()> {
        let mut batch = Batch::new(self);
        for item in items {
            match item {
                Item::CheckNames => batch.push(&Record::CheckNames)?,
                Item::CaptureEnded => batch.push(&Record::CaptureEnded)?,
                Item::Notice(event) => batch.push(&Record::Event(event))?,
                Item::Flows(records) => {
                    lost.add(records.lost);
                    let worker = records.worker;
                    for info in &records.openings {
                        let flow = flow_messages::opened(worker, info, records.at, clock);
                        batch.push_event(Event::FlowOpened { flow })?;
                    }
                    for end in &records.ends {
                        let flow = flow_messages::end(worker, end, clock);
                        batch.push_event(Event::FlowEnded { flow })?;
                    }
                }
            }
        }
        if lost != LostRecords::default() {
            let LostRecords { openings, ends } = lost;
            batch.push(&Record::Lost { openings, ends })?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::lines::Lines;
    use crate::event_bus;
    use crate::mailbox::MAILBOX_MAX;
    use brodo_control::event::Level;
    use rustix::net::SocketType;

    #[test]
    fn flows_are_missing_and_no_other_items() {
        let (theirs, own) = lines::pair(SocketType::STREAM).unwrap();
        let (outbox, clock) = (Outbox::new(own).unwrap(), Clock::start());
        for _ in 0..MAILBOX_MAX {
            outbox.items.put(Item::CheckNames, 1);
        }
        let lost = LostRecords { openings: 10, ends: 20 };
        outbox.put(Item::CheckNames);
        outbox.put(Item::Notice(Box::new(event_bus::notice(clock, Level::Info, "no room"))));
        outbox.put(Item::Flows(FlowRecords { lost, ..FlowRecords::default() }));
        outbox.items.take();
        outbox.put(Item::Flows(FlowRecords { lost, ..FlowRecords::default() }));
        assert!(outbox.send_waiting(clock).unwrap());
        let mut received = Lines::new(theirs, 1 << 20);
        received.receive().unwrap();
        let record = serde_json::from_slice(received.next().expect("a record")).unwrap();
        assert!(matches!(record, Record::Lost { openings: 20, ends: 40 }), "{record:?}");
        assert!(received.next().is_none());
    }
}
