//! The loop of one worker: descriptors in, a [`Stack`] in the middle, one thread.
//!
//! One turn: wait ([`wait`]), take frames that other workers have left ([`crate::resteer`]) and a bounded
//! batch of the link's ([`intake`]), expire timers, pass on socket events, serve flows, flush
//! acknowledgements. Before a sleep the link is read again if a frame was sent, because a write to a TAP runs
//! the guest's TCP inside it and the acknowledgement is waiting already.
//! All other descriptors belong to [sources](crate::source): forwarded ports, the host's network, the guest's
//! transmit queue, the waker by which other workers and threads reach this one, and descriptors of the
//! caller's.
//!
//! No polling: a worker without work sleeps without a time-out. The resolver file is checked when another
//! event has woken the worker, the host's network notifies of changes ([`crate::host_network`]), a capture
//! only adds a deadline while frames wait to be written.
//!
//! A worker is made from [`Parts`] in one step, so there is no order in which to call setters.

mod busy_poll;
mod credit;
mod execute;
mod extra;
mod fruitless;
mod handover;
mod intake;
mod pressure;
mod sources;
mod spare_memory;
mod totals;
mod wait;
mod waker;

use crate::capture::Capture;
use crate::captured_link::{CapturedLink, Moved};
use crate::clock::Clock;
pub use crate::command::Activity;
use crate::command::{Command, WorkerReport};
use crate::forward::Forwards;
use crate::host_network::{HostNetFollow, HostNetSubscription, HostNetwork};
use crate::platform::{Linux, Tracer};
use crate::promotion::client::PromotionAgent;
use crate::promotions::{Promotions, RecoveredPromotion};
use crate::sockets::{Sockets, readiness};
use crate::source::{SourceId, Turn};
use crate::splice::threads_of_worker;
use crate::sys::inherited;
use crate::txqueuelen::{TxQueueLenFollower, TxQueueLenWatch};
use crate::workers::WorkerHandle;
use brodo_core::counters::DropReason;
use brodo_core::flow::Protocol;
use brodo_core::journal::Remains;
use brodo_core::stack::{Io, Lost, Stack};
use brodo_core::time::{Duration, Instant};
use brodo_link::poller::Token;
use brodo_link::{FailedCall, GuestLink, LinkLosses, LinkReady};
pub use busy_poll::busy_poll_default;
use credit::{CreditWatch, Over};
use execute::WorkerView;
use extra::ExtraDescriptors;
use fruitless::Fruitless;
pub(crate) use handover::{Adoption, FirstTurn};
use intake::Intake;
use sources::Sources;
use spare_memory::SpareMemory;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::Arc;
use totals::Totals;
use wait::Waiter;
use waker::Waker;

/// Most rounds over the flows per turn while more work is ready: a wait costs a system call, and frames from
/// the guest that arrive meanwhile wait for as long as these take.
const ROUNDS: usize = 4;
/// Timer slack: largest delay of a sleep's end beyond its deadline, a tick of a kernel with 250 of them a
/// second. Nothing here is more precise than a few milliseconds, and a timer that may wait for the next tick
/// need not be programmed into the processor and out again with every sleep: on a virtual machine that is an
/// exit each, which was measured to cost more than the rest of the sleep.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(4_000_000).unwrap();

/// Reason for the return of [`Worker::run`], which may be called again after each.
#[derive(Debug)]
pub enum Wake {
    /// A descriptor given to [`Worker::watch`] with this tag is readable.
    Extra(u32),
    /// The link's guest exists no longer.
    GuestGone,
    /// The packet capture could not be written and has ended; the data path goes on.
    CaptureFailed(io::Error),
    /// Ping sockets forbidden: the guest has pinged another host, and the host's kernel lets this user open
    /// none. Reported once.
    PingForbidden,
    /// Ephemeral ports for UDP flows of the guest used up: from now on each new flow evicts another
    /// ([`brodo_core::config::Config::max_udp_flows`]). Reported once.
    UdpPortsSpent,
    /// A message for the user about forwarded ports.
    Notice(String),
    /// Request to freeze ([`Handle::freeze`](crate::Handle::freeze)): nothing is in progress, and the network
    /// may be saved. [`Network::run_after`](crate::Network::run_after) does so itself.
    Freeze,
    /// Stop of all workers: [`Workers::stop`](crate::workers::Workers::stop).
    Stopped,
}

