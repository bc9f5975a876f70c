//! Records of an engine that is asked for its state: a thread reads them while the warden waits for replies,
//! and opens the listening sockets that the engine asks for.
//!
//! Each flow that ends and each decision of a policy is a record. An engine whose socket for them is full
//! waits for room before it answers the next request, so a warden that only waited for the reply would wait
//! in vain. So it would for a worker that is in the middle of a scan (`auto`) and waits for a listening
//! socket: a frozen engine is one whose workers have come to the end of their turns.
//!
//! An engine that ends leaves its ends of all sockets open in the keeper's table, so its keeper's word about
//! that ends the wait ([`KeeperWatch`]).

use super::Conversation;
use super::client::EngineClient;
use super::listening::{ListenService, is_over};
use crate::conversation::message::Record;
use crate::event_bus::EventBus;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Interval of looks whether the work is done.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// Most records other than events that are left to the next reader: an engine in order sends one or two.
const LEFT_MAX: usize = 64;

/// The keeper of the engine that is waited for, and the way to that engine.
pub(super) struct KeeperWatch<'a> {
    /// Readable once the engine has ended.
    pub(super) socket: BorrowedFd<'a>,
    pub(super) engine: &'a EngineClient,
}

impl KeeperWatch<'_> {
    /// Whether its engine has ended.
    pub(super) fn has_reported(&self) -> bool {
        poll(&mut [PollFd::from_borrowed_fd(self.socket, PollFlags::IN)], Some(&Timespec::default())) == Ok(1)
    }
}

/// Does `work`; publishes an engine's events meanwhile, and has `service` open its listening sockets. Other
/// records are left to the next reader. If the engine ends, calls of it do. Without room for a thread all
/// wait.
pub(super) fn read_during<T>(
    conversation: Option<&mut Conversation>,
    keeper: &KeeperWatch<'_>,
    bus: &EventBus,
    service: &ListenService,
    work: impl FnOnce() -> T,
) -> T {
    let (done, pid) = (AtomicBool::new(false), keeper.engine.keeper());
    let has_ended = || {
        let has_reported = keeper.has_reported();
        if has_reported {
            // Not the engine that the work has turned to meanwhile.
            keeper.engine.disconnect_from(pid);
        }
        has_reported
    };
    thread::scope(|scope| {
        let reading = || conversation.map(|conversation| read(conversation, bus, service, &done, has_ended));
        let reader = thread::Builder::new().name("records".into()).spawn_scoped(scope, reading);
        let result = work();
        done.store(true, Ordering::Relaxed);
        drop(reader.map(thread::ScopedJoinHandle::join));
        result
    })
}

