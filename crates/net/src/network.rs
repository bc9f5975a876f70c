//! One guest's network as a value: links, rules and forwards in, workers out, run by brodo's own threads or
//! by the caller's loop.
//!
//! Theory of operation. A [`Builder`] takes one link per worker and the shared settings, checks them, and
//! makes a [`Network`]. It runs in one of three ways:
//!
//! * [`Network::run`]: the first worker on the calling thread, every other on a thread of its own, until the
//!   guest is gone, the caller breaks, or [`Handle::stop`];
//! * [`Network::spawn`]: the same on a new thread;
//! * the caller's own loop, for one worker: wait until [`Network::descriptor`] is readable or
//!   [`Network::timeout`] has passed, then call [`Network::turn`].
//!
//! A [`Handle`] reaches the workers from any thread meanwhile. The library prints nothing, installs no signal
//! handler, changes no resource limit and reads no file but the resolver configuration that it is given.
//!
//! Shared by several workers, and each worker's own:
//!
//! | | |
//! |---|---|
//! | connections, datagram flows, timers, sockets, sequence numbers | each its own, see [`crate::workers`] |
//! | memory for payload | one budget |
//! | owners of flows | one table; a frame that comes to another worker is passed on |
//! | UDP ports of the guest on the host | one table, because a port's flows may be of several workers |
//! | number of flows | divided: a guest that aims at one worker gets that one's part |
//! | the guest's MAC address | learned by each from the first frame it gets, before it answers |
//! | ARP, neighbour discovery, DHCP, echo to brodo | stateless: the worker that gets the request answers |
//! | router advertisements | sent at intervals by each worker that got a solicitation |
//! | the host's network and resolvers | one subscription; each worker acts on a change at its next turn |
//! | DNS queries, their cache, names learnt | each its own; the cache's memory is divided |
//! | capture | one file |
//! | forwarded ports, and flows that begin there | the first worker's |
//! | counters | each its own, added up by the reader |

mod forwards;
mod handover;
mod recovery;
mod run;

use crate::capture::Capture;
use crate::clock::Clock;
use crate::command::{Command, FlowFilter, FlowReport, ForwardRefusal, ForwardReport};
use crate::command::{NoReply, ReplyTo, WorkerReport};
use crate::descriptors::{Descriptors, Needs};
use crate::driver::{Listener, Parts, Promoting, Wake, Worker};
use crate::ephemeral_ports;
use crate::forward::{self, Forward, ForwardError, Forwards, Guest, LocalPeers, Opener};
use crate::handover::RestoreFailure;
use crate::host_network::{HostNetFollow, HostNetwork};
use crate::processors::processors;
use crate::promotion::client::PromotionAgent;
use crate::recovery::JournalMemory;
use crate::secret::secret;
use crate::socket_broker::SocketBroker;
use crate::sockets::{Outbound, Sockets, UdpPorts};
use crate::txqueuelen::TxQueueLenWatch;
use crate::workers::{WorkerHandle, Workers};
use brodo_core::config::{Bulk, Config};
use brodo_core::flow::end::{FlowEnd, LostRecords};
use brodo_core::flow::info::FlowInfo;
use brodo_core::flow::owners::FlowOwners;
use brodo_core::journal::carried::DriverJournal;
use brodo_core::memory::budget::{Budget, WORKERS_MAX};
use brodo_core::memory::payload::PayloadMemory;
use brodo_core::policy::Rules;
use brodo_core::stack::{Keys, Stack};
use brodo_core::time::Instant;
use brodo_link::{FailedCall, GuestLink};
pub use handover::{Frozen, TakenOver};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::{ControlFlow, RangeInclusive};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Reason why a network could not be built or has failed; each names the system call.
#[derive(Debug)]
pub enum NetworkError {
    /// No link was given.
    NoLink,
    /// More links than [`WORKERS_MAX`].
    TooManyLinks(usize),
    /// A system call failed.
    Io {
        /// Purpose of the call, then its name: "wake workers: eventfd".
        call: &'static str,
        /// Error of the call.
        error: io::Error,
    },
    /// The loop or a link failed for good.
    Failed(FailedCall),
    /// A forward could not be put in force.
    Forward(ForwardError),
    /// [`Network::turn`] serves one worker; with several links use [`Network::run`] or [`Network::spawn`].
    SeveralWorkers,
    /// Nothing of a hand-over can be restored.
    Restore(RestoreFailure),
}

