//! `--flow-log`: one line of JSON for each flow that has ended; and `--audit`, in the same way, for each
//! decision of the policy ([`Kind`]).
//!
//! Lines are written by a thread of their own, which gets ended flows from a mailbox ([`crate::event_bus`]).
//! If the disk is slower than flows end for so long that the mailbox is full, further ones are missing, and a
//! line `{"lost": N}` gives their number. When brodo ends, open flows are written too, with the cause
//! `shut-down`, and the thread is joined: nothing is missing at the end.
//!
//! The file is rotated ([`crate::rotated`]). One that can no longer be written ends the log with one message;
//! the network goes on, and decisions that are missing from then on are counted.

pub(crate) mod read;

use crate::event_bus::{EventBus, Events, decisions};
use crate::failure::plain;
use crate::mailbox::Taken;
use crate::rotated::Rotated;
use crate::timestamp::Timestamp;
use brodo_control::event::{Event, Level};
use serde::Serialize;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Longest wait for a disk.
const PATIENCE: Duration = Duration::from_secs(2);

/// Content of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Flows that have ended.
    Flows,
    /// Decisions of the policy.
    Audit,
}

impl Kind {
    /// The name for messages.
    const fn name(self) -> &'static str {
        match self {
            Self::Flows => "flow log",
            Self::Audit => "audit log",
        }
    }
}

/// A log with its writing thread.
#[derive(Debug)]
pub(crate) struct FlowLog {
    mailbox: Arc<Events>,
    thread: Option<JoinHandle<()>>,
}

impl FlowLog {
    /// Starts to write the items of `mailbox`, which is that of `bus`; `failed` is called if the file cannot
    /// be written any more.
    ///
    /// # Errors
    /// No thread could be started.
    pub(crate) fn start(
        kind: Kind,
        files: Rotated,
        mailbox: Arc<Events>,
        bus: Arc<EventBus>,
        failed: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let from = mailbox.clone();
        let thread = thread::Builder::new().name(kind.name().into()).spawn(move || {
            write_all(kind, files, &from, &bus, failed);
        })?;
        Ok(Self { mailbox, thread: Some(thread) })
    }

    /// Waits until all that has come so far is written, or its disk stands still.
    pub(crate) fn flush(&self) {
        self.mailbox.flush(PATIENCE);
    }

    /// Ends it, after all is written.
    pub(crate) fn finish(mut self) {
        self.mailbox.close(Vec::new());
        if let Some(thread) = self.thread.take() {
            // A panic there has been logged by its hook.
            let _ = thread.join();
        }
    }
}

impl Drop for FlowLog {
    fn drop(&mut self) {
        self.mailbox.close(Vec::new());
    }
}

fn write_all(kind: Kind, files: Rotated, from: &Events, bus: &EventBus, failed: impl FnOnce()) {
    let (mut files, mut number, mut failed) = (Some(files), 0, Some(failed));
    while let Some(Taken { items, lost, .. }) = from.wait() {
        let counted = bus.audit_lost();
        let unwritten = || {
            if kind == Kind::Audit {
                let all = lost + items.iter().filter_map(|item| decisions(item)).sum::<u64>();
                let already = bus.audit_lost().zip(counted).map_or(0, |(now, before)| now - before);
                bus.count_audit_lost(all.saturating_sub(already));
            }
        };
        // After an error the mailbox is emptied all the same.
        let Some(open) = &mut files else {
            unwritten();
            continue;
        };
        let mut written = items.iter().try_for_each(|item| write_item(open, item, &mut number, bus));
        if lost > 0 {
            written = written.and_then(|()| write_lost(kind, open, lost, bus));
        }
        if let Err(error) = written.and_then(|()| open.flush()) {
            bus.notify(
                Level::Warn,
                &format!("{} {} ended early: write: {}", kind.name(), open.path().display(), plain(&error)),
            );
            // Nothing of this batch is sure to be in the file.
            unwritten();
            files = None;
            if let Some(failed) = failed.take() {
                failed();
            }
        }
    }
}

fn write_item(files: &mut Rotated, item: &Event, number: &mut u64, bus: &EventBus) -> io::Result<()> {
    match item {
        Event::FlowEnded { flow } => files.write(&line(flow)),
        Event::Decision { decision } => files.write(&numbered(number, decision)),
        Event::PolicyChanged { change } => files.write(&numbered(number, change)),
        Event::Lost { count } => write_lost(Kind::Flows, files, *count, bus),
        Event::DecisionsLost { count } => write_lost(Kind::Audit, files, *count, bus),
        _ => Ok(()),
    }
}

/// Line of the audit log: a gap in the numbers shows a line that is missing.
#[derive(Serialize)]
struct Numbered<'a, T> {
    seq: u64,
    #[serde(flatten)]
    item: &'a T,
}

fn numbered(number: &mut u64, item: &impl Serialize) -> Vec<u8> {
    *number += 1;
    line(&Numbered { seq: *number, item })
}

fn line(item: &impl Serialize) -> Vec<u8> {
    // Infallible: string keys only.
    let mut line = serde_json::to_vec(item).unwrap_or_default();
    line.push(b'\n');
    line
}

fn write_lost(kind: Kind, files: &mut Rotated, lost: u64, bus: &EventBus) -> io::Result<()> {
    let clock = bus.clock();
    let time = Timestamp(clock.unix_ns(clock.now()));
    if kind == Kind::Audit {
        bus.count_audit_lost(lost);
    }
    bus.notify(
        Level::Warn,
        &format!("the {} lacks {lost} records: they came faster than they could be written", kind.name()),
    );
    files.write(format!("{{\"time\":\"{time}\",\"lost\":{lost}}}\n").as_bytes())
}

#[cfg(test)]
mod tests;
