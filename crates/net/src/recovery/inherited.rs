//! Descriptors of a process that has crashed, found by their numbers in the table that was its too.

use super::ReusedListeners;
use crate::handover::Incoming;
use crate::splice::reset;
use crate::sys::inherited;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::net::sockopt;
use std::time::Duration;

/// The kernel gives out the lowest number that is free, so behind so many closed ones no other is open.
const CLOSED_MAX: usize = 4096;

/// Sockets of flows, by number, and listening sockets. Dropping it closes them, streams with a reset.
#[derive(Debug, Default)]
pub struct Inherited {
    /// In ascending order of their numbers; `None` once it was taken.
    sockets: Vec<(RawFd, Option<OwnedFd>)>,
    listeners: Vec<OwnedFd>,
}

impl Inherited {
    /// Takes the open descriptors among `numbers`, and all sockets that listen. Streams that are neither will
    /// be reset when the caller closes them. `own` are all descriptors with an owner in this process.
    pub fn take(numbers: impl IntoIterator<Item = u32>, own: &[BorrowedFd<'_>]) -> Self {
        let own: Vec<RawFd> = own.iter().map(AsRawFd::as_raw_fd).collect();
        let mut numbers: Vec<RawFd> = numbers.into_iter().filter_map(|it| it.try_into().ok()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let take = |number| inherited::take(number, &own).map(|fd| (number, Some(fd)));
        let sockets: Vec<_> = numbers.into_iter().filter_map(take).collect();
        let mut listeners = Vec::new();
        let (mut number, mut closed) = (3, 0);
        while closed < CLOSED_MAX {
            let is_flows = sockets.binary_search_by_key(&number, |(at, _)| *at).is_ok();
            match if is_flows { None } else { inherited::take(number, &own) } {
                Some(fd) if sockopt::socket_acceptconn(&fd) == Ok(true) => listeners.push(fd),
                // Only a stream's close makes a reset of it.
                Some(fd) => drop(sockopt::set_socket_linger(&fd, Some(Duration::ZERO)).map(|()| fd)),
                None if is_flows || inherited::is_open(number) => {}
                None => closed += 1,
            }
            number += 1;
        }
        Self { sockets, listeners }
    }

    /// All that were taken and are still here, to be kept open.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sockets = self.sockets.iter().filter_map(|(_, fd)| fd.as_ref());
        sockets.chain(&self.listeners).map(AsFd::as_fd)
    }

    /// Takes the listening sockets.
    pub fn listeners(&mut self) -> ReusedListeners {
        ReusedListeners::new(std::mem::take(&mut self.listeners))
    }

    fn place(&mut self, number: u32) -> Option<&mut Option<OwnedFd>> {
        let number = RawFd::try_from(number).ok()?;
        let at = self.sockets.binary_search_by_key(&number, |(at, _)| *at).ok()?;
        self.sockets.get_mut(at).map(|(_, fd)| fd)
    }

    /// The socket with this number, if it is still here.
    pub(super) fn get(&mut self, number: u32) -> Option<BorrowedFd<'_>> {
        self.place(number)?.as_ref().map(AsFd::as_fd)
    }

    /// Takes a socket of the expected type, and sees to it that it does not block.
    pub(super) fn take_socket(
        &mut self,
        number: u32,
        expected: crate::handover::Expected,
    ) -> Option<OwnedFd> {
        let place = self.place(number)?;
        if Incoming::fits(place.as_ref()?.as_fd(), expected) { place.take() } else { None }
    }

    /// Takes a socket back.
    pub(super) fn put_back(&mut self, number: u32, fd: OwnedFd) {
        if let Some(place) = self.place(number) {
            *place = Some(fd);
        }
    }

    /// Sockets that no flow has claimed.
    pub(crate) fn rest(mut self) -> Vec<OwnedFd> {
        self.sockets.drain(..).filter_map(|(_, fd)| fd).collect()
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        self.sockets.drain(..).filter_map(|(_, fd)| fd).for_each(reset);
    }
}
