//! Records of an engine that is asked for its state: a thread reads them while the warden waits for replies.
//!
//! Each flow that ends and each decision of a policy is a record. An engine whose socket for them is full
//! waits for room before it answers the next request, so a warden that only waited for the reply would wait
//! in vain.

use super::Conversation;
use crate::conversation::message::Record;
use crate::event_bus::EventBus;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Interval of looks whether the work is done.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// Most records other than events that are left to the next reader: an engine in order sends one or two.
const LEFT_MAX: usize = 64;

/// Does `work`, and publishes an engine's events meanwhile; other records are left to the next reader.
/// Without room for a thread all wait.
pub(super) fn read_during<T>(
    conversation: Option<&mut Conversation>,
    bus: &EventBus,
    work: impl FnOnce() -> T,
) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reading = || conversation.map(|conversation| read(conversation, bus, &done));
        let reader = thread::Builder::new().name("records".into()).spawn_scoped(scope, reading);
        let result = work();
        done.store(true, Ordering::Relaxed);
        drop(reader.map(thread::ScopedJoinHandle::join));
        result
    })
}

fn read(Conversation { records, is_cut, .. }: &mut Conversation, bus: &EventBus, done: &AtomicBool) {
    let (mut left, mut lines) = (0, Vec::new());
    while !done.load(Ordering::Relaxed) {
        let mut ready = [PollFd::new(&*records, PollFlags::IN)];
        let _ = poll(&mut ready, Some(&LOOK_EVERY));
        let received = records.receive();
        while let Some(line) = records.next() {
            *is_cut = false;
            match serde_json::from_slice(line) {
                Ok(Record::Event(event)) => bus.publish(*event),
                Ok(Record::Lost { openings, ends }) => bus.publish_lost(openings, ends),
                Ok(_) if left < LEFT_MAX => {
                    left += 1;
                    lines.extend_from_slice(line);
                    lines.push(b'\n');
                }
                _ => {}
            }
        }
        if received.is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
            // The next reader finds the end again.
            break;
        }
    }
    records.put_back(lines);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::lines::{self, Lines};
    use crate::event_bus;
    use brodo_control::event::Level;
    use brodo_net::clock::Clock;
    use rustix::fd::AsFd;
    use rustix::net::SocketType;
    use std::time::{Duration, Instant};

    #[test]
    fn an_engine_with_more_records_than_its_socket_holds_goes_on() {
        let (records, theirs) = lines::pair(SocketType::STREAM).unwrap();
        let (listen, _theirs) = lines::pair(SocketType::SEQPACKET).unwrap();
        let mut conversation = Conversation { records: Lines::new(records, 1 << 20), listen, is_cut: false };
        let event = event_bus::notice(Clock::start(), Level::Info, &"x".repeat(1000));
        let mut batch = serde_json::to_vec(&Record::Event(Box::new(event))).unwrap();
        batch.push(b'\n');
        let batch = batch.repeat(4000);
        let sent = || {
            lines::send(theirs.as_fd(), &batch, None, Duration::from_secs(60)).unwrap();
            let mut last = serde_json::to_vec(&Record::CheckNames).unwrap();
            last.push(b'\n');
            lines::send(theirs.as_fd(), &last, None, Duration::from_secs(60)).unwrap();
        };
        read_during(Some(&mut conversation), &EventBus::new(Clock::start()), sent);
        let last = loop {
            let line = conversation.records.next_until(Instant::now() + Duration::from_secs(60));
            match serde_json::from_slice(&line.unwrap()).unwrap() {
                Record::Event(_) => {}
                other => break other,
            }
        };
        assert!(matches!(last, Record::CheckNames) && conversation.records.next().is_none());
    }
}