impl NetworkError {
    /// An error of this call, for `map_err`.
    fn io<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::Io { call, error: error.into() }
    }
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLink => f.write_str("a network needs a link: Builder::link"),
            Self::TooManyLinks(links) => write!(f, "{links} links, but at most {WORKERS_MAX} workers"),
            Self::Io { call, error } => write!(f, "{call}: {error}"),
            Self::Failed(error) => error.fmt(f),
            Self::Forward(error) => error.fmt(f),
            Self::Restore(failure) => failure.fmt(f),
            Self::SeveralWorkers => f.write_str("a caller's own loop serves one link: use run or spawn"),
        }
    }
}

impl std::error::Error for NetworkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Flows that began and ended on one worker in one turn.
#[derive(Debug, Clone, Default)]
pub struct FlowRecords {
    /// Number of the worker.
    pub worker: u32,
    /// The time of the turn.
    pub at: Instant,
    /// Flows that began, if [`Recording::openings`].
    pub openings: Vec<FlowInfo>,
    /// Flows that ended, if [`Recording::ends`]; among them flows that a rule denied, which never began.
    pub ends: Vec<FlowEnd>,
    /// Records that a full queue has lost.
    pub lost: LostRecords,
}

impl FlowRecords {
    /// Takes the records of a worker's stack.
    pub fn take(worker: u32, stack: &mut Stack) -> Self {
        Self {
            worker,
            at: stack.records_at(),
            openings: stack.take_openings(),
            ends: stack.take_ends(),
            lost: stack.take_lost_records(),
        }
    }
}

/// Kinds of records that workers keep from the start; by default none, for each costs a copy of the flow's
/// description.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recording {
    /// Flows that begin.
    pub openings: bool,
    /// Flows that end, or are refused.
    pub ends: bool,
}

/// Settings of a network. Each has its default; only a link is required.
#[must_use = "nothing is built before Builder::build"]
pub struct Builder<L> {
    links: Vec<L>,
    config: Config,
    clock: Clock,
    busy_poll: Duration,
    processors: Option<usize>,
    descriptors: Option<u64>,
    clients: u64,
    not_followed: Vec<u32>,
    ephemeral_ports: Option<RangeInclusive<u16>>,
    opener: Option<Opener>,
    forwards: Vec<Forward>,
    on_refused_forward: Option<forwards::Receiver>,
    local_peers: LocalPeers,
    outbound: Outbound,
    broker: Option<SocketBroker>,
    promotion: Vec<PromotionAgent>,
    host: Option<(Arc<HostNetwork>, HostNetFollow)>,
    tx_queue_len: Option<Arc<TxQueueLenWatch>>,
    capture: Option<Capture>,
    on_records: Option<Arc<dyn Fn(FlowRecords) + Send + Sync>>,
    recording: Recording,
    journal: Option<JournalMemory>,
}

impl Network<()> {
    /// A builder with default settings ([`Config::default`]) and no link yet.
    pub fn builder() -> Builder<()> {
        Builder {
            links: Vec::new(),
            config: Config::default(),
            clock: Clock::start(),
            busy_poll: Duration::ZERO,
            processors: None,
            descriptors: None,
            clients: 0,
            not_followed: Vec::new(),
            ephemeral_ports: None,
            opener: None,
            forwards: Vec::new(),
            on_refused_forward: None,
            local_peers: LocalPeers::default(),
            outbound: Outbound::default(),
            broker: None,
            promotion: Vec::new(),
            host: None,
            tx_queue_len: None,
            capture: None,
            on_records: None,
            recording: Recording::default(),
            journal: None,
        }
    }
}

impl Builder<()> {
    /// Link toward the guest, for one worker.
    pub fn link<L: GuestLink>(self, link: L) -> Builder<L> {
        self.links([link])
    }

