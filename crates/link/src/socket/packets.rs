//! A frame per packet: SOCK_SEQPACKET and SOCK_DGRAM.
//!
//! The socket is connected: EAGAIN of a datagram socket is only then followed by an event for room. A monitor
//! that is gone shows as the end of a SOCK_SEQPACKET, and as ECONNREFUSED or ECONNRESET of datagrams. An
//! empty packet is taken for the end, because the former reads as one. vfkit's first datagram, `VFKT`, is too
//! short for a frame, and the stack counts it as such.

use super::{FRAME_MIN, Lost, RX_META, SKIPPED_MAX, Unsent, wait_after, write};
use crate::Taken;
use crate::batch::Batch;
use crate::slices::gathered;
use brodo_core::link::{FRAME_MAX, TxFrame};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketType, recv, sockopt};
use std::io::IoSlice;

/// A connection with a frame per packet.
#[derive(Debug)]
pub(super) struct Packets {
    socket: OwnedFd,
    is_connection: bool,
}

impl Packets {
    pub(super) fn new(socket: OwnedFd) -> Self {
        let is_connection = sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET);
        Self { socket, is_connection }
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether the socket is of one monitor, and not that of datagrams, on which the next one is awaited.
    pub(super) fn is_connection(&self) -> bool {
        self.is_connection
    }

    pub(super) fn take(&self, batch: &mut Batch<'_>, oversized: &mut u64) -> Result<Taken, Lost> {
        let mut skipped = 0;
        while skipped < SKIPPED_MAX
            && let Some(room) = batch.room()
        {
            // With TRUNC the length is the packet's own, also of one that is longer than the room.
            match recv(&self.socket, &mut room[..FRAME_MAX], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok((_, 0)) => return Err(Lost::Closed),
                Ok((_, len)) if len > FRAME_MAX => {
                    *oversized += 1;
                    skipped += 1;
                }
                Ok((_, len)) => batch.push(RX_META, len),
                Err(Errno::AGAIN) => return Ok(Taken::All),
                Err(Errno::INTR) => {}
                Err(_) => return Err(Lost::Closed),
            }
        }
        Ok(Taken::Some)
    }

    pub(super) fn send(&self, frame: &TxFrame<'_>) -> Result<(), Unsent> {
        let padding = [0; FRAME_MIN];
        let missing = FRAME_MIN.saturating_sub(frame.len());
        let front = [IoSlice::new(frame.headers)];
        let sent = if missing == 0 {
            gathered(&front, frame.payload, |slices| write(&self.socket, slices))
        } else {
            let padded = [frame.payload, &[IoSlice::new(&padding[..missing])]].concat();
            gathered(&front, &padded, |slices| write(&self.socket, slices))
        };
        match sent {
            // A packet goes whole.
            Ok(_) => Ok(()),
            Err(Errno::MSGSIZE) => Err(Unsent::Refused),
            Err(errno) => Err(wait_after(errno).map_or(Unsent::Closed, Unsent::Full)),
        }
    }
}
