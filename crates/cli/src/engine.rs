//! The engine: the process that parses every byte of the guest and of the network, and has no rights.
//!
//! ```text
//! warden (the process that the user knows)      keeper            engine
//! options, signals, the command                 PID 1 of a        workers: TAP, stack, host sockets
//! listening sockets, files, control socket,     namespace;        one thread that answers requests and
//! metrics, flow log, resolv.conf                starts engines    passes events on
//!        |------------- requests, one line of JSON each -------------->|
//!        |<------------ records: ready, events, the end ---------------|
//!        |<------------ "open a listening socket" (descriptors) -------|
//! ```
//!
//! The warden makes the guest's interface and forks the keeper, which confines itself ([`brodo_sandbox`]) and
//! forks the engine. Both inherit a [`Launch`], the settings and descriptors that never change; what may
//! change while brodo runs (forwards, a capture, subscriptions) comes with each [`launch::Start`]. The engine
//! builds its network, starts its threads, seals itself (limits, list of system calls) and reports that it is
//! ready. No byte of the guest is read before that.
//!
//! *No rights.* The engine cannot open a file, listen, bind, make a process, or reach a namespace of the
//! guest otherwise than by the descriptors that it was given. Requests that need a right go to the warden,
//! which checks each request against what the user has allowed ([`crate::warden`]).
//!
//! *Its end.* When the engine ends, of whatever cause, the keeper reports its exit status, and the warden
//! decides whether it is started again.

pub(crate) mod answers;
mod arrivals;
mod ask;
mod capture;
pub(crate) mod exposition;
mod forwards;
pub(crate) mod handover;
pub(crate) mod launch;
mod link;
mod listen;
mod notices;
pub(crate) mod outbox;
mod policy;
mod recovery;
mod review;
mod system_calls;
mod view;

use crate::conversation::message::{Capturing, Ended, Names, PAUSE_MAX, Ready, Record};
use crate::failure::Failure;
use crate::flow_messages::Bounds;
use crate::report::Report;
use answers::{Answers, FirstReview};
use brodo_control::method::BulkCarrier;
use brodo_core::config::Config;
use brodo_link::FailedCall;
use brodo_net::capture::Capture;
use brodo_net::driver::Worker;
use brodo_net::host_network::HostNetwork;
use brodo_net::promotion::client::PromotionAgent;
use brodo_net::recovery::{JournalMemory, ReusedListeners};
use brodo_net::socket_broker::SocketBroker;
use brodo_net::sockets::raise_nofile;
use brodo_net::txqueuelen::TxQueueLenWatch;
use brodo_net::{FlowRecords, Frozen, Network, NetworkError, NotFrozen, Recording, TakenOver, Wake};
use brodo_sandbox::{Confinement, Limits, seal};
use handover::Freezing;
use launch::{GuestSide, Launch, Started};
use link::EngineLink;
use notices::Notices;
use outbox::{Item, Outbox};
use recovery::Found;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Private memory of an engine besides payload, in bytes: flows, sockets' buffers, captures. Beyond it the
/// kernel refuses memory, and the engine ends.
const DATA_BYTES: u64 = 512 << 20;
/// Private memory per byte of the payload budget; chunks are rounded up, and heaps fragment.
const DATA_PER_PAYLOAD: u64 = 4;

/// Length of a TAP's transmit queue where its maker has set none, in frames: the kernel's TUN_READQ_SIZE, or
/// twice as much.
const TAP_QUEUE_FRAMES: u32 = 500;

/// Time in which the warden ends an engine that has retired, after which it ends by itself.
const RETIRED_MAX: Duration = Duration::from_secs(10);

/// The engine's process, until its end; the exit status.
pub(super) fn run(launch: &Launch, started: Started, found: Found, mut report: brodo_sandbox::Report) -> i32 {
    let _ = rustix::thread::set_name(c"brodo-engine");
    let outbox = match Outbox::new(started.records) {
        Ok(outbox) => Arc::new(outbox),
        Err(_) => return 1,
    };
    report_panics(&outbox);
    let Started { start, requests, listen, broker, capture, handover, policy, agents, .. } = started;
    let channels = Channels { requests, listen, broker, handover, policy, agents };
    let built = build(launch, channels, found, start, capture, &outbox);
    let served = built.map(|engine| engine.serve(launch, &outbox, &mut report));
    let ended =
        served.unwrap_or_else(|failure| Ended { failure: Some(failure.to_string()), ..Ended::default() });
    // Without the warden there is no reader, and the kernel ends this process too.
    let _ = outbox.send(&Record::Ended(ended));
    0
}

