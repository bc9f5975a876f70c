//! The agent: makes, freezes and releases the kernel's sockets of promoted flows, and steers their segments.
//!
//! It runs in the middle namespace, with CAP_NET_ADMIN over that and the guest's ([`serve`] is called in the
//! process that `brodo-netns` has made for it), and holds no copy of a socket in use: one that its client
//! has lost is closed by the kernel.
//!
//! *Freeze.* The wait for packets that are on their way takes long and serves any number of sockets. So it is
//! put off until no other request is there, and made once for all that are asked for. Requests of a client
//! that has ended, which may be on their way yet, come before it too, and undo nothing.
//!
//! *Release.* A connection that has ended for its client may have segments on their way, and its end must
//! reach the guest: the socket stays here, and its 4-tuple steered, until the connection is closed
//! ([`CHECK_INTERVAL`]), or the guest has been silent for [`SILENCE_MAX`]. It keeps its place meanwhile: no
//! other flow needs one to go on, and without the socket the guest's next acknowledgement would be reset. One
//! that is to be reset (SO_LINGER 0) or is frozen is closed at once.
//!
//! *Lost on the way.* The kernel closes a descriptor that its receiver has no room for. The place of a socket
//! that was not started is taken after [`START_MAX`], when another one needs it.
//!
//! *Answers* are sent without a wait ([`super::message`]): a channel without room for one is closed.
//!
//! *Its end.* When the first client has closed its channel the agent removes the steering and ends. When
//! another one has, its sockets wait for a client that goes on with them ([`ADOPTION_MAX`]): a crash leaves
//! them open. Sockets that none has adopted are not steered any more, then or when their place is needed.
//!
//! System calls: poll, recvmsg, sendmsg, getsockopt; those of [`super::repaired`] and [`super::steering`].

use super::datagram_queue::DatagramQueue;
use super::message::{Answer, Kind, Refused, Request};
use super::steering::Steering;
use super::{Ends, FLOWS_MAX, Stage, repaired, seed};
use crate::tcp_info::{self, TcpInfo};
use brodo_core::memory::budget::WORKERS_MAX;
use brodo_core::promotion::TcpSeed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Most channels: that of the first client, one for each worker of an engine, and those of an earlier engine
/// whose ends are yet to be noticed.
const CHANNELS_MAX: usize = 1 + 2 * WORKERS_MAX as usize;
/// Interval between two looks at the sockets that are about to close.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The same for those that have not closed for long.
const CHECK_INTERVAL_OLD: Duration = Duration::from_secs(1);
/// Longest time for another client to go on with a socket.
const ADOPTION_MAX: Duration = Duration::from_secs(10);
/// Time after which a socket that was not started has not reached its client, which asks for the start as
/// soon as it has the socket. A client that is slower than that is refused, and nothing was sent by then.
const START_MAX: Duration = Duration::from_secs(2);
/// Time after which a released connection that is not closed is looked at less often.
const PATIENCE: Duration = Duration::from_secs(60);
/// Silence of the guest after which a released connection is given up: longer than the kernel's interval
/// between two probes of a closed window (TCP_RTO_MAX). A guest whose program reads slowly, or not at all,
/// answers them, and has as long as over the TAP.
const SILENCE_MAX: Duration = Duration::from_secs(180);

/// A client's channel.
struct Channel {
    id: u64,
    fd: OwnedFd,
}

/// A released socket.
struct Leaving {
    socket: OwnedFd,
    begun: Instant,
    /// Segments received so far, and the time at which the last of them was noticed.
    segments: u32,
    answered: Instant,
}

impl Leaving {
    fn new(socket: OwnedFd, now: Instant) -> Self {
        Self { socket, begun: now, segments: 0, answered: now }
    }

    /// Whether it has not closed for long.
    fn is_old(&self, now: Instant) -> bool {
        now - self.begun >= PATIENCE
    }

    /// Whether its connection is over or given up.
    fn is_over(&mut self, now: Instant) -> bool {
        let info = TcpInfo::of(self.socket.as_fd()).unwrap_or_default();
        if info.segments_received != self.segments {
            (self.segments, self.answered) = (info.segments_received, now);
        }
        info.state == tcp_info::CLOSED || now - self.answered >= SILENCE_MAX
    }
}