    /// Links toward the same guest, a worker for each. It is best if each flow stays on one of them, as on
    /// the queues of a TAP; a frame that comes by another one is passed on ([`crate::workers`]).
    pub fn links<L: GuestLink>(self, links: impl IntoIterator<Item = L>) -> Builder<L> {
        let Self {
            config, clock, busy_poll, processors, descriptors, clients, not_followed, journal, ..
        } = self;
        let Self { ephemeral_ports, opener, local_peers, outbound, forwards, broker, promotion, .. } = self;
        let Self { host, tx_queue_len, capture, on_records, recording, on_refused_forward, .. } = self;
        let links = links.into_iter().collect();
        Builder {
            links,
            config,
            clock,
            busy_poll,
            processors,
            descriptors,
            clients,
            not_followed,
            ephemeral_ports,
            opener,
            forwards,
            on_refused_forward,
            local_peers,
            outbound,
            broker,
            promotion,
            host,
            tx_queue_len,
            capture,
            on_records,
            recording,
            journal,
        }
    }
}

impl<L> Builder<L> {
    /// Addresses, buffers, memory, time-outs and limits. [`Config::max_flows`] is lowered to what the limit
    /// on descriptors allows, and [`Config::max_udp_flows`] to a quarter of the ephemeral ports.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Rules about new flows; the same as [`Config::rules`].
    pub fn policy(mut self, rules: Rules) -> Self {
        self.config.rules = rules;
        self
    }

    /// Zero of all times; by default the moment of [`Network::builder`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Longest search for answers before a worker sleeps; zero, the default, is never. Costs processor
    /// time, saves wake-ups.
    pub fn busy_poll(mut self, bound: Duration) -> Self {
        self.busy_poll = bound;
        self
    }

    /// Number of descriptors that may be open; by default the soft RLIMIT_NOFILE at [`Builder::build`].
    pub fn descriptors(mut self, limit: u64) -> Self {
        self.descriptors = Some(limit);
        self
    }

    /// Descriptors kept free for clients of the caller's own servers; none by default.
    pub fn clients(mut self, descriptors: u64) -> Self {
        self.clients = descriptors;
        self
    }

    /// Listening socket of the caller's own, which a forward of all ports (`auto`) excludes.
    ///
    /// # Errors
    /// It is no descriptor of this process.
    pub fn leave_out(self, socket: impl AsFd) -> io::Result<Self> {
        Ok(self.leave_out_inodes(&[forward::inode(socket.as_fd())?]))
    }

    /// The same by the inodes of sockets ([`forward::inode`]), also of another process.
    pub fn leave_out_inodes(mut self, inodes: &[u32]) -> Self {
        self.not_followed.extend(inodes);
        self
    }

    /// Ports that the host hands out to clients; by default read from /proc at [`Builder::build`].
    pub fn ephemeral_ports(mut self, range: RangeInclusive<u16>) -> Self {
        self.ephemeral_ports = Some(range);
        self
    }

    /// Another process that opens the listening sockets of forwards; by default this one does.
    pub fn open_listeners_by(mut self, opener: Opener) -> Self {
        self.opener = Some(opener);
        self
    }

    /// Forwarded ports, in force from the start. More can be added at run time.
    pub fn forwards(mut self, forwards: impl IntoIterator<Item = Forward>) -> Self {
        self.forwards.extend(forwards);
        self
    }

    /// Destination of connections from the host's loopback to published ports, if there is a socket broker.
    pub fn local_peers(mut self, to: LocalPeers) -> Self {
        self.local_peers = to;
        self
    }

    /// The sockets of a worker, on an epoll instance where some may be registered, or on a new one.
    fn sockets(&self, poller: Option<OwnedFd>, basis: &Basis) -> Result<Sockets, NetworkError> {
        let sockets = match poller {
            Some(poller) => Sockets::on(poller),
            None => Sockets::new().map_err(NetworkError::io("wait for sockets: epoll_create1"))?,
        };
        Ok(sockets.leaving_from(self.outbound.clone()).sharing_ports(basis.udp_ports.clone()))
    }

    /// Source of connections and datagrams to the outside; by default the kernel's choice.
    pub fn outbound(mut self, outbound: Outbound) -> Self {
        self.outbound = outbound;
        self
    }

