//! The first worker to end ends all, in every way of ending, and the reason is reported.

use super::*;
use brodo_core::link::{Link, LinkCaps, NoCredit, TxFrame};
use brodo_link::batch::Batch;
use brodo_link::poller::Poller;
use brodo_link::{CreditWait, EventFlags, Taken};
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::OwnedFd;
use std::sync::mpsc::sync_channel;

/// A link controlled by bytes through a pipe.
struct Remote {
    fd: OwnedFd,
    gone: bool,
}

const GONE: u8 = 1;
const BROKEN: u8 = 2;
const PANIC: u8 = 3;

impl Link for Remote {
    fn caps(&self) -> LinkCaps {
        LinkCaps::default()
    }

    fn send(&mut self, _: &TxFrame<'_>) -> Result<(), NoCredit> {
        Ok(())
    }
}

impl GuestLink for Remote {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        Ok(poller.add(&self.fd, 0, EventFlags::IN | EventFlags::ET)?)
    }

    fn take(&mut self, _: &mut Batch<'_>) -> Result<Taken, FailedCall> {
        let failed = |errno: Errno| FailedCall { call: "readv", error: errno.into() };
        let mut bytes = [0];
        match rustix::io::read(&self.fd, &mut bytes) {
            Ok(1) => match bytes[0] {
                GONE => self.gone = true,
                PANIC => panic!("the link said so"),
                _ => return Err(failed(Errno::NOTRECOVERABLE)),
            },
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => return Err(failed(errno)),
        }
        Ok(Taken::All)
    }

    fn await_credit(&mut self, _: Poller<'_>, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn credit_wait(&self) -> Option<CreditWait> {
        None
    }

    fn forget_refusal(&mut self) {}

    fn gone(&self) -> bool {
        self.gone
    }
}

/// A network of so many workers, and the far ends of their links.
fn network(count: u32) -> (Network<Remote>, Vec<OwnedFd>) {
    let (links, ends): (Vec<_>, _) = (0..count)
        .map(|_| {
            let (fd, end) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).expect("pipe");
            (Remote { fd, gone: false }, end)
        })
        .unzip();
    (Network::builder().links(links).build().expect("network"), ends)
}

/// Runs three workers, one of which gets `byte` through its link.
fn run_three(number: usize, byte: u8) -> Result<Option<()>, NetworkError> {
    let (mut network, ends) = network(3);
    let (quiet, _end) = pipe_with(PipeFlags::CLOEXEC).expect("pipe");
    network.watch(quiet.as_fd(), 0).expect("watch");
    rustix::io::write(&ends[number], &[byte]).expect("pipe");
    network.run(|_| ControlFlow::Continue(()), &|_| {})
}

#[test]
fn the_end_of_one_is_the_end_of_all() {
    for number in 0..3 {
        assert!(matches!(run_three(number, GONE), Ok(None)), "worker {number}");
    }
}

#[test]
fn an_error_of_any_is_reported() {
    for number in 0..3 {
        let error = run_three(number, BROKEN).expect_err("broken").to_string();
        assert!(error.starts_with("readv: "), "worker {number}: {error}");
    }
}

#[test]
fn a_panic_of_any_goes_on_in_the_caller() {
    for number in 0..3 {
        let panic = std::panic::catch_unwind(|| run_three(number, PANIC)).expect_err("it panics");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"the link said so"), "worker {number}");
    }
}

#[test]
fn a_watched_descriptor_can_end_all() {
    for count in [1, 2, 4] {
        let (mut network, _ends) = network(count);
        let (signal, sender) = pipe_with(PipeFlags::CLOEXEC).expect("pipe");
        network.watch(signal.as_fd(), 5).expect("watch");
        rustix::io::write(&sender, &[0]).expect("pipe");
        let ended = network.run(
            |wake| match wake {
                Wake::Extra(tag) => ControlFlow::Break(tag),
                _ => ControlFlow::Continue(()),
            },
            &|_| {},
        );
        assert!(matches!(ended, Ok(Some(5))), "{ended:?}");
    }
}

