//! Connections between two sockets of this machine, carried by the kernel: splice(2) from one socket into a
//! pipe and from the pipe into the other. Pages change hands and no byte is copied.
//!
//! A connection whose two ends are on loopbacks, one of the host's namespace and one of the guest's, needs no
//! frames: each byte would be copied four times, for no other reader. So the socket that was accepted on one
//! side is joined with one connected on the other, both kernels' TCP do what they do for any local
//! connection, and this file only moves what has arrived.
//!
//! ```text
//! end 0  --splice-->  pipe  --splice-->  end 1        way 0
//! end 0  <--splice--  pipe  <--splice--  end 1        way 1
//! ```
//!
//! *As a direct connection.* The end of a direction is passed on when all before it is: shutdown(SHUT_WR),
//! and the other direction goes on. An error of either socket closes both with a reset (SO_LINGER 0), as does
//! a connect that fails: a connection to a port without a listener is reset. (It was accepted already, too
//! late for a refusal.) Bytes that reached a socket before its peer's reset are still offered to the other,
//! as far as that takes them at once, and behind a FIN all of them are passed on ([`failures`]). Nagle's
//! algorithm is off on both ends, because the sender's own TCP has decided what to send when.
//!
//! *Urgent data* is carried in line, where it stands among the rest (`SO_OOBINLINE`), as RFC 6093 asks of
//! programs and as connections over frames carry it ([`crate::sockets`]). splice(2) stops at the urgent mark
//! and does not step over it: it returns EAGAIN with bytes behind the mark, and 0 once the peer has ended. So
//! both are verified by recv(2), which does step over the mark: a 0 always, EAGAIN if an event has reported
//! urgent data (EPOLLPRI). Its bytes go into the pipe by write(2).
//!
//! *Flow control.* Bytes that the receiver's socket does not take stay in the pipe, which is bounded, and
//! then in the sender's socket, whose window closes. A pipe belongs to a direction only while bytes are in
//! it: one that has been drained goes back to a pool, so an idle connection has two descriptors and no more.
//! Their number is bounded ([`pipes`]); a direction that gets none waits for the next that comes back.
//!
//! *Turns.* Sockets are edge-triggered: an end is taken to be readable and writable until a call says
//! otherwise. A connection moves a bounded number of bytes each way before the next has its turn, and all
//! together little more than another such number before the driver gets its own, for frames wait meanwhile:
//! much less of both while sparse flows use the link ([`TurnBytes`]). A pipe holds a number of buffers, not
//! of bytes, so a splice into it that would block may mean that either is at its end; it is settled when the
//! pipe is empty.
//!
//! *Threads.* Connections between loopbacks are moved by the worker, promoted ones by threads beside it
//! ([`threads`]).
//!
//! *Flows.* Each connection is a flow of the flow table. After its turn its progress, and its end, are
//! reported ([`SpliceReport`]), once per turn and not per call; a connection whose flow was evicted is
//! aborted.
//!
//! *After a crash* sockets and pipes go on with another process ([`recovered`]).
//!
//! The slot of an ended connection is given away only after the turn ([`crate::slab`]).
//!
//! System calls: splice, shutdown, connect, setsockopt `TCP_NODELAY`, `SO_OOBINLINE` and `SO_LINGER`,
//! `epoll_ctl`; recv and write at an urgent mark and at the end; those of [`failures`] and [`pipes`].

mod failures;
mod handover;
mod pipes;
mod promoted;
mod recovered;
mod thread;
mod threads;

use crate::connect::connected;
pub(crate) use crate::connect::{connect, reset};
use crate::slab::Slab;
use crate::sockets::host_error;
use brodo_core::carried::{CarriedProgress, MovedUntil};
use brodo_core::flow::FlowId;
use brodo_core::flow::end::EndCause;
use brodo_core::flow::info::{Initiator, Traffic};
use brodo_core::host::{Connect, HostError};
pub(crate) use failures::Unjoined;
use pipes::{PIPE_BYTES, PIPES_LARGE, Pipe, Pipes, number};
pub(crate) use promoted::{Rejoined, Taken};
pub(crate) use recovered::{Filled, filled_pipes};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, Shutdown, sockopt};
use rustix::pipe::{PIPE_BUF, SpliceFlags, splice};
use std::collections::VecDeque;
pub(crate) use thread::event_data;
pub(crate) use threads::{SpliceThreads, Spliced, THREADS_MAX, threads_of_worker};

