//! Faults of the kernel's, made on purpose. Calls are refused by a filter (seccomp), which no process sheds:
//! every test has a process of its own.

use crate::bed::{Bed, Circumstances, eager};
use crate::flows::capture;
use crate::transfer::{during_transfers, there_and_back};
use brodo_core::config::Bulk;
use brodo_core::counters::Counters;
use brodo_core::flow::end::EndCause;
use brodo_net::netlink::nftables::{Batch, Nftables};
use brodo_net::promotion::client::PromotionAgent;
use brodo_netns::setup::{SetupError, Step};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};

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
    fn everywhere(&self) {
        seccompiler::apply_filter(&self.filter()).expect("seccomp");
    }

    /// From now on to all threads of this process: not to the agent, which is there already.
    fn of_the_driver(&self) {
        seccompiler::apply_filter_all_threads(&self.filter()).expect("seccomp");
    }
}

/// Transfers both ways of which no flow gets a kernel socket, for a reason that is counted.
fn stays_with_the_stack(bed: Bed, reason: impl Fn(&Counters) -> u64) {
    during_transfers(&bed, || bed.until("the reason is counted", |counters| reason(counters) > 0));
    bed.until("the ends are recorded", |_| bed.causes().len() == 2);
    let counters = bed.counters();
    assert_eq!(counters.promoted_bytes, 0, "{counters:?}");
    assert_eq!(bed.causes(), [EndCause::Finished; 2]);
    bed.end();
}

/// A kernel without nf_tables.
pub(crate) fn netfilter_missing() {
    let call = libc::SYS_socket;
    let arguments = &[(0, libc::AF_NETLINK), (2, libc::NETLINK_NETFILTER)];
    Refused { call, arguments, errno: Errno::PROTONOSUPPORT }.everywhere();
    let agent = |agent: Result<_, SetupError>| {
        let error = agent.expect_err("no agent");
        assert_eq!((error.step, error.errno), (Step::OpenNetfilter, Errno::PROTONOSUPPORT));
        None
    };
    let bed = Bed::under(Circumstances { agent, ..Circumstances::default() });
    stays_with_the_stack(bed, |counters| counters.promotions_refused_unsupported);
}

/// Fills the egress hook of the interface in the namespace of a process: a chain more is refused when it
/// comes to its hook, as by a kernel without the hook (CONFIG_NETFILTER_EGRESS).
fn fill_hook(process: u32) {
    // MAX_HOOK_COUNT of the kernel's netfilter.
    const CHAINS_MAX: usize = 1024;
    let chain = |number| format!("  chain c{number} {{ type filter hook egress device eth0 priority 1; }}\n");
    let table = format!("table netdev others {{\n{}}}\n", (0..CHAINS_MAX).map(chain).collect::<String>());
    let mut inside = Command::new("nsenter");
    inside.args(["-t", &process.to_string(), "-n", "nft", "-f", "-"]).stdin(Stdio::piped());
    let mut inside = inside.spawn().unwrap();
    inside.stdin.take().unwrap().write_all(table.as_bytes()).unwrap();
    assert!(inside.wait().unwrap().success());
}

/// The reason is known from the start, and not at the first promotion.
pub(crate) fn hook_missing() {
    let agent = |agent: Result<_, SetupError>| {
        let error = agent.expect_err("no agent");
        assert_eq!((error.step, error.errno), (Step::Steering, Errno::TOOBIG));
        assert!(error.to_string().contains("egress hook"), "{error}");
        None
    };
    let bed = Bed::under(Circumstances { before: fill_hook, agent, ..Circumstances::default() });
    stays_with_the_stack(bed, |counters| counters.promotions_refused_unsupported);
}

pub(crate) fn steering_missing() {
    let bed = Bed::new(65_520, eager());
    bed.in_guest(|| Nftables::open().unwrap().commit(Batch::new("eth0-bulk").delete_table()).unwrap());
    stays_with_the_stack(bed, |counters| counters.promotions_refused_steering);
}