/// A socket made here.
struct Made {
    ends: Ends,
    /// The kernel's name for it, which no other socket ever has.
    cookie: u64,
    /// Id of the client's channel.
    client: u64,
    /// It was started, or may not be any more.
    started: bool,
    /// Time at which its client got it, as far as is known: made, or adopted.
    given: Instant,
    steered: bool,
    /// Its client has ended: until when another one may adopt it.
    orphan_until: Option<Instant>,
    leaving: Option<Leaving>,
}

/// A received socket that was made here.
struct Found {
    /// Index of its record.
    index: usize,
    socket: OwnedFd,
}

/// A socket that is to be frozen.
struct Freezing {
    /// Id of the client's channel, and the number of its request.
    client: u64,
    number: u64,
    socket: OwnedFd,
}

struct Agent {
    steering: Steering,
    datagrams: Option<DatagramQueue>,
    guests: Vec<IpAddr>,
    made: Vec<Made>,
    freezing: Vec<Freezing>,
}

/// The other end of a channel is closed, or does not keep to the conversation.
struct Ended;

/// Answers requests of all channels until the first client has closed its own. Sockets are made toward the
/// addresses `guests` alone.
pub fn serve(channel: OwnedFd, steering: Steering, guests: Vec<IpAddr>, datagrams: Option<DatagramQueue>) {
    let (made, freezing) = Default::default();
    let mut agent = Agent { steering, datagrams, guests, made, freezing };
    let mut channels = vec![Channel { id: 0, fd: channel }];
    let mut next_id = 1;
    while let Ok(ready) = agent.wait(&channels) {
        if ready.is_empty() {
            agent.end_freezing(&mut channels);
        }
        // The oldest first: the end of a client frees the places that a later one asks for. Then the first,
        // which gives further channels, for there is room for them now.
        let mut ended = Vec::new();
        for &index in ready.iter().filter(|&&index| index > 0) {
            if agent.serve_one(&channels[index]).is_err() {
                agent.forget(channels[index].id);
                ended.push(index);
            }
        }
        ended.into_iter().rev().for_each(|index| drop(channels.remove(index)));
        if ready.first() == Some(&0) {
            match agent.serve_one(&channels[0]) {
                Ok(Some(fd)) if channels.len() < CHANNELS_MAX => {
                    channels.push(Channel { id: next_id, fd });
                    next_id += 1;
                }
                Ok(_) => {}
                Err(Ended) => return agent.steering.end(),
            }
        }
        agent.close_left();
        agent.renew_datagrams();
    }
    agent.steering.end();
}

impl Agent {
    /// Waits for requests, unless there is something to do without one; the indices of the channels that have
    /// one.
    fn wait(&self, channels: &[Channel]) -> Result<Vec<usize>, Errno> {
        let mut polled: Vec<_> =
            channels.iter().map(|channel| PollFd::new(&channel.fd, PollFlags::IN)).collect();
        let now = Instant::now();
        let check_in = |made: &Made| match &made.leaving {
            Some(leaving) if leaving.is_old(now) => Some(CHECK_INTERVAL_OLD),
            None if made.orphan_until.is_none() => None,
            _ => Some(CHECK_INTERVAL),
        };
        let interval = if self.freezing.is_empty() {
            let renewal = self.datagrams.as_ref().and_then(|queue| queue.renewal_in(now));
            self.made.iter().filter_map(check_in).chain(renewal).min()
        } else {
            Some(Duration::ZERO)
        };
        let interval = interval.map(|interval| Timespec {
            tv_sec: interval.as_secs() as i64,
            tv_nsec: interval.subsec_nanos().into(),
        });
        match poll(&mut polled, interval.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(errno) => return Err(errno),
        }
        Ok((0..polled.len()).filter(|&index| !polled[index].revents().is_empty()).collect())
    }