    /// Source of sockets in the guest's network namespace, for forwards that end or begin on the guest's
    /// loopback.
    pub fn socket_broker(mut self, broker: Option<SocketBroker>) -> Self {
        self.broker = broker;
        self
    }

    /// Clients of the agent that makes kernel sockets for bulk flows ([`crate::promotion`]), one for each
    /// link; without one its worker promotes none. Whether bulk flows are promoted is
    /// [`Config::bulk`](Config), and can be changed ([`Handle::set_bulk`]).
    pub fn promotion(mut self, agents: impl IntoIterator<Item = PromotionAgent>) -> Self {
        self.promotion.extend(agents);
        self
    }

    /// Processors, for the number of threads; by default those found at [`Builder::build`].
    pub fn processors(mut self, processors: usize) -> Self {
        self.processors = Some(processors);
        self
    }

    /// Subscription to the host's network: its addresses and, as `follow` selects, its resolvers and search
    /// names.
    pub fn host_network(mut self, network: Arc<HostNetwork>, follow: HostNetFollow) -> Self {
        self.host = Some((network, follow));
        self
    }

    /// The host's addresses, sorted; none without a subscription.
    fn host_addresses(&self) -> Arc<[IpAddr]> {
        self.host.as_ref().map_or_else(Arc::default, |(network, _)| network.addresses())
    }

    /// Length of the kernel's queue of a TAP, followed while it runs.
    pub fn tx_queue_len(mut self, watch: Arc<TxQueueLenWatch>) -> Self {
        self.tx_queue_len = Some(watch);
        self
    }

    /// Capture of all frames from the start.
    pub fn capture(mut self, capture: Option<Capture>) -> Self {
        self.capture = capture;
        self
    }

    /// Memory for the journals of flows, from which another process can go on after a crash
    /// ([`crate::recovery`]).
    pub fn journal(mut self, memory: Option<JournalMemory>) -> Self {
        self.journal = memory;
        self
    }

    /// Observer of flows: called with each worker's records, on its thread, after each turn that has any.
    /// It must not block: frames
    /// wait meanwhile.
    pub fn on_flow_records(
        mut self,
        recording: Recording,
        observer: impl Fn(FlowRecords) + Send + Sync + 'static,
    ) -> Self {
        self.recording = recording;
        self.on_records = Some(Arc::new(observer));
        self
    }
}

impl<L: GuestLink> Builder<L> {
    /// Checks the settings, binds the forwarded ports and registers all descriptors. The network does not run
    /// yet.
    ///
    /// # Errors
    /// See [`NetworkError`].
    pub fn build(mut self) -> Result<Network<L>, NetworkError> {
        let basis = self.basis()?;
        let mut workers = Vec::with_capacity(self.links.len());
        let mut agents = std::mem::take(&mut self.promotion).into_iter();
        for (number, link) in (0..).zip(std::mem::take(&mut self.links)) {
            let keys = keys().map_err(NetworkError::io("draw random keys: getrandom"))?;
            let budget = basis.budget.clone();
            let mut stack = Stack::sharing(self.config.clone(), keys, link.caps(), budget, number);
            if let Some(memory) = self.payload_memory(number) {
                stack.use_payload_memory(memory);
            }
            let sockets = self.sockets(None, &basis)?;
            let mut forwards = None;
            if number == 0 {
                let mut none = self.no_forwards(&sockets, &basis)?;
                self.add_forwards(&mut none)?;
                forwards = Some(none);
            }
            let made = Made { link, stack, sockets, forwards, agent: agents.next() };
            workers.push(self.worker(number, made, &basis)?);
        }
        Ok(self.network(workers, basis))
    }

