//! The loop of one worker: descriptors in, a [`Stack`] in the middle, one thread.
//!
//! Of several workers ([`Worker::join`]) each runs this loop for itself; a waker in its epoll instance makes it turn when
//! another has given back memory for which flows wait here, or when all are to end ([`crate::workers`]).
//!
//! One turn: wait (until the stack's next deadline, not at all while it has more to do), read the clock, take a bounded batch
//! of guest frames, expire timers, pass on socket events, serve flows, flush acknowledgements. Before it sleeps
//! the link is read again if anything was sent, because a write to a TAP runs the guest's TCP inside it and the
//! acknowledgement is there already.
//!
//! Frames come before timers because a machine may keep us off the processor for longer than a time-out: what the guest
//! has answered meanwhile lies on the link, and must not be taken for lost. After such a pause the timers wait until the link
//! has been read empty, within a bound.
//!
//! The link and all sockets are edge-triggered, so a turn that leaves frames behind remembers it. The link asks for
//! writability only while it owes us credit: it is nearly always writable, and every frame of the guest would report that
//! as well. Descriptors of the caller ([`Worker::watch`]) are level-triggered and end [`Worker::run`] with their
//! tag, after the turn they came in.
//!
//! A worker with nothing to do sleeps without a time-out. It polls nothing: the resolver file is looked at when
//! something else has woken it, the host's network says itself when it changes ([`crate::host_network`]), a capture only adds a deadline while frames wait to be written.

mod busy_poll;
mod port;

use crate::capture::Capture;
use crate::clock::Clock;
use crate::forward::{FORWARD, Forwards};
use crate::host_network::{Changes, HostNetFollow, HostNetwork};
use crate::platform::{Linux, Tracer};
use crate::sockets::{Sockets, readiness};
use crate::sys::{self, Events};
use crate::tuning_log::TuningLog;
use crate::txqueuelen::TxQueueLenWatch;
use crate::workers::Workers;
use brodo_core::counters::DropReason;
use brodo_core::flow::FlowId;
use brodo_core::link::{FRAME_MAX, RxFrame};
use brodo_core::stack::{Io, Stack};
use brodo_core::time::{Duration, Instant};
use brodo_link::{CreditWait, FailedCall, GuestLink};
use busy_poll::BusyPoll;
pub use busy_poll::busy_poll_default;
use port::Port;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Most frames per batch: acknowledgements stay frequent, and sockets get their turn.
const BATCH_FRAMES: usize = 64;
/// Most bytes per batch, so that they stay in the cache.
const BATCH_BYTES: usize = 512 << 10;
/// Most rounds over the flows per turn, while there is more to do at once: a wait costs a system call, and frames from
/// the guest that arrive meanwhile wait for as long as these take.
const ROUNDS: usize = 4;
/// Bytes sent to the guest after which a turn makes no further round.
const SENT_BYTES: usize = 512 << 10;
/// A frame of this length, in bytes, is taken for a part of a bulk transfer, of which more may be waiting.
const BULK_MIN: usize = 1024;
/// Events taken per wait; more come with the next.
const EVENTS: usize = 128;
/// A loop that has not turned for this long, asleep or not, may have left the guest's answers lying.
const PAUSE: Duration = Duration::from_millis(5);
/// For how long timers wait then for the link to be read empty; a guest that never stops sending has its timers all the same.
const CATCH_UP_MAX: Duration = Duration::from_millis(50);
/// How much later than its deadline a sleep may end: a tick of a kernel with 250 of them a second. Nothing here is more
/// precise than a few milliseconds, and a timer that may wait for the next tick need not be programmed into the processor and out
/// again with every sleep: on a virtual machine that is an exit each, which was measured to cost more than the rest of the sleep.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(4_000_000).unwrap();
/// First and longest pause before a link that was out of memory is tried again.
const RETRY_MIN: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(8);

