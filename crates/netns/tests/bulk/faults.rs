//! Faults of the kernel's, made on purpose. Calls are refused by a filter (seccomp), which no process sheds:
//! every test has a process of its own.

use crate::bed::{Bed, eager};
use crate::flows::capture;
use crate::transfer::there_and_back;
use brodo_core::config::Bulk;
use brodo_net::promotion::client::PromotionAgent;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::fs::File;
use std::net::TcpListener;

/// A system call with these values of 32 bits among its arguments, by their positions.
struct Refused<'a> {
    call: libc::c_long,
    arguments: &'a [(u8, i32)],
    errno: Errno,
}

impl Refused<'_> {
    fn filter(&self) -> BpfProgram {
        let is = |&(position, value): &(u8, i32)| {
            let value = value.cast_unsigned().into();
            SeccompCondition::new(position, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
        };
        let filter = || -> Result<BpfProgram, BackendError> {
            let conditions = self.arguments.iter().map(is).collect::<Result<Vec<_>, _>>()?;
            // No rule is one for every call.
            let rule = (!self.arguments.is_empty()).then(|| SeccompRule::new(conditions)).transpose()?;
            let rules = [(self.call, rule.into_iter().collect())].into();
            let refusal = SeccompAction::Errno(self.errno.raw_os_error().cast_unsigned());
            let architecture = std::env::consts::ARCH.try_into()?;
            SeccompFilter::new(rules, SeccompAction::Allow, refusal, architecture)?.try_into()
        };
        filter().expect("a filter")
    }

    /// From now on to this thread and all that come from it, the agent included.
    fn from_the_start(&self) {
        seccompiler::apply_filter(&self.filter()).expect("seccomp");
    }
}

/// An agent that takes no requests, until their channel is full: a flow that is to come back stays with the
/// kernel, and comes back as soon as that can be asked for.
pub(crate) fn freeze_not_sent() {
    let bed = Bed::new(65_520, eager());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut guest, mut host) = bed.promoted_pair(&listener);
    let agent = bed.agent.as_ref().and_then(PromotionAgent::process).unwrap();
    kill_process(agent, Signal::STOP).unwrap();
    let mut other = PromotionAgent::on(bed.channels[0].0.try_clone().unwrap()).unwrap();
    let file = File::open("/proc/self/exe").unwrap();
    // Of requests about no socket of its own the agent takes no notice.
    while other.adopt(file.as_fd()).is_ok() {}
    assert!(!other.is_gone());
    capture(&bed, "tcp");
    bed.until("it is asked for again", |counters| counters.promotions_recalled_capture > 5);
    let counters = bed.counters();
    assert_eq!((counters.promotions_returned, counters.promotions_broken), (0, 0));
    there_and_back(&mut guest, &mut host, &mut [7; 64 << 10]);
    kill_process(agent, Signal::CONT).unwrap();
    bed.until("it comes back", |counters| counters.promotions_returned == 1);
    there_and_back(&mut guest, &mut host, &mut [7; 64 << 10]);
    drop((guest, host));
    bed.end();
}

/// A kernel that has no memory for a filter: the flow cannot be frozen, and goes on where it is.
pub(crate) fn freeze_refused() {
    let arguments = &[(1, libc::SOL_SOCKET), (2, libc::SO_ATTACH_FILTER)];
    Refused { call: libc::SYS_setsockopt, arguments, errno: Errno::NOMEM }.from_the_start();
    let bed = Bed::new(65_520, eager());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut guest, mut host) = bed.promoted_pair(&listener);
    assert_eq!(bed.running.handle().set_bulk(Bulk::Tap), Ok(true));
    bed.until("it is asked for again", |counters| counters.promotions_recalled_settings > 2);
    assert_eq!(bed.running.handle().set_bulk(Bulk::Kernel), Ok(true));
    bed.until_carried(1);
    let moved = bed.counters().promoted_bytes;
    there_and_back(&mut guest, &mut host, &mut [7; 64 << 10]);
    let counters = bed.counters();
    assert_eq!((counters.promotions_returned, counters.promotions_broken), (0, 0));
    assert!(counters.promoted_bytes > moved, "{counters:?}");
    drop((guest, host));
    bed.end();
}