    /// Checks the settings, and divides what the workers share.
    fn basis(&mut self) -> Result<Basis, NetworkError> {
        let count = match self.links.len() {
            0 => return Err(NetworkError::NoLink),
            count if count > WORKERS_MAX as usize => return Err(NetworkError::TooManyLinks(count)),
            count => count as u32,
        };
        let needs = Needs {
            workers: count.into(),
            clients: self.clients,
            forwards: !self.forwards.is_empty(),
            promotion: !self.promotion.is_empty(),
        };
        let soft_limit = || getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let descriptors = Descriptors::divide(self.descriptors.unwrap_or_else(soft_limit), needs);
        let flows_max = usize::try_from(descriptors.flows_max).unwrap_or(usize::MAX);
        let flows_max = self.config.max_flows.min(flows_max);
        let per_worker = |total: usize| total / count as usize;
        self.config.max_flows = per_worker(flows_max).max(1);
        let ports = self.ephemeral_ports.take().unwrap_or_else(ephemeral_ports::ephemeral_ports);
        let udp_flows_max = self.config.max_udp_flows.min(ephemeral_ports::udp_flows_max(&ports));
        self.config.max_udp_flows = per_worker(udp_flows_max).max(1);
        self.config.bulk_bounds.flows_max =
            per_worker(self.config.bulk_bounds.flows_max.min(descriptors.promoted_max as usize));
        self.config.dns_cache = per_worker(self.config.dns_cache);
        self.config.rules.workers = count;
        let workers = Arc::new(Workers::new(count).map_err(NetworkError::io("wake workers: eventfd"))?);
        let budget = Arc::new(Budget::new(self.config.memory));
        let keys = (count > 1).then(keys).transpose();
        let keys = keys.map_err(NetworkError::io("draw random keys: getrandom"))?;
        let owners = keys.map(|keys| Arc::new(FlowOwners::new(keys.table)));
        Ok(Basis { workers, budget, owners, descriptors, ports, udp_ports: UdpPorts::default() })
    }

    /// Payload memory of a worker that outlives the process.
    fn payload_memory(&mut self, worker: u32) -> Option<PayloadMemory> {
        self.journal.as_mut()?.take_payload(worker as usize)
    }

    /// A worker with all of its parts.
    fn worker(&self, number: u32, made: Made<L>, basis: &Basis) -> Result<Worker<L>, NetworkError> {
        let Made { link, mut stack, mut sockets, mut forwards, agent } = made;
        stack.record_ends(self.recording.ends);
        stack.record_openings(self.recording.openings);
        if let Some(owners) = &basis.owners {
            stack.share_flows(owners.clone());
        }
        if let Some(memory) = &self.journal {
            let slots = memory.of(number as usize);
            // The stack's records are complete with the driver's part.
            let journal = DriverJournal::new(slots);
            sockets.set_journal(journal);
            if let Some(forwards) = &mut forwards {
                forwards.set_journal(journal);
            }
            stack.set_journal(slots);
        }
        let handle = WorkerHandle::new(basis.workers.clone(), number)
            .map_err(NetworkError::io("number the workers"))?;
        let listener = self.on_records.clone().map(|observer| -> Listener {
            Box::new(move |stack| observer(FlowRecords::take(number, stack)))
        });
        let flows_max = self.config.bulk_bounds.flows_max;
        let processors = self.processors.unwrap_or_else(processors);
        let worker = Worker::new(Parts {
            busy_poll: self.busy_poll,
            txqueuelen: self.tx_queue_len.clone(),
            host_network: self.host.clone(),
            capture: self.capture.clone(),
            forwards,
            promotion: agent
                .map(|agent| Promoting::new(agent, flows_max, processors, basis.workers.workers())),
            listener,
            ..Parts::new(stack, link, sockets, self.clock, handle)
        })
        .map_err(NetworkError::io("wait for the link: epoll_ctl"));
        let mut worker = worker?;
        if let Some(memory) = &self.journal {
            worker.resume_totals(memory.totals_of(number as usize));
        }
        Ok(worker)
    }

    fn network(&self, workers: Vec<Worker<L>>, basis: Basis) -> Network<L> {
        let flows_max = self.config.max_flows * workers.len();
        Network { workers, shared: basis.workers, flows_max }
    }
}

/// Shared state of the workers of a network, and what is divided among them.
struct Basis {
    workers: Arc<Workers>,
    budget: Arc<Budget>,
    /// Owners of flows, of several workers.
    owners: Option<Arc<FlowOwners>>,
    descriptors: Descriptors,
    ports: RangeInclusive<u16>,
    udp_ports: UdpPorts,
}

/// Parts of one worker that are made anew or restored.
struct Made<L> {
    link: L,
    stack: Stack,
    sockets: Sockets,
    forwards: Option<Forwards>,
    agent: Option<PromotionAgent>,
}

