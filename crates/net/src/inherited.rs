//! Descriptors of a process that has crashed, found by their numbers in the table that was its too.

pub(crate) mod progress;

use crate::connect::reset;
use crate::handover::{Expected, Incoming};
use crate::sys;
use crate::sys::inherited::{self, Taken};
use brodo_core::journal::Progress;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::net::SocketAddr;
use std::time::Duration;

/// The kernel gives out the lowest number that is free, so behind so many closed ones no other is open.
const CLOSED_MAX: usize = 4096;

/// Descriptors of flows, by number, listening sockets, and connections that no flow has yet. Dropping it
/// closes them, streams with a reset.
#[derive(Debug, Default)]
pub struct Inherited {
    /// In ascending order of their numbers; `None` once it was taken.
    sockets: Vec<(RawFd, Option<Taken>)>,
    listeners: Vec<OwnedFd>,
    accepted: Vec<OwnedFd>,
    /// Of no use, and slow to close: an epoll instance with ten thousand sockets takes 10 ms.
    useless: Vec<OwnedFd>,
}

/// Kind of a descriptor that no record names.
enum Unnamed {
    /// TCP socket that listens, or bound UDP socket without a peer.
    Listener,
    /// Accepted connection of which nothing was read, and to which nothing was written.
    Accepted,
    Other,
}

impl Unnamed {
    fn of(descriptor: BorrowedFd<'_>) -> Self {
        if sockopt::socket_acceptconn(descriptor) == Ok(true) || is_port(descriptor) {
            return Self::Listener;
        }
        let untouched = Progress { written: 0, read: 0, shut: false, peer_closed: false };
        match progress::of(descriptor, true, 0) {
            Some(progress) if Progress { peer_closed: false, ..progress } == untouched => Self::Accepted,
            _ => Self::Other,
        }
    }
}

/// Whether it is a UDP socket that is bound and not connected: that of a port.
fn is_port(socket: BorrowedFd<'_>) -> bool {
    let bound = || SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok();
    Expected::Udp.is(socket) == Ok(true)
        && rustix::net::getpeername(socket) == Err(Errno::NOTCONN)
        && bound().is_some_and(|at| at.port() != 0)
}

impl Inherited {
    /// Takes the open descriptors among `numbers`, all sockets that listen, and connections that were
    /// accepted for a flow that has not begun. Streams that are neither will be reset when the caller closes
    /// them. `own` are all descriptors with an owner in this process.
    pub fn take(numbers: impl IntoIterator<Item = u32>, own: &[BorrowedFd<'_>]) -> Self {
        let own: Vec<RawFd> = own.iter().map(AsRawFd::as_raw_fd).collect();
        let mut taken = Self::named(numbers, &own);
        let (mut number, mut closed) = (3, 0);
        while closed < CLOSED_MAX {
            let is_flows = taken.sockets.binary_search_by_key(&number, |(at, _)| *at).is_ok();
            match if is_flows { None } else { inherited::take(number, &own) } {
                Some(Taken { fd, .. }) => taken.keep_unnamed(fd),
                None if is_flows || inherited::is_open(number) => {}
                None => closed += 1,
            }
            number += 1;
        }
        taken
    }

    /// The open descriptors among `numbers`, without those of `own`.
    pub(crate) fn named(numbers: impl IntoIterator<Item = u32>, own: &[RawFd]) -> Self {
        let mut numbers: Vec<RawFd> = numbers.into_iter().filter_map(|it| it.try_into().ok()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let take = |number| inherited::take(number, own).map(|taken| (number, Some(taken)));
        let mut named = Self::default();
        named.sockets.extend(numbers.into_iter().filter_map(take));
        named
    }

    /// Keeps a descriptor that no record names, if it is of use.
    fn keep_unnamed(&mut self, fd: OwnedFd) {
        match Unnamed::of(fd.as_fd()) {
            Unnamed::Listener => self.listeners.push(fd),
            Unnamed::Accepted => self.accepted.push(fd),
            // Only a stream's close makes a reset of it.
            Unnamed::Other => match sockopt::set_socket_linger(&fd, Some(Duration::ZERO)) {
                Err(Errno::NOTSOCK) => self.useless.push(fd),
                _ => drop(fd),
            },
        }
    }

    /// All that were taken and are still here, to be kept open.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sockets = self.sockets.iter().filter_map(|(_, taken)| Some(&taken.as_ref()?.fd));
        sockets.chain(&self.listeners).chain(&self.accepted).chain(&self.useless).map(AsFd::as_fd)
    }

    /// Takes descriptors that are of no use, to be closed in another thread or later.
    pub fn take_useless(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.useless)
    }

    /// Takes the sockets that listen.
    pub(crate) fn listeners(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.listeners)
    }

    /// Takes the connections that were accepted and have no flow.
    pub(crate) fn accepted(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.accepted)
    }

    fn place(&mut self, number: u32) -> Option<&mut Option<Taken>> {
        let number = RawFd::try_from(number).ok()?;
        let at = self.sockets.binary_search_by_key(&number, |(at, _)| *at).ok()?;
        self.sockets.get_mut(at).map(|(_, taken)| taken)
    }

    /// The descriptor with this number, if it is still here.
    pub(crate) fn get(&self, number: u32) -> Option<BorrowedFd<'_>> {
        let number = RawFd::try_from(number).ok()?;
        let at = self.sockets.binary_search_by_key(&number, |(at, _)| *at).ok()?;
        self.sockets.get(at)?.1.as_ref().map(|taken| taken.fd.as_fd())
    }

    /// Takes a socket of the expected type, and sees to it that it does not block.
    pub(crate) fn take_socket(&mut self, number: u32, expected: Expected) -> Option<OwnedFd> {
        let place = self.place(number)?;
        let Taken { fd, blocks } = place.as_ref()?;
        if expected.fits(fd.as_fd(), *blocks) { place.take().map(|taken| taken.fd) } else { None }
    }

    /// Takes the descriptor with this number, whatever it is.
    pub(crate) fn take_any(&mut self, number: u32) -> Option<OwnedFd> {
        self.place(number)?.take().map(|taken| taken.fd)
    }

    /// Takes both ends of a pipe, and tells how many bytes are in it.
    pub(crate) fn take_pipe(&mut self, from: u32, to: u32) -> Option<(OwnedFd, OwnedFd, usize)> {
        let held = Incoming::bytes_in(self.get(from)?, self.get(to)?)?;
        let (from, to) = (self.take_any(from)?, self.take_any(to)?);
        Some((from, to, usize::try_from(held).ok()?))
    }

    /// Takes a socket back.
    pub(crate) fn put_back(&mut self, number: u32, fd: OwnedFd) {
        if let Some(place) = self.place(number) {
            *place = Some(Taken { fd, blocks: false });
        }
    }

    /// Sockets that no flow has claimed.
    pub(crate) fn rest(mut self) -> Vec<OwnedFd> {
        let flows = self.sockets.drain(..).filter_map(|(_, taken)| Some(taken?.fd));
        flows.chain(self.accepted.drain(..)).collect()
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        let flows = self.sockets.drain(..).filter_map(|(_, taken)| Some(taken?.fd));
        flows.chain(self.accepted.drain(..)).for_each(reset);
    }
}

/// The host's network namespace, if the kernel tells.
pub(crate) fn host_namespace() -> Option<u64> {
    let any = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None).ok()?;
    sys::namespace_of(any.as_fd()).ok()
}
