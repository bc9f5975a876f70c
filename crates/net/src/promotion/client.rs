//! The client of the agent: sends requests, never waits, and checks the descriptors of the answers.
//!
//! *Trust.* The agent is brodo's own process, but it lives in the guest's user namespace. A descriptor of an
//! answer is used only if it is a TCP socket that is established between the ends of its request, or a TUN
//! device that does not block: anything else could be read or written in place of the flow's.
//!
//! System calls: sendmsg, recvmsg; those of [`helper_end`]; getsockopt, getsockname, getpeername, fstat,
//! fcntl F_GETFL.

use super::message::{self, Answer, Kind, Refused, UNDER_WAY_MAX};
use super::{Ends, Stage};
use crate::helper_end;
use crate::tcp_info::{self, TcpInfo};
use brodo_core::promotion::TcpSeed;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};
use rustix::process::{Pid, WaitStatus};
use std::collections::HashMap;

/// Number of the device /dev/net/tun: 10 and 200 in every Linux (`MISC_MAJOR`, `TUN_MINOR`).
const TUN: (u32, u32) = (10, 200);

/// The agent, seen from one of its clients.
#[derive(Debug)]
pub struct PromotionAgent {
    /// The child to wait for at the end, of the first client.
    pid: Option<Pid>,
    channel: OwnedFd,
    /// Ends of the sockets that are being made, by the number of the request.
    making: HashMap<u64, Ends>,
    /// Sockets whose release could not be sent yet, each with the number under which it is thawed before, if
    /// it is frozen.
    unreleased: Vec<(OwnedFd, Option<u64>)>,
    /// Requests that the agent has not answered yet.
    under_way: usize,
    gone: bool,
}

/// An answer of the agent to the request of a number.
#[derive(Debug)]
pub struct Answered {
    /// The number.
    pub number: u64,
    /// The outcome.
    pub outcome: Outcome,
}

/// Outcome of a request.
#[derive(Debug)]
pub enum Outcome {
    /// A socket, established between the ends of its seed, or the refusal. It sends and receives nothing
    /// before it is started.
    Made(Result<OwnedFd, Refused>),
    /// The socket is steered and goes on, or the refusal: nothing was sent or received then.
    Started(Result<(), Refused>),
    /// The socket is frozen, or the refusal; it is not steered then either, until it is thawed.
    Frozen(Result<(), Refused>),
    /// The socket goes on, or the refusal.
    Thawed(Result<(), Refused>),
    /// Datagrams of the guest's go to this queue, or still do if there is none; or the refusal.
    Diverted {
        /// The queue: a TAP of which nothing is to be asked but frames.
        queue: Result<Option<OwnedFd>, Refused>,
        /// Datagrams that it has dropped since it was made.
        dropped: u64,
    },
    /// Datagrams go to the guest's interface again.
    Rejoined {
        /// Datagrams that the queue has dropped since it was made.
        dropped: u64,
    },
}

impl PromotionAgent {
    /// The client of the child `pid`, which runs [`super::agent::serve`] on the other end of `channel`.
    ///
    /// # Errors
    /// The descriptor cannot be made non-blocking.
    pub fn new(pid: Pid, channel: OwnedFd) -> Result<Self, Errno> {
        let mut agent = Self::on(channel)?;
        agent.pid = Some(pid);
        Ok(agent)
    }

    /// Its process, of its first client.
    pub fn process(&self) -> Option<Pid> {
        self.pid
    }

    /// Ends the agent and waits for that, if this is its first client and parent; its end. One that goes on
    /// for five seconds is killed; `None` if it may not be.
    pub fn end(&mut self) -> Option<WaitStatus> {
        let pid = self.pid.take()?;
        let _ = rustix::net::shutdown(&self.channel, Shutdown::Both);
        helper_end::await_end(pid)
    }

