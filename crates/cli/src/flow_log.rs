//! `--flow-log`: one line of JSON for each flow that has ended; and `--audit`, in the same way, for each
//! decision of the policy ([`Kind`]).
//!
//! Lines are written by a thread of their own, which gets ended flows from a mailbox ([`crate::event_bus`]).
//! If the disk is slower than flows end for so long that the mailbox is full, further ones are missing, and a
//! line `{"lost": N}` gives their number. When brodo ends, open flows are written too, with the cause
//! `shut-down`, and the thread is joined: nothing is missing at the end.
//!
//! The file is rotated ([`crate::rotated`]). While it cannot be written, lines are missing: the network goes
//! on, and the first line that can be written again is a `{"lost": N}` with their number.

pub(crate) mod read;

use crate::event_bus::{EventBus, Events, decisions};
use crate::failure::plain;
use crate::mailbox::Taken;
use crate::rotated::{Records, Rotated};
use crate::timestamp::Timestamp;
use brodo_control::event::{Event, Level};
use serde::Serialize;
use std::collections::VecDeque;
use std::io;
use std::mem::take;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// Records that are missing and that no line says yet.
    missing: Arc<AtomicU64>,
    pipe: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl FlowLog {
    /// Starts to write the items of `mailbox`, which is that of `bus`, to a log of which so many records are
    /// `missing`; `failed` is called when the file cannot be written for the first time.
    ///
    /// # Errors
    /// No thread could be started.
    pub(crate) fn start(
        kind: Kind,
        files: Rotated,
        mailbox: Arc<Events>,
        bus: Arc<EventBus>,
        missing: u64,
        failed: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let (missing, pipe) = (Arc::new(AtomicU64::new(missing)), files.pipe());
        let (from, known) = (mailbox.clone(), missing.clone());
        let thread = thread::Builder::new().name(kind.name().into()).spawn(move || {
            let missing = known.load(Ordering::Relaxed);
            let log = Log { kind, files, bus: &bus, number: 0, missing };
            write_all(log, &from, &known, failed);
        })?;
        Ok(Self { mailbox, missing, pipe, thread: Some(thread) })
    }

    /// Records that are missing and that no line says yet, for a log that goes on with this one.
    pub(crate) fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }

    /// Its descriptor if it is a pipe ([`Rotated::pipe`]).
    pub(crate) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
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

fn write_all(mut log: Log<'_>, from: &Events, missing: &AtomicU64, failed: impl FnOnce()) {
    let mut failed = Some(failed);
    while let Some(Taken { items, lost, .. }) = from.wait() {
        let was_whole = log.missing == 0;
        let written = log.write_batch(&items, lost);
        missing.store(log.missing, Ordering::Relaxed);
        let Err(error) = written else { continue };
        if was_whole {
            let (name, path) = (log.kind.name(), log.files.path().display());
            let why = plain(&error);
            log.bus.notify(Level::Warn, &format!("{name} {path} lacks records from now on: write: {why}"));
        }
        if let Some(failed) = failed.take() {
            failed();
        }
    }
    // The disk may have room by now.
    let _ = log.write_batch(&VecDeque::new(), 0);
}

/// A log that is being written.
struct Log<'a> {
    kind: Kind,
    files: Rotated,
    bus: &'a EventBus,
    /// Number of the last line.
    number: u64,
    /// Records that could not be written since the last line that was.
    missing: u64,
}

impl Log<'_> {
    /// Writes items, behind the number of records that are missing before them.
    ///
    /// # Errors
    /// The disk is full. Items that are not in the file are counted as missing.
    fn write_batch(&mut self, items: &VecDeque<Arc<Event>>, lost: u64) -> io::Result<()> {
        let (mut written, missing) = (Ok(()), take(&mut self.missing));
        if missing > 0 {
            let (lost, records) = (self.lost_line(missing), Records { whole: 0, lost: missing });
            written = self.files.write(&lost, records);
        }
        for item in items {
            if let Some((line, records)) = self.line(item) {
                written = self.add(written, &line, records);
            }
        }
        if lost > 0 {
            let (line, records) = self.too_fast(lost);
            written = self.add(written, &line, records);
        }
        let written = written.and_then(|()| self.files.flush());
        let given_up = self.files.given_up();
        self.count_missing(given_up);
        if written.is_ok() && missing > 0 {
            let (name, path) = (self.kind.name(), self.files.path().display());
            let text = format!("{name} {path} goes on: it lacks {missing} records");
            self.bus.notify(Level::Warn, &text);
        }
        written
    }

    /// Adds a line, unless one before it could not be written.
    fn add(&mut self, before: io::Result<()>, line: &[u8], records: Records) -> io::Result<()> {
        if before.is_err() {
            self.count_missing(records);
            return before;
        }
        self.files.write(line, records)
    }

    fn count_missing(&mut self, Records { whole, lost }: Records) {
        self.missing += whole + lost;
        // The others were counted when they were lost.
        self.count(whole);
    }

    fn count(&self, lost: u64) {
        if self.kind == Kind::Audit {
            self.bus.count_audit_lost(lost);
        }
    }

    /// The line of an item, if it has one.
    fn line(&mut self, item: &Event) -> Option<(Vec<u8>, Records)> {
        let whole = |whole| Records { whole, lost: 0 };
        Some(match item {
            Event::FlowEnded { flow } => (line(flow), whole(1)),
            Event::Decision { decision } => (self.numbered(decision), whole(decisions(item)?)),
            Event::PolicyChanged { change } => (self.numbered(change), whole(decisions(item)?)),
            Event::Lost { count } | Event::DecisionsLost { count } => self.too_fast(*count),
            _ => return None,
        })
    }

    fn numbered(&mut self, item: &impl Serialize) -> Vec<u8> {
        self.number += 1;
        line(&Numbered { seq: self.number, item })
    }

    /// The line about records that came faster than they could be written.
    fn too_fast(&self, lost: u64) -> (Vec<u8>, Records) {
        self.count(lost);
        let name = self.kind.name();
        let text = format!("the {name} lacks {lost} records: they came faster than they could be written");
        self.bus.notify(Level::Warn, &text);
        (self.lost_line(lost), Records { whole: 0, lost })
    }

    fn lost_line(&self, lost: u64) -> Vec<u8> {
        let clock = self.bus.clock();
        let time = Timestamp(clock.date_ns(clock.now()));
        format!("{{\"time\":\"{time}\",\"lost\":{lost}}}\n").into_bytes()
    }
}

/// Line of the audit log: a gap in the numbers shows a line that is missing.
#[derive(Serialize)]
struct Numbered<'a, T> {
    seq: u64,
    #[serde(flatten)]
    item: &'a T,
}

fn line(item: &impl Serialize) -> Vec<u8> {
    // Infallible: string keys only.
    let mut line = serde_json::to_vec(item).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests;