/// Most bytes asked for in one call.
const CALL_BYTES: usize = 1 << 20;
/// Least bytes behind which a turn may be over for want of more: half of a segment of Linux's largest size.
const PIECE_MIN: usize = 32 << 10;
/// Connections served in one turn of the loop.
const TURN_PAIRS: usize = 64;

/// Bytes that may move before others have their turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TurnBytes {
    /// Of one connection each way, before the next one.
    connection: usize,
    /// Of all in one turn of the loop.
    all: u64,
    /// Of one piece of a connection: behind a shorter one its turn is over, because what follows at once is
    /// shorter still. Below [`PIECE_MIN`] it goes on: a message has no more behind it.
    piece: usize,
}

impl TurnBytes {
    /// Nothing on the link minds some milliseconds.
    pub(crate) const ALONE: Self = Self { connection: 4 << 20, all: 8 << 20, piece: 0 };
    /// Requests wait for the end of the turn: a fraction of a millisecond.
    pub(crate) const BESIDE_SPARSE: Self = Self { connection: 64 << 10, all: 128 << 10, piece: 0 };
    /// The same of a thread that moves nothing else: requests wait for a processor at most.
    pub(crate) const OF_THREAD_BESIDE_SPARSE: Self = Self { connection: 128 << 10, all: 256 << 10, piece: 0 };
    /// Without sparse flows, of a thread that may rest until there is more.
    pub(crate) const OF_THREAD_THAT_RESTS: Self = Self { piece: 512 << 10, ..Self::ALONE };

    /// Bounds for a link that sparse flows use, or do not.
    pub(crate) fn beside(has_sparse: bool) -> Self {
        if has_sparse { Self::BESIDE_SPARSE } else { Self::ALONE }
    }

    /// The same for a thread that moves nothing else ([`thread`]), and may rest or not.
    pub(crate) fn of_thread(has_sparse: bool, may_rest: bool) -> Self {
        match (has_sparse, may_rest) {
            (true, _) => Self::OF_THREAD_BESIDE_SPARSE,
            (false, true) => Self::OF_THREAD_THAT_RESTS,
            (false, false) => Self::ALONE,
        }
    }
}

brodo_core::counters! {
    /// Counters since the start. Connections and bytes are counted with their flows
    /// ([`brodo_core::counters::Counters`]).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct SpliceCounters named "splice_" {
        /// Connections between loopbacks that ended with a reset.
        reset,
        /// Connections between loopbacks reset at once: there were too many, or epoll did not take one of
        /// their sockets.
        refused,
    }
}

/// A connection that is to be spliced.
#[derive(Debug)]
pub(crate) struct Joining {
    /// Its flow.
    pub(crate) flow: FlowId,
    /// The side that begins it, which has the accepted end.
    pub(crate) initiator: Initiator,
    /// The accepted socket.
    pub(crate) accepted: OwnedFd,
    /// The socket toward the destination.
    pub(crate) toward: OwnedFd,
    /// Whether `toward` is connected yet.
    pub(crate) connect: Connect,
    /// The forward by which `accepted` goes elsewhere if `toward` cannot be connected: it is given back then
    /// ([`Splices::take_refused`]).
    pub(crate) elsewhere: Option<u32>,
}

/// Outcome of one connection's turn, for its flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpliceReport {
    /// The flow.
    pub(crate) flow: FlowId,
    /// Progress since the last report.
    pub(crate) progress: CarriedProgress,
    /// Cause of the end, if the connection has ended and its sockets are closed.
    pub(crate) end: Option<EndCause>,
    /// Of a promoted connection: there is no pipe for it, and it waits to be taken back.
    pub(crate) lacks_pipe: bool,
}

