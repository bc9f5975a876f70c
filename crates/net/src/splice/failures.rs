//! Sockets of a splice that fail: what is still passed on, and how the connection ends.
//!
//! A peer that has ended its stream may count on the delivery of every byte that was acknowledged, so a reset
//! behind its FIN discards none of them: a program that has exited answers late data so. The direction toward
//! it is over, and the one that leads from it goes on, to its FIN. The connection ends when the other peer
//! has acknowledged that, FIN and all:
//!
//! | reset behind its FIN | end |
//! |---|---|
//! | the guest's | the host's socket is closed; the kernel answers further data with a reset |
//! | the host's peer's | the guest is reset, as it is over frames |
//!
//! No socket is closed before that: with unread bytes, or if further ones come, its close would discard what
//! its peer has not acknowledged. No wait is needed: the acknowledgement of a FIN is an event of a socket
//! (Linux: `tcp_rcv_state_process` wakes a close that lingers).
//!
//! *Failed behind the FIN, or before.* Either leaves a socket in the state CLOSE with its unread bytes, and
//! an error, once. The error of a reset in CLOSE-WAIT is EPIPE; other errors (time-outs) come long after the
//! event of the FIN (EPOLLRDHUP without EPOLLHUP). A socket that is shut down for writing may fail in
//! LAST-ACK or CLOSING, which no error tells from FIN-WAIT; nothing is written to it, so its error is left to
//! be met by a read: behind a FIN a read gives 0, else the error.
//!
//! A failure that is not behind a FIN resets both sides at once. Before the destination is connected the
//! accepted socket may go elsewhere instead.
//!
//! System calls: getsockopt `SO_ERROR`, ioctl `SIOCOUTQ`.

use super::{End, Next, Pair, Splices, reset};
use crate::sys;
use brodo_core::flow::FlowId;
use brodo_core::flow::end::EndCause;
use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt;

/// An accepted socket whose destination could not be connected.
#[derive(Debug)]
pub(crate) struct Unjoined {
    /// Its flow, which has ended.
    pub(crate) flow: FlowId,
    /// The forward by which it goes elsewhere.
    pub(crate) forward: u32,
    pub(crate) accepted: OwnedFd,
}

impl Splices {
    /// Removes a pair that could not be connected, and keeps its accepted socket.
    pub(super) fn give_back(&mut self, epoll: BorrowedFd<'_>, slot: u32, forward: u32) {
        if let Some((flow, [accepted, _])) = self.dismantle(epoll, slot) {
            self.refused.push(Unjoined { flow, forward, accepted });
        }
    }

    /// Accepted sockets that were given back since the last call.
    pub(crate) fn take_refused(&mut self) -> Vec<Unjoined> {
        std::mem::take(&mut self.refused)
    }

    /// Resets one that goes nowhere else.
    pub(crate) fn reset_unjoined(&mut self, accepted: OwnedFd) {
        self.counters.reset += 1;
        reset(accepted);
    }
}

impl End {
    /// Notes what an event tells.
    pub(super) fn note(&mut self, flags: EventFlags) {
        let is_over = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        self.readable |= is_over || flags.intersects(EventFlags::IN | EventFlags::RDHUP);
        self.writable |= is_over || flags.contains(EventFlags::OUT);
        self.urgent |= flags.contains(EventFlags::PRI);
        self.failed |= flags.contains(EventFlags::ERR);
        self.peer_ended |= !is_over && flags.contains(EventFlags::RDHUP);
    }

    /// Notes an error, which the kernel gives once.
    pub(super) fn fail(&mut self, errno: Errno) {
        // Behind any error further ones of writes are EPIPE.
        self.peer_ended |= errno == Errno::PIPE && !self.broken;
        self.broken = true;
    }

    /// Failed behind its peer's FIN: it takes nothing more, and is read to its end.
    pub(super) fn is_gone(&self) -> bool {
        self.broken && self.peer_ended
    }

    /// Failed before its peer's FIN: a read behind the last byte gives 0, and that is no end of the stream.
    pub(super) fn is_cut_off(&self) -> bool {
        self.broken && !self.peer_ended
    }

    /// Whether its peer has acknowledged all that was written, and the FIN if there is one.
    fn is_acknowledged(&self) -> bool {
        sys::unacknowledged(self.fd.as_fd()) == Ok(0)
    }
}

impl Pair {
    /// State after a turn whose directions gave `next`.
    pub(super) fn conclude(&mut self, next: Next) -> Next {
        for number in [0, 1] {
            let is_left_to_read = self.ways[1 - number].fin_sent;
            let end = &mut self.ends[number];
            if end.failed && !is_left_to_read {
                end.failed = false;
                match sockopt::socket_error(&end.fd) {
                    Ok(Ok(())) => {}
                    Ok(Err(errno)) | Err(errno) => end.fail(errno),
                }
            }
            if end.is_cut_off() {
                return Next::Failed(self.reset_by(number));
            }
        }
        if self.ways.iter().all(|way| way.fin_sent) {
            return Next::Done;
        }
        let Some(gone) = self.ends.iter().position(End::is_gone) else { return next };
        let other = &self.ends[1 - gone];
        if other.failed || other.broken {
            return Next::Failed(self.reset_by(1 - gone));
        }
        if !self.ways[gone].fin_sent || !other.is_acknowledged() {
            return next;
        }
        match self.reset_by(gone) {
            EndCause::ResetByGuest => Next::Done,
            cause => Next::Failed(cause),
        }
    }
}