/// Slot index in event data that no flow has: the driver's own descriptors, with their tag as generation.
const NOT_A_FLOW: u32 = u32::MAX;
/// Tag of the link.
const LINK: u32 = u32::MAX;
/// Tag of the waker that other workers write to.
const WAKER: u32 = u32::MAX - 1;
/// Tag of the watch of the link's ring.
const RING: u32 = u32::MAX - 2;

/// Tag of the notices that the host's network has changed.
const HOST: u32 = u32::MAX - 3;

/// Why [`Worker::run`] has returned. It may be called again after each.
#[derive(Debug)]
pub enum Wake {
    /// A descriptor given to [`Worker::watch`] with this tag is readable.
    Extra(u32),
    /// The link's guest exists no longer.
    GuestGone,
    /// The packet capture could not be written and was ended; the data path goes on.
    CaptureFailed(io::Error),
    /// The guest has pinged another host, and the host's kernel lets this user open no ping socket. Told once.
    PingForbidden,
    /// Something about forwarded ports that the user may want to know.
    Notice(String),
    /// All workers are to end: [`Workers::stop`].
    Stopped,
}

/// How the link's credit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Credit {
    /// It takes frames.
    Free,
    /// It does not, and its descriptor will report when it does.
    Awaited,
    /// It does not, and is to be tried again at this time, after this pause.
    Retry { at: Instant, pause: Duration },
}

/// What a worker has done since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Activity {
    /// Turns of the loop, each with one wait.
    pub turns: u64,
    /// Waits that slept: there was nothing left to do, and nothing came while it was looked for.
    pub sleeps: u64,
    /// Looks for work that were made instead of sleeping (`busy_poll`).
    pub polls: u64,
    /// Waits that such looks have ended.
    pub polled: u64,
}

/// Called after each turn in which the stack has recorded something ([`Stack::has_records`]), to take it.
pub type Listener = Box<dyn FnMut(&mut Stack) + Send>;

/// What a worker shows to a [`crate::workers::Visit`].
pub struct WorkerView<'a> {
    /// The time of this turn.
    pub now: Instant,
    /// The stack.
    pub stack: &'a mut Stack,
    /// Its sockets.
    pub sockets: &'a mut Sockets,
    /// The last changes of limits.
    pub tuning_log: &'a TuningLog,
    /// The capture that is under way.
    pub capture: &'a mut Option<Capture>,
    /// Forwarded ports, if this worker has them.
    pub forwards: Option<&'a mut Forwards>,
    /// What the loop has done.
    pub activity: Activity,
}

/// How a worker follows the host's network.
struct HostNetSubscription {
    network: Arc<HostNetwork>,
    follow: HostNetFollow,
    /// It waits for notices, for all.
    looks: bool,
    /// What it has acted on.
    seen: Changes,
}

/// One guest link, its stack and its sockets.
pub struct Worker<L> {
    stack: Stack,
    port: Port<L>,
    sockets: Sockets,
    tracer: Tracer,
    clock: Clock,
    /// Frames from the guest, one behind the other.
    arena: Box<[u8]>,
    events: Events,
    host: Option<HostNetSubscription>,
    now: Instant,
    /// After a pause: timers wait until the link has been read empty, or until then.
    catch_up: Option<Instant>,
    /// The link may have frames that no event will report again.
    link_readable: bool,
    /// The stack has more to do at once, or nobody has looked yet.
    busy: bool,
    credit: Credit,
    /// The link's descriptor reports writability.
    armed: bool,
    /// epoll_pwait2 works here.
    nanoseconds: bool,
    busy_poll: BusyPoll,
    activity: Activity,
    told_of_ping: bool,
    listener: Option<Listener>,
    forwards: Option<Box<Forwards>>,
    /// The other workers, if there are any.
    workers: Option<(Arc<Workers>, u32)>,
    /// Somebody has rung since the last turn.
    rung: bool,
    ring: Option<Arc<TxQueueLenWatch>>,
    /// Frames that the ring holds, as the stack was told.
    ring_frames: Option<u32>,
}

