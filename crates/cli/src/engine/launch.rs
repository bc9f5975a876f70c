//! The start of engines: settings that never change, and those that come with each start.
//!
//! [`Launch`] is inherited by fork: the warden fills it in before it makes the keeper, and nothing of it is
//! written or parsed. A [`Start`] is one message of the warden to the keeper, with the descriptors of the
//! conversations of one engine; it is data of the user's, not of the guest's. The keeper answers with the
//! exit status of that engine, and waits for the next start.

use super::recovery::{self, Found};
use super::system_calls;
use crate::conversation::forwards;
use crate::conversation::message::{Capturing, Names, Recorded};
use brodo_control::method::{AddForward, BulkCarrier};
use brodo_core::config::Config;
use brodo_core::memory::budget::WORKERS_MAX;
use brodo_link::socket::Framing;
use brodo_link::tap::Wanted;
use brodo_net::clock::Clock;
use brodo_net::fd_passing;
use brodo_net::forward::{Forward, LocalPeers};
use brodo_net::host_network::HostNetFollow;
use brodo_net::recovery::JournalSize;
use brodo_net::sockets::Outbound;
use brodo_netns::namespace::Made;
use brodo_sandbox::{Confinement, Keeper, Report, TcpBind, allow_only, enter};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::WaitIdStatus;
use serde::{Deserialize, Serialize};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Longest message of a start, in bytes: the texts of some hundred forwards.
const START_MAX: usize = 64 << 10;
/// Most of it for forwards and the filter of a capture, which may be changed at any time. The rest holds the
/// names of a resolv.conf (32 search names of 253 bytes, eight servers: 9 KiB) and the other settings.
const CHANGING_MAX: usize = START_MAX - (12 << 10);
/// Descriptors of a start: requests, records, listening sockets, and perhaps the broker's, a capture's, that
/// of a hand-over, that of a policy, and one to the promotion agent for each worker.
const DESCRIPTORS_MAX: usize = 7 + WORKERS_MAX as usize;

/// Settings and descriptors of every engine of this instance.
pub(crate) struct Launch {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) busy_poll: Duration,
    /// Processors: a confined engine cannot ask.
    pub(crate) processors: usize,
    /// Destination of connections from the host's loopback to published ports.
    pub(crate) local_peers: LocalPeers,
    /// Source of connections and datagrams to the outside.
    pub(crate) outbound: Outbound,
    pub(crate) follow: HostNetFollow,
    /// Ports that the host hands out to clients.
    pub(crate) ephemeral_ports: RangeInclusive<u16>,
    /// Name of the guest's interface.
    pub(crate) interface: String,
    pub(crate) offload: Wanted,
    pub(crate) attached: Attached,
    pub(crate) confinement: Confinement,
}

/// The way to the guest, and what engines are to know of the host's.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) side: GuestSide,
    /// Inodes of listening sockets of the warden's, which `auto` leaves out.
    pub(crate) own_sockets: Vec<u32>,
}

/// Descriptors of the way to the guest.
#[derive(Debug)]
pub(crate) enum GuestSide {
    /// An interface in the guest's namespace.
    Interface {
        /// Queues of the TAP, one for each worker.
        taps: Vec<OwnedFd>,
        /// Route socket of the guest's namespace; none of a TAP that brodo was started with.
        watch: Option<OwnedFd>,
    },
    /// The monitor of a virtual machine.
    Monitor {
        /// Channel by which its connections are requested and come ([`crate::vm`]).
        channel: OwnedFd,
        /// Protocol on them.
        protocol: MonitorProtocol,
        /// Number of workers.
        workers: usize,
    },
}

/// Protocol between brodo and a monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MonitorProtocol {
    /// Frames on the socket itself.
    Frames(Framing),
    /// vhost-user: frames in rings of the machine's memory, in so many pairs of them. Plain: without a
    /// channel for requests of brodo's, and without a configuration space.
    VhostUser { queues: usize, plain: bool },
    /// That, or frames behind their length, as each monitor's first bytes say.
    AsSpoken { queues: usize },
}

impl From<Made> for GuestSide {
    fn from(Made { taps, watch }: Made) -> Self {
        Self::Interface { taps, watch: Some(watch) }
    }
}

impl GuestSide {
    /// Whether the interface is brodo's own work, with properties that brodo has set.
    pub(crate) fn is_made(&self) -> bool {
        matches!(self, Self::Interface { watch: Some(_), .. })
    }

