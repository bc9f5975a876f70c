//! The first worker to end ends all, in every way of ending, and the reason is reported.

use super::*;
use brodo_core::link::{Link, LinkCaps, NoCredit, TxFrame};
use brodo_link::batch::Batch;
use brodo_link::poller::Poller;
use brodo_link::{CreditWait, EventFlags, Taken};
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::OwnedFd;

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