/// Callback after each turn with records of the stack ([`Stack::has_records`]), which it takes.
pub type Listener = Box<dyn FnMut(&mut Stack) + Send>;

/// Means of promoted flows ([`crate::promotion`]).
pub struct Promoting {
    /// The agent that makes their kernel sockets.
    pub agent: PromotionAgent,
    /// Most of them at a time.
    pub max: usize,
    /// Threads that move their bytes, one at least.
    pub threads: usize,
}

impl Promoting {
    /// Those of one of so many workers, for a number of processors.
    pub fn new(agent: PromotionAgent, max: usize, processors: usize, workers: u32) -> Self {
        Self { agent, max, threads: threads_of_worker(processors, workers as usize) }
    }
}

/// Parts of a worker.
pub struct Parts<L> {
    /// The stack. It shares the memory budget of the other workers under the number of `worker`
    /// ([`Stack::sharing`]).
    pub stack: Stack,
    /// The link to the guest.
    pub link: L,
    /// The host's sockets, whose epoll instance becomes the loop's.
    pub sockets: Sockets,
    /// Clock of all times.
    pub clock: Clock,
    /// This worker among the others. The first one polls shared sources for all.
    pub worker: WorkerHandle,
    /// Longest busy polling before a sleep, while pauses are short enough for it; zero: never.
    pub busy_poll: Duration,
    /// Watch of the guest's transmit queue, whose length a stack with a lossy link needs.
    pub txqueuelen: Option<Arc<TxQueueLenWatch>>,
    /// The host's network, and the stack's settings that follow it.
    pub host_network: Option<(Arc<HostNetwork>, HostNetFollow)>,
    /// Forwarded ports, made for these sockets; of the first worker alone.
    pub forwards: Option<Forwards>,
    /// Means of promoted flows.
    pub promotion: Option<Promoting>,
    /// Capture of all frames of the link. [`Wake::CaptureFailed`] reports its failure.
    pub capture: Option<Capture>,
    /// Receiver of the stack's records.
    pub listener: Option<Listener>,
}

impl<L> Parts<L> {
    /// The required parts of a worker; the others are absent and may be set.
    pub fn new(stack: Stack, link: L, sockets: Sockets, clock: Clock, worker: WorkerHandle) -> Self {
        Self {
            stack,
            link,
            sockets,
            clock,
            worker,
            busy_poll: Duration::ZERO,
            txqueuelen: None,
            host_network: None,
            forwards: None,
            promotion: None,
            capture: None,
            listener: None,
        }
    }
}

/// One guest link, its stack and its sockets.
pub struct Worker<L> {
    stack: Stack,
    port: CapturedLink<L>,
    sockets: Sockets,
    tracer: Tracer,
    sources: Sources,
    /// This worker among the others.
    handle: WorkerHandle,
    waiter: Waiter,
    fruitless: Fruitless,
    spare_memory: SpareMemory,
    /// Whether events of the link alone have led to this turn, or, without an event, what it has reported.
    by_link: bool,
    intake: Intake,
    credit: CreditWatch,
    /// More work of the stack or a source is ready, or their state is unknown.
    busy: bool,
    /// The link was read until it was empty, in this turn.
    link_read: bool,
    ping_reported: bool,
    udp_ports_reported: bool,
    listener: Option<Listener>,
    /// Losses of the link in the hands of other processes, and of the queue of datagrams.
    losses_before: LinkLosses,
    /// Memory for the totals, which outlives the process.
    totals: Totals,
    /// Flows that could not be restored, while their resets have found no credit.
    lost: Vec<Lost>,
    /// Of a restored worker that has not run yet.
    first_turn: Option<Box<FirstTurn>>,
}