    /// The client at the end of a further channel ([`PromotionAgent::another`]).
    ///
    /// # Errors
    /// The descriptor cannot be made non-blocking.
    pub fn on(channel: OwnedFd) -> Result<Self, Errno> {
        rustix::io::ioctl_fionbio(&channel, true)?;
        let (making, unreleased, under_way) = Default::default();
        Ok(Self { pid: None, channel, making, unreleased, under_way, gone: false })
    }

    /// A further channel to the same agent, for a client in another process: [`PromotionAgent::on`].
    ///
    /// # Errors
    /// No descriptors are left, or the agent has ended.
    pub fn another(&self) -> Result<OwnedFd, Errno> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        message::ask(self.channel.as_fd(), Kind::Channel, 0, None, Some(theirs.as_fd()))?;
        Ok(ours)
    }

    /// Readable when [`PromotionAgent::receive`] has something to do.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Whether it has ended, for example killed by a signal.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Asks for a socket.
    ///
    /// # Errors
    /// The request could not be sent, and there will be no answer.
    pub fn make(&mut self, number: u64, seed: &TcpSeed) -> Result<(), Errno> {
        self.ask(Kind::Make, number, Some(seed), None)?;
        self.making.insert(number, Ends::of(seed));
        Ok(())
    }

    /// Asks to start a socket that was made.
    ///
    /// # Errors
    /// The request could not be sent, and there will be no answer.
    pub fn start(&mut self, number: u64, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        self.ask(Kind::Start, number, None, Some(socket))
    }

    /// Goes on with a socket that a client before has left behind, in time ([`super::agent`]).
    ///
    /// # Errors
    /// The request could not be sent.
    pub fn adopt(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        self.ask(Kind::Adopt, 0, None, Some(socket))
    }

    /// Asks to freeze a socket.
    ///
    /// # Errors
    /// The request could not be sent, and there will be no answer.
    pub fn freeze(&mut self, number: u64, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        self.ask(Kind::Freeze, number, None, Some(socket))
    }

    /// Asks to let a frozen socket go on.
    ///
    /// # Errors
    /// The request could not be sent, and there will be no answer.
    pub fn thaw(&mut self, number: u64, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        self.ask(Kind::Thaw, number, None, Some(socket))
    }

    /// Asks for the queue of datagrams, or for its drops while this client has it.
    ///
    /// # Errors
    /// The request could not be sent, and there will be no answer.
    pub fn divert(&mut self) -> Result<(), Errno> {
        self.ask(Kind::Divert, 0, None, None)
    }

    /// Gives the queue of datagrams back.
    ///
    /// # Errors
    /// The request could not be sent, and there will be no answer.
    pub fn rejoin(&mut self) -> Result<(), Errno> {
        self.ask(Kind::Rejoin, 0, None, None)
    }

    /// Gives a socket back whose connection has ended, or is to be reset (SO_LINGER 0), or is frozen and read
    /// out.
    pub fn release(&mut self, socket: OwnedFd) {
        self.unreleased.push((socket, None));
        self.send_releases();
    }

    /// Gives a socket back that is frozen, or about to be, and is to be reset (SO_LINGER 0): closed so, it
    /// would say no word to the guest.
    pub fn release_frozen(&mut self, number: u64, socket: OwnedFd) {
        self.unreleased.push((socket, Some(number)));
        self.send_releases();
    }

    /// Whether the channel had no room for a release.
    pub fn has_unsent(&self) -> bool {
        !self.unreleased.is_empty()
    }

    /// Sends the releases for which the channel had no room.
    pub fn send_releases(&mut self) {
        let has_no_room = |sent: Result<(), Errno>| matches!(sent, Err(Errno::AGAIN | Errno::NOBUFS));
        while let Some((socket, frozen)) = self.unreleased.pop() {
            if let Some(number) = frozen
                && has_no_room(self.thaw(number, socket.as_fd()))
            {
                return self.unreleased.push((socket, frozen));
            }
            // Without an agent the kernel closes the connection as any other.
            if has_no_room(self.ask(Kind::Release, 0, None, Some(socket.as_fd()))) {
                return self.unreleased.push((socket, None));
            }
        }
    }

    fn ask(
        &mut self,
        kind: Kind,
        number: u64,
        seed: Option<&TcpSeed>,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), Errno> {
        if self.gone {
            return Err(Errno::PIPE);
        }
        if kind.is_answered() && self.under_way >= UNDER_WAY_MAX {
            return Err(Errno::AGAIN);
        }
        let sent = message::ask(self.channel.as_fd(), kind, number, seed, descriptor);
        self.gone = matches!(sent, Err(Errno::PIPE | Errno::CONNRESET));
        self.under_way += usize::from(sent.is_ok() && kind.is_answered());
        sent
    }

    /// Takes an answer that has come; `None` if there is none now.
    pub fn receive(&mut self) -> Option<Answered> {
        self.send_releases();
        loop {
            match Answer::receive(self.channel.as_fd()) {
                Ok(Some(answer)) => {
                    self.under_way = self.under_way.saturating_sub(1);
                    let answered = self.check(answer);
                    if answered.is_some() {
                        return answered;
                    }
                }
                Err(Errno::AGAIN) => return None,
                Ok(None) | Err(_) => {
                    self.gone = true;
                    return None;
                }
            }
        }
    }

    /// An answer that belongs to a request, with its descriptor checked.
    fn check(&mut self, answer: Answer) -> Option<Answered> {
        let Answer { kind, number, result } = answer;
        let outcome = match kind {
            Kind::Make => {
                let ends = self.making.remove(&number)?;
                Outcome::Made(result.and_then(|socket| checked(socket, &ends)))
            }
            Kind::Start => Outcome::Started(result.map(drop)),
            Kind::Freeze => Outcome::Frozen(result.map(drop)),
            Kind::Thaw => Outcome::Thawed(result.map(drop)),
            Kind::Divert => {
                let queue = result.and_then(|queue| queue.map(checked_queue).transpose());
                Outcome::Diverted { queue, dropped: number }
            }
            Kind::Rejoin => Outcome::Rejoined { dropped: number },
            Kind::Release | Kind::Adopt | Kind::Channel => return None,
        };
        Some(Answered { number, outcome })
    }
}