    /// Answers one request; a further channel is returned.
    fn serve_one(&mut self, channel: &Channel) -> Result<Option<OwnedFd>, Ended> {
        let Ok(Some(request)) = Request::receive(channel.fd.as_fd()) else { return Err(Ended) };
        let Request { kind, mut number, seed, descriptor } = request;
        let result = match kind {
            Kind::Channel => return Ok(descriptor),
            Kind::Make => seed::decode(&seed)
                .ok_or(Stage::Request.refusal(Errno::INVAL))
                .and_then(|seed| self.make(channel.id, &seed))
                .map(Some),
            Kind::Start => self.start(descriptor).map(|()| None),
            Kind::Freeze => match self.begin_freezing(channel.id, number, descriptor) {
                Ok(()) => return Ok(None),
                Err(refused) => Err(refused),
            },
            Kind::Thaw => self.thaw(descriptor).map(|()| None),
            Kind::Release => {
                self.release(descriptor);
                return Ok(None);
            }
            Kind::Adopt => {
                self.adopt(channel.id, descriptor);
                return Ok(None);
            }
            Kind::Divert | Kind::Rejoin => {
                let result = self.give_queue(kind, channel.id);
                number = self.datagrams.as_ref().map_or(0, DatagramQueue::dropped);
                result
            }
        };
        Answer { kind, number, result }.send(channel.fd.as_fd()).map_err(|_| Ended)?;
        if let Some(queue) = self.datagrams.as_mut().filter(|_| kind == Kind::Divert) {
            queue.divert(&mut self.steering);
        }
        Ok(None)
    }

    /// Gives the queue of datagrams to a client, or takes it back.
    fn give_queue(&mut self, kind: Kind, client: u64) -> Result<Option<OwnedFd>, Refused> {
        let queue = self.datagrams.as_mut().ok_or(Stage::Request.refusal(Errno::NODEV))?;
        if kind == Kind::Divert {
            return queue.give(&self.steering, client);
        }
        queue.rejoin(&mut self.steering, client);
        Ok(None)
    }

    fn make(&mut self, client: u64, seed: &TcpSeed) -> Result<OwnedFd, Refused> {
        let ends = Ends::of(seed);
        if !self.guests.contains(&ends.guest.ip()) {
            return Err(Stage::Request.refusal(Errno::ADDRNOTAVAIL));
        }
        // A client adopts what it goes on with before it asks for more.
        let is_full = self.made.len() >= FLOWS_MAX;
        let now = Instant::now();
        self.remove(|made| match made.leaving {
            Some(_) => false,
            None if made.orphan_until.is_some() => is_full || made.ends == ends,
            None => is_full && !made.started && now - made.given >= START_MAX,
        });
        if self.made.len() >= FLOWS_MAX {
            return Err(Stage::Number.refusal(Errno::NOSPC));
        }
        let socket = repaired::make(seed)?;
        let cookie = sockopt::socket_cookie(&socket).map_err(|errno| Stage::Socket.refusal(errno))?;
        let (started, steered, orphan_until, leaving) = Default::default();
        let given = Instant::now();
        self.made.push(Made { ends, cookie, client, started, given, steered, orphan_until, leaving });
        Ok(socket)
    }

    fn start(&mut self, socket: Option<OwnedFd>) -> Result<(), Refused> {
        let Found { index, socket } = self.find(socket)?;
        let made = &mut self.made[index];
        if std::mem::replace(&mut made.started, true) {
            return Err(Stage::Request.refusal(Errno::ALREADY));
        }
        self.steering.add(&made.ends).map_err(|errno| Stage::Steering.refusal(errno))?;
        made.steered = true;
        let started = repaired::start(socket.as_fd());
        if started.is_err() {
            self.stop_steering(index);
        }
        started
    }

    /// Another client goes on with a socket.
    fn adopt(&mut self, client: u64, socket: Option<OwnedFd>) {
        if let Ok(Found { index, .. }) = self.find(socket) {
            let made = &mut self.made[index];
            (made.client, made.orphan_until, made.given) = (client, None, Instant::now());
        }
    }

    /// Finds a received socket among those made here and in use.
    fn find(&self, socket: Option<OwnedFd>) -> Result<Found, Refused> {
        let unknown = Stage::Request.refusal(Errno::NOTSOCK);
        let socket = socket.ok_or(unknown)?;
        let cookie = sockopt::socket_cookie(&socket).map_err(|_| unknown)?;
        let is_it = |made: &Made| made.cookie == cookie && made.leaving.is_none();
        let index = self.made.iter().position(is_it).ok_or(unknown)?;
        Ok(Found { index, socket })
    }