impl<L: GuestLink> Worker<L> {
    /// A worker made of these parts.
    ///
    /// # Errors
    /// A descriptor cannot be registered with epoll.
    pub fn new(parts: Parts<L>) -> io::Result<Self> {
        let Parts { mut stack, mut link, mut sockets, clock, worker, mut forwards, .. } = parts;
        if let Some((network, _)) = &parts.host_network {
            stack.set_host_addresses(network.addresses());
            sockets.assume_addresses(network.addresses());
        }
        let is_poller = worker.is_first();
        if let Some(forwards) = &mut forwards {
            forwards.announce(worker.resteering());
        }
        let bulk = stack.config().bulk;
        let promotions = parts.promotion.map(|Promoting { agent, max, threads }| {
            Promotions::new(agent, &mut sockets, max, bulk, threads)
        });
        let mut sources = Sources {
            waker: Waker::new(worker.clone()),
            txqueuelen: parts.txqueuelen.map(|watch| TxQueueLenFollower::new(watch, is_poller)),
            host_network: parts
                .host_network
                .map(|(network, follow)| HostNetSubscription::new(network, follow, is_poller)),
            forwards: forwards.map(Box::new),
            promotions: promotions.transpose()?.map(Box::new),
            extra: ExtraDescriptors::default(),
        };
        sockets.send_unread(link.unread());
        link.register(SourceId::Link.poller(sockets.epoll()))?;
        sources.register::<L>(sockets.epoll())?;
        Ok(Self {
            stack,
            port: CapturedLink::new(link, parts.capture),
            sockets,
            tracer: Tracer::default(),
            sources,
            handle: worker,
            waiter: Waiter::new(clock, parts.busy_poll),
            fruitless: Fruitless::default(),
            spare_memory: SpareMemory::default(),
            by_link: false,
            intake: Intake::new(),
            credit: CreditWatch::default(),
            busy: true,
            link_read: false,
            ping_reported: false,
            udp_ports_reported: false,
            listener: parts.listener,
            losses_before: LinkLosses::default(),
            totals: Totals::default(),
            lost: Vec::new(),
            first_turn: None,
        })
    }

    /// Ends the records of flows that the stack has not recovered, and takes the kernel sockets of those that
    /// are promoted.
    pub(crate) fn go_on_with(&mut self, remains: &Remains, promoted: Vec<RecoveredPromotion>) {
        self.stack.forget_lost(remains);
        if let Some(promotions) = &mut self.sources.promotions {
            promotions.go_on(&self.stack, &self.sockets, promoted);
        }
    }

    /// Makes [`Worker::run`] return [`Wake::Extra`] while `fd` is readable. The caller keeps `fd` open;
    /// closing it ends the watch.
    ///
    /// # Errors
    /// `fd` cannot be registered with epoll.
    pub fn watch(&mut self, fd: impl AsFd, tag: u32) -> io::Result<()> {
        ExtraDescriptors::watch(self.sockets.epoll(), fd, tag)
    }

    /// Forwarded ports.
    pub fn forwards(&self) -> Option<&Forwards> {
        self.sources.forwards.as_deref()
    }

    /// The stack.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The link.
    pub fn link(&self) -> &L {
        &self.port.link
    }

    /// The sockets.
    pub fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    /// Activity of the loop.
    pub fn activity(&self) -> Activity {
        self.waiter.activity
    }

    /// Losses of the link, in all processes that have served it.
    fn losses(&self) -> LinkLosses {
        let mut losses = self.losses_before;
        losses.add(&self.port.link.losses());
        losses
    }

    /// Ends the capture, if there is one, and writes the rest of it; returns the error that has made it
    /// incomplete.
    pub fn finish_capture(&mut self) -> Option<io::Error> {
        let mut capture = self.port.capture.take()?;
        capture.flush();
        capture.take_error()
    }