#[test]
fn a_handle_answers_while_the_network_runs_and_stops_it() {
    let (network, _ends) = network(2);
    let running = network.spawn().expect("thread");
    assert_eq!(running.handle().reports().expect("both answer").len(), 2);
    assert!(running.handle().flows(FlowFilter::default()).expect("both answer").is_empty());
    let handle = running.handle().clone();
    running.stop().expect("no failure");
    assert_eq!(handle.reports().expect_err("nothing runs"), NoReply::Dropped);
}

#[test]
fn a_network_needs_a_link_and_a_loop_of_the_callers_only_one() {
    let none = Network::builder().links(Vec::<Remote>::new()).build();
    assert!(matches!(none, Err(NetworkError::NoLink)));
    let (mut two, _ends) = network(2);
    assert!(matches!(two.turn(), Err(NetworkError::SeveralWorkers)));
    let (mut one, ends) = network(1);
    assert!(one.turn().expect("turn").is_none());
    rustix::io::write(&ends[0], &[GONE]).expect("pipe");
    assert!(matches!(one.turn(), Ok(Some(Wake::GuestGone))));
}

/// Freezes a network of so many workers and saves it; the run ends with the callback.
fn freeze(count: u32) -> usize {
    let (mut network, _ends) = network(count);
    network.handle().freeze();
    let ended = network.run_after(
        || {},
        |_| ControlFlow::Continue(()),
        &|_| {},
        |all| {
            let mut all = all.expect("all are parked");
            let takeover = all.save().duplicate().expect("descriptors");
            assert!(takeover.descriptors.is_empty(), "there are no flows");
            ControlFlow::Break(crate::handover::records::parse(&takeover.bytes).expect("whole").workers.len())
        },
    );
    ended.expect("no failure").expect("the callback has ended it")
}

#[test]
fn all_workers_of_a_frozen_network_are_saved() {
    for count in [1, 2, 4] {
        assert_eq!(freeze(count), count as usize);
    }
}

/// A thaw ends the request, also one that came while the network was frozen; the workers answer again.
#[test]
fn a_thawed_network_answers() {
    let (mut network, _ends) = network(3);
    let handle = network.handle();
    let (to_caller, frozen) = sync_channel(1);
    thread::scope(|scope| {
        let asked = handle.clone();
        scope.spawn(move || {
            for _ in 0..20 {
                asked.freeze();
                let () = frozen.recv().expect("it was frozen");
                assert_eq!(asked.reports().expect("all answer").len(), 3);
            }
            asked.stop();
        });
        let ended = network.run_after(
            || {},
            |_| ControlFlow::<()>::Continue(()),
            &|_| {},
            |all| {
                assert!(all.is_ok());
                to_caller.send(()).expect("it waits");
                ControlFlow::Continue(())
            },
        );
        assert!(matches!(ended, Ok(None)));
    });
}

#[test]
fn a_frozen_network_can_be_stopped() {
    let (mut network, _ends) = network(2);
    let handle = network.handle();
    handle.freeze();
    let ended = network.run_after(
        || {},
        |_| ControlFlow::<()>::Continue(()),
        &|_| {},
        |_| {
            handle.stop();
            ControlFlow::Continue(())
        },
    );
    assert!(matches!(ended, Ok(None)), "{ended:?}");
}

/// Without a callback, and in a loop of the caller's, a request is over at once.
#[test]
fn a_freeze_without_a_taker_is_thawed() {
    let (network, _ends) = network(2);
    let running = network.spawn().expect("thread");
    running.handle().freeze();
    assert_eq!(running.handle().reports().expect("both answer").len(), 2);
    running.stop().expect("no failure");
    let (mut one, _ends) = self::network(1);
    one.handle().freeze();
    assert!(matches!(one.turn(), Ok(Some(Wake::Freeze))));
    assert!(matches!(one.turn(), Ok(None)));
}

#[test]
fn another_number_of_links_is_refused() {
    let (mut two, _ends) = network(2);
    let takeover = two.save().duplicate().expect("no descriptors");
    let (link, _end) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).expect("pipe");
    let one = Network::builder().link(Remote { fd: link, gone: false }).restore(takeover);
    let refused = one.map(drop).expect_err("two workers").to_string();
    assert_eq!(refused, "state of 2 workers, but there are 1 links");
}