    /// Workers, one for each link.
    pub(crate) fn workers(&self) -> usize {
        match self {
            Self::Interface { taps, .. } => taps.len(),
            Self::Monitor { workers, .. } => *workers,
        }
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (queues, other) = match self {
            Self::Interface { taps, watch } => (taps.as_slice(), watch.as_ref()),
            Self::Monitor { channel, .. } => (&[][..], Some(channel)),
        };
        queues.iter().chain(other).map(AsFd::as_fd)
    }
}

/// The engine before one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// None, or one that hands over its flows.
    Orderly,
    /// Crashed; its flows go on or are lost.
    Crashed { flows_go_on: bool },
}

/// Settings of one engine: the state that the user has asked for up to now.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) forwards: Vec<Forward>,
    pub(crate) names: Names,
    pub(crate) record: Recorded,
    /// Options of the capture whose file is among the descriptors.
    pub(crate) capture: Option<Capturing>,
    /// Carrier of bulk flows, if it was changed.
    pub(crate) bulk: Option<BulkCarrier>,
    /// Whether it goes on with the flows of an engine that has crashed.
    pub(crate) recover: bool,
    /// Whether an engine has crashed before it, and its flows may be lost.
    pub(crate) after_crash: bool,
    /// Whether the open flows are to be judged: no engine before has confirmed that for the policy in force.
    pub(crate) review: bool,
}

/// A [`Start`] as text.
#[derive(Serialize, Deserialize)]
struct Written {
    forwards: Vec<AddForward>,
    names: Names,
    record: Recorded,
    capture: Option<Capturing>,
    broker: bool,
    #[serde(default)]
    handover: bool,
    #[serde(default)]
    policy: bool,
    /// Channels to the promotion agent.
    #[serde(default)]
    agents: usize,
    #[serde(default)]
    bulk: Option<BulkCarrier>,
    #[serde(default)]
    recover: bool,
    #[serde(default)]
    after_crash: bool,
    #[serde(default)]
    review: bool,
}

/// Descriptors that the warden passes to one engine.
pub(crate) struct Passed<'a> {
    pub(crate) requests: BorrowedFd<'a>,
    pub(crate) records: BorrowedFd<'a>,
    pub(crate) listen: BorrowedFd<'a>,
    pub(crate) broker: Option<BorrowedFd<'a>>,
    pub(crate) capture: Option<BorrowedFd<'a>>,
    /// The socket from which the state of another engine comes, if it goes on with one.
    pub(crate) handover: Option<BorrowedFd<'a>>,
    /// The policy in force, as a file in memory, if it was changed.
    pub(crate) policy: Option<BorrowedFd<'a>>,
    /// Channels to the promotion agent, one for each worker or none.
    pub(crate) agents: &'a [OwnedFd],
}

/// A start as the engine gets it.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) start: Start,
    pub(crate) requests: OwnedFd,
    pub(crate) records: OwnedFd,
    pub(crate) listen: OwnedFd,
    pub(crate) broker: Option<OwnedFd>,
    pub(crate) capture: Option<OwnedFd>,
    pub(crate) handover: Option<OwnedFd>,
    pub(crate) policy: Option<OwnedFd>,
    pub(crate) agents: Vec<OwnedFd>,
}

impl Started {
    /// All descriptors that came with it.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let Self { start: _, requests, records, listen, broker, capture, handover, policy, agents } = self;
        let always = [requests, records, listen].into_iter();
        always.chain(broker).chain(capture).chain(handover).chain(policy).chain(agents).map(AsFd::as_fd)
    }
}

/// Whether a start holds these forwards and another, with the filter of a capture: after a change beyond that
/// the next crash of an engine would end brodo.
pub(crate) fn holds(forwards: &[Forward], another: Option<&Forward>, filter: Option<&str>) -> bool {
    // With the comma after each.
    let length = |text: serde_json::Result<Vec<u8>>| text.map_or(usize::MAX, |text| text.len() + 1);
    let each =
        forwards.iter().chain(another).map(|forward| length(serde_json::to_vec(&forwards::request(forward))));
    let all = each.chain([length(serde_json::to_vec(&filter))]).fold(0, usize::saturating_add);
    all <= CHANGING_MAX
}