    /// Runs turns until there is a [`Wake`] to report.
    ///
    /// # Errors
    /// epoll or the link is broken for good: the system call that failed.
    pub fn run(&mut self) -> Result<Wake, FailedCall> {
        // Of this thread only; it cannot fail.
        let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS));
        loop {
            if let Some(rest) = self.fruitless.rest() {
                self.waiter.activity.rests += 1;
                std::thread::park_timeout(rest);
            }
            self.wait()?;
            if let Some(wake) = self.turn()? {
                return Ok(wake);
            }
        }
    }

    /// Longest sleep before the next [`Worker::poll`]: zero while more work is ready, `None` for ever.
    pub fn timeout(&mut self) -> Option<Duration> {
        if self.busy {
            return Some(Duration::ZERO);
        }
        let now = self.waiter.clock.now();
        self.deadline().map(|at| at.since(now))
    }

    /// One turn without sleeping, for a loop of the caller's.
    ///
    /// # Errors
    /// As of [`Worker::run`].
    pub fn poll(&mut self) -> Result<Option<Wake>, FailedCall> {
        self.busy = true;
        self.wait()?;
        self.turn()
    }

    fn wait(&mut self) -> Result<(), FailedCall> {
        let moved = std::mem::take(&mut self.port.moved);
        let (now, by_link) = (self.waiter.now, std::mem::take(&mut self.by_link));
        self.fruitless.turned(now, by_link, moved);
        let deadline = if self.busy { None } else { self.deadline() };
        if self.waiter.wait(self.sockets.epoll(), self.busy, deadline, moved)? {
            self.intake.paused(self.waiter.now);
        }
        self.stack.set_suspended(self.waiter.suspended);
        Ok(())
    }

    /// Time of the next turn without an event.
    fn deadline(&mut self) -> Option<Instant> {
        let flush = self.port.capture.as_ref().and_then(Capture::flush_at);
        let sources = self.sources.deadline::<L>();
        let spare = self.spare_memory.deadline();
        let all = [self.stack.next_deadline(), self.credit.deadline(), flush, sources, spare];
        all.into_iter().flatten().min()
    }

    /// One turn after a wait.
    fn turn(&mut self) -> Result<Option<Wake>, FailedCall> {
        self.port.now = self.waiter.now;
        self.stack.set_caps(self.port.link.caps());
        if let Some(first) = self.first_turn.take() {
            self.begin(*first);
        }
        self.tracer.tuning_log.turn(self.waiter.now);
        self.source_events();
        if self.port.link.take_reset() {
            let (stack, mut io) = self.stack_io();
            stack.guest_reset(&mut io);
        }
        if !self.lost.is_empty() {
            self.reset_lost();
        }
        self.with_sources(Sources::turn_before_frames);
        self.intake.bytes = 0;
        self.link_read = false;
        if self.intake.readable || self.sources.promotions.as_ref().is_some_and(|it| it.awaits_link()) {
            self.take_frames()?;
            self.link_read = !self.intake.readable;
        }
        if self.intake.is_caught_up(self.waiter.now) {
            let (stack, mut io) = self.stack_io();
            stack.expire(&mut io);
        }
        self.socket_events();
        let forwarding = self.with_sources(Sources::turn_before_flows);
        let diverted = self.take_diverted();
        self.serve();
        if self.goes_on() && self.take_frames()? {
            self.serve();
        }
        self.flush_link();
        self.busy |=
            self.intake.goes_on() || self.port.sent || forwarding || diverted || self.stack.has_released();
        self.busy |= self.sockets.has_requests() | self.sockets.register_some();
        // Rings in the guest's memory have events only while the loop waits.
        self.intake.readable |= self.port.link.has_frames(!self.busy);
        self.busy |= self.intake.goes_on();
        self.follow_credit()?;
        self.handle.wake(self.stack.take_wakes());
        if !self.busy {
            let (now, moved) = (self.waiter.now, self.port.moved != Moved::default());
            if self.spare_memory.is_over(now, moved, self.stack.has_spare_memory()) {
                self.stack.give_up_spare_memory();
                self.sources.give_up_idle_pipes();
            }
            if self.stack.has_unused_memory() {
                self.stack.take_unused_memory(inherited::give_back);
            }
        }
        if self.sources.waker.take_woken() {
            self.execute_commands();
        }
        if let Some(listener) = self.listener.as_mut().filter(|_| self.stack.has_records()) {
            listener(&mut self.stack);
        }
        if self.totals.are_due(self.waiter.now) {
            self.write_totals();
        }
        Ok(self.wake())
    }

    /// The stack, and the context of its methods.
    fn stack_io(&mut self) -> (&mut Stack, Io<'_, Linux<CapturedLink<L>>>) {
        let Self { stack, port, sockets, tracer, waiter, .. } = self;
        (stack, Io { now: waiter.now, link: port, host: sockets, observer: tracer })
    }

    /// Runs turns of sources.
    fn with_sources<T>(&mut self, turns: impl FnOnce(&mut Sources, &mut Turn<'_, L>) -> T) -> T {
        let Self { stack, port, sockets, tracer, sources, handle, waiter, intake, link_read, .. } = self;
        let (link_read, freezing) = (*link_read, handle.is_freezing());
        let now = waiter.now;
        let flooded = intake.pressure.is_flood(now) && port.link.has_lossy_ring();
        let mut turn =
            Turn { now, stack, link: port, sockets, tracer, wakes: 0, link_read, flooded, freezing };
        let done = turns(sources, &mut turn);
        handle.wake(turn.wakes);
        done
    }

    /// Passes on the events of sources, the link among them.
    fn source_events(&mut self) {
        let Self { stack, port, sources, waiter, intake, credit, by_link, .. } = self;
        let (mut link, mut of_link) = (LinkReady::default(), 0);
        for event in &waiter.events.0 {
            let Token::Source { source, key } = Token::read({ event.data }.u64()) else { continue };
            match SourceId::read(source) {
                Some(SourceId::Link) => {
                    of_link += 1;
                    let LinkReady { frames, credit } = port.link.ready(key, event.flags);
                    (link.frames, link.credit) = (link.frames | frames, link.credit | credit);
                }
                Some(id) => {
                    if let Some(source) = sources.get::<L>(id) {
                        source.ready(key, event.flags, waiter.now);
                    }
                }
                None => {}
            }
        }
        // Of chains in a ring that is looked at in each turn there are no events.
        *by_link = of_link == waiter.events.0.len() && (of_link > 0 || intake.goes_on());
        intake.readable |= link.frames;
        let refused = port.link.credit_wait().is_some();
        if let Some(over) = credit.is_over(link.credit, refused, waiter.now) {
            if over == Over::Overdue {
                port.link.wait_overdue();
            }
            port.link.forget_refusal();
            stack.link_writable();
        }
    }

    /// Passes on the events of flows' sockets.
    fn socket_events(&mut self) {
        let Self { stack, port, sockets, tracer, waiter, .. } = self;
        let mut io: Io<'_, Linux<_>> = Io { now: waiter.now, link: port, host: sockets, observer: tracer };
        for event in waiter.events.0.drain(..) {
            if let Token::Flow(flow) = Token::read({ event.data }.u64()) {
                io.link.moved.from_host = true;
                stack.socket_event(&mut io, flow, readiness(event.flags));
            }
        }
    }

    /// Takes frames from the guest, within a bound; true if there were any.
    fn take_frames(&mut self) -> Result<bool, FailedCall> {
        let Self { stack, port, sockets, tracer, handle, waiter, intake, fruitless, .. } = self;
        let mut io = Io { now: waiter.now, link: port, host: sockets, observer: tracer };
        let counted = |stack: &Stack| (stack.counters().rx_frames, stack.counters().all_dropped());
        let (frames, drops) = counted(stack);
        let taken = intake.take(stack, &mut io, handle);
        let (frames_now, drops_now) = counted(stack);
        if matches!(taken, Ok(true)) {
            fruitless.took(frames_now - frames, drops_now.wrapping_sub(drops));
        }
        taken
    }

    /// Takes a batch of datagrams from their own queue, if they have one; true if more are waiting.
    fn take_diverted(&mut self) -> bool {
        let Self { stack, port, sockets, tracer, sources, handle, waiter, intake, .. } = self;
        let Some(promotions) = &mut sources.promotions else { return false };
        self.losses_before.diverted_dropped += promotions.take_diverted_dropped();
        let Some(queue) = promotions.datagram_queue() else { return false };
        let mut io = Io { now: waiter.now, link: port, host: sockets, observer: tracer };
        if queue.is_due(io.now, self.link_read) {
            return intake.take_diverted(queue, stack, &mut io, handle);
        }
        queue.is_readable()
    }

    /// Whether the turn reads the link once more before its end: after frames that may have been answered
    /// within their write, unless other events are more urgent.
    fn goes_on(&self) -> bool {
        let (stack, now) = (&self.stack, self.waiter.now);
        let moved = self.intake.bytes + self.port.sent_bytes;
        let is_long = stack.has_sparse(now) && moved >= stack.turn_bytes(now);
        self.port.sent && (!self.busy || stack.awaits_drain()) && !is_long
    }

    /// Serves the flows for some rounds, and sends acknowledgements that are due.
    fn serve(&mut self) {
        self.port.sent_bytes = 0;
        let mut busy = false;
        let bytes_max = self.stack.turn_bytes(self.waiter.now);
        let (stack, mut io) = self.stack_io();
        for _ in 0..ROUNDS {
            busy = stack.serve(&mut io);
            if !busy || io.link.sent_bytes >= bytes_max {
                break;
            }
        }
        stack.flush(&mut io);
        self.busy = busy;
    }

    /// Ends the link's part of a turn.
    fn flush_link(&mut self) {
        self.port.link.flush(SourceId::Link.poller(self.sockets.epoll()));
    }

    fn follow_credit(&mut self) -> Result<(), FailedCall> {
        let Self { port, sockets, waiter, credit, .. } = self;
        let poller = SourceId::Link.poller(sockets.epoll());
        credit.follow(&mut port.link, poller, waiter.now).map_err(FailedCall::of("epoll_ctl"))
    }

    /// Executes queued commands.
    fn execute_commands(&mut self) {
        for command in self.handle.take_commands() {
            match command {
                // The one command that sends frames.
                Command::Review { from, most, reply } => {
                    let (stack, mut io) = self.stack_io();
                    reply.send(stack.review(&mut io, from, most));
                }
                Command::PassStreams { to, place, reply } => {
                    let is_stream = |flow| self.stack.protocol(flow) == Some(Protocol::Tcp);
                    let passed = self.sockets.pass_streams(to.as_fd(), place, is_stream);
                    reply.send(passed.map_err(Into::into));
                }
                other => {
                    if matches!(other, Command::Report { .. }) {
                        self.write_totals();
                    }
                    self.view().execute(other);
                }
            }
            // Flows may have work now.
            self.busy = true;
        }
    }

    fn view(&mut self) -> WorkerView<'_> {
        let losses = self.losses();
        let Self { stack, port, sockets, tracer, sources, waiter, handle, .. } = self;
        WorkerView {
            now: waiter.now,
            stack,
            sockets,
            tuning_log: &tracer.tuning_log,
            losses,
            capture: &mut port.capture,
            forwards: sources.forwards.as_deref_mut(),
            promotions: sources.promotions.as_deref_mut(),
            txqueuelen: sources.txqueuelen.as_ref(),
            activity: waiter.activity,
            resteered: handle.resteered(),
        }
    }

    /// Counters and state of this worker.
    pub fn report(&mut self) -> WorkerReport {
        self.view().report()
    }

    /// The report at the end of a turn. Behind one there may be further ones, of which no event tells again.
    fn wake(&mut self) -> Option<Wake> {
        let wake = self.next_wake();
        self.busy |= wake.is_some();
        wake
    }

    fn next_wake(&mut self) -> Option<Wake> {
        let extra = self.sources.extra.take();
        if let Some(capture) = &mut self.port.capture {
            if capture.flush_at().is_some_and(|at| at <= self.waiter.now) {
                capture.flush();
            }
            // All workers write to one file; one of them gets the error.
            if capture.has_ended() {
                let error = capture.take_error();
                self.port.capture = None;
                if let Some(error) = error {
                    return Some(Wake::CaptureFailed(error));
                }
            }
        }
        let ping_forbidden = self.stack.counters().dropped(DropReason::EchoUnsupported) > 0;
        if ping_forbidden && !self.ping_reported {
            self.ping_reported = true;
            return Some(Wake::PingForbidden);
        }
        if self.stack.counters().udp_flows_evicted > 0 && !self.udp_ports_reported {
            self.udp_ports_reported = true;
            return Some(Wake::UdpPortsSpent);
        }
        let Sources { forwards, promotions, .. } = &mut self.sources;
        let notice = forwards.as_mut().and_then(|forwards| forwards.take_notice());
        if let Some(notice) = notice.or_else(|| promotions.as_mut()?.take_notice()) {
            return Some(Wake::Notice(notice));
        }
        if self.port.link.gone() {
            return Some(Wake::GuestGone);
        }
        if self.handle.is_stopping() {
            return Some(Wake::Stopped);
        }
        if self.handle.is_freezing() && self.bring_back() {
            return Some(Wake::Freeze);
        }
        extra.map(Wake::Extra)
    }
}

#[cfg(test)]
mod allocations;
#[cfg(test)]
mod end_to_end;
#[cfg(test)]
mod tests;