/// Panics are reported to the warden: the standard error of an engine leads nowhere.
fn report_panics(outbox: &Arc<Outbox>) {
    let outbox = outbox.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let _ = outbox.send(&Record::Fault(panic.to_string()));
    }));
}

/// Descriptors of the conversations.
struct Channels {
    requests: OwnedFd,
    listen: OwnedFd,
    broker: Option<OwnedFd>,
    handover: Option<OwnedFd>,
    policy: Option<OwnedFd>,
    agents: Vec<OwnedFd>,
}

/// A network that is built and does not run yet, and the thread that answers requests about it.
struct Engine {
    network: Network<EngineLink>,
    /// Of the guest's interface, if it has one of ours.
    ring: Option<Arc<TxQueueLenWatch>>,
    notices: Arc<Notices>,
    answering: thread::JoinHandle<()>,
    freezing: Arc<Freezing>,
    /// The warden's word to begin, if this engine goes on with the state of another that still runs.
    begins: Option<Receiver<()>>,
    /// Flows of the engine before that go on, and that are to be reset.
    flows: (u64, u64),
    limit: u64,
}

/// The stack's settings: those of brodo's start, with what has changed since.
fn config_of(launch: &Launch, names: &Names, bulk: Option<BulkCarrier>) -> Config {
    let mut config = launch.config.clone();
    if launch.follow.resolvers {
        config.resolvers.clone_from(&names.resolvers);
    }
    if launch.follow.search {
        config.search.clone_from(&names.search);
    }
    if !launch.attached.side.is_made() {
        // The guest's own is learned; that of the settings is for monitors that give their machines none.
        config.guest_mac = None;
    }
    if let Some(carrier) = bulk {
        config.bulk = answers::bulk_of(carrier);
    }
    #[cfg(debug_assertions)]
    set_bulk_rate(&mut config);
    config
}

fn build(
    launch: &Launch,
    channels: Channels,
    mut found: Found,
    start: launch::Start,
    capture: Option<OwnedFd>,
    outbox: &Arc<Outbox>,
) -> Result<Engine, Failure> {
    let ring = ring_of(launch)?;
    let config = config_of(launch, &start.names, start.bulk);
    let asks = outbox.clone();
    let host = HostNetwork::asking(Box::new(move || asks.put(Item::CheckNames)), start.names.into())
        .map_err(|e| Failure::Io("follow the host's network: rtnetlink".into(), e.into()))?;
    let host = Arc::new(host);
    let broker = channels.broker.map(SocketBroker::on).transpose();
    let broker = broker.map_err(|e| Failure::Io("talk to the socket broker: ioctl".into(), e.into()))?;
    let agents = agents_on(channels.agents)?;
    let policy = config.rules.shared.clone();
    if let Some((file, policy)) = channels.policy.zip(policy.as_ref()) {
        // Before the first frame nothing waits for an answer.
        policy::set(policy, brodo_core::time::Instant::ZERO, file)?;
    }
    let capture = capture_of(launch, capture, start.capture.as_ref(), channels.handover.is_some())?;
    let (to, limit) = (outbox.clone(), raise_nofile());
    let position = found.memory.as_ref().and_then(JournalMemory::link_position);
    let recording = Recording { openings: start.record.openings, ends: start.record.ends };
    let builder = Network::builder()
        .config(config)
        .clock(launch.clock)
        .descriptors(limit)
        .busy_poll(launch.busy_poll)
        .processors(launch.processors)
        .socket_broker(broker)
        .promotion(agents)
        .open_listeners_by(ReusedListeners::of(&mut found.inherited).before(listen::opener(channels.listen)))
        .journal(found.memory)
        .ephemeral_ports(launch.ephemeral_ports.clone())
        .leave_out_inodes(&launch.attached.own_sockets)
        .forwards(start.forwards)
        .local_peers(launch.local_peers)
        .outbound(launch.outbound.clone())
        .host_network(host.clone(), launch.follow)
        .capture(capture.clone())
        .on_flow_records(recording, move |records| to.put(Item::Flows(records)));
    let builder = match &ring {
        Some(ring) => builder.tx_queue_len(ring.clone()),
        None => builder,
    };
    let notices = Arc::new(Notices::new(outbox.clone(), launch.clock));
    let builder = if start.after_crash {
        let notices = notices.clone();
        builder.on_refused_forward(move |error| notices.forward_refused(&error))
    } else {
        builder
    };
    let useless = found.inherited.take_useless();
    let builder = builder.links(link::links(launch, start.recover || channels.handover.is_some(), position)?);
    let (taken, begin_later) = match &channels.handover {
        None if !found.remains.is_empty() => {
            (builder.recover(&found.remains, found.inherited).map_err(network_failure)?, false)
        }
        None => {
            let network = builder.build().map_err(network_failure)?;
            (TakenOver { network, lost: 0, unclaimed: 0, unused: 0 }, false)
        }
        Some(from) => {
            handover::early::offer(from);
            let _ = outbox.send(&Record::Awaiting);
            let most = handover::Most { bytes: data_bytes(launch), descriptors: limit };
            let state = handover::receive(from, most)
                .map_err(Failure::io("go on with the state of another engine: recvmsg"))?;
            (builder.restore(state).map_err(network_failure)?, true)
        }
    };
    let TakenOver { network, lost, .. } = taken;
    let kept: usize = network.workers().iter().map(|worker| worker.stack().flows()).sum();
    let freezing = Arc::new(Freezing::default());
    let (begin, begins) = sync_channel(1);
    let begins = begin_later.then_some(begins);
    let answers = Answers {
        freezing: freezing.clone(),
        begin,
        workers: network.handle().workers().clone(),
        ring: ring.clone(),
        host: Some(host),
        policy,
        bounds: Bounds::of(&launch.config),
        interface: launch.interface.clone(),
        clock: launch.clock,
        capture,
        review: match (start.review, begin_later) {
            (false, _) => FirstReview::None,
            (true, false) => FirstReview::AtOnce,
            (true, true) => FirstReview::AfterGo,
        },
    };
    let answering = start_answering(answers, channels.requests, outbox.clone(), useless)?;
    let flows = (kept as u64, lost as u64);
    Ok(Engine { network, ring, notices, answering, freezing, begins, flows, limit })
}