impl SpliceReport {
    /// Adds a later one of the same flow.
    fn add(&mut self, later: &Self) {
        let Self { flow: _, progress, end, lacks_pipe } = later;
        self.progress.add(progress);
        self.end = self.end.or(*end);
        self.lacks_pipe |= lacks_pipe;
    }
}

/// One socket of a pair.
#[derive(Debug)]
struct End {
    fd: OwnedFd,
    /// No call has said otherwise since the last event.
    readable: bool,
    writable: bool,
    /// An event has reported urgent data, and recv has not emptied the socket since.
    urgent: bool,
    /// An event has reported an error.
    failed: bool,
    /// Its error was taken, by a write or as `SO_ERROR`.
    broken: bool,
    /// Its peer's FIN was received, perhaps behind bytes that were not read.
    peer_ended: bool,
}

/// One direction.
#[derive(Debug)]
struct Way {
    place: Place,
    pipe: Option<Pipe>,
    /// Bytes in the pipe.
    held: usize,
    /// Bytes given to the receiver since the last report.
    moved: u64,
    /// The last turn was over behind a short piece, with the sender's socket as good as empty.
    short: bool,
    /// The sender has ended.
    ended: bool,
    /// The end was passed on: shutdown(SHUT_WR).
    fin_sent: bool,
    /// End not reported yet.
    fin_unreported: bool,
}

/// Place of a direction in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    flow: FlowId,
    way: usize,
}

/// Two joined sockets. End 0 is the initiator's; way 0 leads from end 0 to end 1.
#[derive(Debug)]
struct Pair {
    flow: FlowId,
    /// The side of end 0.
    initiator: Initiator,
    ends: [End; 2],
    ways: [Way; 2],
    /// End 1 is not connected yet.
    connecting: bool,
    /// Its flow is not known as connected yet.
    unreported: bool,
    /// It stands in the queue of those with something to do.
    listed: bool,
    /// It stands in the queue for a pipe.
    starved: bool,
    /// The stack's, on loan: it goes on there if it must.
    promoted: bool,
    /// Nothing is moved until it goes on.
    paused: bool,
    /// The forward by which end 0 goes elsewhere if end 1 cannot be connected.
    elsewhere: Option<u32>,
}

/// Outcome of a turn of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turned {
    /// Bytes moved.
    pub(crate) bytes: u64,
    /// There is more to do at once.
    pub(crate) busy: bool,
}

/// State of a pair after its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Waits for an event.
    Wait,
    /// Has more to do at once.
    More,
    /// A direction waits for a pipe.
    Starved,
    /// There is no pipe at all, and the connection need not end by that.
    NoPipe,
    /// Both directions have ended.
    Done,
    /// One of the sockets has failed.
    Failed(EndCause),
}

/// Reason why a direction cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The socket that it leads from has failed.
    Source,
    /// The socket that it leads to has failed.
    Sink,
    /// The kernel gives no pipe at all.
    NoPipe,
}

impl Next {
    /// State of a pair from those of its two directions. More to do at once goes first, because no event
    /// follows; a direction that waits for a pipe asks for it again then.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::More, _) | (_, Self::More) => Self::More,
            (Self::Wait, next) | (next, _) => next,
        }
    }
}

/// All joined connections of one worker.
#[derive(Debug)]
pub(crate) struct Splices {
    pairs: Slab<Pair>,
    listed: VecDeque<u32>,
    starved: VecDeque<u32>,
    pipes: Pipes,
    max: usize,
    /// Accepted sockets given back since they were last taken.
    refused: Vec<Unjoined>,
    counters: SpliceCounters,
}

impl Splices {
    /// None yet, and at most `max` at a time.
    pub(crate) fn new(max: usize) -> Self {
        Self::sharing(max, 1)
    }