impl<L: GuestLink> Worker<L> {
    /// A worker that counts time from `clock`.
    ///
    /// # Errors
    /// The link cannot be registered with epoll.
    pub fn new(stack: Stack, link: L, sockets: Sockets, clock: Clock) -> io::Result<Self> {
        epoll::add(sockets.epoll(), link.descriptor(), own(LINK), EventFlags::IN | EventFlags::ET)?;
        Ok(Self {
            stack,
            port: Port::new(link),
            sockets,
            tracer: Tracer::default(),
            clock,
            arena: vec![0; BATCH_BYTES + FRAME_MAX].into_boxed_slice(),
            events: Events(Vec::with_capacity(EVENTS)),
            host: None,
            now: clock.now(),
            catch_up: None,
            link_readable: true,
            busy: true,
            credit: Credit::Free,
            armed: false,
            nanoseconds: true,
            busy_poll: BusyPoll::new(Duration::ZERO),
            activity: Activity::default(),
            told_of_ping: false,
            listener: None,
            forwards: None,
            workers: None,
            rung: false,
            ring: None,
            ring_frames: None,
        })
    }

    /// Looks for work for up to `bound` before sleeping, while pauses are so short that it pays. Zero: never, as it is until
    /// this is called.
    pub fn busy_poll(&mut self, bound: Duration) {
        self.busy_poll = BusyPoll::new(bound);
    }

    /// Makes this the worker of that number among others. Its stack shares their memory budget under the same number
    /// ([`Stack::sharing`]).
    ///
    /// # Errors
    /// The waker cannot be registered with epoll.
    pub fn join(&mut self, workers: Arc<Workers>, worker: u32) -> io::Result<()> {
        epoll::add(self.sockets.epoll(), workers.waker(worker), own(WAKER), EventFlags::IN | EventFlags::ET)?;
        self.workers = Some((workers, worker));
        Ok(())
    }

    /// Tells the stack how many frames the link's ring holds, now and when that has changed, if it loses what finds it full. One of
    /// those who follow a watch `looks` for all.
    ///
    /// # Errors
    /// The watch cannot be registered with epoll.
    pub fn follow_ring(&mut self, ring: Arc<TxQueueLenWatch>, looks: bool) -> io::Result<()> {
        if looks {
            epoll::add(self.sockets.epoll(), ring.descriptor(), own(RING), EventFlags::IN)?;
            ring.look();
        }
        self.ring = Some(ring);
        Ok(())
    }

    /// Has what the stack records taken by `listener`.
    pub fn listen(&mut self, listener: Listener) {
        self.listener = Some(listener);
    }

    /// Serves forwarded ports, which were made for this worker's sockets. It is the first of them.
    pub fn forward(&mut self, mut forwards: Forwards) {
        if let Some((workers, _)) = &self.workers {
            forwards.tell(workers.clone());
        }
        self.forwards = Some(Box::new(forwards));
    }

    /// Forwarded ports.
    pub fn forwards(&self) -> Option<&Forwards> {
        self.forwards.as_deref()
    }

    /// Captures all frames of the link from now on. [`Wake::CaptureFailed`] tells if it has ended.
    pub fn capture(&mut self, capture: Capture) {
        self.port.capture = Some(capture);
    }

    /// Ends the capture, if there is one, and writes the rest of it; the error that has kept it from being complete.
    pub fn finish_capture(&mut self) -> Option<io::Error> {
        let mut capture = self.port.capture.take()?;
        capture.flush();
        capture.take_error()
    }

    /// Follows the host's network, and what it says of names as far as `follow` goes. One of those who do `looks` for all.
    ///
    /// # Errors
    /// Its descriptor cannot be registered with epoll.
    pub fn follow_host(
        &mut self,
        network: Arc<HostNetwork>,
        follow: HostNetFollow,
        looks: bool,
    ) -> io::Result<()> {
        if looks {
            epoll::add(self.sockets.epoll(), network.descriptor(), own(HOST), EventFlags::IN)?;
        }
        let seen = Changes::default();
        self.host = Some(HostNetSubscription { network, follow, looks, seen });
        Ok(())
    }