    fn begin_freezing(&mut self, client: u64, number: u64, socket: Option<OwnedFd>) -> Result<(), Refused> {
        let Found { index, socket } = self.find(socket)?;
        // The start may be a request on its way from a client that has ended.
        self.made[index].started = true;
        self.freezing.push(Freezing { client, number, socket });
        Ok(())
    }

    /// Keeps all packets from a socket, for ever or until it is thawed.
    fn cut_off(&mut self, socket: &OwnedFd) -> Result<(), Refused> {
        let copy = socket.try_clone().map_err(|_| Stage::Socket.refusal(Errno::MFILE))?;
        let Found { index, .. } = self.find(Some(copy))?;
        self.stop_steering(index);
        repaired::refuse_packets(socket.as_fd())
    }

    /// Freezes all sockets that are to be, and answers. The end of the first client is noticed by [`serve`].
    fn end_freezing(&mut self, channels: &mut Vec<Channel>) {
        if self.freezing.is_empty() {
            return;
        }
        let freezing = std::mem::take(&mut self.freezing);
        let cut_off: Vec<_> = freezing.iter().map(|freezing| self.cut_off(&freezing.socket)).collect();
        repaired::await_packets();
        for (Freezing { client, number, socket }, cut_off) in freezing.into_iter().zip(cut_off) {
            let result = cut_off.and_then(|()| repaired::freeze(socket.as_fd())).map(|()| None);
            let Some(index) = channels.iter().position(|channel| channel.id == client) else { continue };
            let answer = Answer { kind: Kind::Freeze, number, result };
            if answer.send(channels[index].fd.as_fd()).is_err() && index > 0 {
                self.forget(channels.remove(index).id);
            }
        }
    }

    fn thaw(&mut self, socket: Option<OwnedFd>) -> Result<(), Refused> {
        let Found { index, socket } = self.find(socket)?;
        repaired::thaw(socket.as_fd())?;
        let made = &mut self.made[index];
        if !made.steered {
            self.steering.add(&made.ends).map_err(|errno| Stage::Steering.refusal(errno))?;
            made.steered = true;
        }
        Ok(())
    }

    fn release(&mut self, socket: Option<OwnedFd>) {
        let Ok(Found { index, socket }) = self.find(socket) else { return };
        if self.made[index].steered && sockopt::socket_linger(&socket) != Ok(Some(Duration::ZERO)) {
            self.made[index].leaving = Some(Leaving::new(socket, Instant::now()));
        } else {
            drop(socket);
            self.stop_steering(index);
            self.made.swap_remove(index);
        }
    }

    fn stop_steering(&mut self, index: usize) {
        let made = &mut self.made[index];
        if std::mem::replace(&mut made.steered, false) {
            // The guest may have deleted the set.
            let _ = self.steering.remove(&made.ends);
        }
    }

    /// Closes released sockets whose connections are over, and forgets those that no client has adopted.
    fn close_left(&mut self) {
        let now = Instant::now();
        self.remove(|made| match &mut made.leaving {
            Some(leaving) => leaving.is_over(now),
            None => made.orphan_until.is_some_and(|until| now >= until),
        });
    }

    /// Goes on to steer datagrams, if they are steered.
    fn renew_datagrams(&mut self) {
        if let Some(queue) = &mut self.datagrams {
            queue.renew(&self.steering, Instant::now());
        }
    }

    /// Forgets some sockets, which are not steered any more.
    fn remove(&mut self, mut is_over: impl FnMut(&mut Made) -> bool) {
        for index in (0..self.made.len()).rev() {
            if is_over(&mut self.made[index]) {
                self.stop_steering(index);
                self.made.swap_remove(index);
            }
        }
    }

    /// A client has ended: what it has not released waits for another one.
    fn forget(&mut self, client: u64) {
        if let Some(queue) = &mut self.datagrams {
            queue.rejoin(&mut self.steering, client);
        }
        let until = Some(Instant::now() + ADOPTION_MAX);
        let left = self.made.iter_mut().filter(|made| made.client == client && made.leaving.is_none());
        left.for_each(|made| made.orphan_until = until);
    }
}