    /// The same, for one of so many that share the large pipes.
    pub(crate) fn sharing(max: usize, sharers: usize) -> Self {
        Self {
            pairs: Slab::default(),
            listed: VecDeque::new(),
            starved: VecDeque::new(),
            pipes: Pipes::new(PIPES_LARGE / sharers.max(1)),
            max,
            refused: Vec::new(),
            counters: SpliceCounters::default(),
        }
    }

    /// Closes the pipes that no direction has: after a silence nothing needs them soon.
    pub(crate) fn give_up_idle_pipes(&mut self) {
        self.pipes.give_up_idle();
    }

    /// Connections joined now.
    pub(crate) fn open(&self) -> usize {
        self.pairs.len()
    }

    /// The counters.
    pub(crate) fn counters(&self) -> SpliceCounters {
        self.counters
    }

    /// Joins an accepted connection with a socket toward its destination; gives the number for
    /// [`Splices::abort`]. Their events carry the data that `event` makes of a
    /// number, which [`Splices::event`] is to be given back.
    ///
    /// # Errors
    /// There are too many, or epoll did not take a socket; the connection is reset.
    pub(crate) fn join(
        &mut self,
        epoll: BorrowedFd<'_>,
        joining: Joining,
        event: impl Fn(u32) -> EventData,
    ) -> Result<u32, HostError> {
        let Joining { flow, initiator, accepted, toward, connect, elsewhere } = joining;
        if self.pairs.len() >= self.max {
            self.counters.refused += 1;
            reset(accepted);
            return Err(HostError::Exhausted);
        }
        let connecting = connect == Connect::Pending;
        let pair = Pair { connecting, elsewhere, ..Pair::new(flow, initiator, [accepted, toward]) };
        self.insert(epoll, pair, event).map_err(|[accepted, _]| {
            self.counters.refused += 1;
            reset(accepted);
            HostError::Exhausted
        })
    }

    /// Registers both ends of a pair and keeps it; its number.
    ///
    /// # Errors
    /// The ends again: epoll does not take one of them.
    fn insert(
        &mut self,
        epoll: BorrowedFd<'_>,
        pair: Pair,
        event: impl Fn(u32) -> EventData,
    ) -> Result<u32, [OwnedFd; 2]> {
        let slot = self.pairs.next_slot();
        let mut registered =
            (0..).zip(&pair.ends).map(|(number, end)| end.register(epoll, event(slot << 1 | number)));
        if registered.any(|result| result.is_err()) {
            // The slot is not taken, and another process may hold a copy of either.
            pair.ends.iter().for_each(|end| _ = epoll::delete(epoll, &end.fd));
            return Err(pair.ends.map(|end| end.fd));
        }
        pair.write_journal(self.pipes.journal);
        self.pairs.insert(pair);
        self.list(slot);
        Ok(slot)
    }

    /// Resets both ends of a connection whose flow was ended, if the number is still its own.
    pub(crate) fn abort(&mut self, epoll: BorrowedFd<'_>, slot: u32, flow: FlowId) {
        if self.pairs.get(slot).is_some_and(|pair| pair.flow == flow) {
            self.remove(epoll, slot, true);
        }
    }

    fn list(&mut self, slot: u32) {
        if let Some(pair) = self.pairs.get_mut(slot)
            && !std::mem::replace(&mut pair.listed, true)
        {
            self.listed.push_back(slot);
        }
    }

    /// Notes an event of a socket.
    pub(crate) fn event(&mut self, number: u32, flags: EventFlags) {
        let slot = number >> 1;
        let Some(pair) = self.pairs.get_mut(slot) else { return };
        pair.ends[(number & 1) as usize].note(flags);
        self.list(slot);
    }

