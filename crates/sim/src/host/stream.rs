//! The transfer of bytes by a simulated stream socket.

use super::{State, TcpSocket, UNLIMITED};
use brodo_core::host::{HostError, Readiness};
use std::io::{IoSlice, IoSliceMut};

impl TcpSocket {
    /// Readiness that a new registration reports.
    pub(super) fn registered(&self) -> Readiness {
        match self.state {
            State::Connecting => Readiness::default(),
            State::Failed(_) => {
                Readiness { readable: true, writable: true, read_closed: true, urgent: false, error: true }
            }
            State::Open => Readiness {
                readable: !self.inbox.is_empty() || self.peer_fin || self.dead,
                writable: self.space > 0 || self.dead,
                read_closed: self.peer_fin || self.dead,
                urgent: self.mark.is_some(),
                error: self.error.is_some(),
            },
        }
    }

    pub(super) fn send(&mut self, data: &[IoSlice<'_>], at_most: usize) -> Result<usize, HostError> {
        if let Some(e) = self.error.take() {
            return Err(e);
        }
        if self.dead {
            return Err(HostError::Reset);
        }
        let mut room = self.space.min(at_most);
        if room == 0 {
            return Err(HostError::WouldBlock);
        }
        let before = self.outbox.len();
        for piece in data {
            let n = room.min(piece.len());
            self.outbox.extend(&piece[..n]);
            room -= n;
        }
        let taken = self.outbox.len() - before;
        if self.space != UNLIMITED {
            self.space -= taken;
        }
        self.written += taken as u64;
        Ok(taken)
    }

    pub(super) fn recv(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, HostError> {
        if self.inbox.is_empty() {
            if self.peer_fin {
                return Ok(0);
            }
            return match self.error.take() {
                Some(e) => Err(e),
                None if self.dead => Ok(0),
                None => Err(HostError::WouldBlock),
            };
        }
        // Linux's tcp_recvmsg: a read that begins before the mark ends there, in line or not.
        let end = self.mark.filter(|&mark| mark > 0).unwrap_or(self.inbox.len());
        let mut given = 0;
        for piece in into {
            let n = piece.len().min(end - given);
            let (front, back) = self.inbox.as_slices();
            let first = n.min(front.len());
            piece[..first].copy_from_slice(&front[..first]);
            piece[first..n].copy_from_slice(&back[..n - first]);
            self.inbox.drain(..n);
            given += n;
        }
        self.mark = self.mark.and_then(|mark| mark.checked_sub(given));
        self.read += given as u64;
        Ok(given)
    }
}