    /// Makes [`Worker::run`] return [`Wake::Extra`] while `fd` is readable. The caller keeps `fd` open;
    /// closing it ends the watch.
    ///
    /// # Errors
    /// `fd` cannot be registered with epoll, or the tag is one of the four highest, which are taken.
    pub fn watch(&mut self, fd: impl AsFd, tag: u32) -> io::Result<()> {
        if tag >= HOST {
            return Err(Errno::INVAL.into());
        }
        Ok(epoll::add(self.sockets.epoll(), fd, own(tag), EventFlags::IN)?)
    }

    /// The stack.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The stack, for changes between two runs.
    pub fn stack_mut(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// The link.
    pub fn link(&self) -> &L {
        &self.port.link
    }

    /// The sockets.
    pub fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    /// What the loop has done.
    pub fn activity(&self) -> Activity {
        self.activity
    }

    /// Runs turns until there is something to tell.
    ///
    /// # Errors
    /// epoll or the link is broken for good: the system call that says so.
    pub fn run(&mut self) -> Result<Wake, FailedCall> {
        // Of this thread only; there is no way for it to fail.
        let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS));
        loop {
            self.wait()?;
            if let Some(wake) = self.turn()? {
                return Ok(wake);
            }
        }
    }

    /// Fills `events` and sets the time.
    fn wait(&mut self) -> Result<(), FailedCall> {
        self.activity.turns += 1;
        self.busy_poll.turned(std::mem::take(&mut self.port.moved));
        if self.busy {
            return self.take_events(Some(Duration::ZERO));
        }
        let (idle, deadline) = (self.clock.now(), self.deadline());
        if let Some(until) = self.busy_poll.until(idle) {
            let until = deadline.map_or(until, |at| at.min(until));
            while self.now < until {
                self.activity.polls += 1;
                self.take_events(Some(Duration::ZERO))?;
                if !self.events.0.is_empty() {
                    self.activity.polled += 1;
                    self.busy_poll.resumed(self.now - idle);
                    return Ok(());
                }
                // Whoever is to give us work may need this processor for it.
                std::thread::yield_now();
            }
        }
        self.activity.sleeps += 1;
        self.take_events(deadline.map(|at| at.since(self.now)))?;
        self.busy_poll.resumed(self.now - idle);
        Ok(())
    }

    /// Waits for events for at most `timeout`; sets the time.
    fn take_events(&mut self, timeout: Option<Duration>) -> Result<(), FailedCall> {
        let epoll = self.sockets.epoll();
        let waited = if self.nanoseconds {
            sys::epoll_wait(epoll, &mut self.events.0, timeout)
        } else {
            wait_ms(epoll, &mut self.events.0, timeout)
        };
        match waited {
            Ok(()) => {}
            Err(Errno::INTR) => self.events.0.clear(),
            // Before Linux 5.11, or a seccomp profile of that age.
            Err(Errno::NOSYS | Errno::PERM) if self.nanoseconds => {
                self.nanoseconds = false;
                self.events.0.clear();
            }
            Err(e) => return Err(FailedCall { call: "epoll_wait", error: e.into() }),
        }
        let before = std::mem::replace(&mut self.now, self.clock.now());
        if self.now - before >= PAUSE {
            self.catch_up = Some(self.now + CATCH_UP_MAX);
            // Its event may be behind those of many sockets.
            self.link_readable = true;
        }
        Ok(())
    }

    /// When the loop must turn even without an event.
    fn deadline(&self) -> Option<Instant> {
        let retry = match self.credit {
            Credit::Retry { at, .. } => Some(at),
            Credit::Free | Credit::Awaited => None,
        };
        let flush = self.port.capture.as_ref().and_then(Capture::flush_at);
        let look = self.host.as_ref().filter(|host| host.looks).and_then(|host| host.network.due());
        let forwards = self.forwards.as_deref().and_then(Forwards::deadline);
        [self.stack.next_deadline(), retry, flush, look, forwards].into_iter().flatten().min()
    }

    /// One turn after a wait.
    fn turn(&mut self) -> Result<Option<Wake>, FailedCall> {
        self.port.now = self.now;
        self.tracer.tuning_log.turn(self.now);
        let extra = self.own_events();
        self.tell_of_ring();
        self.tell_of_host();
        if self.link_readable {
            self.take_frames()?;
        }
        if !self.link_readable || self.catch_up.is_none_or(|until| until <= self.now) {
            self.catch_up = None;
            let Self { stack, port, sockets, tracer, now, .. } = self;
            stack.expire(&mut io(*now, port, sockets, tracer));
        }
        let forwarding = self.socket_events();
        self.serve();
        if self.port.sent && (!self.busy || self.stack.awaits_drain()) && self.take_frames()? {
            self.serve();
        }
        self.busy |= self.link_readable || self.port.sent || forwarding;
        self.follow_credit()?;
        if let Some((workers, _)) = &self.workers {
            workers.wake(self.stack.take_wakes());
        }
        if std::mem::take(&mut self.rung) {
            self.visits();
        }
        if let Some(listener) = self.listener.as_mut().filter(|_| self.stack.has_records()) {
            listener(&mut self.stack);
        }
        Ok(self.wake(extra))
    }

    /// Notes what the driver's own descriptors say; gives the first tag of the caller's.
    fn own_events(&mut self) -> Option<u32> {
        let mut extra = None;
        let mut writable = matches!(self.credit, Credit::Retry { at, .. } if at <= self.now);
        for event in &self.events.0 {
            let (flags, id) = (event.flags, FlowId::from_bits({ event.data }.u64()));
            match id {
                FlowId { index: NOT_A_FLOW, generation: LINK } => {
                    self.link_readable = true;
                    writable |= flags.contains(EventFlags::OUT) && self.armed;
                }
                FlowId { index: NOT_A_FLOW, generation: WAKER } => self.rung = true,
                FlowId { index: NOT_A_FLOW, generation: RING } => {
                    self.ring.as_deref().inspect(|ring| ring.look());
                }
                FlowId { index: NOT_A_FLOW, generation: HOST } => {
                    self.host.as_ref().inspect(|host| host.network.notice(self.now));
                }
                FlowId { index: NOT_A_FLOW, generation } => extra = extra.or(Some(generation)),
                _ => {}
            }
        }
        if writable {
            self.port.link.forget_refusal();
            self.stack.link_writable();
            if self.credit == Credit::Awaited {
                self.credit = Credit::Free;
            }
        }
        extra
    }

    /// Another worker may have seen that the ring's length has changed.
    fn tell_of_ring(&mut self) {
        let lossy = self.ring.as_deref().filter(|_| self.port.link.has_lossy_ring());
        let frames = lossy.and_then(TxQueueLenWatch::frames);
        if frames != self.ring_frames {
            self.ring_frames = frames;
            self.stack.set_ring(frames);
        }
    }

    /// The host's resolvers or its network may be others, as this worker or another has seen.
    fn tell_of_host(&mut self) {
        let Self { host: Some(host), stack, port, sockets, tracer, now, workers, .. } = self else { return };
        if host.looks
            && host.network.look(*now)
            && let Some((workers, _)) = workers
        {
            workers.wake(u64::MAX);
        }
        let HostNetFollow { resolvers, search } = host.follow;
        if resolvers || search {
            host.network.poll(*now);
        }
        let changes = host.network.changes();
        if changes == host.seen {
            return;
        }
        let seen = std::mem::replace(&mut host.seen, changes);
        if changes.names != seen.names {
            let conf = host.network.conf();
            if resolvers {
                stack.set_resolvers(conf.resolvers);
            }
            if search {
                stack.set_search(conf.search);
            }
        }
        if changes.network != seen.network {
            sockets.set_addresses(host.network.addresses());
            stack.network_changed(&mut io(*now, port, sockets, tracer));
        }
    }

    /// Takes one batch of guest frames; true if there was any.
    fn take_frames(&mut self) -> Result<bool, FailedCall> {
        let Self { stack, port, sockets, tracer, arena, now, workers, .. } = self;
        let (mut taken, mut bytes) = (0, 0);
        let mut after_datagram = false;
        while taken < BATCH_FRAMES && bytes < BATCH_BYTES {
            // Bulk is gathered and handled together; a small frame is handled at once, for somebody waits for it. Only
            // small datagrams that follow one another are many because someone sends many.
            let mut frames = [RxFrame::default(); BATCH_FRAMES];
            let (mut gathered, mut rest) = (0, &mut arena[..]);
            let mut empty = false;
            while gathered < BATCH_FRAMES && rest.len() >= FRAME_MAX {
                let Some((meta, len)) = port.recv(rest)? else {
                    empty = true;
                    break;
                };
                let (frame, unused) = rest.split_at_mut(len);
                frames[gathered] = RxFrame { meta, bytes: frame };
                rest = unused;
                gathered += 1;
                bytes += len;
                let follows = std::mem::replace(&mut after_datagram, frames[gathered - 1].is_datagram());
                if len < BULK_MIN && !(follows && after_datagram) {
                    break;
                }
            }
            if empty {
                stack.link_drained();
            }
            let kept = match workers {
                Some((workers, worker)) if workers.resteers(*worker) => {
                    keep_own(workers, stack, &mut frames[..gathered])
                }
                _ => gathered,
            };
            stack.frames(&mut io(*now, port, sockets, tracer), &frames[..kept]);
            taken += gathered;
            if empty {
                self.link_readable = false;
                return Ok(taken > 0);
            }
        }
        self.link_readable = true;
        Ok(true)
    }

    /// Passes the events of sockets on, and does what those of forwarded ports ask for; true if there is more of that to do at once.
    fn socket_events(&mut self) -> bool {
        let Self { stack, port, sockets, tracer, now, events, forwards, .. } = self;
        let mut io = io(*now, port, sockets, tracer);
        for event in events.0.drain(..) {
            let (flags, flow) = (event.flags, FlowId::from_bits({ event.data }.u64()));
            match (flow.index, &mut *forwards) {
                (NOT_A_FLOW, _) => {}
                (FORWARD, Some(forwards)) => io.link.moved.joined |= forwards.event(flow.generation, flags),
                _ => {
                    io.link.moved.from_host = true;
                    stack.socket_event(&mut io, flow, readiness(flags));
                }
            }
        }
        forwards.as_mut().is_some_and(|forwards| forwards.turn(stack, &mut io))
    }

    /// Rounds over the flows, and the acknowledgements that have become due.
    fn serve(&mut self) {
        let Self { stack, port, sockets, tracer, now, .. } = self;
        port.sent_bytes = 0;
        let mut io = io(*now, port, sockets, tracer);
        for _ in 0..ROUNDS {
            self.busy = stack.serve(&mut io);
            if !self.busy || io.link.sent_bytes >= SENT_BYTES {
                break;
            }
        }
        stack.flush(&mut io);
    }

    /// Arms or ends the wait for the link's credit.
    fn follow_credit(&mut self) -> Result<(), FailedCall> {
        let credit = match (self.port.link.credit_wait(), self.credit) {
            (None, _) => Credit::Free,
            (Some(CreditWait::Event), _) => Credit::Awaited,
            (Some(CreditWait::Timer), Credit::Retry { at, pause }) if at > self.now => {
                Credit::Retry { at, pause }
            }
            (Some(CreditWait::Timer), before) => {
                let pause = match before {
                    Credit::Retry { pause, .. } => (pause * 2).min(RETRY_MAX),
                    Credit::Free | Credit::Awaited => RETRY_MIN,
                };
                Credit::Retry { at: self.now + pause, pause }
            }
        };
        // Refused again after a report, it is armed again: a TAP notes that someone waits only when it is asked.
        let arm = credit == Credit::Awaited && self.credit != Credit::Awaited;
        let disarm = credit != Credit::Awaited && self.armed;
        if arm || disarm {
            let interest = if arm { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            let link = self.port.link.descriptor();
            epoll::modify(self.sockets.epoll(), link, own(LINK), interest | EventFlags::ET)
                .map_err(FailedCall::of("epoll_ctl"))?;
            self.armed = arm;
        }
        self.credit = credit;
        Ok(())
    }

    /// Takes what others have left here, and does what they have asked for.
    fn visits(&mut self) {
        let Some((workers, worker)) = &self.workers else { return };
        for (meta, frame) in workers.take_resteered(*worker) {
            let Self { stack, port, sockets, tracer, now, .. } = self;
            stack.frame(&mut io(*now, port, sockets, tracer), meta, &frame);
            self.busy = true;
        }
        for visit in workers.take_visits(*worker) {
            let Self { stack, port, sockets, tracer, now, activity, forwards, .. } = self;
            let (activity, capture, forwards) = (*activity, &mut port.capture, forwards.as_deref_mut());
            let tuning_log = &tracer.tuning_log;
            visit(&mut WorkerView { now: *now, stack, sockets, tuning_log, capture, forwards, activity });
            // Whatever it was may have given flows something to do.
            self.busy = true;
        }
    }

    /// What there is to tell at the end of a turn. An extra descriptor that is passed over reports again.
    fn wake(&mut self, extra: Option<u32>) -> Option<Wake> {
        if let Some(capture) = &mut self.port.capture {
            if capture.flush_at().is_some_and(|at| at <= self.now) {
                capture.flush();
            }
            if let Some(error) = capture.take_error() {
                self.port.capture = None;
                return Some(Wake::CaptureFailed(error));
            }
        }
        let ping_forbidden = self.stack.counters().dropped(DropReason::EchoUnsupported) > 0;
        if ping_forbidden && !self.told_of_ping {
            self.told_of_ping = true;
            return Some(Wake::PingForbidden);
        }
        if let Some(notice) = self.forwards.as_mut().and_then(|forwards| forwards.take_notice()) {
            return Some(Wake::Notice(notice));
        }
        if self.port.link.gone() {
            return Some(Wake::GuestGone);
        }
        if self.workers.as_ref().is_some_and(|(workers, _)| workers.is_stopping()) {
            return Some(Wake::Stopped);
        }
        extra.map(Wake::Extra)
    }
}