    /// Serves the splices with pending work, within bounds, and reports the progress of each.
    pub(crate) fn turn(
        &mut self,
        epoll: BorrowedFd<'_>,
        max: TurnBytes,
        mut report: impl FnMut(&SpliceReport),
    ) -> Turned {
        let mut bytes = 0;
        for _ in 0..self.listed.len().min(TURN_PAIRS) {
            let Some(slot) = self.listed.pop_front() else { break };
            let Self { pairs, pipes, .. } = self;
            let Some(pair) = pairs.get_mut(slot) else { continue };
            pair.listed = false;
            if pair.paused {
                continue;
            }
            let next = pair.serve(pipes, max);
            if let Some(done) = pair.report(next) {
                let CarriedProgress { from_initiator, from_responder, .. } = done.progress;
                bytes += from_initiator.bytes + from_responder.bytes;
                report(&done);
            }
            match next {
                Next::Wait | Next::NoPipe => {}
                Next::More => self.list(slot),
                Next::Starved => {
                    if !std::mem::replace(&mut pair.starved, true) {
                        self.starved.push_back(slot);
                    }
                }
                Next::Done => self.remove(epoll, slot, false),
                Next::Failed(_) => match pair.elsewhere.filter(|_| pair.connecting) {
                    Some(forward) => self.give_back(epoll, slot, forward),
                    None => self.remove(epoll, slot, true),
                },
            }
            if bytes >= max.all {
                break;
            }
        }
        while self.pipes.has_more()
            && let Some(slot) = self.starved.pop_front()
        {
            if let Some(pair) = self.pairs.get_mut(slot) {
                pair.starved = false;
            }
            self.list(slot);
            // One for each pipe available now; the others keep their place.
            if self.listed.len() >= self.pipes.idle.len().max(1) {
                break;
            }
        }
        self.pairs.reuse_freed();
        Turned { bytes, busy: !self.listed.is_empty() }
    }

    fn remove(&mut self, epoll: BorrowedFd<'_>, slot: u32, failed: bool) {
        let Some((_, ends)) = self.dismantle(epoll, slot) else { return };
        if failed {
            ends.into_iter().for_each(reset);
            self.counters.reset += 1;
        }
    }

    /// Removes a pair; its flow, and both sockets as they are.
    fn dismantle(&mut self, epoll: BorrowedFd<'_>, slot: u32) -> Option<(FlowId, [OwnedFd; 2])> {
        let pair = self.pairs.remove(slot)?;
        if !pair.promoted {
            // Their numbers are given away again.
            self.pipes.journal.forget(pair.flow);
        }
        for way in pair.ways {
            match way.pipe {
                Some(pipe) if way.held == 0 => self.pipes.put(pipe),
                Some(_) => self.pipes.lost(),
                None => {}
            }
        }
        // Not left to the close: another process may still hold a copy of one that it has made.
        pair.ends.iter().for_each(|end| _ = epoll::delete(epoll, &end.fd));
        Some((pair.flow, pair.ends.map(|end| end.fd)))
    }
}

impl Pair {
    /// A pair of connected sockets, the initiator's first.
    fn new(flow: FlowId, initiator: Initiator, ends: [OwnedFd; 2]) -> Self {
        Self {
            flow,
            initiator,
            ends: ends.map(End::new),
            ways: [0, 1].map(|way| Way::new(Place { flow, way })),
            connecting: false,
            unreported: true,
            listed: false,
            starved: false,
            promoted: false,
            paused: false,
            elsewhere: None,
        }
    }

    /// The report for its flow after a turn: progress, and the end.
    fn report(&mut self, next: Next) -> Option<SpliceReport> {
        let [from_initiator, from_responder] =
            [0, 1].map(|way| Traffic { bytes: std::mem::take(&mut self.ways[way].moved), packets: 0 });
        let connected = !self.connecting && std::mem::take(&mut self.unreported);
        let [initiator_finished, responder_finished] =
            [0, 1].map(|way| std::mem::take(&mut self.ways[way].fin_unreported));
        let progress = CarriedProgress {
            connected,
            initiator_finished,
            responder_finished,
            from_initiator,
            from_responder,
            retransmissions: 0,
            until: [0, 1].map(|way| self.ways[way].moved_until(&self.ends[way], &self.ends[1 - way])),
        };
        let end = match next {
            Next::Done => Some(EndCause::Finished),
            Next::Failed(cause) => Some(cause),
            Next::Wait | Next::More | Next::Starved | Next::NoPipe => None,
        };
        let lacks_pipe = next == Next::NoPipe;
        let news = end.is_some() || lacks_pipe || progress != CarriedProgress::default();
        news.then_some(SpliceReport { flow: self.flow, progress, end, lacks_pipe })
    }