/// The socket, if it is one for these ends. The kernel omits a descriptor that cannot be received, for want
/// of descriptors.
fn checked(socket: Option<OwnedFd>, ends: &Ends) -> Result<OwnedFd, Refused> {
    let socket = socket.ok_or(Stage::Socket.refusal(Errno::MFILE))?;
    // The guest may have ended or reset it by now.
    let is_open = || TcpInfo::of(socket.as_fd()).is_ok_and(|info| info.state != tcp_info::LISTENS);
    if is_between(socket.as_fd(), ends) && is_open() {
        Ok(socket)
    } else {
        Err(Stage::Socket.refusal(Errno::BADF))
    }
}

/// The descriptor, if it is a TUN device that does not block.
fn checked_queue(queue: OwnedFd) -> Result<OwnedFd, Refused> {
    let device = rustix::fs::fstat(&queue).map(|status| status.st_rdev);
    let device = device.map(|device| (rustix::fs::major(device), rustix::fs::minor(device)));
    let flags = rustix::fs::fcntl_getfl(&queue).unwrap_or(OFlags::empty());
    if device == Ok(TUN) && flags.contains(OFlags::NONBLOCK) {
        Ok(queue)
    } else {
        Err(Stage::Socket.refusal(Errno::BADF))
    }
}

/// Whether a descriptor is a stream between these ends.
pub(crate) fn is_between(socket: BorrowedFd<'_>, ends: &Ends) -> bool {
    let family = if ends.guest.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    sockopt::socket_domain(socket) == Ok(family)
        && sockopt::socket_type(socket) == Ok(SocketType::STREAM)
        && rustix::net::getsockname(socket).ok().and_then(|at| at.try_into().ok()) == Some(ends.remote)
        && rustix::net::getpeername(socket).ok().flatten().and_then(|at| at.try_into().ok())
            == Some(ends.guest)
}

impl Drop for PromotionAgent {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

#[cfg(test)]
mod tests;