pub(crate) fn repair_refused() {
    let arguments = &[(1, libc::IPPROTO_TCP), (2, libc::TCP_REPAIR)];
    Refused { call: libc::SYS_setsockopt, arguments, errno: Errno::PERM }.everywhere();
    let agent = |agent: Result<_, SetupError>| {
        let error = agent.expect_err("no agent");
        assert_eq!((error.step, error.errno), (Step::RepairMode, Errno::PERM));
        None
    };
    let bed = Bed::under(Circumstances { agent, ..Circumstances::default() });
    stays_with_the_stack(bed, |counters| counters.promotions_refused_unsupported);
}

/// A kernel that makes a socket, and does not give it the state of a connection.
pub(crate) fn seed_refused() {
    let arguments = &[(1, libc::IPPROTO_TCP), (2, libc::TCP_REPAIR_WINDOW)];
    Refused { call: libc::SYS_setsockopt, arguments, errno: Errno::PERM }.everywhere();
    stays_with_the_stack(Bed::new(65_520, eager()), |counters| counters.promotions_refused_socket);
}

pub(crate) fn no_pipe_of_the_process() {
    without_pipes(Errno::MFILE);
}

pub(crate) fn no_pipe_of_the_system() {
    without_pipes(Errno::NFILE);
}

fn without_pipes(errno: Errno) {
    let bed = Bed::new(65_520, eager());
    Refused { call: libc::SYS_pipe2, arguments: &[], errno }.of_the_driver();
    stays_with_the_stack(bed, |counters| counters.promotions_refused_resources);
}

pub(crate) fn no_room_in_the_channel() {
    without_requests(Errno::AGAIN);
}

pub(crate) fn no_memory_in_the_channel() {
    without_requests(Errno::NOBUFS);
}

fn without_requests(errno: Errno) {
    let bed = Bed::new(65_520, eager());
    let [(_, channel)] = bed.channels[..] else { panic!("one worker") };
    Refused { call: libc::SYS_sendmsg, arguments: &[(0, channel)], errno }.of_the_driver();
    stays_with_the_stack(bed, |counters| counters.promotions_refused_broker);
}

/// The kernel socket is made, and cannot be spliced.
pub(crate) fn no_copy_of_a_socket() {
    let bed = Bed::new(65_520, eager());
    let arguments = &[(1, libc::F_DUPFD_CLOEXEC)];
    Refused { call: libc::SYS_fcntl, arguments, errno: Errno::MFILE }.of_the_driver();
    stays_with_the_stack(bed, |counters| counters.promotions_recalled_resources);
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
    there_and_back(&mut guest, &mut host, &mut [7; 16 << 10]);
    kill_process(agent, Signal::CONT).unwrap();
    bed.until("it comes back", |counters| counters.promotions_returned == 1);
    there_and_back(&mut guest, &mut host, &mut [7; 16 << 10]);
    drop((guest, host));
    bed.end();
}

/// A kernel that has no memory for a filter: the flow cannot be frozen, and goes on where it is.
pub(crate) fn freeze_refused() {
    let arguments = &[(1, libc::SOL_SOCKET), (2, libc::SO_ATTACH_FILTER)];
    Refused { call: libc::SYS_setsockopt, arguments, errno: Errno::NOMEM }.everywhere();
    let bed = Bed::new(65_520, eager());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut guest, mut host) = bed.promoted_pair(&listener);
    assert_eq!(bed.running.handle().set_bulk(Bulk::Tap), Ok(true));
    bed.until("it is asked for again", |counters| counters.promotions_recalled_settings > 2);
    assert_eq!(bed.running.handle().set_bulk(Bulk::Kernel), Ok(true));
    bed.until_carried(1);
    let moved = bed.counters().promoted_bytes;
    there_and_back(&mut guest, &mut host, &mut [7; 16 << 10]);
    let counters = bed.counters();
    assert_eq!((counters.promotions_returned, counters.promotions_broken), (0, 0));
    assert!(counters.promoted_bytes > moved, "{counters:?}");
    drop((guest, host));
    bed.end();
}