/// Starts the thread that answers the warden, which closes descriptors of no use first.
fn start_answering(
    answers: Answers,
    requests: OwnedFd,
    outbox: Arc<Outbox>,
    useless: Vec<OwnedFd>,
) -> Result<thread::JoinHandle<()>, Failure> {
    let (arrival, arrived) = sync_channel(1);
    let body = move || {
        let _ = arrival.send(());
        drop(useless);
        answers.serve(requests, &outbox);
    };
    let answering = thread::Builder::new().name("answers".into()).spawn(body);
    let answering = answering.map_err(Failure::io("start the engine: clone"))?;
    // Its set-up by the C library takes system calls that are not allowed later.
    let _ = arrived.recv();
    Ok(answering)
}

/// Clients of the promotion agent on channels to it.
fn agents_on(channels: Vec<OwnedFd>) -> Result<Vec<PromotionAgent>, Failure> {
    let agents = channels.into_iter().map(PromotionAgent::on).collect::<Result<_, _>>();
    agents.map_err(|e| Failure::Io("talk to the promotion agent: ioctl".into(), e.into()))
}

/// The watch of the transmit queue, if the guest has an interface.
fn ring_of(launch: &Launch) -> Result<Option<Arc<TxQueueLenWatch>>, Failure> {
    let watch = match &launch.attached.side {
        GuestSide::Interface { watch: Some(watch), .. } => watch,
        GuestSide::Interface { .. } => {
            return Ok(Some(Arc::new(TxQueueLenWatch::of_length(TAP_QUEUE_FRAMES))));
        }
        GuestSide::Monitor { .. } => return Ok(None),
    };
    let watch = watch.try_clone().map_err(Failure::io("start the engine: dup"))?;
    let ring = TxQueueLenWatch::new(watch, &launch.interface)
        .map_err(|e| Failure::Io("watch the network interface: ioctl SIOCGIFINDEX".into(), e.into()))?;
    Ok(Some(Arc::new(ring)))
}

/// The capture in force, begun or gone on with.
fn capture_of(
    launch: &Launch,
    file: Option<OwnedFd>,
    wanted: Option<&Capturing>,
    goes_on: bool,
) -> Result<Option<Capture>, Failure> {
    let Some((file, wanted)) = file.map(File::from).zip(wanted) else { return Ok(None) };
    if goes_on {
        capture::go_on(file, wanted, launch.clock).map(Some)
    } else {
        capture::open(file, wanted, &launch.interface, launch.clock).map(Some)
    }
}

/// The least rate of bulk flows in tests, which know nothing of the machine's speed.
#[cfg(debug_assertions)]
fn set_bulk_rate(config: &mut Config) {
    let rate = std::env::var("BRODO_BULK_RATE").ok().and_then(|rate| rate.parse().ok());
    config.bulk_bounds.rate = rate.unwrap_or(config.bulk_bounds.rate);
}