/// The guest's addresses, for forwards.
fn guest(config: &Config, local_peers: LocalPeers) -> Guest {
    Guest {
        addresses: [config.v4.map(|net| net.guest.into()), config.v6.map(|net| net.guest.into())],
        more_addresses: config.more_addresses.clone(),
        local_peers,
    }
}

/// Fresh keys for the flow table and for sequence numbers.
fn keys() -> Result<Keys, Errno> {
    Ok(Keys { table: secret()?, isn: secret()?, dns: secret()? })
}

/// One guest's network. Dropping it closes every flow.
pub struct Network<L> {
    workers: Vec<Worker<L>>,
    shared: Arc<Workers>,
    flows_max: usize,
}

impl<L: GuestLink> Network<L> {
    /// Handle for other threads.
    pub fn handle(&self) -> Handle {
        Handle { workers: self.shared.clone() }
    }

    /// Flows that may be open at a time, by all workers.
    pub fn flows_max(&self) -> usize {
        self.flows_max
    }

    /// The workers, in the order of their links.
    pub fn workers(&self) -> &[Worker<L>] {
        &self.workers
    }

    /// The workers, while none of them runs.
    pub fn workers_mut(&mut self) -> &mut [Worker<L>] {
        &mut self.workers
    }

    /// Makes [`Network::run`] and [`Network::turn`] report [`Wake::Extra`] with this tag while `fd` is
    /// readable. The caller keeps `fd`
    /// open; closing it ends the watch.
    ///
    /// # Errors
    /// `fd` cannot be registered with epoll.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, tag: u32) -> io::Result<()> {
        self.workers.first_mut().map_or(Ok(()), |worker| worker.watch(fd, tag))
    }

    /// Readable when [`Network::turn`] has work: the epoll instance of the one worker, for the caller's own
    /// (level- or edge-triggered) or for poll.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.workers[0].sockets().epoll()
    }

    /// Longest sleep before the next [`Network::turn`], even if [`Network::descriptor`] is not readable: zero
    /// while more work is ready, `None` for ever.
    pub fn timeout(&mut self) -> Option<Duration> {
        self.workers[0].timeout()
    }

    /// One turn of the loop without sleeping: a batch of frames, timers, ready sockets, acknowledgements.
    /// Returns a report for the caller, if there is one; the network goes on after each but
    /// [`Wake::GuestGone`] and [`Wake::Stopped`].
    ///
    /// # Errors
    /// epoll or the link is broken for good, or there are several workers.
    pub fn turn(&mut self) -> Result<Option<Wake>, NetworkError> {
        let [worker] = &mut self.workers[..] else { return Err(NetworkError::SeveralWorkers) };
        let wake = worker.poll().map_err(NetworkError::Failed)?;
        if matches!(wake, Some(Wake::Freeze)) {
            // Frozen is between two turns of the caller's loop.
            self.shared.thaw();
        }
        Ok(wake)
    }

    /// Runs on a new thread until the guest is gone or [`Running::stop`].
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn spawn(mut self) -> Result<Running, NetworkError>
    where
        L: Send + 'static,
    {
        let handle = self.handle();
        let body = move || self.run(|_| ControlFlow::<()>::Continue(()), &|_| {}).map(drop);
        let thread = thread::Builder::new().name("brodo".to_owned()).spawn(body);
        Ok(Running { handle, thread: thread.map_err(NetworkError::io("start the network: clone"))? })
    }
}

/// Longest wait for a worker's reply. A turn takes about a millisecond; a worker that does not reply stands
/// still.
const PATIENCE: Duration = Duration::from_secs(2);
/// Flows examined by one command: some hundred microseconds of a worker.
const PAGE_FLOWS: usize = 256;

/// Access to a network from any thread, while it runs on another: each method leaves a [`Command`] with a
/// worker and waits at most two seconds for its reply. On the thread that calls [`Network::turn`] a reply
/// would never come: leave the command there by [`Workers::ask`] ([`Handle::workers`]) and check its
/// [`Pending`](crate::command::Pending) after the next turn.
#[derive(Debug, Clone)]
pub struct Handle {
    workers: Arc<Workers>,
}