    /// The cause of an end by a failure of one socket, by its number.
    fn reset_by(&self, end: usize) -> EndCause {
        if (end == 0) == (self.initiator == Initiator::Guest) {
            EndCause::ResetByGuest
        } else {
            EndCause::ResetByHost
        }
    }

    fn serve(&mut self, pipes: &mut Pipes, max: TurnBytes) -> Next {
        if self.connecting {
            let [_, toward] = &self.ends;
            match connected(&toward.fd, |_| true) {
                Ok(Connect::Done) => self.connecting = false,
                Ok(Connect::Pending) => return Next::Wait,
                Err(errno) => return Next::Failed(EndCause::of(host_error(errno))),
            }
        }
        let ([a, b], [there, back]) = (&mut self.ends, &mut self.ways);
        let next = match (there.carry(a, b, pipes, max), back.carry(b, a, pipes, max)) {
            (Err(Fault::Source), _) | (_, Err(Fault::Sink)) => return Next::Failed(self.reset_by(0)),
            (Err(Fault::Sink), _) | (_, Err(Fault::Source)) => return Next::Failed(self.reset_by(1)),
            (Err(Fault::NoPipe), _) | (_, Err(Fault::NoPipe)) if self.promoted => return Next::NoPipe,
            (Err(Fault::NoPipe), _) | (_, Err(Fault::NoPipe)) => return Next::Failed(EndCause::NoResources),
            (Ok(there), Ok(back)) => there.and(back),
        };
        self.conclude(next)
    }
}

impl End {
    fn new(fd: OwnedFd) -> Self {
        let (urgent, failed, broken, peer_ended) = Default::default();
        Self { fd, readable: true, writable: true, urgent, failed, broken, peer_ended }
    }

    /// Sets the options of a spliced socket and registers it.
    fn register(&self, epoll: BorrowedFd<'_>, event: EventData) -> Result<(), Errno> {
        let _ = sockopt::set_tcp_nodelay(&self.fd, true);
        let _ = sockopt::set_socket_oobinline(&self.fd, true);
        let interest =
            EventFlags::IN | EventFlags::PRI | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(epoll, &self.fd, event, interest)
    }

    /// Moves arrived bytes into a pipe that holds so many; 0 at the end. EAGAIN with something in the pipe
    /// says little: that may be what is full, or the socket may be at its end or at an urgent mark. It is
    /// settled when the pipe is empty.
    fn read_into(&mut self, pipe: &Pipe, held: usize, max: usize) -> Result<usize, Errno> {
        match move_pages(self.fd.as_fd(), pipe.to.as_fd(), max) {
            Ok(0) if held > 0 => Err(Errno::AGAIN),
            Ok(0) => self.step_over(pipe),
            Err(Errno::AGAIN) if held == 0 && self.urgent => self.step_over(pipe),
            result => result,
        }
    }

    /// Takes what splice may have left, of which an empty pipe has room for a page; 0 at the end.
    fn step_over(&mut self, pipe: &Pipe) -> Result<usize, Errno> {
        let mut bytes = [0; PIPE_BUF];
        match retry_on_intr(|| rustix::net::recv(&self.fd, &mut bytes, RecvFlags::DONTWAIT)) {
            Ok((0, _)) => Ok(0),
            Ok((count, _)) => retry_on_intr(|| rustix::io::write(&pipe.to, &bytes[..count])),
            Err(errno) => {
                self.urgent = false;
                Err(errno)
            }
        }
    }
}

