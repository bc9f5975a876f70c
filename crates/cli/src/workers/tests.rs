//! Several workers end together, whichever ends first and however, and what ended them is told.

use super::*;
use brodo_core::config::Config;
use brodo_core::link::{Link, LinkCaps, NoCredit, TxFrame};
use brodo_core::memory::budget::Budget;
use brodo_core::stack::{Keys, Stack};
use brodo_link::batch::Batch;
use brodo_link::poller::Poller;
use brodo_link::{CreditWait, EventFlags, FailedCall, Taken};
use brodo_net::clock::Clock;
use brodo_net::driver::Parts;
use brodo_net::sockets::Sockets;
use brodo_net::workers::WorkerHandle;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;

/// A link that does what a byte through its pipe says.
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

fn no_notices() -> Notices {
    Notices::new(Arc::new(EventBus::new(Clock::start())))
}

/// Workers of one program, and the far ends of their links.
fn workers(count: u32) -> (Vec<Worker<Remote>>, Arc<Workers>, Vec<OwnedFd>) {
    let workers = Arc::new(Workers::new(count).expect("eventfd"));
    let budget = Arc::new(Budget::new(1 << 20));
    let (loops, ends) = (0..count)
        .map(|number| {
            let (fd, end) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).expect("pipe");
            let keys = Keys { table: [1; 16], isn: [2; 16], dns: [3; 16] };
            let caps = LinkCaps::default();
            let stack = Stack::sharing(Config::default(), keys, caps, budget.clone(), number);
            let sockets = Sockets::new().expect("epoll");
            let link = Remote { fd, gone: false };
            let handle = WorkerHandle::new(workers.clone(), number).expect("one of them");
            let parts = Parts::new(stack, link, sockets, Clock::start(), handle);
            (Worker::new(parts).expect("worker"), end)
        })
        .unzip();
    (loops, workers, ends)
}

/// Runs three workers of which one is told a byte; the first watches a descriptor that is never readable.
fn told(number: usize, byte: u8) -> Result<Option<()>, Failure> {
    let (mut loops, workers, ends) = workers(3);
    let (quiet, _end) = pipe_with(PipeFlags::CLOEXEC).expect("pipe");
    loops[0].watch(&quiet, 0).expect("watch");
    rustix::io::write(&ends[number], &[byte]).expect("pipe");
    run(&mut loops, &workers, &no_notices(), || Ok(ControlFlow::Continue(())))
}

#[test]
fn the_end_of_one_is_the_end_of_all() {
    for number in 0..3 {
        assert!(matches!(told(number, GONE), Ok(None)), "worker {number}");
    }
}

#[test]
fn an_error_of_any_is_told() {
    for number in 0..3 {
        let told = told(number, BROKEN).expect_err("broken").to_string();
        assert!(told.contains("serve the network interface: readv: "), "worker {number}: {told}");
    }
}

#[test]
fn a_panic_of_any_goes_on_in_the_caller() {
    for number in 0..3 {
        let panic = std::panic::catch_unwind(|| told(number, PANIC)).expect_err("it panics");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"the link said so"), "worker {number}");
    }
}

#[test]
fn the_callers_word_ends_all() {
    for count in [1, 2, 4] {
        let (mut loops, workers, _ends) = workers(count);
        let (signal, sender) = pipe_with(PipeFlags::CLOEXEC).expect("pipe");
        loops[0].watch(&signal, 0).expect("watch");
        rustix::io::write(&sender, &[0]).expect("pipe");
        let result = run(&mut loops, &workers, &no_notices(), || Ok(ControlFlow::Break(7)));
        assert!(matches!(result, Ok(Some(7))), "{result:?}");
    }
}