/// Event data of a descriptor of the driver's.
fn own(tag: u32) -> EventData {
    EventData::new_u64(FlowId { index: NOT_A_FLOW, generation: tag }.to_bits())
}

/// Leaves frames that may be of the first worker's flows with it. The others, whose number it gives, come to stand together.
fn keep_own(workers: &Workers, stack: &Stack, frames: &mut [RxFrame<'_>]) -> usize {
    let mut kept = 0;
    for index in 0..frames.len() {
        let RxFrame { meta, bytes } = frames[index];
        match stack.resteer(bytes) {
            Some(foreign) if workers.is_for_first(foreign) => workers.resteer(meta, bytes),
            _ => {
                frames[kept] = frames[index];
                kept += 1;
            }
        }
    }
    kept
}

/// Waits with a resolution of milliseconds, rounded up so that no deadline is met too early.
fn wait_ms(
    epoll: BorrowedFd<'_>,
    events: &mut Vec<epoll::Event>,
    timeout: Option<Duration>,
) -> rustix::io::Result<()> {
    let timeout = timeout.map(|t| rustix::time::Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    events.clear();
    epoll::wait(epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()).map(drop)
}

/// What the stack may touch during one call.
fn io<'a, L: GuestLink>(
    now: Instant,
    link: &'a mut Port<L>,
    host: &'a mut Sockets,
    observer: &'a mut Tracer,
) -> Io<'a, Linux<Port<L>>> {
    Io { now, link, host, observer }
}

#[cfg(test)]
mod allocations;
#[cfg(test)]
mod end_to_end;
#[cfg(test)]
mod tests;