impl Way {
    const fn new(place: Place) -> Self {
        let (short, ended, fin_sent, fin_unreported) = (false, false, false, false);
        Self { place, pipe: None, held: 0, moved: 0, short, ended, fin_sent, fin_unreported }
    }

    /// Moves what can be moved: up to `max.connection` bytes and a call's more, and no further behind a piece
    /// that is shorter than `max.piece`.
    fn carry(
        &mut self,
        source: &mut End,
        sink: &mut End,
        pipes: &mut Pipes,
        max: TurnBytes,
    ) -> Result<Next, Fault> {
        let TurnBytes { connection: max, piece, .. } = max;
        let mut moved = 0;
        self.short = false;
        while !self.fin_sent && !sink.is_gone() {
            let mut idle = true;
            if !self.ended && source.readable && self.held < PIPE_BYTES {
                if self.pipe.is_none() {
                    self.pipe = pipes.lend(self.place);
                }
                let Some(pipe) = &self.pipe else {
                    return if pipes.made == 0 { Err(Fault::NoPipe) } else { Ok(Next::Starved) };
                };
                match source.read_into(pipe, self.held, max.min(CALL_BYTES)) {
                    Ok(0) if source.is_cut_off() => return Err(Fault::Source),
                    Ok(0) => (self.ended, source.peer_ended, idle) = (true, true, false),
                    Ok(count) => (self.held, idle) = (self.held + count, false),
                    Err(Errno::AGAIN) => source.readable = self.held > 0,
                    Err(_) => {
                        // Bytes from before the error go first, if they go at once.
                        let _ = self.offer(sink, max);
                        return Err(Fault::Source);
                    }
                }
            }
            let sent = match self.offer(sink, max) {
                Err(_) if sink.is_gone() => break,
                sent => sent.map_err(|_| Fault::Sink)?,
            };
            (moved, idle) = (moved + sent, idle && sent == 0);
            if self.held == 0 {
                if let Some(pipe) = self.pipe.take() {
                    pipes.give_back(pipe, self.place);
                }
                if self.ended {
                    match rustix::net::shutdown(&sink.fd, Shutdown::Write) {
                        // A reset by the other side shows as its own error.
                        Ok(()) | Err(Errno::NOTCONN) => (self.fin_sent, self.fin_unreported) = (true, true),
                        Err(_) => return Err(Fault::Sink),
                    }
                }
            }
            if idle {
                break;
            }
            self.short = moved < max && (PIECE_MIN..piece).contains(&sent);
            if moved >= max || self.short {
                return Ok(Next::More);
            }
        }
        Ok(Next::Wait)
    }

    /// Cause for which no more was moved in the last turn.
    fn moved_until(&self, source: &End, sink: &End) -> MovedUntil {
        if self.held > 0 && !sink.writable {
            MovedUntil::Full
        } else if self.held > 0 || source.readable && !self.ended && !self.short {
            MovedUntil::TurnOver
        } else {
            MovedUntil::Empty
        }
    }

    /// Moves at most `max` bytes from the pipe to the sink, as far as it takes them; returns their number.
    fn offer(&mut self, sink: &mut End, max: usize) -> Result<usize, Errno> {
        let Some(pipe) = self.pipe.as_ref().filter(|_| self.held > 0 && sink.writable) else { return Ok(0) };
        match move_pages(pipe.from.as_fd(), sink.fd.as_fd(), self.held.min(max)) {
            Ok(count) => {
                self.held -= count;
                self.moved += count as u64;
                Ok(count)
            }
            Err(Errno::AGAIN) => {
                sink.writable = false;
                Ok(0)
            }
            Err(errno) => {
                sink.fail(errno);
                Err(errno)
            }
        }
    }
}

/// One splice.
fn move_pages(from: BorrowedFd<'_>, to: BorrowedFd<'_>, bytes: usize) -> Result<usize, Errno> {
    retry_on_intr(|| splice(from, None, to, None, bytes, SpliceFlags::MOVE | SpliceFlags::NONBLOCK))
}

#[cfg(test)]
mod tests;