/// Asks the keeper for an engine, without waiting for room: a keeper in order reads a start before the next
/// one is sent, but an engine that was taken over can write reports of ends into the keeper's socket.
///
/// # Errors
/// The keeper has ended or reads no starts, or there are more forwards than a message holds.
pub(crate) fn send_start(keeper: &OwnedFd, start: Start, passed: &Passed<'_>) -> io::Result<()> {
    let written = Written {
        forwards: start.forwards.iter().map(forwards::request).collect(),
        names: start.names,
        record: start.record,
        capture: start.capture,
        broker: passed.broker.is_some(),
        handover: passed.handover.is_some(),
        policy: passed.policy.is_some(),
        agents: passed.agents.len(),
        bulk: start.bulk,
        recover: start.recover,
        after_crash: start.after_crash,
        review: start.review,
    };
    let text = serde_json::to_vec(&written)?;
    if text.len() > START_MAX {
        return Err(Errno::MSGSIZE.into());
    }
    let Passed { requests, records, listen, broker, capture, handover, policy, agents } = passed;
    let always = [*requests, *records, *listen];
    let some = always.into_iter().chain(*broker).chain(*capture).chain(*handover);
    let descriptors: Vec<_> = some.chain(*policy).chain(agents.iter().map(AsFd::as_fd)).collect();
    Ok(fd_passing::send(keeper, &text, &descriptors, SendFlags::DONTWAIT).map(drop)?)
}

/// In the keeper: the next start; `None` when the warden has ended the conversation.
fn receive_start(warden: &OwnedFd) -> Option<(Written, Vec<OwnedFd>)> {
    let mut text = vec![0; START_MAX];
    let received = fd_passing::receive(warden, &mut text, DESCRIPTORS_MAX, RecvFlags::empty()).ok()?;
    Some((serde_json::from_slice(text.get(..received.length)?).ok()?, received.descriptors))
}

/// In the engine: its start from the message, with descriptors of its own.
fn started(written: &Written, descriptors: &[OwnedFd]) -> Option<Started> {
    let mut copies = descriptors.iter().map(|fd| fd.try_clone().ok());
    let mut next = || copies.next().flatten();
    let forwards =
        written.forwards.iter().map(|wanted| forwards::parse(wanted).ok()).collect::<Option<_>>()?;
    let start = Start {
        forwards,
        names: written.names.clone(),
        record: written.record,
        capture: written.capture.clone(),
        bulk: written.bulk,
        recover: written.recover,
        after_crash: written.after_crash,
        review: written.review,
    };
    let (requests, records, listen) = (next()?, next()?, next()?);
    let broker = if written.broker { Some(next()?) } else { None };
    let capture = if written.capture.is_some() { Some(next()?) } else { None };
    let handover = if written.handover { Some(next()?) } else { None };
    let policy = if written.policy { Some(next()?) } else { None };
    let agents = (0..written.agents).map(|_| next()).collect::<Option<_>>()?;
    Some(Started { start, requests, records, listen, broker, capture, handover, policy, agents })
}

/// The keeper: confines itself, then starts engines one after the other as the warden asks.
///
/// An engine leaves its descriptors behind, whatever its end; the next one takes what it goes on with, and
/// closes the rest ([`super::recovery`]).
pub(crate) fn keep_engines(launch: &Launch, warden: &OwnedFd, mut report: Report) -> i32 {
    // Without it a crash resets the flows.
    let size = JournalSize {
        flows: launch.config.max_flows,
        workers: launch.attached.side.workers(),
        memory: launch.config.memory,
    };
    let journal = recovery::journal(size).ok();
    let kept: Vec<_> = launch
        .attached
        .side
        .descriptors()
        .chain([warden.as_fd()])
        .chain(journal.iter().map(AsFd::as_fd))
        .collect();
    let bind = if launch.outbound.binds() { TcpBind::PortZero } else { TcpBind::Denied };
    let Confinement { stages, on_violation, .. } = launch.confinement;
    enter(stages, &kept, bind, &mut report);
    let _ = rustix::thread::set_name(c"brodo-keeper");
    allow_only(stages, &system_calls::keeper(&launch.outbound), on_violation, &mut report);
    let (mut keeper, mut first) = (Keeper::default(), true);
    while let Some((written, descriptors)) = receive_start(warden) {
        // Numbers of a table that is the engine's too, where the next one may have closed them.
        let descriptors = ManuallyDrop::new(descriptors);
        let engine = || {
            let Some(started) = started(&written, &descriptors) else { return 1 };
            let found = if first {
                Found::none(journal.as_ref(), size)
            } else {
                let own: Vec<_> = kept.iter().copied().chain(started.descriptors()).collect();
                Found::of(journal.as_ref(), size, started.start.recover, &own)
            };
            super::run(launch, started, found, report.clone())
        };
        let Ok(status) = keeper.keep(engine) else { return 1 };
        first = false;
        if rustix::net::send(warden, &raw_status(status).to_ne_bytes(), SendFlags::NOSIGNAL).is_err() {
            return 0;
        }
    }
    0
}