/// Until the work is done, `has_ended` is true, or records cannot be received.
fn read(
    conversation: &mut Conversation,
    bus: &EventBus,
    service: &ListenService,
    done: &AtomicBool,
    has_ended: impl Fn() -> bool,
) {
    let Conversation { records, listen, is_cut } = conversation;
    let (mut left, mut lines, mut is_listening) = (0, Vec::new(), true);
    while !done.load(Ordering::Relaxed) {
        let mut ready = [PollFd::new(&*records, PollFlags::IN), PollFd::new(&*listen, PollFlags::IN)];
        // At the end of its conversation the second would be ready for ever.
        let _ = poll(&mut ready[..if is_listening { 2 } else { 1 }], Some(&LOOK_EVERY));
        if !ready[1].revents().is_empty() {
            is_listening = !is_over(&service.serve(listen));
        }
        let is_over = has_ended();
        let received = records.receive();
        while let Some(line) = records.next() {
            *is_cut = false;
            match Record::parse(line) {
                Some(Record::Event(event)) => bus.publish(*event),
                Some(Record::Lost { openings, ends }) => bus.publish_lost(openings, ends),
                Some(_) if left < LEFT_MAX => {
                    left += 1;
                    lines.extend_from_slice(line);
                    lines.push(b'\n');
                }
                _ => {}
            }
        }
        if is_over || received.is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
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
    use crate::conversation::listen::{Listen, MESSAGE_MAX};
    use crate::conversation::message::Stop;
    use crate::event_bus;
    use brodo_control::event::Level;
    use brodo_net::clock::Clock;
    use brodo_net::forward::{ForwardDirection, ListenSpec, PortSharing, Transport};
    use rustix::fd::{AsFd, OwnedFd};
    use rustix::net::{RecvFlags, SendFlags, SocketType};
    use std::io;
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    /// A conversation, and the engine's ends of it: of records, and of requests for listening sockets.
    fn conversation() -> (Conversation, [OwnedFd; 2]) {
        let (records, of_records) = lines::pair(SocketType::STREAM).unwrap();
        let (listen, of_requests) = lines::pair(SocketType::SEQPACKET).unwrap();
        let records = Lines::new(records, 1 << 20);
        (Conversation { records, listen, is_cut: false }, [of_records, of_requests])
    }

    /// Does some work with the keeper of an engine that goes on.
    fn read_during_all<T>(conversation: &mut Conversation, work: impl FnOnce() -> T) -> T {
        let (socket, _theirs) = lines::pair(SocketType::SEQPACKET).unwrap();
        let keeper = KeeperWatch { socket: socket.as_fd(), engine: &EngineClient::new(1) };
        read_during(Some(conversation), &keeper, &EventBus::new(Clock::start()), &service(), work)
    }

    fn service() -> ListenService {
        ListenService::new(Arc::default(), None, Instant::now())
    }

    #[test]
    fn an_engine_with_more_records_than_its_socket_holds_goes_on() {
        let (mut conversation, [theirs, _requests]) = conversation();
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
        read_during_all(&mut conversation, sent);
        let last = loop {
            let line = conversation.records.next_until(Instant::now() + Duration::from_secs(60));
            match serde_json::from_slice(&line.unwrap()).unwrap() {
                Record::Event(_) => {}
                other => break other,
            }
        };
        assert!(matches!(last, Record::CheckNames) && conversation.records.next().is_none());
    }

    /// Its ends of all sockets are open in the keeper's table.
    #[test]
    fn a_call_of_an_engine_that_ends_is_over() {
        let (done, outcome) = channel();
        // A thread, so that a call that waits for its time fails the test.
        thread::spawn(move || {
            let (mut conversation, _ends) = conversation();
            let (requests, _theirs) = lines::pair(SocketType::STREAM).unwrap();
            let (socket, keeper) = lines::pair(SocketType::SEQPACKET).unwrap();
            let engine = EngineClient::new(1);
            let called = || {
                let mut held = engine.hold();
                held.turn_to(requests, 1);
                rustix::net::send(&keeper, &[0; 4], SendFlags::empty()).unwrap();
                held.call(&Stop {}, None, Instant::now() + Duration::from_secs(600))
            };
            let keeper = KeeperWatch { socket: socket.as_fd(), engine: &engine };
            let bus = EventBus::new(Clock::start());
            done.send(read_during(Some(&mut conversation), &keeper, &bus, &service(), called))
        });
        let refused = outcome.recv_timeout(Duration::from_secs(60)).expect("it does not wait");
        assert!(refused.is_err());
    }

    #[test]
    fn an_engine_that_waits_for_a_listening_socket_goes_on() {
        let (mut conversation, [_records, theirs]) = conversation();
        let place = ListenSpec {
            direction: ForwardDirection::In,
            transport: Transport::Tcp,
            address: Ipv4Addr::LOCALHOST.into(),
            port: 80,
            interface: None,
            shared: PortSharing::None,
        };
        let request = serde_json::to_vec(&Listen::from(&place)).unwrap();
        let asks = || -> io::Result<()> {
            // Several, as in one scan.
            for _ in 0..100 {
                let until = Instant::now() + Duration::from_secs(20);
                lines::send(theirs.as_fd(), &request, None, Duration::from_secs(20))?;
                lines::wait_for(theirs.as_fd(), PollFlags::IN, until)?;
                rustix::net::recv(&theirs, &mut [0; MESSAGE_MAX][..], RecvFlags::empty())?;
            }
            Ok(())
        };
        let asked = read_during_all(&mut conversation, asks);
        asked.expect("replies");
    }
}