/// Private memory of an engine, in bytes.
fn data_bytes(launch: &Launch) -> u64 {
    (launch.config.memory as u64).saturating_mul(DATA_PER_PAYLOAD).saturating_add(DATA_BYTES)
}

impl Engine {
    /// Serves the guest until its interface is gone or the warden asks for the end.
    fn serve(mut self, launch: &Launch, outbox: &Arc<Outbox>, report: &mut brodo_sandbox::Report) -> Ended {
        let limits = Limits { open_files: self.limit, data_bytes: data_bytes(launch) };
        let flows_max = self.network.flows_max() as u64;
        let (begins, (flows, flows_lost)) = (self.begins.take(), self.flows);
        let on_started = || {
            let Confinement { stages, on_violation, .. } = launch.confinement;
            seal(stages, &limits, &system_calls::engine(&launch.outbound), on_violation, report);
            brodo_sandbox::release_program_pages();
            let gaps = report.gaps().iter().map(|gap| (gap.stage.name().to_owned(), gap.reason.clone()));
            let _ = outbox.send(&Record::Ready(Ready { flows_max, gaps: gaps.collect(), flows, flows_lost }));
            if let Some(begins) = begins {
                // Without the thread that answers the warden, the warden has ended, and the kernel ends this.
                let _ = begins.recv();
            }
        };
        let notices = self.notices.clone();
        let on_wake = |wake: Wake| -> ControlFlow<()> {
            notices.publish(&wake);
            ControlFlow::Continue(())
        };
        let freezing = self.freezing.clone();
        let on_frozen = |frozen: Result<Frozen<'_, EngineLink>, NotFrozen>| {
            give_away(&freezing, frozen, outbox);
            ControlFlow::Continue(())
        };
        let served = self.network.run_after(on_started, on_wake, &|wake| notices.publish(&wake), on_frozen);
        let failure = served.map_err(network_failure).err().map(|failure| failure.to_string());
        for error in self.network.workers_mut().iter_mut().filter_map(Worker::finish_capture) {
            self.notices.capture_failed(&error);
        }
        outbox.close(self.last_ends(launch));
        // A panic there has been reported by its hook.
        let _ = self.answering.join();
        Ended { failure, report: Some(report_of(&mut self.network, self.ring.as_deref())) }
    }

    /// Records of all flows that are still open.
    fn last_ends(&self, launch: &Launch) -> Vec<Item> {
        let now = launch.clock.now();
        let of_worker = |(worker, of): (u32, &Worker<EngineLink>)| {
            let ends = of.stack().ends_at_shutdown(now).collect();
            Item::Flows(FlowRecords { worker, ends, ..FlowRecords::default() })
        };
        (0..).zip(self.network.workers()).map(of_worker).collect()
    }
}

/// Gives the state of a frozen engine to the next one; returns if this one goes on.
fn give_away(freezing: &Freezing, frozen: Result<Frozen<'_, EngineLink>, NotFrozen>, outbox: &Outbox) {
    let until = Instant::now() + PAUSE_MAX;
    let given = match (frozen, freezing.frozen()) {
        (Ok(mut frozen), Some(to)) => {
            let state = frozen.save_after(freezing.passed());
            handover::send(to.as_fd(), &state.bytes, &state.descriptors, until).is_ok()
        }
        _ => false,
    };
    if !given {
        return freezing.failed();
    }
    if freezing.is_to_retire(until) {
        // The warden ends this process; a reply to it may still be on its way.
        freezing.await_end(RETIRED_MAX);
        // Otherwise no engine serves. The keeper reports this end, and the warden has the next one go on with
        // the flows, after a crash. No other thread may carry a frame meanwhile.
        let fault = "it had retired, and no other engine began in its place";
        let _ = outbox.send(&Record::Fault(fault.to_owned()));
        std::process::exit(1);
    }
}

/// The counters at the end.
fn report_of(network: &mut Network<EngineLink>, ring: Option<&TxQueueLenWatch>) -> Report {
    ring.inspect(|ring| ring.look());
    let reports: Vec<_> = network.workers_mut().iter_mut().map(Worker::report).collect();
    Report::of(&reports, ring.map_or(0, TxQueueLenWatch::dropped))
}

/// The failure of a network in terms of the options.
fn network_failure(error: NetworkError) -> Failure {
    match error {
        NetworkError::Forward(error) => Failure::Forward(error),
        NetworkError::Io { call, error } => Failure::Io(call.to_owned(), error),
        NetworkError::Failed(FailedCall { call, error }) => {
            Failure::Io(format!("serve the network interface: {call}"), error)
        }
        other => Failure::Usage(other.to_string()),
    }
}