impl Handle {
    /// The workers, for commands without a method here.
    pub fn workers(&self) -> &Arc<Workers> {
        &self.workers
    }

    /// Ends the network: [`Network::run`] returns.
    pub fn stop(&self) {
        self.workers.stop();
    }

    /// Has all workers park after their turn, to be saved or thawed by [`Network::run_after`]'s callback
    /// ([`crate::handover`]). Returns at once. While a freeze lasts another request has no effect.
    pub fn freeze(&self) {
        self.workers.freeze();
    }

    /// Sets the carrier of bulk flows of all workers. With [`Bulk::Tap`] promoted flows come back. False if a
    /// worker cannot promote.
    ///
    /// # Errors
    /// A worker has ended or stands still.
    pub fn set_bulk(&self, bulk: Bulk) -> Result<bool, NoReply> {
        let ask = |worker| self.workers.ask(worker, |reply| Command::SetBulk { bulk, reply });
        let pending: Vec<_> = (0..self.workers.workers()).map(ask).collect();
        let replies = pending.into_iter().map(|pending| pending.wait(PATIENCE));
        replies.into_iter().try_fold(true, |all, reply| Ok(all && reply?))
    }

    /// Asks one worker.
    fn ask<T>(&self, worker: u32, command: impl FnOnce(ReplyTo<T>) -> Command) -> Result<T, NoReply> {
        self.workers.ask(worker, command).wait(PATIENCE)
    }

    /// Counters and memory of each worker, in order.
    ///
    /// # Errors
    /// A worker has ended or stands still.
    pub fn reports(&self) -> Result<Vec<WorkerReport>, NoReply> {
        let ask = |worker| self.workers.ask(worker, |reply| Command::Report { reply });
        let pending: Vec<_> = (0..self.workers.workers()).map(ask).collect();
        pending.into_iter().map(|pending| pending.wait(PATIENCE)).collect()
    }

    /// Open flows of all workers that match `filter`. Flows that begin or end meanwhile may be among them or
    /// not.
    ///
    /// # Errors
    /// A worker has ended or stands still.
    pub fn flows(&self, filter: FlowFilter) -> Result<Vec<FlowReport>, NoReply> {
        let mut flows = Vec::new();
        for worker in 0..self.workers.workers() {
            let mut from = Some(0);
            while let Some(slot) = from {
                let most = PAGE_FLOWS;
                let round_trips = false;
                let command = |reply| Command::Flows { from: slot, most, filter, round_trips, reply };
                let page = self.ask(worker, command)?;
                flows.extend(page.flows);
                from = page.last.map(|last| last.index.saturating_add(1));
            }
        }
        Ok(flows)
    }

    /// Puts a forward in force.
    ///
    /// # Errors
    /// It was refused, or the first worker has ended or stands still.
    pub fn add_forward(&self, forward: Forward) -> Result<Result<ForwardReport, ForwardRefusal>, NoReply> {
        self.ask(0, |reply| Command::AddForward { forward, sockets_max: 1, reply })
    }

    /// Removes the forward with this id.
    ///
    /// # Errors
    /// It was refused, or the first worker has ended or stands still.
    pub fn remove_forward(&self, id: u32) -> Result<Result<ForwardReport, ForwardRefusal>, NoReply> {
        self.ask(0, |reply| Command::RemoveForward { id, sockets_max: 1, reply })
    }
}

/// A network on a thread of its own.
#[derive(Debug)]
pub struct Running {
    handle: Handle,
    thread: thread::JoinHandle<Result<(), NetworkError>>,
}

impl Running {
    /// Handle for other threads.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Ends the network and waits until it has.
    ///
    /// # Errors
    /// A worker had failed.
    ///
    /// # Panics
    /// A worker has panicked.
    pub fn stop(self) -> Result<(), NetworkError> {
        self.handle.stop();
        self.join()
    }

    /// Waits until the guest is gone or the network has been stopped.
    ///
    /// # Errors
    /// A worker failed.
    ///
    /// # Panics
    /// A worker has panicked.
    pub fn join(self) -> Result<(), NetworkError> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

#[cfg(test)]
mod tests;