/// The end of a process: the number of a signal below zero, else the exit status.
fn raw_status(status: WaitIdStatus) -> i32 {
    match (status.terminating_signal(), status.exit_status()) {
        (Some(signal), _) => -signal,
        (None, status) => status.unwrap_or_default(),
    }
}

/// The end of an engine as the keeper reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// With this exit status.
    Status(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// Receives a report; `None` if the keeper has ended.
    pub(crate) fn receive(keeper: &OwnedFd) -> Option<Self> {
        let mut bytes = [0; 4];
        match rustix::io::retry_on_intr(|| rustix::net::recv(keeper, &mut bytes[..], RecvFlags::empty())) {
            Ok((4, 4)) => Some(match i32::from_ne_bytes(bytes) {
                signal if signal < 0 => Self::Signal(-signal),
                status => Self::Status(status),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::lines;
    use brodo_net::forward::{ForwardDirection, Transport};
    use rustix::net::SocketType;
    use std::sync::mpsc::channel;
    use std::thread;

    fn start() -> Start {
        Start {
            forwards: Vec::new(),
            names: Names::default(),
            record: Recorded::default(),
            capture: None,
            bulk: None,
            recover: true,
            after_crash: true,
            review: false,
        }
    }

    fn passed(descriptor: BorrowedFd<'_>) -> Passed<'_> {
        let (requests, records, listen) = (descriptor, descriptor, descriptor);
        let (broker, capture, handover, policy) = (None, None, None, None);
        Passed { requests, records, listen, broker, capture, handover, policy, agents: &[] }
    }

    /// Names of the most and longest that a resolv.conf gives, beside forwards that just fit.
    #[test]
    fn a_start_holds_what_the_changes_are_checked_for() {
        let wanted = |port| Forward {
            direction: ForwardDirection::In,
            transport: Transport::Udp,
            spec: format!("[2001:db8:1234:5678:9abc:def0:1234:{port:x}]/{port}:80").parse().expect("a port"),
        };
        let filter = "x".repeat(1000);
        let mut forwards: Vec<_> = (10_000..11_000).map(wanted).collect();
        while !holds(&forwards, None, Some(&filter)) {
            forwards.pop();
        }
        let resolver = "[2001:db8:1234:5678:9abc:def0:1234:5678%4294967295]:53".parse().expect("an address");
        let names = Names { resolvers: vec![resolver; 8], search: vec!["x".repeat(253); 32] };
        let capture = Some(Capturing { filter: Some(filter) });
        let (count, start) = (forwards.len(), Start { forwards, names, capture, ..start() });
        let (keeper, read) = lines::pair(SocketType::SEQPACKET).expect("a pair");
        let some = keeper.as_fd();
        let passed = Passed { capture: Some(some), broker: Some(some), policy: Some(some), ..passed(some) };
        send_start(&keeper, start, &passed).expect("room");
        let mut text = vec![0; 2 * START_MAX];
        let (sent, _) = rustix::net::recv(&read, &mut text[..], RecvFlags::empty()).expect("a start");
        assert!(count > 400 && sent <= START_MAX, "{count} forwards, {sent} bytes");
    }

    /// A keeper that waits for its engine reads no start; reports of ends may be an engine's own work.
    #[test]
    fn starts_that_no_keeper_reads_are_refused() {
        let (keeper, _unread) = lines::pair(SocketType::SEQPACKET).expect("a pair");
        let (done, refused) = channel();
        // A thread, so that a start that waits for ever fails the test.
        thread::spawn(move || {
            let passed = passed(keeper.as_fd());
            let refused = (0..100_000).find_map(|_| send_start(&keeper, start(), &passed).err());
            done.send(refused)
        });
        let refused = refused.recv_timeout(Duration::from_secs(20)).expect("it does not wait");
        let errno = refused.as_ref().and_then(Errno::from_io_error);
        assert_eq!(errno, Some(Errno::AGAIN), "{refused:?}");
    }
}
